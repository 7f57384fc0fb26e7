package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/shardwell/shardwell/e2e/cage"
	"github.com/shardwell/shardwell/e2e/cluster"
	"github.com/shardwell/shardwell/e2e/dataset"
)

// The cage of a broadcast: each node, and the origin, behind a link whose rate decides,
// not this machine's processors, with a queue in which many flows do not starve.
const broadcastQueueMS = 50

// broadcastWait bounds one read of the object in one node, in multiples of what one link needs.
const broadcastWait = 12

// broadcastPoll is how often the fault cases look how far the nodes are.
const broadcastPoll = 50 * time.Millisecond

// broadcaster measures broadcasts in one cage. Nodes read fresh objects, so that they need not
// start anew for each round.
type broadcaster struct {
	b       *bench
	c       *cluster.Cluster
	client  *cage.Host
	size    int64
	serial  int
	lateDir string // where the last node has the object's directory
}

// cast is what one broadcast was.
type cast struct {
	T          time.Duration   // until the last node was done
	Each       []time.Duration // by node
	Origin     int64           // bytes of bodies that the origin sent
	OriginWire int64           // bytes at the origin's interface
	Sent, Recv []int64         // bytes at the nodes' interfaces
	Goodput    float64         // of one plain GET in the same cage, bytes a second
}

// efficiency is (S/B)/T.
func (k cast) efficiency(size int64) float64 { return float64(size) / k.Goodput / k.T.Seconds() }

// broadcastIn runs f in a fresh cage of n nodes.
func (b *bench) broadcastIn(n int, opts cluster.Options, f func(*broadcaster) error) error {
	link := cage.Link{RateMbit: b.mbit, QueueMS: broadcastQueueMS}
	opts.Nodes, opts.OriginLink, opts.NodeLink = n, link, link
	opts.Flags = append(opts.Flags, b.flags...)
	return with(opts, func(c *cluster.Cluster) error {
		h, err := c.Cage.Host("client")
		if err != nil {
			return err
		}
		if err := h.Shape(link); err != nil {
			return err
		}
		return f(&broadcaster{b: b, c: c, client: h, size: b.castMiB << 20})
	})
}

// object puts a fresh object and returns its directory of mounts, one a node, and its name there.
func (x *broadcaster) object() (key string, data dataset.Random, err error) {
	x.serial++
	data = dataset.Random{Seed: seed + uint64(x.serial), Size: x.size}
	key = fmt.Sprintf("cast%d/ckpt", x.serial)
	return key, data, put(x.c, key, data.Reader(), x.size)
}

// plainGet measures B: the bytes a second of one GET over one such link.
func (x *broadcaster) plainGet(key string) (float64, error) {
	url, err := x.c.Origin.Presign(context.Background(), bucket, key)
	if err != nil {
		return 0, err
	}
	n := min(x.size, 64<<20)
	begin := time.Now()
	if err := getWhole(clientOf(x.client), url, 0, n); err != nil {
		return 0, err
	}
	return float64(n) / time.Since(begin).Seconds(), nil
}

// mounts mounts the object's directory in all nodes that run.
func (x *broadcaster) mounts(key string) (paths []string, err error) {
	for _, n := range x.c.Nodes {
		if !n.Running() {
			paths = append(paths, "")
			continue
		}
		dir, err := n.Mount("s3://" + bucket + "/" + filepath.Dir(key))
		if err != nil {
			return nil, err
		}
		paths = append(paths, filepath.Join(dir, filepath.Base(key)))
	}
	return paths, nil
}

// counters reads the interfaces.
func (x *broadcaster) counters() (recv, sent []int64, err error) {
	for _, n := range x.c.Nodes {
		r, s, err := n.Host.Bytes()
		if err != nil {
			return nil, nil, err
		}
		recv, sent = append(recv, r), append(sent, s)
	}
	return recv, sent, nil
}

// fault is what happens during a broadcast; progress tells how many bytes a node's interface has received.
type fault func(progress func(node int) int64) error

