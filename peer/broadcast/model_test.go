package broadcast_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/peer/broadcast"
)

// What follows runs the planner on a model of a large cluster by discrete events, to see what
// real machines for it cannot be had for: ten thousand nodes that bring one object to
// themselves at once.
//
// Real code are Plan, with its wait for the first, and Represent. Rebuilt after the product are the window of chunks
// that a node has under way and how it opens, their order, whom a node asks in which order, and what is fetched because a
// member was named that had not come to it. Modelled are links (model_links_test.go); latency, once for each
// way of a request and of a quantum; cut-through, as a quantum is passed on when it has come whole;
// and failures, as nodes that stop, which those who wait for them know after a time. TCP's loss and slow start, disks,
// processors and gossip are not in it.

// scaleConfig is a cluster and what it brings to itself.
type scaleConfig struct {
	Nodes, Chunks int
	RackNodes     int // nodes of a rack; 0: racks are not known
	Window        int // chunks that a node has under way
	Quanta        int // a chunk is passed on in so many parts
	ChunkBytes    float64
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
	Steady          float64 // the same from a quarter of the chunks to three quarters, of the middle node
	OriginCopies    float64
	MaxOverMeanSent float64
	MaxConnections  int     // the most streams and requests that any node had at once; each is a connection
	CrossRack       float64 // copies that came into a rack
	Asks            int
	Events          int
	Failed          int // nodes
	Circles         int // that nodes which waited for each other made, and found 2 s later
}

type node struct {
	id, rack string
	next     int // chunk to take
	left     int
	window   int // opens by one with each chunk
	plan     *broadcast.Plan
	near     int32 // the nearest before it in the circle that gave it a chunk
	quarter  int64 // when it had a quarter of the chunks
	most     int64 // and three quarters
}

// run is one simulation. The origin is the link behind those of the nodes.
type run struct {
	cfg     scaleConfig
	rng     *rand.Rand
	now     int64 // ns
	latency int64
	quanta  int16
	nodes   []node
	links   []link
	origin  int32
	racks   [][]int32
	index   map[string]int32
	flows   []flow
	free    []int32 // flows
	failed  map[int32][]string
	have    [][]int32 // by chunk, by node: 0 nothing, whole, or 1 + its flow; nil when nobody wants the chunk
	open    []int32   // by chunk: nodes that have not got it, once one asked; -1 when there are none any more
	agenda  agenda
	result  scaleResult
	cross   int64 // quanta
	epoch   time.Time
}

const whole = int32(-1)

// runScale simulates.
func runScale(cfg scaleConfig) scaleResult {
	r := newRun(cfg)
	for {
		e, ok := r.agenda.next()
		if !ok {
			return r.sum()
		}
		r.result.Events++
		r.now = max(r.now, e.at)
		switch e.what {
		case evTake:
			r.take(e.id)
		case evAsk:
			r.ask(e.id)
		case evStart:
			r.start(e.id, e.epoch)
		case evSent:
			r.sent(e.id)
		case evCame:
			r.came(e.id, e.epoch)
		case evDie:
			r.die(e.id)
		case evAgain:
			r.request(e.id)
		}
	}
}

