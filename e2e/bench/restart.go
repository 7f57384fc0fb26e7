package main

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shardwell/shardwell/e2e/cluster"
	"github.com/shardwell/shardwell/e2e/dataset"
)

// Sidecars in the cache directories that nodes start on, and the object that is really cached.
var restartSidecars = []int{1_000, 10_000, 100_000}

const restartObjectBytes = 1 << 20

// restart measures how long a node takes from its start until a reader has its first bytes, on
// directories of different sizes that were left by a kill: nothing of them was counted.
func (b *bench) restart() error {
	// A background check would find that the clones are not what their names say.
	opts := cluster.Options{Nodes: 1, Flags: []string{"--scrub-rate", "0"}}
	return with(opts, func(c *cluster.Cluster) error {
		n := c.Nodes[0]
		data := dataset.Random{Seed: seed, Size: restartObjectBytes}
		if err := put(c, "d/one", data.Reader(), restartObjectBytes); err != nil {
			return err
		}
		if err := restartRead(n, data); err != nil {
			return err
		}
		if err := n.Stop(); err != nil {
			return err
		}
		have := 1
		growth := make(map[string]any)
		var samples []float64
		for _, count := range restartSidecars {
			if err := cloneSidecars(n.CacheDir, count-have); err != nil {
				return err
			}
			have = count
			samples = nil
			var reads, rss []float64
			for range b.rounds {
				c.Origin.Reset()
				began := time.Now()
				if err := n.Start(); err != nil {
					return err
				}
				started := time.Since(began)
				if err := restartRead(n, data); err != nil {
					return err
				}
				samples = append(samples, float64(time.Since(began).Microseconds())/1000)
				reads = append(reads, float64(started.Microseconds())/1000)
				if got := c.Origin.Requests().Bytes(); got > 0 {
					return fmt.Errorf("%d sidecars: the first read took %d bytes from the origin: the cache was not found", count, got)
				}
				_, peak, err := n.Proc.Memory()
				if err != nil {
					return err
				}
				rss = append(rss, float64(peak)/(1<<20))
				if err := n.Kill(); err != nil {
					return err
				}
			}
			growth[fmt.Sprint(count)] = map[string]any{"firstReadMS": samples, "untilItAnswersMS": reads, "peakMiB": rss}
		}
		b.emit("restart_ms", samples, growth, "from the start of the process to the first MiB read through a mount, after kill -9, with %d sidecars in the cache directory (clones of one; the page cache is warm); evidence: growth; reach 2000", have)
		return nil
	})
}

// restartRead mounts and reads the one object.
func restartRead(n *cluster.Node, data dataset.Random) error {
	mnt, err := n.Mount("s3://" + bucket + "/d")
	if err != nil {
		return err
	}
	return dataset.CompareFile(filepath.Join(mnt, "one"), data)
}