// run has all nodes read a fresh object at once through their mounts. late nodes, by index,
// are not among them: during starts them. during may be nil.
//
// A reader that a fault kills is left out of T.
func (x *broadcaster) run(readers []int, during fault) (k cast, err error) {
	key, data, err := x.object()
	if err != nil {
		return k, err
	}
	if k.Goodput, err = x.plainGet(key); err != nil {
		return k, err
	}
	paths, err := x.mounts(key)
	if err != nil {
		return k, err
	}
	x.lateDir = filepath.Dir(paths[len(paths)-1])
	recv, sent, err := x.counters()
	if err != nil {
		return k, err
	}
	x.c.Origin.Reset()
	_, wire, err := x.c.Origin.Host.Bytes()
	if err != nil {
		return k, err
	}
	stopTrace := x.trace()
	k.Each = make([]time.Duration, len(readers))
	faulty := make(chan error, 1)
	if during == nil {
		faulty <- nil
	} else {
		go func() {
			faulty <- during(func(node int) int64 {
				r, _, _ := x.c.Nodes[node].Host.Bytes()
				return r - recv[node]
			})
		}()
	}
	k.T, err = atOnce(len(readers), func(i int) error {
		d, err := readFile(paths[readers[i]], x.size)
		if err != nil && x.killed(readers[i]) {
			return nil
		}
		k.Each[i] = d
		return err
	})
	k.T = slices.Max(k.Each)
	stopTrace()
	if err = errors.Join(err, <-faulty); err != nil {
		return k, err
	}
	k.Origin = x.c.Origin.Requests().Bytes()
	_, after, err := x.c.Origin.Host.Bytes()
	if err != nil {
		return k, err
	}
	k.OriginWire = after - wire
	recv2, sent2, err := x.counters()
	if err != nil {
		return k, err
	}
	for i := range recv2[:len(recv)] {
		k.Recv, k.Sent = append(k.Recv, recv2[i]-recv[i]), append(k.Sent, sent2[i]-sent[i])
	}
	say("broadcast of %d MiB to %d nodes: T %.1f s, S/B %.1f s, efficiency %.3f, origin copies %.3f, max/mean sent %.2f, requests %s",
		x.size>>20, len(readers), k.T.Seconds(), float64(x.size)/k.Goodput, k.efficiency(x.size), float64(k.Origin)/float64(x.size), maxOver(k.Sent), x.c.Origin.Requests())
	if x.serial == 1 {
		for _, i := range readers {
			if !x.c.Nodes[i].Running() {
				continue
			}
			if err := dataset.CompareFile(paths[i], data); err != nil {
				return k, err
			}
		}
	}
	for i, n := range x.c.Nodes {
		if i < len(paths) && paths[i] != "" && n.Running() {
			if err := n.Umount(filepath.Dir(paths[i])); err != nil {
				return k, err
			}
		}
	}
	return k, nil
}

// nodes returns the numbers 0 to n-1.
func nodes(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}

// broadcastN measures n nodes without faults.
func (b *bench) broadcastN(n int) error {
	return b.broadcastIn(n, cluster.Options{}, func(x *broadcaster) error {
		var eff, copies, over []float64
		var casts []cast
		for range b.rounds {
			k, err := x.run(nodes(n), nil)
			if err != nil {
				return err
			}
			casts = append(casts, k)
			eff = append(eff, k.efficiency(x.size))
			copies = append(copies, float64(k.Origin)/float64(x.size))
			over = append(over, maxOver(k.Sent))
		}
		evidence := map[string]any{"casts": casts, "objectBytes": x.size, "mbit": b.mbit}
		b.emit(fmt.Sprintf("broadcast_efficiency_%d", n), eff, evidence, "(S/B)/T, %d nodes read %d MiB at once; B is one plain GET; reach 0.90 at 8, 0.85 at 12", n, b.castMiB)
		b.emit(fmt.Sprintf("broadcast_origin_copies_%d", n), copies, nil, "bytes of the origin / S; reach 1.01")
		b.emit(fmt.Sprintf("broadcast_max_over_mean_sent_%d", n), over, nil, "at the interfaces of the nodes; reach 1.5")
		return nil
	})
}

func (b *bench) broadcast8() error  { return b.broadcastN(8) }
func (b *bench) broadcast2() error  { return b.broadcastN(2) }
func (b *bench) broadcast4() error  { return b.broadcastN(4) }
func (b *bench) broadcast12() error { return b.broadcastN(12) }

// trace prints each second, when asked to, what the origin sent and the nodes received and sent, in
// percent of a link.
func (x *broadcaster) trace() (stop func()) {
	if !x.b.trace {
		return func() {}
	}
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		full := float64(x.b.mbit) * 1e6 / 8
		_, wire, _ := x.c.Origin.Host.Bytes()
		recv, sent, _ := x.counters()
		for at := 1; ; at++ {
			select {
			case <-tick.C:
			case <-done:
				return
			}
			_, wire2, _ := x.c.Origin.Host.Bytes()
			recv2, sent2, _ := x.counters()
			line := fmt.Sprintf("%3d s: origin %3.0f%%, nodes in/out", at, 100*float64(wire2-wire)/full)
			for i := range recv2[:min(len(recv), len(recv2))] {
				line += fmt.Sprintf(" %3.0f/%3.0f", 100*float64(recv2[i]-recv[i])/full, 100*float64(sent2[i]-sent[i])/full)
			}
			say("%s", line)
			wire, recv, sent = wire2, recv2, sent2
		}
	})
	return func() { close(done); wg.Wait() }
}

// killed reports whether a node has ended, which its reader may learn before we do.
func (x *broadcaster) killed(node int) bool {
	select {
	case <-x.c.Nodes[node].Proc.Done():
		return true
	case <-time.After(5 * time.Second):
		return false
	}
}