func newRun(cfg scaleConfig) *run {
	r := &run{cfg: cfg, rng: rand.New(rand.NewPCG(cfg.Seed, 1)), index: make(map[string]int32), epoch: time.Unix(1e9, 0),
		latency: cfg.Latency.Nanoseconds(), quanta: int16(cfg.Quanta), origin: int32(cfg.Nodes), failed: make(map[int32][]string)}
	r.nodes, r.links = make([]node, cfg.Nodes), make([]link, cfg.Nodes+1)
	r.have, r.open = make([][]int32, cfg.Chunks), make([]int32, cfg.Chunks)
	quantum := cfg.ChunkBytes / float64(cfg.Quanta) * 1e9
	r.links[r.origin] = link{quantum: int64(quantum / cfg.OriginRate), first: none, sending: none, diesAt: never}
	bound := float64(cfg.Chunks) * cfg.ChunkBytes / min(cfg.Rate, cfg.OriginRate)
	for i := range r.nodes {
		n := &r.nodes[i]
		n.id, n.left, n.window = fmt.Sprintf("%016x", r.rng.Uint64()), cfg.Chunks, min(2, cfg.Window)
		r.index[n.id] = int32(i)
		r.links[i] = link{quantum: int64(quantum / (cfg.Rate * (1 + cfg.Spread*(r.rng.Float64()-0.5)))), first: none, sending: none, diesAt: never}
		if cfg.RackNodes > 0 {
			k := i / cfg.RackNodes
			n.rack = strconv.Itoa(k)
			if k == len(r.racks) {
				r.racks = append(r.racks, nil)
			}
			r.racks[k] = append(r.racks[k], int32(i))
		}
		if r.rng.Float64() < cfg.Fail {
			r.links[i].diesAt = int64(r.rng.Float64() * bound * 1e9)
			r.result.Failed++
			r.agenda.add(event{at: r.links[i].diesAt, id: int32(i), what: evDie})
		}
		plan := cfg.Plan
		plan.Self, plan.Rack = n.id, n.rack
		n.plan, n.near = broadcast.New(plan), none
		at := int64(r.rng.Float64() * cfg.Skew.Seconds() * 1e9)
		for range n.window {
			r.agenda.add(event{at: at, id: int32(i), what: evTake})
		}
	}
	return r
}

// owner returns who owns a chunk: all nodes own the same share, by chance. Who owns it next is the next node.
func (r *run) owner(c int32) int32 {
	h := uint64(c+1) * 0x9e3779b97f4a7c15
	h ^= h >> 31
	h *= 0x94d049bb133111eb ^ r.cfg.Seed<<1
	h ^= h >> 29
	return int32(h % uint64(len(r.nodes)))
}

func (r *run) dead(i int32) bool { return r.links[i].dead }

// known reports whether all know that a node stopped.
func (r *run) known(i int32) bool { return r.now-r.cfg.Detect.Nanoseconds() >= r.links[i].diesAt }

func key(c int32) broadcast.Chunk { return broadcast.Chunk{Index: uint32(c)} }

func (r *run) time() time.Time { return r.epoch.Add(time.Duration(r.now)) }

// take has one of a node's window go on with the next chunk.
func (r *run) take(i int32) {
	n := &r.nodes[i]
	for n.next < r.cfg.Chunks && !r.dead(i) {
		c := int32(n.next)
		n.next++
		switch f := r.at(c, i); {
		case f == whole:
		case f == 0:
			r.flows[r.fetch(i, c)].worker = true
			return
		default:
			r.flows[f-1].worker = true
			return
		}
	}
}

// at returns how a node has a chunk.
func (r *run) at(c, i int32) int32 {
	switch {
	case r.have[c] != nil:
	case r.open[c] < 0:
		return whole
	default:
		r.have[c] = make([]int32, len(r.nodes))
		for i := range r.nodes {
			if !r.dead(int32(i)) {
				r.open[c]++
			}
		}
	}
	return r.have[c][i]
}

// fetch makes a node's flow of a chunk, and asks for it.
func (r *run) fetch(i, c int32) int32 {
	f := int32(len(r.flows))
	if n := len(r.free); n > 0 {
		f, r.free = r.free[n-1], r.free[:n-1]
	} else {
		r.flows = append(r.flows, flow{})
	}
	r.flows[f] = flow{from: none, to: i, chunk: c, up: none, child: none, sibling: none, tracker: none, epoch: r.flows[f].epoch}
	r.have[c][i] = f + 1
	r.request(f)
	return f
}

