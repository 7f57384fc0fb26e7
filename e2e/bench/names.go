package main

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/shardwell/shardwell/e2e/cluster"
	"github.com/shardwell/shardwell/e2e/dataset"
	"github.com/shardwell/shardwell/e2e/origin"
)

// Names that are listed and looked at.
const (
	listNames    = 100_000
	openNames    = 10_000
	pageNames    = 1000 // on one page of a listing
	millionNames = 1_000_000
)

// manyNames is a store of n cheap objects under prefix.
func manyNames(prefix string, n int) *origin.Memory {
	m := origin.NewMemory()
	for i := range n {
		m.PutReader(fmt.Sprintf("%s/shard-%08d.tar", prefix, i),
			dataset.Tiled{Tile: tile(), Shift: int64(i), Size: 100_000}, 100_000, fmt.Sprintf("%032x", i))
	}
	return m
}

// names counts the requests of listing and of looking at what was listed.
func (b *bench) names() error {
	m := manyNames("n", listNames)
	var lists, opens []float64
	for range b.rounds {
		err := with(cluster.Options{Nodes: 3, Origin: origin.Options{Store: m}}, func(c *cluster.Cluster) error {
			var dirs []string
			for _, n := range c.Nodes {
				mnt, err := n.Mount("s3://" + bucket + "/n")
				if err != nil {
					return err
				}
				dirs = append(dirs, mnt)
			}
			c.Origin.Reset()
			_, err := atOnce(len(dirs), func(i int) error { return countNames(dirs[i], listNames) })
			if err != nil {
				return err
			}
			lists = append(lists, float64(len(c.Origin.Requests().Of(origin.OpList)))/(listNames/pageNames))
			c.Origin.Reset()
			if err := openEach(dirs[0]); err != nil {
				return err
			}
			opens = append(opens, float64(len(c.Origin.Requests())))
			return nil
		})
		if err != nil {
			return err
		}
	}
	b.emit("list_requests_3_nodes", lists, map[string]any{"names": listNames, "pages": listNames / pageNames},
		"LIST requests of three nodes listing %d names at once / pages; reach 1.05", listNames)
	b.emit("open_stat_10k", opens, map[string]any{"opens": openNames}, "origin requests of open and stat of %d listed names; reach 0", openNames)
	return nil
}

func openEach(dir string) error {
	for i := range openNames {
		path := filepath.Join(dir, fmt.Sprintf("shard-%08d.tar", i*(listNames/openNames)))
		if _, err := os.Stat(path); err != nil {
			return err
		}
		fd, err := open(path)
		if err != nil {
			return err
		}
		_ = syscall.Close(fd)
	}
	return nil
}

// countNames reads a directory piece by piece and keeps nothing.
func countNames(dir string, want int) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	got := 0
	for {
		names, err := f.Readdirnames(4096)
		got += len(names)
		if len(names) == 0 {
			if got != want {
				return fmt.Errorf("%s: %d names (%w), want %d", dir, got, err, want)
			}
			return nil
		}
	}
}

// million measures what a million listed names cost a node in memory.
func (b *bench) million() error {
	m := manyNames("m", millionNames)
	var grown, peaks []float64
	var evidence []map[string]int64
	for range b.rounds {
		err := with(cluster.Options{Nodes: 1, Origin: origin.Options{Store: m}}, func(c *cluster.Cluster) error {
			n := c.Nodes[0]
			mnt, err := n.Mount("s3://" + bucket + "/m")
			if err != nil {
				return err
			}
			before, _, err := n.Proc.Memory()
			if err != nil {
				return err
			}
			if err := countNames(mnt, millionNames); err != nil {
				return err
			}
			after, peak, err := n.Proc.Memory()
			if err != nil {
				return err
			}
			const mib = 1 << 20
			grown = append(grown, float64(after-before)/mib)
			peaks = append(peaks, float64(peak)/mib)
			evidence = append(evidence, map[string]int64{"rssBefore": before, "rssAfter": after, "rssPeak": peak})
			return nil
		})
		if err != nil {
			return err
		}
	}
	b.emit("mib_per_million_keys", grown, evidence,
		"growth of a node's resident memory, mapped files included, by listing a million names; peak in all %.0f MiB; reach at most 300", median(peaks))
	return nil
}
