package main

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shardwell/shardwell/e2e/cage"
	"github.com/shardwell/shardwell/e2e/cluster"
	"github.com/shardwell/shardwell/e2e/dataset"
	"github.com/shardwell/shardwell/e2e/faulty"
	"github.com/shardwell/shardwell/e2e/origin"
)

// What readers do while their disk fails.
const (
	faultReaders     = 32
	faultObjects     = 48
	faultObjectBytes = 2 << 20
	faultPhase       = 5 * time.Second
	faultMemory      = "96Mi" // so that the memory tier has less than the dataset: readers need the disk
	faultWarmUp      = 3 * time.Second
)

// faultPhases are the ways in which the disk fails, each beginning with one that is well.
var faultPhases = []struct {
	mode  string
	every int
}{
	{faulty.EIO, 997}, {faulty.EIO, 7}, {faulty.EIO, 1}, {faulty.ENOSPC, 5}, {faulty.ENOSPC, 1}, {faulty.EDQUOT, 3},
	{faulty.Hang, 997}, {faulty.Hang, 31}, {faulty.Hang, 1},
}

// diskFaults counts the errors of readers whose node has its cache on a disk that fails. Every read
// passes the daemon: the kernel takes no file of this kind of file system for passthrough,
// so what a failing disk does to passthrough reads is not measured here.
func (b *bench) diskFaults() error {
	m := origin.NewMemory()
	var data [faultObjects][]byte
	for i := range data {
		data[i] = dataset.Random{Seed: seed + uint64(i), Size: faultObjectBytes}.Bytes()
		m.Put(fmt.Sprintf("f/%03d", i), data[i])
	}
	opts := cluster.Options{Nodes: 1, Origin: origin.Options{Store: m}, CacheSize: "1Gi",
		Flags: []string{"--memory", faultMemory, "--disk-timeout", "1s", "--verify-reads", "always"}}
	return with(opts, func(c *cluster.Cluster) (err error) {
		n := c.Nodes[0]
		if err := n.Stop(); err != nil {
			return err
		}
		root := n.CacheDir + "-real"
		if err := os.MkdirAll(root, 0o700); err != nil {
			return err
		}
		disk, err := faulty.Start(n.Host, root, n.CacheDir, filepath.Join(c.Cage.Dir, "faults"))
		if err != nil {
			return err
		}
		defer func() {
			_ = disk.Set(faulty.None, 0)
			_ = n.Kill()
			_ = cage.Detach(n.CacheDir)
		}()
		r := faultRun{data: data[:]}
		var errs []float64
		var phases []any
		for _, p := range faultPhases {
			seen, err := r.phase(n, disk, p.mode, p.every)
			if err != nil {
				return fmt.Errorf("%s every %d: %w", p.mode, p.every, err)
			}
			errs = append(errs, float64(seen.ReaderErrors))
			phases = append(phases, seen)
		}
		if r.wrong.Load() > 0 {
			return fmt.Errorf("%d reads gave other bytes", r.wrong.Load())
		}
		evidence := map[string]any{"phases": phases, "wrongReads": r.wrong.Load(), "firstError": r.first.Load()}
		b.emit("disk_fault_reader_errors", errs, evidence, "errors of %d readers, per phase, while every k-th call of the cache's file system fails or hangs (--disk-timeout 1s, --verify-reads always: passthrough is not part of this); each phase begins with the disk in use and is an error if no call failed; reach 0", faultReaders)
		return nil
	})
}

// faultSeen is what one phase showed.
type faultSeen struct {
	Mode            string `json:"mode"`
	Every           int    `json:"every"`
	Reads           int64  `json:"reads"`
	ReaderErrors    int64  `json:"readerErrors"`
	FailedDiskCalls int64  `json:"failedDiskCalls"`
	DiskBefore      int64  `json:"bytesFromDiskWellBefore"` // that readers got while the disk was well,
	DiskDuring      int64  `json:"bytesFromDisk"`           // and while it failed
	OriginDuring    int64  `json:"bytesFromOrigin"`
	Passthrough     int64  `json:"passthroughOpens"`
	StateAfter      string `json:"stateAfter"`
	LongestMS       int64  `json:"longestReadMS"`
}

