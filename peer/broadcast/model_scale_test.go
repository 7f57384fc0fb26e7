package broadcast_test

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/peer/broadcast"
)

// What follows runs the planner on a model of a large cluster by discrete events, to see what
// real machines for it cannot be had for: ten thousand nodes that bring one object to
// themselves at once.
//
// Real are Plan, Represent, the window of chunks and their order. Modelled are links, as
// queues that serve one chunk after the other at their rate, with latency; cut-through, in
// that a receiver cannot be done before its source is, and a block's time behind it;
// failures, as nodes that stop. TCP, disks and processors are not in it. One event
// is a chunk that goes from one node to another.

// scaleConfig is a cluster and what it brings to itself.
type scaleConfig struct {
	Nodes, Chunks int
	RackNodes     int // nodes of a rack; 0: racks are not known
	Window        int // chunks that a node has under way
	ChunkBytes    float64
	BlockBytes    float64
	Rate          float64       // of a node's link each way, bytes a second
	OriginRate    float64       // of the origin's
	Spread        float64       // rates of nodes differ by up to this part
	Latency       time.Duration // one way
	Skew          time.Duration // nodes begin within it
	Fail          float64       // share of nodes that stop, at random times within the bound
	Detect        time.Duration // until one that stopped is known to have
	Seed          uint64
	Plan          broadcast.Config
}

// scaleResult is what a run was.
type scaleResult struct {
	Seconds, Bound  float64
	Efficiency      float64 // of the nodes that lived
	OriginCopies    float64
	MaxOverMeanSent float64
	MaxConnections  int // the most that any node had to others at once
	CrossRack       float64
	Hops            int // the most that a chunk made
	Events          int
}

type node struct {
	id, rack string
	up, down float64 // when the link is free
	rate     float64
	next     int // chunk to take
	left     int
	sent     float64
	dead     float64 // when it stops; 0: never
	finished float64
	peers    map[int32]int16 // connections in use
	most     int
	plans    *broadcast.Plan
	forRack  *broadcast.Plan
}

// got is how a node receives a chunk.
type got struct {
	start, end float32 // seconds; end 0: not under way
	hops       uint8
}

type event struct {
	at   float64
	node int32
	from int32 // -1: the origin; of an end
	what int32 // chunk, or -1: begin
	done bool
}

type events []event

func (e events) Len() int           { return len(e) }
func (e events) Less(i, j int) bool { return e[i].at < e[j].at }
func (e events) Swap(i, j int)      { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)        { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	old := *e
	x := old[len(old)-1]
	*e = old[:len(old)-1]
	return x
}

// run is one simulation.
type run struct {
	cfg    scaleConfig
	rng    *rand.Rand
	nodes  []node
	racks  [][]string
	index  map[string]int32
	got    [][]got // by chunk, by node; nil when nobody wants the chunk any more
	open   []int32 // by chunk: nodes that have not got it
	origin float64 // when its link is free
	queue  events
	result scaleResult
	cross  float64
	asked  float64 // bytes of the origin
	epoch  time.Time
}

// runScale simulates.
func runScale(cfg scaleConfig) scaleResult {
	r := newRun(cfg)
	for r.queue.Len() > 0 {
		e := heap.Pop(&r.queue).(event)
		r.result.Events++
		if e.done {
			r.end(e)
		} else {
			r.take(e.at, e.node)
		}
	}
	return r.sum()
}

