package main

import (
	"context"
	"net/http"
	"path/filepath"
	"time"

	"github.com/shardwell/shardwell/e2e/cage"
	"github.com/shardwell/shardwell/e2e/cluster"
	"github.com/shardwell/shardwell/e2e/dataset"
	"github.com/shardwell/shardwell/e2e/origin"
)

// The origin where its link is to decide: 500 Mbit/s and a round trip of 30 ms.
var originLink = cage.Link{RateMbit: 500}

const originOneWay = 15 * time.Millisecond

// getPartBytes is the range of the parallel GET; S3's guidance is 8 to 16 MiB.
const getPartBytes = 8 << 20

// cold reads a large object for the first time, from an origin behind a shaped link.
func (b *bench) cold() error {
	opts := cluster.Options{Nodes: 1, OriginLink: originLink, Origin: origin.Options{OneWay: originOneWay}}
	return b.coldAgainstGet(opts, func(r coldResult) {
		b.emit("cold_seq_vs_get", ratios(r.mount, r.get), r.evidence(),
			"first read of %d MiB, empty cache, origin at %d Mbit/s and %v round trip / parallel GET over %d connections (the fastest of 4, 8, 16, 32); reach 0.95",
			b.mib, originLink.RateMbit, 2*originOneWay, r.connections)
		b.emit("cold_first_mib_ms", r.firstMS, r.evidence(), "until the first MiB was read, behind the same link; not judged")
	})
}

// unshaped is cold without the link, so that processors decide.
func (b *bench) unshaped() error {
	return b.coldAgainstGet(cluster.Options{Nodes: 1}, func(r coldResult) {
		b.emit("cold_seq_unshaped_vs_get", ratios(r.mount, r.get), r.evidence(),
			"first read of %d MiB, empty cache, unshaped / parallel GET over %d connections; reach 0.40", b.mib, r.connections)
		b.emit("cold_seq_cpu_s_per_gib", r.cpu, r.evidence(), "processor seconds of the node per GiB of the same; reach at most 2.5")
	})
}

type coldResult struct {
	mount, get, cpu, firstMS, copies []float64
	connections                      int
	tried                            map[int]float64
}

func (r coldResult) evidence() map[string]any {
	return map[string]any{
		"mountMiBps": r.mount, "getMiBps": r.get, "nodeCPUSecondsPerGiB": r.cpu, "originCopies": r.copies,
		"getMiBpsByConnections": r.tried,
	}
}

func (b *bench) coldAgainstGet(opts cluster.Options, emit func(coldResult)) error {
	size := b.mib << 20
	return with(opts, func(c *cluster.Cluster) error {
		if err := put(c, "cold/large", dataset.Random{Seed: seed, Size: size}.Reader(), size); err != nil {
			return err
		}
		host, err := c.Cage.Host("client")
		if err != nil {
			return err
		}
		url, err := c.Origin.Presign(context.Background(), bucket, "cold/large")
		if err != nil {
			return err
		}
		client := clientOf(host)
		r := coldResult{}
		if err := r.fastest(client, url, size); err != nil {
			return err
		}
		for round := range b.rounds {
			for _, half := range [2]int{round % 2, 1 - round%2} {
				if half == 0 {
					d, err := parallelGet(client, url, size, r.connections, getPartBytes)
					if err != nil {
						return err
					}
					r.get = append(r.get, rate(size, d))
				} else if err := r.coldRead(c, size); err != nil {
					return err
				}
			}
		}
		emit(r)
		return nil
	})
}

// fastest finds how many connections read fastest, on a quarter of the object.
func (r *coldResult) fastest(client *http.Client, url string, size int64) error {
	r.tried = make(map[int]float64)
	for _, connections := range []int{4, 8, 16, 32} {
		d, err := parallelGet(client, url, size/4, connections, getPartBytes)
		if err != nil {
			return err
		}
		r.tried[connections] = rate(size/4, d)
		if r.tried[connections] > r.tried[r.connections] {
			r.connections = connections
		}
	}
	return nil
}

func (r *coldResult) coldRead(c *cluster.Cluster, size int64) error {
	n := c.Nodes[0]
	mnt, err := restartEmpty(n, "s3://"+bucket+"/cold")
	if err != nil {
		return err
	}
	path := filepath.Join(mnt, "large")
	c.Origin.Reset()
	before, err := cpuOf(n)
	if err != nil {
		return err
	}
	d, first, err := readTimed(path, size)
	if err != nil {
		return err
	}
	after, err := cpuOf(n)
	if err != nil {
		return err
	}
	r.mount = append(r.mount, rate(size, d))
	r.firstMS = append(r.firstMS, float64(first.Microseconds())/1000)
	r.cpu = append(r.cpu, perGiB(after-before, size))
	r.copies = append(r.copies, float64(c.Origin.Requests().Bytes())/float64(size))
	return nil
}
