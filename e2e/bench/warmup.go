package main

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/shardwell/shardwell/e2e/cluster"
	"github.com/shardwell/shardwell/e2e/dataset"
	"github.com/shardwell/shardwell/e2e/origin"
)

// What is warmed up: shards of two chunks.
const (
	warmNodes      = 3
	warmShards     = 48
	warmShardBytes = 16 << 20
)

// warmup brings a dataset into three empty caches, against three clients that get a third each.
func (b *bench) warmup() error {
	opts := cluster.Options{Nodes: warmNodes, OriginLink: originLink, Origin: origin.Options{OneWay: originOneWay}}
	return with(opts, func(c *cluster.Cluster) error {
		w := &warmups{c: c, tried: make(map[int]float64)}
		if err := w.prepare(); err != nil {
			return err
		}
		for round := range b.rounds {
			for _, half := range [2]int{round % 2, 1 - round%2} {
				var err error
				if half == 0 {
					err = w.getAll()
				} else {
					err = w.warmAll()
				}
				if err != nil {
					return err
				}
			}
		}
		b.emit("warm_vs_parallel_get", ratios(w.warm, w.get),
			map[string]any{"warmMiBps": w.warm, "getMiBps": w.get, "originCopies": w.copies, "getMiBpsByConnections": w.tried},
			"`shardwell warm` of %d objects of %d MiB by %d nodes with empty caches, its check at the end included, origin at %d Mbit/s and %v round trip / %d parallel GETs of a third each over %d connections (the fastest of 4, 8, 16); reach 0.90",
			warmShards, warmShardBytes>>20, warmNodes, originLink.RateMbit, 2*originOneWay, warmNodes, w.connections)
		return nil
	})
}

// warmups are the rounds.
type warmups struct {
	c                 *cluster.Cluster
	clients           []*http.Client
	urls              []string
	connections       int
	tried             map[int]float64
	warm, get, copies []float64
}

func (w *warmups) prepare() error {
	for i := range warmShards {
		key := fmt.Sprintf("warm/shard-%04d.tar", i)
		if err := put(w.c, key, dataset.Random{Seed: seed + uint64(i), Size: warmShardBytes}.Reader(), warmShardBytes); err != nil {
			return err
		}
		url, err := w.c.Origin.Presign(context.Background(), bucket, key)
		if err != nil {
			return err
		}
		w.urls = append(w.urls, url)
	}
	for i := range warmNodes {
		host, err := w.c.Cage.Host(fmt.Sprintf("client%d", i))
		if err != nil {
			return err
		}
		w.clients = append(w.clients, clientOf(host))
	}
	for _, connections := range []int{4, 8, 16} {
		d, err := w.getSome(w.urls[:warmShards/4], connections)
		if err != nil {
			return err
		}
		w.tried[connections] = rate(warmShards/4*warmShardBytes, d)
		if w.tried[connections] > w.tried[w.connections] {
			w.connections = connections
		}
	}
	return nil
}

// getSome has all clients get objects at once, a part at a time over each connection.
func (w *warmups) getSome(urls []string, connections int) (time.Duration, error) {
	const parts = warmShardBytes / getPartBytes
	return atOnce(len(w.clients), func(i int) error {
		var next atomic.Int64
		_, err := atOnce(connections, func(int) error {
			for {
				n := int(next.Add(1)-1)*len(w.clients) + i // the client's parts of all
				if n >= len(urls)*parts {
					return nil
				}
				if err := getWhole(w.clients[i], urls[n/parts], int64(n%parts)*getPartBytes, getPartBytes); err != nil {
					return err
				}
			}
		})
		return err
	})
}

func (w *warmups) getAll() error {
	d, err := w.getSome(w.urls, w.connections)
	w.get = append(w.get, rate(warmShards*warmShardBytes, d))
	return err
}