// request sends a flow's request to the first of those the product would ask who may be alive: the
// representative of the rack, the owner, its successors.
func (r *run) request(f int32) {
	x := &r.flows[f]
	if x.over {
		return
	}
	if x.tracker == none {
		owner := r.owner(x.chunk)
		for r.known(owner) {
			owner = (owner + 1) % int32(len(r.nodes))
		}
		x.tracker, x.fill, x.asked = owner, true, false
		if len(r.racks) > 0 && r.nodes[x.to].rack != r.nodes[owner].rack {
			x.tracker = r.represent(x, none)
			if x.tracker == x.to {
				x.tracker, x.fill = owner, false
			}
		}
	}
	for r.known(x.tracker) {
		r.nextTracker(x)
	}
	switch t := x.tracker; {
	case t == x.to:
		r.begin(f, r.origin, r.latency)
	case r.dead(t): // nobody has told the asker
		r.nextTracker(x)
		r.agenda.add(event{at: r.now + r.cfg.Detect.Nanoseconds(), id: f, what: evAgain})
	default:
		r.agenda.add(event{at: r.now + r.latency, id: f, what: evAsk})
	}
}

// nextTracker has a flow ask the one behind its tracker: the next representative behind the first, then the owner, and
// a successor, which is the next node, behind an owner.
func (r *run) nextTracker(x *flow) {
	owner := r.owner(x.chunk)
	for r.known(owner) {
		owner = (owner + 1) % int32(len(r.nodes))
	}
	switch {
	case !x.past && x.tracker != owner && x.fill:
		x.tracker = r.represent(x, x.tracker)
		if x.tracker == x.to {
			x.tracker, x.fill = owner, false
		}
	case x.tracker != owner && r.nodes[x.tracker].rack == r.nodes[x.to].rack && r.nodes[owner].rack != r.nodes[x.to].rack:
		x.tracker = owner
	default:
		x.tracker = (x.tracker + 1) % int32(len(r.nodes))
	}
	x.past = true
}

// represent returns who of a rack asks the owner for a chunk, other than one.
func (r *run) represent(x *flow, but int32) int32 {
	rack := r.racks[int(x.to)/r.cfg.RackNodes]
	rep := broadcast.Represent(key(x.chunk), func(yield func(string) bool) {
		for _, i := range rack {
			if i != but && !r.known(i) && !yield(r.nodes[i].id) {
				return
			}
		}
	})
	return r.index[rep]
}

// ask is a request that has reached its tracker.
func (r *run) ask(f int32) {
	x := &r.flows[f]
	if x.over {
		return
	}
	t := x.tracker
	if r.dead(t) {
		r.request(f)
		return
	}
	n := &r.nodes[x.to]
	part := 32 / uint32(r.quanta)
	req := broadcast.Request{Chunk: key(x.chunk), Span: chunk.Span{First: uint32(x.came) * part, Count: 32 - uint32(x.came)*part},
		Member: n.id, Rack: n.rack, Fill: x.fill, Failed: r.failed[f]}
	if n.near != none {
		req.Near, req.NearRack = r.nodes[n.near].id, r.nodes[n.near].rack
	}
	plan := r.nodes[t].plan
	if wait := plan.Gather(r.time(), req); wait > 0 {
		r.agenda.add(event{at: r.now + wait.Nanoseconds(), id: f, what: evAsk})
		return
	}
	r.result.Asks++
	req.ServeOnly = x.asked && x.past
	x.asked = true
	d := plan.Ask(r.time(), req)
	if d.Redirect == "" {
		x.direct = true
		r.begin(f, t, 0)
		return
	}
	x.direct = false
	r.begin(f, r.index[d.Redirect], 2*r.latency)
}

// begin sends a request to the source.
func (r *run) begin(f, from int32, after int64) {
	r.flows[f].from = from
	r.agenda.add(event{at: r.now + after, id: f, epoch: r.flows[f].epoch, what: evStart})
}

