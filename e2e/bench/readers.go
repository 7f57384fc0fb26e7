package main

import (
	"fmt"
	"path/filepath"

	"github.com/shardwell/shardwell/e2e/cage"
	"github.com/shardwell/shardwell/e2e/cluster"
	"github.com/shardwell/shardwell/e2e/dataset"
	"github.com/shardwell/shardwell/e2e/origin"
)

// Readers at once, what each reads, and the memory that the node is given.
const (
	readersAtOnce = 64
	readerBytes   = 256 << 20
	nodeMemory    = 512 << 20
)

// readers has 64 cold readers on a node of 512 MiB.
func (b *bench) readers() error {
	var peaks, copies, rates []float64
	var evidence []map[string]int64
	for range b.rounds {
		err := b.readersRound(func(peak, sent, oom int64, mibps float64) {
			peaks = append(peaks, float64(peak)/(1<<20))
			copies = append(copies, float64(sent)/(readersAtOnce*readerBytes))
			rates = append(rates, mibps)
			evidence = append(evidence, map[string]int64{"rssPeak": peak, "originBytes": sent, "oomKills": oom})
		})
		if err != nil {
			return err
		}
	}
	all := map[string]any{"rounds": evidence, "MiBps": rates}
	b.emit("node_rss_mib", peaks, all, "most resident memory of a node with --memory 512Mi (in a memory cgroup of 1 GiB) under %d cold readers of %d MiB; reach at most 512, no kill",
		readersAtOnce, readerBytes>>20)
	b.emit("cold_64_readers_origin_copies", copies, all, "origin bytes / unique bytes of the same; reach 1.00")
	return nil
}

func (b *bench) readersRound(note func(peak, sent, oom int64, mibps float64)) error {
	m := origin.NewMemory()
	for i := range readersAtOnce {
		m.PutReader(fmt.Sprintf("c/%04d", i), dataset.Tiled{Tile: tile(), Shift: int64(i) * 1_000_003, Size: readerBytes}, readerBytes, fmt.Sprintf("%032x", i))
	}
	opts := cluster.Options{Nodes: 1, Origin: origin.Options{Store: m}, Flags: []string{"--memory", "512Mi"}}
	return with(opts, func(c *cluster.Cluster) error {
		n := c.Nodes[0]
		group, err := cage.NewMemoryGroup("bench", 2*nodeMemory)
		if err != nil {
			return err
		}
		defer group.Close()
		if err := group.Add(n.Proc.Pid()); err != nil {
			return err
		}
		mnt, err := n.Mount("s3://" + bucket + "/c")
		if err != nil {
			return err
		}
		c.Origin.Reset()
		d, err := atOnce(readersAtOnce, func(i int) error {
			_, err := readFile(filepath.Join(mnt, fmt.Sprintf("%04d", i)), readerBytes)
			return err
		})
		if err != nil {
			return err
		}
		_, peak, err := n.Proc.Memory()
		if err != nil {
			return err
		}
		note(peak, c.Origin.Requests().Bytes(), group.Kills(), rate(readersAtOnce*readerBytes, d))
		return nil
	})
}
