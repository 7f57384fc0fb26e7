package main

import (
	"bytes"
	"fmt"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shardwell/shardwell/e2e/cluster"
	"github.com/shardwell/shardwell/e2e/dataset"
)

// A cluster of three small caches, and datasets that are so many times larger. Objects are
// large beside what a sidecar takes, and so many that owners get about equal shares.
const (
	epochNodes       = 3
	epochCacheBytes  = 64 << 20 // of each node, on the average
	epochObjectBytes = 1 << 20
	epochRounds      = 3 // after the first
	epochReaders     = 4 // of each node

	// The memory tier holds what the disk does not admit. By default it is a part of the
	// machine's memory and would hold these datasets whole: hits of 1.00 that say nothing of
	// the disks. With so little it has 4 MiB, and the run fails when more than this part of
	// what was read came from there, or when what was served does not add up to it.
	epochMemory         = "64Mi"
	epochMaxMemoryShare = 0.01
	epochMaxUnaccounted = 0.01
)

// Parts of epochCacheBytes that the nodes have.
var (
	equalCaches   = []float64{1, 1, 1}
	unequalCaches = []float64{0.5, 1, 1.5}
)

// epochs measures the hit ratio of epochs over more than the cluster holds, at the origin.
func (b *bench) epochs() error {
	for _, e := range []struct {
		measure  string
		capacity float64 // over dataset
		fixed    bool
		caches   []float64
	}{
		{"epoch_hit_ratio_half", 0.5, false, equalCaches},
		{"epoch_hit_ratio_quarter", 0.25, false, equalCaches},
		{"epoch_hit_ratio_three_quarters", 0.75, false, equalCaches},
		{"epoch_hit_ratio_fixed_order", 0.5, true, equalCaches},
		{"epoch_hit_ratio_unequal_half", 0.5, false, unequalCaches},
		{"epoch_hit_ratio_unequal_three_quarters", 0.75, false, unequalCaches},
	} {
		if err := b.epoch(e.measure, e.capacity, e.fixed, e.caches); err != nil {
			return fmt.Errorf("%s: %w", e.measure, err)
		}
	}
	return nil
}

func (b *bench) epoch(measure string, capacity float64, fixed bool, caches []float64) error {
	opts := cluster.Options{Nodes: epochNodes, Flags: []string{"--memory", epochMemory}}
	var sizes []int64
	for _, part := range caches {
		size := int64(part * epochCacheBytes)
		sizes, opts.CacheSizes = append(sizes, size), append(opts.CacheSizes, fmt.Sprint(size))
	}
	return with(opts, func(c *cluster.Cluster) error {
		objects := int(epochNodes * epochCacheBytes / capacity / epochObjectBytes)
		r := epochRun{c: c, sizes: sizes, most: make([]atomic.Int64, len(sizes)), total: int64(objects) * epochObjectBytes}
		for i := range objects {
			data := dataset.Random{Seed: seed + uint64(i), Size: epochObjectBytes}
			r.data = append(r.data, data)
			if err := put(c, fmt.Sprintf("d/%05d", i), data.Reader(), epochObjectBytes); err != nil {
				return err
			}
		}
		for _, n := range c.Nodes {
			mnt, err := n.Mount("s3://" + bucket + "/d")
			if err != nil {
				return err
			}
			r.mounts = append(r.mounts, mnt)
		}
		stop := r.watch()
		defer stop()
		order := rand.New(rand.NewPCG(seed, 1)).Perm(objects)
		var hits []float64
		var origin, again, held []int64
		for round := range 1 + epochRounds {
			if !fixed {
				order = rand.New(rand.NewPCG(seed, uint64(round))).Perm(objects)
			}
			c.Origin.Reset()
			if err := r.read(order); err != nil {
				return err
			}
			requests := c.Origin.Requests()
			got := requests.Bytes()
			origin, again = append(origin, got), append(again, requests.Again())
			bytes, err := r.held()
			if err != nil {
				return err
			}
			held = append(held, bytes)
			if round > 0 {
				hits = append(hits, 1-float64(got)/float64(r.total))
			}
		}
		stop()
		served, err := c.Bytes()
		if err != nil {
			return err
		}
		evidence := map[string]any{
			"servedToReaders": map[string]int64{"origin": served.Origin, "peer": served.Peer, "disk": served.Disk, "memory": served.Memory},
			"readByReaders":   r.total * (1 + epochRounds), "passthroughOpens": served.PassthroughOpens,
			"originBytes": origin, "ofThemSentBefore": again, "heldAfter": held, "datasetBytes": r.total, "cacheBytes": epochNodes * epochCacheBytes,
			"mostUsedBytes": r.mostUsed(), "budgetBytes": sizes, "looks": r.looks.Load(),
		}
		b.emit(measure, hits, evidence, "hits of epochs 2 to %d, counted at the origin: %d objects of %d KiB, %d nodes of %d MiB on the average, %v of it each (capacity %.2f of the dataset), each object read once an epoch; reach %.2f ± 0.02, blocks used never over the budget",
			1+epochRounds, objects, epochObjectBytes>>10, epochNodes, epochCacheBytes>>20, caches, capacity, capacity)
		all := float64(r.total * (1 + epochRounds))
		passed := served.PassthroughOpens * epochObjectBytes // read by the kernel from cache files, unseen by the nodes
		seen := served.Origin + served.Peer + served.Disk + served.Memory + passed
		switch {
		case float64(served.Memory) > epochMaxMemoryShare*all:
			return fmt.Errorf("%d bytes of %.0f came from memory: this is no measure of the disks", served.Memory, all)
		case math.Abs(float64(seen)-all) > epochMaxUnaccounted*all:
			return fmt.Errorf("%d bytes of %.0f are accounted for: something else served the rest", seen, all)
		}
		for i, used := range r.mostUsed() {
			if used > sizes[i] {
				return fmt.Errorf("a cache directory took %d bytes of %d", used, sizes[i])
			}
		}
		return nil
	})
}