// start is a request that has reached the source.
func (r *run) start(f int32, epoch uint16) {
	x := &r.flows[f]
	if x.over || x.epoch != epoch {
		return
	}
	if r.dead(x.from) {
		r.broke(f, r.cfg.Detect.Nanoseconds())
		return
	}
	r.connect(x, 1)
	if x.from != r.origin {
		from, chunk := x.from, x.chunk
		h := r.at(chunk, from)
		if h == 0 { // it fetches it now
			h = 1 + r.fetch(from, chunk)
			x = &r.flows[f]
		}
		x.up = none
		if h != whole {
			x.up = h - 1
			x.sibling, r.flows[x.up].child = r.flows[x.up].child, f
			if r.cfg.Fail > 0 && r.waits(x.up, f) {
				r.part(f)
				return
			}
		}
	}
	r.ready(f)
}

// connect counts a flow's stream at both ends, or no longer.
func (r *run) connect(x *flow, by int32) {
	x.started = by > 0
	for _, i := range [...]int32{x.from, x.to} {
		l := &r.links[i]
		l.conns += by
		l.most = max(l.most, l.conns)
	}
}

// complete is a chunk that has come.
func (r *run) complete(f int32) {
	x := &r.flows[f]
	n := &r.nodes[x.to]
	r.have[x.chunk][x.to] = whole
	for c := x.child; c != none; c = r.flows[c].sibling {
		r.flows[c].up = none
	}
	r.connect(x, -1)
	if x.direct && x.from != r.origin {
		r.nodes[x.from].plan.Done(r.time(), key(x.chunk), n.id)
	}
	if x.from != r.origin && r.nodes[x.from].rack != n.rack {
		r.cross += int64(r.quanta)
	}
	if len(r.failed) > 0 {
		delete(r.failed, f)
	}
	if x.fill && x.from != r.origin && x.from != n.near && (n.near == none ||
		broadcast.Distance(r.nodes[x.from].id, n.id) < broadcast.Distance(r.nodes[n.near].id, n.id)) {
		n.near = x.from
	}
	n.left--
	switch n.left {
	case r.cfg.Chunks * 3 / 4:
		n.quarter = r.now
	case r.cfg.Chunks / 4:
		n.most = r.now
	case 0:
		r.links[x.to].finished = r.now
	}
	r.close(x.chunk)
	to, worker := x.to, x.worker
	x.epoch++
	r.free = append(r.free, f)
	if worker {
		if n.window < r.cfg.Window {
			n.window++
			r.take(to)
		}
		r.take(to)
	}
}

// close forgets a chunk that nobody lacks any more.
func (r *run) close(c int32) {
	if r.open[c]--; r.open[c] == 0 {
		r.have[c], r.open[c] = nil, -1
	}
}

func (r *run) sum() scaleResult {
	res := r.result
	res.Bound = float64(r.cfg.Chunks) * r.cfg.ChunkBytes / min(r.cfg.Rate, r.cfg.OriginRate)
	var sum, most int64
	var last int64
	var middle []float64
	for i := range r.nodes {
		l, n := &r.links[i], &r.nodes[i]
		sum += l.sent
		most = max(most, l.sent)
		res.MaxConnections = max(res.MaxConnections, int(l.most))
		if l.diesAt == never {
			if n.left > 0 {
				panic(fmt.Sprintf("node %d lacks %d chunks at the end", i, n.left))
			}
			last = max(last, l.finished)
			middle = append(middle, float64(n.most-n.quarter)/1e9)
		}
	}
	slices.Sort(middle)
	res.Seconds = float64(last) / 1e9
	res.Efficiency = res.Bound / res.Seconds
	res.Steady = res.Bound / 2 / middle[len(middle)/2]
	quanta := float64(r.cfg.Chunks) * float64(r.quanta)
	res.OriginCopies = float64(r.links[r.origin].sent) / quanta
	if sum > 0 {
		res.MaxOverMeanSent = float64(most) * float64(len(r.nodes)) / float64(sum)
	}
	if len(r.racks) > 0 {
		res.CrossRack = float64(r.cross) / quanta / float64(len(r.racks))
	}
	return res
}