// cloneSidecars copies the one object in a cache directory under other names: what a start and a
// count look at.
func cloneSidecars(dir string, count int) error {
	metas, err := filepath.Glob(filepath.Join(dir, "objects", "*", "*.meta"))
	if err != nil || len(metas) == 0 {
		return fmt.Errorf("no sidecar in %s: %v", dir, err)
	}
	meta, err := os.ReadFile(metas[0])
	if err != nil {
		return err
	}
	for range count {
		var id [16]byte
		_, _ = rand.Read(id[:]) // never fails
		name := hex.EncodeToString(id[:])
		folder := filepath.Join(dir, "objects", name[:2])
		if err := os.MkdirAll(folder, 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(folder, name+".meta"), meta, 0o700); err != nil {
			return err
		}
		f, err := os.Create(filepath.Join(folder, name+".data"))
		if err != nil {
			return err
		}
		err = f.Truncate(restartObjectBytes)
		if closeErr := f.Close(); err == nil {
			err = closeErr
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// verifyBytes is what a cache holds that is verified.
const (
	verifyObjects     = 32
	verifyObjectBytes = 32 << 20
	verifyReadBytes   = 256 << 10 // of the baseline's reads: those of verify are blocks of this size
)

// verify measures `shardwell verify` against reading the same files, both past the page cache.
func (b *bench) verify() error {
	return with(cluster.Options{Nodes: 1, Flags: []string{"--scrub-rate", "0"}}, func(c *cluster.Cluster) error {
		n := c.Nodes[0]
		for i := range verifyObjects {
			data := dataset.Random{Seed: seed + uint64(i), Size: verifyObjectBytes}
			if err := put(c, fmt.Sprintf("v/%03d", i), data.Reader(), verifyObjectBytes); err != nil {
				return err
			}
		}
		mnt, err := n.Mount("s3://" + bucket + "/v")
		if err != nil {
			return err
		}
		if _, err := atOnce(4, func(w int) error {
			for i := w; i < verifyObjects; i += 4 {
				if _, err := readFile(filepath.Join(mnt, fmt.Sprintf("%03d", i)), verifyObjectBytes); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			return err
		}
		if err := n.Stop(); err != nil {
			return err
		}
		const total = verifyObjects * verifyObjectBytes
		if err := exec.Command("sync", "-f", n.CacheDir).Run(); err != nil { // clean pages can be dropped
			return err
		}
		var verified, read []float64
		var fromDevice []map[string]int64
		for round := range b.rounds {
			device := make(map[string]int64)
			for _, half := range [2]int{round % 2, 1 - round%2} {
				began, before := time.Now(), blocksRead(syscall.RUSAGE_SELF)
				if half == 0 {
					d, err := readDataFiles(n.CacheDir, total)
					if err != nil {
						return err
					}
					read = append(read, rate(total, d)/1024)
					device["read"] = blocksRead(syscall.RUSAGE_SELF) - before
					continue
				}
				cmd := exec.Command(c.Tools.Shardwell, "verify", n.CacheDir)
				if out, err := cmd.CombinedOutput(); err != nil {
					return fmt.Errorf("verify: %w: %s", err, out)
				}
				verified = append(verified, rate(total, time.Since(began))/1024)
				device["verify"] = cmd.ProcessState.SysUsage().(*syscall.Rusage).Inblock * 512
			}
			fromDevice = append(fromDevice, device)
			for what, got := range device {
				if got < total*9/10 {
					return fmt.Errorf("%s took %d bytes of %d from the device: the page cache gave the rest", what, got, total)
				}
			}
		}
		b.emit("verify_gib_s", verified, map[string]any{"verifyGiBps": verified, "readGiBps": read, "ratio": ratios(verified, read), "ratioMedian": median(ratios(verified, read)), "bytesFromDevice": fromDevice},
			"shardwell verify of %d MiB in %d objects, start of the process included, beside reading the same data files in blocks of %d KiB, in turns, both past the page cache (bytes from the device are counted); reach 0.7 of it", total>>20, verifyObjects, verifyReadBytes>>10)
		return nil
	})
}

// blocksRead returns the bytes that a process has had from devices.
func blocksRead(who int) int64 {
	var u syscall.Rusage
	_ = syscall.Getrusage(who, &u) // fails for a bad pointer only
	return u.Inblock * 512
}

// readDataFiles reads the data files of a cache directory after it has dropped their pages.
func readDataFiles(dir string, want int64) (time.Duration, error) {
	names, err := filepath.Glob(filepath.Join(dir, "objects", "*", "*.data"))
	if err != nil {
		return 0, err
	}
	began := time.Now()
	var sum int64
	buf := make([]byte, verifyReadBytes)
	for _, name := range names {
		f, err := os.Open(name)
		if err != nil {
			return 0, err
		}
		_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
		n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{f}, buf)
		_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
		f.Close()
		if err != nil {
			return 0, err
		}
		sum += n
	}
	if sum != want {
		return 0, fmt.Errorf("%d bytes in data files, want %d", sum, want)
	}
	return time.Since(began), nil
}