// epochRun is one cluster with its dataset.
type epochRun struct {
	c      *cluster.Cluster
	mounts []string
	data   []dataset.Random
	total  int64
	sizes  []int64        // of the cache directories
	most   []atomic.Int64 // bytes that each was seen to take
	looks  atomic.Int64
}

// held returns how much of the dataset some node has, counted once.
func (r *epochRun) held() (int64, error) {
	s, err := r.c.Nodes[0].Status()
	if err != nil || len(s.Datasets) == 0 {
		return 0, fmt.Errorf("status of the dataset: %w", err)
	}
	return s.Datasets[0].CachedBytes, nil
}

func (r *epochRun) mostUsed() (bytes []int64) {
	for i := range r.most {
		bytes = append(bytes, r.most[i].Load())
	}
	return bytes
}

// read reads each object once, by all nodes together, and compares it.
func (r *epochRun) read(order []int) error {
	var next atomic.Int64
	_, err := atOnce(epochNodes*epochReaders, func(w int) error {
		for {
			i := int(next.Add(1)) - 1
			if i >= len(order) {
				return nil
			}
			if err := r.readOne(r.mounts[w%epochNodes], order[i]); err != nil {
				return err
			}
		}
	})
	return err
}

// readOne reads an object past what the kernel may have of it from before.
func (r *epochRun) readOne(mnt string, i int) error {
	f, err := os.Open(filepath.Join(mnt, fmt.Sprintf("%05d", i)))
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		return err
	}
	got := make([]byte, epochObjectBytes)
	if _, err := f.ReadAt(got, 0); err != nil {
		return err
	}
	if !bytes.Equal(got, r.data[i].Bytes()) {
		return fmt.Errorf("object %d: other bytes", i)
	}
	return unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
}

// watch looks all the while what the cache directories take.
func (r *epochRun) watch() (stop func()) {
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		for {
			for i, n := range r.c.Nodes {
				r.most[i].Store(max(r.most[i].Load(), blocksNow(filepath.Join(n.CacheDir, "objects"))))
			}
			r.looks.Add(1)
			select {
			case <-done:
				return
			case <-tick.C:
			}
		}
	})
	return sync.OnceFunc(func() {
		close(done)
		wg.Wait()
	})
}

// blocksNow is blocksUnder without what a walk sees twice, once under the name that goes and
// once under the one that comes: the least of three walks in a row.
func blocksNow(dir string) int64 { return min(blocksUnder(dir), blocksUnder(dir), blocksUnder(dir)) }

// blocksUnder adds up the bytes that files below a directory really take.
func blocksUnder(dir string) (sum int64) {
	_ = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return nil
		}
		if info, err := e.Info(); err == nil {
			sum += info.Sys().(*syscall.Stat_t).Blocks * 512
		}
		return nil
	})
	return sum
}
