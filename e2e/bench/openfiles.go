package main

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync/atomic"
	"syscall"

	"github.com/shardwell/shardwell/e2e/cage"
	"github.com/shardwell/shardwell/e2e/cluster"
	"github.com/shardwell/shardwell/e2e/dataset"
	"github.com/shardwell/shardwell/e2e/origin"
)

// Files that are open at once, how large each is, and what is read of them.
const (
	openFiles       = 500
	openFileBytes   = 2 << 30
	openHeadBytes   = 4 << 20
	openRandomBytes = 64 << 10
	openRandomReads = 8 // of each
	openReaders     = 32
)

// openfiles has a node with --memory 512Mi hold many large files open.
func (b *bench) openfiles() error {
	var peaks []float64
	var evidence []map[string]any
	for range min(b.rounds, openRounds) {
		m := origin.NewMemory()
		data := make([]dataset.Tiled, openFiles)
		for i := range data {
			data[i] = dataset.Tiled{Tile: tile(), Shift: int64(i) * 1_000_003, Size: openFileBytes}
			m.PutReader(fmt.Sprintf("o/%04d", i), data[i], openFileBytes, fmt.Sprintf("%032x", i))
		}
		opts := cluster.Options{Nodes: 1, Origin: origin.Options{Store: m}, CacheSize: "6Gi", Flags: []string{"--memory", "512Mi"}}
		err := with(opts, func(c *cluster.Cluster) error {
			n := c.Nodes[0]
			group, err := cage.NewMemoryGroup("bench", 2*nodeMemory)
			if err != nil {
				return err
			}
			defer group.Close()
			if err := group.Add(n.Proc.Pid()); err != nil {
				return err
			}
			mnt, err := n.Mount("s3://" + bucket + "/o")
			if err != nil {
				return err
			}
			read, err := readOpenFiles(mnt, data)
			if err != nil {
				return err
			}
			_, peak, err := n.Proc.Memory()
			if err != nil {
				return err
			}
			peaks = append(peaks, float64(peak)/(1<<20))
			evidence = append(evidence, map[string]any{"rssPeak": peak, "bytesRead": read, "originBytes": c.Origin.Requests().Bytes(), "oomKills": group.Kills()})
			if group.Kills() > 0 {
				return fmt.Errorf("the node was killed for its memory")
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	b.emit("arena_rss_mib", peaks, map[string]any{"rounds": evidence}, "most resident memory of a node with --memory 512Mi (in a memory cgroup of 1 GiB) that has %d files of %d GiB open at once, of each %d MiB from its start and then %d times %d KiB at random, all compared; reach at most 512, no kill",
		openFiles, openFileBytes>>30, openHeadBytes>>20, openRandomReads, openRandomBytes>>10)
	return nil
}

// openRounds bounds the rounds: each moves 3 GiB.
const openRounds = 3

// readOpenFiles opens all files, and reads and compares while all are open.
func readOpenFiles(mnt string, data []dataset.Tiled) (int64, error) {
	fds := make([]int, 0, len(data))
	defer func() {
		for _, fd := range fds {
			syscall.Close(fd)
		}
	}()
	for i := range data {
		fd, err := open(filepath.Join(mnt, fmt.Sprintf("%04d", i)))
		if err != nil {
			return 0, err
		}
		fds = append(fds, fd)
	}
	var next, sum atomic.Int64
	compare := func(i int, got, want []byte, off int64) error {
		for n := 0; n < len(got); {
			m, err := syscall.Pread(fds[i], got[n:], off+int64(n))
			if err == syscall.EINTR {
				continue
			}
			if err != nil || m == 0 {
				return fmt.Errorf("file %d at %d: %d bytes, %v", i, off, n, err)
			}
			n += m
		}
		if _, err := data[i].ReadAt(want, off); err != nil {
			return err
		}
		if !bytes.Equal(got, want) {
			return fmt.Errorf("file %d at %d: other bytes", i, off)
		}
		sum.Add(int64(len(got)))
		return nil
	}
	for _, random := range []bool{false, true} {
		next.Store(0)
		if _, err := atOnce(openReaders, func(w int) error {
			got, want := make([]byte, 1<<20), make([]byte, 1<<20)
			rng := rand.New(rand.NewPCG(seed, uint64(w)))
			for {
				i := int(next.Add(1)) - 1
				if i >= len(data) {
					return nil
				}
				for off := int64(0); !random && off < openHeadBytes; off += int64(len(got)) {
					if err := compare(i, got, want, off); err != nil {
						return err
					}
				}
				for range openRandomReads {
					if !random {
						break
					}
					if err := compare(i, got[:openRandomBytes], want[:openRandomBytes], rng.Int64N(openFileBytes-openRandomBytes)); err != nil {
						return err
					}
				}
			}
		}); err != nil {
			return sum.Load(), err
		}
	}
	return sum.Load(), nil
}
