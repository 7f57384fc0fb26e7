package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"syscall"
	"time"

	"github.com/shardwell/shardwell/e2e/cluster"
	"github.com/shardwell/shardwell/e2e/dataset"
)

// randomReads is how many 4 KiB reads each of 8 threads does a round.
const randomReads = 4000

// place is one way to the same file.
type place struct {
	name, path string
	seq        []float64 // MiB/s
	rand       []float64 // reads/s
}

// warm reads a complete file, page cache warm: through the mount, by a bare
// passthrough file system over the cache file, and the cache file itself.
func (b *bench) warm() error {
	size := b.mib << 20
	return with(cluster.Options{Nodes: 1}, func(c *cluster.Cluster) error {
		n := c.Nodes[0]
		if err := put(c, "warm/large", dataset.Random{Seed: seed, Size: size}.Reader(), size); err != nil {
			return err
		}
		uri := "s3://" + bucket + "/warm"
		mnt, err := n.Mount(uri)
		if err != nil {
			return err
		}
		through := filepath.Join(mnt, "large")
		if err := dataset.CompareFile(through, dataset.Random{Seed: seed, Size: size}); err != nil {
			return err
		}
		native, err := n.CacheFile(size)
		if err != nil {
			return err
		}
		bare := filepath.Join(c.Cage.Dir, "bare")
		p, err := startBare(n.Host, filepath.Dir(native), bare)
		if err != nil {
			return err
		}
		checked, err := n.Mount(uri, "--verify-reads", "always") // no passthrough
		if err != nil {
			return err
		}
		places := []*place{
			{name: "mount", path: through}, {name: "native", path: native},
			{name: "bare", path: filepath.Join(bare, filepath.Base(native))},
			{name: "buffered", path: filepath.Join(checked, "large")},
		}
		before, err := n.Status()
		if err != nil {
			return err
		}
		if err := b.warmRounds(places, size); err != nil {
			return err
		}
		after, err := n.Status()
		if err != nil {
			return err
		}
		opens := after.Bytes.PassthroughOpens - before.Bytes.PassthroughOpens
		b.warmEmit(places, opens)
		_, err = p.Stop(untilWait)
		return err
	})
}

// On a machine that others use too, a pass over the whole file is disturbed more often than
// not. So a round reads it by segments of a few milliseconds, less than another process's turn on the
// processors: each segment at all places one after the other, several times, and the
// least disturbed time of a segment counts. All places are treated alike.
const (
	segmentBytes = 64 << 20
	segmentTurns = 4
	randomTurns  = 12 // likewise, of the random reads
)

// warmRounds alternates the places; round 0 warms up and does not count.
func (b *bench) warmRounds(places []*place, size int64) error {
	for round := range b.rounds + 1 {
		took, err := readSegments(places, size, round)
		if err != nil {
			return err
		}
		ops := make([]float64, len(places))
		for turn := range randomTurns {
			for i := range places {
				at := inTurn(i, round+turn, len(places))
				n, err := randomRead(places[at].path, size, randomReads, uint64(round))
				if err != nil {
					return err
				}
				ops[at] = max(ops[at], n)
			}
		}
		for i, p := range places {
			if round > 0 {
				p.seq, p.rand = append(p.seq, rate(size, took[i])), append(p.rand, ops[i])
			}
		}
	}
	return nil
}

// inTurn returns which of n places is the i-th of a turn. The order is turned round every
// other time: most places are the same pages, and who comes behind another of them finds
// them in the processor's cache.
func inTurn(i, turn, n int) int {
	if turn%2 == 1 {
		i = n - 1 - i
	}
	return (i + turn/2) % n
}

// readSegments reads the whole file at each place in 1 MiB reads, in order, and
// returns the sums of the least times of its segments.
func readSegments(places []*place, size int64, round int) ([]time.Duration, error) {
	fds := make([]int, len(places))
	for i, p := range places {
		fd, err := open(p.path)
		if err != nil {
			return nil, err
		}
		defer syscall.Close(fd)
		fds[i] = fd
	}
	took := make([]time.Duration, len(places))
	buf := make([]byte, readBytes)
	for off := int64(0); off < size; off += segmentBytes {
		least := make([]time.Duration, len(places))
		for turn := range segmentTurns {
			for i := range places {
				at := inTurn(i, round+turn, len(places))
				d, err := readRange(fds[at], buf, off, min(size, off+segmentBytes))
				if err != nil {
					return nil, fmt.Errorf("%s: %w", places[at].path, err)
				}
				if turn == 0 || d < least[at] {
					least[at] = d
				}
			}
		}
		for i, d := range least {
			took[i] += d
		}
	}
	return took, nil
}

// readRange reads [off, end) by reads of len(buf).
func readRange(fd int, buf []byte, off, end int64) (time.Duration, error) {
	begin := time.Now()
	for off < end {
		n, err := syscall.Pread(fd, buf[:min(int64(len(buf)), end-off)], off)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil || n == 0 {
			return 0, fmt.Errorf("read at %d: %d bytes, %w", off, n, err)
		}
		off += int64(n)
	}
	return time.Since(begin), nil
}

func (b *bench) warmEmit(places []*place, opens int64) {
	mount, native, bare, buffered := places[0], places[1], places[2], places[3]
	seq := map[string]any{"passthroughOpens": opens}
	rnd := map[string]any{}
	for _, p := range places {
		seq[p.name+"MiBps"] = p.seq
		rnd[p.name+"ReadsPerSecond"] = p.rand
	}
	what := fmt.Sprintf("%d MiB, page cache warm, the least disturbed of several turns", b.mib)
	b.emit("warm_seq_vs_native", ratios(mount.seq, native.seq), seq, "1 MiB sequential reads, mount / cache file itself, %s; reach 0.90", what)
	b.emit("warm_vs_bare_passthrough", ratios(mount.seq, bare.seq), seq, "the same / bare go-fuse passthrough over the cache file; reach 0.97")
	b.emit("warm_seq_buffered_vs_native", ratios(buffered.seq, native.seq), seq, "the same without passthrough (verify-reads always); not judged")
	b.emit("warm_rand4k_vs_native", ratios(mount.rand, native.rand), rnd, "4 KiB random reads, 8 threads, %s; reach 0.88", what)
	b.emit("warm_rand4k_vs_bare_passthrough", ratios(mount.rand, bare.rand), rnd, "the same / bare passthrough; not judged")
	b.emit("passthrough_opens", []float64{float64(opens)}, seq, "how much the counter rose; must be at least the opens of the mount")
}