func newRun(cfg scaleConfig) *run {
	r := &run{cfg: cfg, rng: rand.New(rand.NewPCG(cfg.Seed, 1)), index: make(map[string]int32), epoch: time.Unix(1e9, 0)}
	r.nodes = make([]node, cfg.Nodes)
	r.got, r.open = make([][]got, cfg.Chunks), make([]int32, cfg.Chunks)
	for c := range r.open {
		r.open[c] = int32(cfg.Nodes)
	}
	bound := float64(cfg.Chunks) * cfg.ChunkBytes / cfg.Rate
	for i := range r.nodes {
		n := &r.nodes[i]
		n.id = fmt.Sprintf("%016x", r.rng.Uint64())
		n.left = cfg.Chunks
		n.rate = cfg.Rate * (1 + cfg.Spread*(r.rng.Float64()-0.5))
		n.peers = make(map[int32]int16)
		r.index[n.id] = int32(i)
		if cfg.RackNodes > 0 {
			k := i / cfg.RackNodes
			n.rack = fmt.Sprint(k)
			if k == len(r.racks) {
				r.racks = append(r.racks, nil)
			}
			r.racks[k] = append(r.racks[k], n.id)
		}
		if r.rng.Float64() < cfg.Fail {
			n.dead = r.rng.Float64() * bound
		}
		plan := cfg.Plan
		plan.Self, plan.Rack = n.id, n.rack
		n.plans, n.forRack = broadcast.New(plan), broadcast.New(plan)
		at := r.rng.Float64() * cfg.Skew.Seconds()
		for range cfg.Window {
			heap.Push(&r.queue, event{at: at, node: int32(i), what: -1})
		}
	}
	return r
}

// owner returns who owns a chunk: all nodes own the same share, by chance.
func (r *run) owner(c int) int32 {
	h := uint64(c+1) * 0x9e3779b97f4a7c15
	h ^= h >> 31
	h *= 0x94d049bb133111eb ^ r.cfg.Seed<<1
	h ^= h >> 29
	return int32(h % uint64(len(r.nodes)))
}

func (r *run) alive(i int32, at float64) bool { return r.nodes[i].dead == 0 || at < r.nodes[i].dead }

// take has a node ask for its next chunk.
func (r *run) take(at float64, i int32) {
	n := &r.nodes[i]
	if !r.alive(i, at) {
		return
	}
	for n.next < r.cfg.Chunks {
		c := n.next
		n.next++
		if g := r.got[c]; g == nil || g[i].end == 0 {
			r.fetch(at, i, c, nil)
			return
		}
	}
}

// fetch plans a chunk's way to a node as the product does.
func (r *run) fetch(at float64, i int32, c int, failed []string) {
	if r.got[c] == nil {
		r.got[c] = make([]got, len(r.nodes))
	}
	owner := r.owner(c)
	for !r.alive(owner, at-r.cfg.Detect.Seconds()) { // a successor acts for it
		owner = (owner + 1) % int32(len(r.nodes))
	}
	if i == owner {
		r.fromOrigin(at, i, c)
		return
	}
	tracker, plan, fill := owner, r.nodes[owner].plans, true
	if rack := r.nodes[i].rack; rack != "" && rack != r.nodes[owner].rack {
		rep := broadcast.Represent(key(c), func(yield func(string) bool) {
			for _, id := range r.racks[int(i)/r.cfg.RackNodes] {
				if r.alive(r.index[id], at-r.cfg.Detect.Seconds()) && !yield(id) {
					return
				}
			}
		})
		if p := r.index[rep]; p != i {
			tracker, plan = p, r.nodes[p].forRack
		} else {
			fill = false
		}
	}
	lat := r.cfg.Latency.Seconds()
	at += 2 * lat
	if !r.alive(tracker, at) {
		r.again(at, i, c, failed)
		return
	}
	d := plan.Ask(r.time(at), broadcast.Request{Chunk: key(c), Span: chunk.Span{Count: 32}, Member: r.nodes[i].id,
		Rack: r.nodes[i].rack, Fill: fill, Failed: failed})
	from := tracker
	if d.Redirect != "" {
		from = r.index[d.Redirect]
		at += 2 * lat
	}
	r.send(at, from, i, c, failed)
}

func key(c int) broadcast.Chunk { return broadcast.Chunk{Index: uint32(c)} }

func (r *run) time(at float64) time.Time { return r.epoch.Add(time.Duration(at * 1e9)) }

// again asks anew after a source was found to have stopped.
func (r *run) again(at float64, i int32, c int, failed []string) {
	r.fetch(at+r.cfg.Detect.Seconds(), i, c, failed)
}

