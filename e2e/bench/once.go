package main

import (
	"fmt"
	"path/filepath"

	"github.com/shardwell/shardwell/e2e/cluster"
	"github.com/shardwell/shardwell/e2e/dataset"
)

// Data that three nodes read at once, per round: shards, and one object that is
// placed chunk by chunk.
const (
	onceShards     = 24
	onceShardBytes = 5 << 20
	onceLargeBytes = 72 << 20
)

// once counts what the origin sends while three nodes read everything at once, and what in the
// epoch after.
func (b *bench) once() error {
	return with(cluster.Options{Nodes: 3, Flags: []string{"--place-whole", "64Mi"}}, func(c *cluster.Cluster) error {
		var copies, second, maxOverMean []float64
		var requests []string
		for round := range b.rounds {
			sizes := make(map[string]int64)
			for i := range onceShards + 1 {
				size := int64(onceShardBytes + i)
				if i == onceShards {
					size = onceLargeBytes
				}
				key := fmt.Sprintf("r%d/%04d", round, i)
				if err := put(c, key, dataset.Random{Seed: seed + uint64(round*1000+i), Size: size}.Reader(), size); err != nil {
					return err
				}
				sizes[filepath.Base(key)] = size
			}
			var mounts []string
			for _, n := range c.Nodes {
				mnt, err := n.Mount(fmt.Sprintf("s3://%s/r%d", bucket, round))
				if err != nil {
					return err
				}
				mounts = append(mounts, mnt)
			}
			first, err := b.onceRead(c, mounts, sizes)
			if err != nil {
				return err
			}
			var unique int64
			for _, s := range sizes {
				unique += s
			}
			copies = append(copies, float64(first)/float64(unique))
			requests = append(requests, c.Origin.Requests().String())
			again, err := b.onceRead(c, mounts, sizes)
			if err != nil {
				return err
			}
			second = append(second, float64(again))
		}
		sent, err := sentByNode(c)
		if err != nil {
			return err
		}
		maxOverMean = append(maxOverMean, maxOver(sent))
		evidence := map[string]any{"requestsOfFirstEpochs": requests, "sentToPeersByNode": sent, "originBytesOfSecondEpochs": second}
		b.emit("origin_copies_3_nodes", copies, evidence, "origin bytes / unique bytes, three nodes reading everything at once; reach 1.00")
		b.emit("epoch2_origin_bytes_3_nodes", second, evidence, "origin bytes of the epoch after; reach 0")
		b.emit("max_over_mean_sent", maxOverMean, evidence, "the most that a node sent to others / the mean; not judged")
		return nil
	})
}

// onceRead reads all files in all mounts at once and returns the origin's bytes.
func (b *bench) onceRead(c *cluster.Cluster, mounts []string, sizes map[string]int64) (int64, error) {
	c.Origin.Reset()
	_, err := atOnce(len(mounts), func(i int) error {
		for name, size := range sizes {
			if _, err := readFile(filepath.Join(mounts[i], name), size); err != nil {
				return err
			}
		}
		return nil
	})
	return c.Origin.Requests().Bytes(), err
}

func sentByNode(c *cluster.Cluster) ([]int64, error) {
	var sent []int64
	for _, n := range c.Nodes {
		s, err := n.Status()
		if err != nil {
			return nil, err
		}
		sent = append(sent, s.Bytes.SentToPeers)
	}
	return sent, nil
}

func maxOver(values []int64) float64 {
	var most, sum int64
	for _, v := range values {
		most = max(most, v)
		sum += v
	}
	if sum == 0 {
		return 0
	}
	return float64(most) * float64(len(values)) / float64(sum)
}
