package main

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"path/filepath"
	"sync"
	"time"

	"github.com/shardwell/shardwell/e2e/cage"
	"github.com/shardwell/shardwell/e2e/cluster"
	"github.com/shardwell/shardwell/e2e/dataset"
)

// nodeLink is the link of every node where the link is to decide.
var nodeLink = cage.Link{RateMbit: 500}

// Sizes of what peers hold, per round.
const (
	peerSeqBytes   = 256 << 20
	peerShards     = 64
	peerShardBytes = 4 << 20
)

// shard is one object that only peers hold, and where raw HTTP finds the same bytes.
type shard struct {
	key, url string
	size     int64
}

// peer reads, on a node that holds nothing, files that two others hold: through
// the mount and by raw HTTP from the same peers' disks. Each round has files of its own, so
// that the reader never has them.
func (b *bench) peer() error {
	return with(cluster.Options{Nodes: 2, NodeLink: nodeLink}, func(c *cluster.Cluster) error {
		seq, shards, err := b.fillPeers(c)
		if err != nil {
			return err
		}
		// Names of rounds are numbers with a stride: the reader is to have no foresight of the next round.
		reader, err := c.AddNode("--no-owner", "--prefetch-shards", "0")
		if err != nil {
			return err
		}
		if err := c.WaitMembers(3); err != nil {
			return err
		}
		mnt, err := reader.Mount("s3://" + bucket + "/p")
		if err != nil {
			return err
		}
		raw := newRawClients(reader.Host)
		c.Origin.Reset()
		if err := b.peerMeasure("peer_seq_vs_http", "reach 0.90", c, raw, mnt, seq); err != nil {
			return err
		}
		if err := b.peerMeasure("peer_64_readers_vs_http", "reach 0.85", c, raw, mnt, shards); err != nil {
			return err
		}
		b.emit("epoch2_origin_bytes", []float64{float64(c.Origin.Requests().Bytes())}, c.Origin.Requests().String(),
			"body bytes of the origin while a node read what only peers hold; reach 0")
		return nil
	})
}

// fillPeers makes a set of shards per round and has both nodes read them all.
func (b *bench) fillPeers(c *cluster.Cluster) (seq, shards [][]shard, err error) {
	var all []shard
	add := func(size int64) shard {
		// Sizes differ by the count, so that cache files can be told apart.
		s := shard{key: fmt.Sprintf("p/%05d", len(all)), size: size + int64(len(all))}
		all = append(all, s)
		return s
	}
	for range b.rounds {
		seq = append(seq, []shard{add(peerSeqBytes)})
		var set []shard
		for range peerShards {
			set = append(set, add(peerShardBytes))
		}
		shards = append(shards, set)
	}
	for i, s := range all {
		if err := put(c, s.key, dataset.Random{Seed: seed + uint64(i), Size: s.size}.Reader(), s.size); err != nil {
			return nil, nil, err
		}
	}
	for _, n := range c.Nodes {
		mnt, err := n.Mount("s3://" + bucket + "/p")
		if err != nil {
			return nil, nil, err
		}
		for _, s := range all {
			if _, err := readFile(filepath.Join(mnt, filepath.Base(s.key)), s.size); err != nil {
				return nil, nil, err
			}
		}
	}
	for _, set := range append(append([][]shard(nil), seq...), shards...) {
		for i := range set {
			n := c.Nodes[i%len(c.Nodes)]
			path, err := n.CacheFile(set[i].size)
			if err != nil {
				return nil, nil, err
			}
			rel, _ := filepath.Rel(n.CacheDir, path)
			set[i].url = fmt.Sprintf("http://%s:%d/%s", n.Host.IP, rawPort, rel)
		}
	}
	return seq, shards, serveRaw(c)
}

// rawPort is where the peers' disks are served by plain HTTP.
const rawPort = 8000

// serveRaw serves the cache directories until the cage closes its hosts.
func serveRaw(c *cluster.Cluster) error {
	for _, n := range c.Nodes {
		ln, err := n.Host.Listen(fmt.Sprintf("%s:%d", n.Host.IP, rawPort))
		if err != nil {
			return err
		}
		s := &http.Server{Handler: http.FileServer(http.Dir(n.CacheDir)), ReadHeaderTimeout: time.Minute, ErrorLog: log.New(io.Discard, "", 0)}
		go func() { _ = s.Serve(ln) }() // ends with the program
	}
	return nil
}

