package main

import (
	"fmt"
	"path/filepath"

	"github.com/shardwell/shardwell/e2e/cluster"
	"github.com/shardwell/shardwell/e2e/dataset"
)

// randomReads is how many 4 KiB reads each of 8 threads does a round.
const randomReads = 40_000

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

// warmRounds alternates the places; round 0 warms up and does not count.
func (b *bench) warmRounds(places []*place, size int64) error {
	for round := range b.rounds + 1 {
		for i := range places {
			p := places[(i+round)%len(places)]
			d, err := readFile(p.path, size)
			if err != nil {
				return err
			}
			ops, err := randomRead(p.path, size, randomReads, uint64(round))
			if err != nil {
				return err
			}
			if round > 0 {
				p.seq = append(p.seq, rate(size, d))
				p.rand = append(p.rand, ops)
			}
		}
	}
	return nil
}

func (b *bench) warmEmit(places []*place, opens int64) {
	mount, native, bare, buffered := places[0], places[1], places[2], places[3]
	seq := map[string]any{"passthroughOpens": opens}
	rnd := map[string]any{}
	for _, p := range places {
		seq[p.name+"MiBps"] = p.seq
		rnd[p.name+"ReadsPerSecond"] = p.rand
	}
	what := fmt.Sprintf("%d MiB, page cache warm", b.mib)
	b.emit("warm_seq_vs_native", ratios(mount.seq, native.seq), seq, "1 MiB sequential reads, mount / cache file itself, %s; reach 0.90", what)
	b.emit("warm_vs_bare_passthrough", ratios(mount.seq, bare.seq), seq, "the same / bare go-fuse passthrough over the cache file; reach 0.97")
	b.emit("warm_seq_buffered_vs_native", ratios(buffered.seq, native.seq), seq, "the same without passthrough (verify-reads always); not judged")
	b.emit("warm_rand4k_vs_native", ratios(mount.rand, native.rand), rnd, "4 KiB random reads, 8 threads, %s; reach 0.88", what)
	b.emit("warm_rand4k_vs_bare_passthrough", ratios(mount.rand, bare.rand), rnd, "the same / bare passthrough; not judged")
	b.emit("passthrough_opens", []float64{float64(opens)}, seq, "how much the counter rose; must be at least the opens of the mount")
}