func (w *warmups) warmAll() error {
	n := w.c.Nodes[0]
	uri := "s3://" + bucket + "/warm/"
	if r, err := n.Run("warm", "--evict", uri); err != nil {
		return fmt.Errorf("%w: %s", err, r.Stdout)
	}
	w.c.Origin.Reset()
	begin := time.Now()
	if r, err := n.Run("warm", uri); err != nil {
		return fmt.Errorf("%w: %s", err, r.Stdout)
	}
	w.warm = append(w.warm, rate(warmShards*warmShardBytes, time.Since(begin)))
	w.copies = append(w.copies, float64(w.c.Origin.Requests().Bytes())/(warmShards*warmShardBytes))
	return nil
}

// What is warmed up of many small objects.
const (
	tinyObjects     = 200_000
	tinyObjectBytes = 4096
)

// warmTiny brings many small objects into three empty caches: what each costs, in time, memory and requests.
func (b *bench) warmTiny() error {
	m := origin.NewMemory()
	for i := range tinyObjects {
		m.PutReader(fmt.Sprintf("t/%07d", i), dataset.Tiled{Tile: tile(), Shift: int64(i), Size: tinyObjectBytes}, tinyObjectBytes, fmt.Sprintf("%032x", i))
	}
	var perSecond, gets, lists, peaks []float64
	for range min(b.rounds, 3) {
		err := with(cluster.Options{Nodes: warmNodes, Origin: origin.Options{Store: m}}, func(c *cluster.Cluster) error {
			c.Origin.Reset()
			begin := time.Now()
			if r, err := c.Nodes[0].Run("warm", "s3://"+bucket+"/t/"); err != nil {
				return fmt.Errorf("%w: %s", err, r.Stdout)
			}
			perSecond = append(perSecond, tinyObjects/time.Since(begin).Seconds())
			all := c.Origin.Requests()
			gets = append(gets, float64(len(all.Of(origin.OpGet)))/tinyObjects)
			lists = append(lists, float64(len(all.Of(origin.OpList)))/(tinyObjects/pageNames))
			for _, n := range c.Nodes {
				_, peak, err := n.Proc.Memory()
				if err != nil {
					return err
				}
				peaks = append(peaks, float64(peak)/(1<<20))
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	b.emit("warm_tiny_objects_per_s", perSecond, map[string]any{"getsPerObject": gets, "listsPerPage": lists, "nodePeakMiB": peaks},
		"`shardwell warm` of %d objects of %d bytes by %d nodes with empty caches, its check included, origin and nodes on one machine; not judged", tinyObjects, tinyObjectBytes, warmNodes)
	return nil
}

// warmMillion measures what a warm-up of a million objects costs the node that is asked, before anything is fetched:
// names, who holds what, and a question to each member about all of it.
func (b *bench) warmMillion() error {
	m := manyNames("m", millionNames)
	var grown, lists, seconds []float64
	var evidence []map[string]int64
	for range min(b.rounds, 3) {
		err := with(cluster.Options{Nodes: warmNodes, Origin: origin.Options{Store: m}}, func(c *cluster.Cluster) error {
			n := c.Nodes[0]
			before, _, err := n.Proc.Memory()
			if err != nil {
				return err
			}
			c.Origin.Reset()
			begin := time.Now()
			r, err := n.Run("warm", "--evict", "s3://"+bucket+"/m/")
			if err != nil {
				return fmt.Errorf("%w: %s", err, r.Stdout)
			}
			seconds = append(seconds, time.Since(begin).Seconds())
			_, peak, err := n.Proc.Memory()
			if err != nil {
				return err
			}
			grown = append(grown, float64(peak-before)/(1<<20))
			lists = append(lists, float64(len(c.Origin.Requests().Of(origin.OpList)))/(millionNames/pageNames))
			evidence = append(evidence, map[string]int64{"rssBefore": before, "rssPeak": peak})
			return nil
		})
		if err != nil {
			return err
		}
	}
	b.emit("warm_mib_per_million_keys", grown, map[string]any{"memory": evidence, "seconds": seconds, "listsPerPage": lists},
		"peak growth of a node's resident memory while it looks a million objects up and asks %d members about each of them (`warm --evict`); not judged", warmNodes)
	return nil
}