// phase starts the node anew, so that its disk counts as well, reads until the cache is in
// use, and then lets the disk fail. It is an error when no call failed, or when the disk was
// not in use before: then the phase would have shown nothing.
func (r *faultRun) phase(n *cluster.Node, disk *faulty.Disk, mode string, every int) (seen faultSeen, err error) {
	if err := n.Start(); err != nil {
		return seen, err
	}
	if r.mnt, err = n.Mount("s3://" + bucket + "/f"); err != nil {
		return seen, err
	}
	r.run(faultWarmUp)
	well, err := n.Status()
	if err != nil {
		return seen, err
	}
	if well.Disks[0].State != "normal" || well.Bytes.Disk+well.Bytes.PassthroughOpens == 0 {
		return seen, fmt.Errorf("before: the disk is %s and gave %d bytes and %d files", well.Disks[0].State, well.Bytes.Disk, well.Bytes.PassthroughOpens)
	}
	r.reads.Store(0)
	r.failed.Store(0)
	r.longest.Store(0)
	_, before := disk.Counts()
	if err := disk.Set(mode, every); err != nil {
		return seen, err
	}
	r.run(faultPhase)
	_, after := disk.Counts()
	ill, err := n.Status()
	if err != nil {
		return seen, err
	}
	if err := disk.Set(faulty.None, 0); err != nil {
		return seen, err
	}
	seen = faultSeen{Mode: mode, Every: every, Reads: r.reads.Load(), ReaderErrors: r.failed.Load(), FailedDiskCalls: after - before,
		DiskBefore: well.Bytes.Disk, DiskDuring: ill.Bytes.Disk - well.Bytes.Disk, OriginDuring: ill.Bytes.Origin - well.Bytes.Origin,
		Passthrough: ill.Bytes.PassthroughOpens, StateAfter: ill.Disks[0].State, LongestMS: r.longest.Load() / 1e6}
	if seen.FailedDiskCalls <= 0 {
		return seen, fmt.Errorf("no call of the disk failed: %+v", seen)
	}
	if err := until(func() error { // it comes back by itself
		s, err := n.Status()
		if err == nil && s.Disks[0].State == "down" {
			err = errors.New("the disk is down still")
		}
		return err
	}); err != nil {
		return seen, err
	}
	return seen, n.Stop()
}

// faultRun is readers that read whole objects in random order and compare them.
type faultRun struct {
	mnt                  string
	data                 [][]byte
	reads, failed, wrong atomic.Int64
	longest              atomic.Int64 // nanoseconds of one read of an object
	first                atomic.Value // text of the first error
}

func (r *faultRun) run(d time.Duration) {
	end := time.Now().Add(d)
	var wg sync.WaitGroup
	for w := range faultReaders {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(w), uint64(end.UnixNano())))
			for time.Now().Before(end) {
				i := rng.IntN(len(r.data))
				began := time.Now()
				got, err := r.read(i)
				if took := int64(time.Since(began)); took > r.longest.Load() {
					r.longest.Store(took)
				}
				r.reads.Add(1)
				if err != nil {
					r.failed.Add(1)
					r.first.CompareAndSwap(nil, err.Error())
				} else if !bytes.Equal(got, r.data[i]) {
					r.wrong.Add(1)
				}
			}
		})
	}
	wg.Wait()
}

func (r *faultRun) read(i int) ([]byte, error) {
	f, err := os.Open(filepath.Join(r.mnt, fmt.Sprintf("%03d", i)))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
	buf := make([]byte, len(r.data[i]))
	_, err = f.ReadAt(buf, 0)
	return buf, err
}