// send moves a chunk from one node to another, or finds that the source stops before.
func (r *run) send(at float64, from, to int32, c int, failed []string) {
	if r.got[c][from].end == 0 { // it comes to it now
		r.fetch(at, from, c, nil)
	}
	src, s, n := r.got[c][from], &r.nodes[from], &r.nodes[to]
	size, lat := r.cfg.ChunkBytes, r.cfg.Latency.Seconds()
	rate := min(s.rate, n.rate)
	hop := r.cfg.BlockBytes*float64(r.cfg.Window)/rate + lat
	start := max(at, float64(src.start)+hop)
	s.up = max(s.up, start) + size/s.rate
	n.down = max(n.down, start) + size/n.rate
	end := max(start+size/rate, s.up, n.down, float64(src.end)+hop)
	if s.dead > 0 && s.dead < end {
		// What came is kept in the product; here the chunk begins anew.
		r.again(max(at, s.dead), to, c, append(failed[:len(failed):len(failed)], s.id))
		return
	}
	r.got[c][to] = got{float32(start), float32(end), src.hops + 1}
	r.result.Hops = max(r.result.Hops, int(src.hops)+1)
	s.sent += size
	if s.rack != n.rack {
		r.cross += size
	}
	r.connect(from, to)
	heap.Push(&r.queue, event{at: end, node: to, from: from, what: int32(c), done: true})
}

func (r *run) fromOrigin(at float64, i int32, c int) {
	n := &r.nodes[i]
	size := r.cfg.ChunkBytes
	start := at + 2*r.cfg.Latency.Seconds()
	r.origin = max(r.origin, start) + size/r.cfg.OriginRate
	n.down = max(n.down, start) + size/n.rate
	end := max(start+size/min(n.rate, r.cfg.OriginRate), r.origin, n.down)
	// Others cannot have it faster than the origin's link gives it.
	r.got[c][i] = got{float32(max(start, end-size/r.cfg.OriginRate*float64(r.cfg.Window))), float32(end), 0}
	r.asked += size
	heap.Push(&r.queue, event{at: end, node: i, from: -1, what: int32(c), done: true})
}

// connect counts a connection between two nodes in.
func (r *run) connect(a, b int32) {
	for _, x := range [2][2]int32{{a, b}, {b, a}} {
		n := &r.nodes[x[0]]
		n.peers[x[1]]++
		n.most = max(n.most, len(n.peers))
	}
}

func (r *run) disconnect(a, b int32) {
	for _, x := range [2][2]int32{{a, b}, {b, a}} {
		n := &r.nodes[x[0]]
		if n.peers[x[1]]--; n.peers[x[1]] == 0 {
			delete(n.peers, x[1])
		}
	}
}

// end is a chunk that has come.
func (r *run) end(e event) {
	n := &r.nodes[e.node]
	if e.from >= 0 {
		r.disconnect(e.from, e.node)
		s := &r.nodes[e.from]
		s.plans.Done(r.time(e.at), key(int(e.what)), n.id)
		s.forRack.Done(r.time(e.at), key(int(e.what)), n.id)
	}
	n.left--
	if n.left == 0 {
		n.finished = e.at
	}
	if r.open[e.what]--; r.open[e.what] == 0 {
		r.got[e.what] = nil
	}
	r.take(e.at, e.node)
}

func (r *run) sum() scaleResult {
	res := r.result
	res.Bound = float64(r.cfg.Chunks) * r.cfg.ChunkBytes / min(r.cfg.Rate, r.cfg.OriginRate)
	var sum, most float64
	for i := range r.nodes {
		n := &r.nodes[i]
		sum += n.sent
		most = max(most, n.sent)
		res.MaxConnections = max(res.MaxConnections, n.most)
		if n.dead == 0 {
			if n.left > 0 {
				panic(fmt.Sprintf("node %d lacks %d chunks at the end", i, n.left))
			}
			res.Seconds = max(res.Seconds, n.finished)
		}
	}
	size := float64(r.cfg.Chunks) * r.cfg.ChunkBytes
	res.Efficiency = res.Bound / res.Seconds
	res.OriginCopies = r.asked / size
	if sum > 0 {
		res.MaxOverMeanSent = most * float64(len(r.nodes)) / sum
	}
	if len(r.racks) > 0 {
		res.CrossRack = r.cross / size / float64(len(r.racks))
	}
	return res
}