// rawPerPeer is how many connections to a peer the bounded raw client has.
const rawPerPeer = 8

// rawClients are the ways in which raw HTTP reads files at once: each file over a connection of
// its own, and over few. So many streams into one link lose each other's packets, and the
// last of them may take twice as long: the baseline is the faster way.
type rawClients struct {
	all, few         *http.Client
	allRate, fewRate []float64 // MiB/s of the rounds of one measure
}

func newRawClients(h *cage.Host) *rawClients {
	r := &rawClients{all: clientOf(h), few: clientOf(h)}
	r.few.Transport.(*http.Transport).MaxConnsPerHost = rawPerPeer
	return r
}

// read reads a set and returns how long the faster way took.
func (r *rawClients) read(set []shard, bytes int64) (time.Duration, error) {
	get := func(c *http.Client) (time.Duration, error) {
		return atOnce(len(set), func(i int) error { return getWhole(c, set[i].url, 0, set[i].size) })
	}
	all, err := get(r.all)
	if err != nil {
		return 0, err
	}
	r.allRate = append(r.allRate, rate(bytes, all))
	if len(set) == 1 {
		return all, nil
	}
	few, err := get(r.few)
	r.fewRate = append(r.fewRate, rate(bytes, few))
	return min(all, few), err
}

// peerMeasure alternates raw HTTP and the mount; all shards of a round at once.
func (b *bench) peerMeasure(measure, reach string, c *cluster.Cluster, client *rawClients, mnt string, sets [][]shard) error {
	client.allRate, client.fewRate = nil, nil
	var through, raw, cpu, readerCPU, wire []float64
	reader := c.Nodes[len(c.Nodes)-1].Host
	for round, set := range sets {
		var bytes int64
		for _, s := range set {
			bytes += s.size
		}
		var errs [2]error
		for _, half := range [2]int{round % 2, 1 - round%2} {
			if half == 0 {
				d, err := client.read(set, bytes)
				errs[0] = err
				raw = append(raw, rate(bytes, d))
				continue
			}
			before, _, err := reader.Bytes()
			if err != nil {
				return err
			}
			all, one, d, err := peerRead(c, mnt, set)
			errs[1] = err
			after, _, err := reader.Bytes()
			if err != nil {
				return err
			}
			wire = append(wire, float64(after-before)/float64(bytes))
			through = append(through, rate(bytes, d))
			cpu = append(cpu, perGiB(all, bytes))
			readerCPU = append(readerCPU, perGiB(one, bytes))
		}
		for _, err := range errs {
			if err != nil {
				return err
			}
		}
	}
	b.emit(measure, ratios(through, raw), map[string]any{
		"mountMiBps": through, "httpMiBps": raw, "cpuSecondsPerGiBAllNodes": cpu, "cpuSecondsPerGiBReader": readerCPU,
		"interfaceBytesOverPayload": wire, "httpMiBpsConnectionPerFile": client.allRate, "httpMiBpsFewConnections": client.fewRate,
	}, "%d files of peers at once, links of %d Mbit/s, mount / raw HTTP of the same bytes from the same peers, the faster of a connection per file and 8 per peer; %s",
		len(sets[0]), nodeLink.RateMbit, reach)
	return nil
}

func peerRead(c *cluster.Cluster, mnt string, set []shard) (all, reader, took time.Duration, err error) {
	last := c.Nodes[len(c.Nodes)-1]
	allBefore, err := cpuOf(c.Nodes...)
	if err != nil {
		return 0, 0, 0, err
	}
	oneBefore, err := cpuOf(last)
	if err != nil {
		return 0, 0, 0, err
	}
	took, err = atOnce(len(set), func(i int) error {
		_, err := readFile(filepath.Join(mnt, filepath.Base(set[i].key)), set[i].size)
		return err
	})
	if err != nil {
		return 0, 0, 0, err
	}
	allAfter, err := cpuOf(c.Nodes...)
	if err != nil {
		return 0, 0, 0, err
	}
	oneAfter, err := cpuOf(last)
	return allAfter - allBefore, oneAfter - oneBefore, took, err
}

// tile makes the bytes of cheap objects once.
var tile = sync.OnceValue(func() []byte { return dataset.Random{Seed: seed, Size: 16<<20 + 4093}.Bytes() })
