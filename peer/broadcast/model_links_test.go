package broadcast_test

import "container/heap"

// Links of the model. A node sends and receives at its rate. What it sends is cut into quanta, which
// the flows that have one ready take turns with; a flow has at most maxUnacked of them on the way, as
// TCP has its window. What arrives at one node queues there. So a link works whenever a flow across it
// has something to send, and flows that share one get the same.

// maxUnacked is how many quanta of a flow are under way at once.
const maxUnacked = 4

// never is later than all times.
const never = int64(1) << 62

// none is no flow, no node.
const none = int32(-1)

// link is one node's.
type link struct {
	quantum  int64 // ns that a quantum takes, each way
	free     int64 // when what is on its way to the node has come
	sending  int32 // flow whose quantum leaves now
	first    int32 // of the flows that wait for their turn
	last     int32
	sent     int64 // quanta
	conns    int32 // streams now, both ways
	most     int32
	diesAt   int64
	dead     bool
	finished int64
}

// flow brings a chunk to a node.
type flow struct {
	from, to, chunk int32 // from is none while it asks
	up              int32 // flow that brings the chunk to the source; none when that has it
	child, sibling  int32 // first flow that has this one for its up; next one with the same up
	next            int32 // behind it in the source's queue
	tracker         int32 // whom it asks, none before
	sent, came      int16 // quanta
	epoch           uint16
	queued          bool
	direct          bool // the source knows of it as the tracker
	worker          bool // one of the node's window waits for it
	fill            bool // it asks as one who fills the object, not as a representative
	past            bool // one of those it is to ask has stopped
	asked           bool // one has answered
	started         bool // the source has the request
	over            bool // to a node that has died
}

// kind is what an event is.
type kind uint8

const (
	evTake  kind = iota // a node takes its next chunk
	evAsk               // a request reaches the tracker
	evStart             // a request reaches the source
	evSent              // a quantum has left a node
	evCame              // a quantum has come
	evDie               // a node stops
	evAgain             // a flow's source is known to have stopped
)

type event struct {
	at    int64 // ns
	id    int32 // node or flow
	epoch uint16
	what  kind
}

// slotShift and slotCount are how the near future is cut: 512 ns each, 17 ms in all. Events of one slot
// are taken in the order in which they were made, so times are exact and their order nearly.
const (
	slotShift = 9
	slotCount = 1 << 15
)

// agenda is the events to come.
type agenda struct {
	slots [slotCount][]event
	slot  int64 // of now
	i     int   // next in it
	near  int   // events in slots
	far   farEvents
}

func (a *agenda) add(e event) {
	if s := max(e.at>>slotShift, a.slot); s < a.slot+slotCount {
		a.slots[s%slotCount] = append(a.slots[s%slotCount], e)
		a.near++
		return
	}
	heap.Push(&a.far, e)
}

// next returns the next event, or false when there is none.
func (a *agenda) next() (event, bool) {
	for {
		s := a.slots[a.slot%slotCount]
		if a.i < len(s) {
			a.i++
			a.near--
			return s[a.i-1], true
		}
		a.slots[a.slot%slotCount], a.i = s[:0], 0
		switch {
		case a.near > 0:
			a.slot++
		case len(a.far) == 0:
			return event{}, false
		default:
			a.slot = a.far[0].at >> slotShift
		}
		for len(a.far) > 0 && a.far[0].at>>slotShift < a.slot+slotCount {
			a.add(heap.Pop(&a.far).(event))
		}
	}
}

type farEvents []event

func (e farEvents) Len() int           { return len(e) }
func (e farEvents) Less(i, j int) bool { return e[i].at < e[j].at }
func (e farEvents) Swap(i, j int)      { e[i], e[j] = e[j], e[i] }
func (e *farEvents) Push(x any)        { *e = append(*e, x.(event)) }
func (e *farEvents) Pop() any {
	old := *e
	x := old[len(old)-1]
	*e = old[:len(old)-1]
	return x
}

// ready queues a flow for its source's link, if it has something to send.
func (r *run) ready(f int32) {
	x := &r.flows[f]
	if x.queued || x.from == none || x.over {
		return
	}
	have := r.quanta
	if x.up != none {
		have = r.flows[x.up].came
	}
	if x.sent >= have || x.sent-x.came >= maxUnacked {
		return
	}
	l := &r.links[x.from]
	if l.sending == f {
		return // it is looked at again when this quantum has left
	}
	x.queued, x.next = true, none
	if l.first == none {
		l.first = f
	} else {
		r.flows[l.last].next = f
	}
	l.last = f
	r.send(x.from)
}

// send lets the next flow have its turn, if the link is idle.
func (r *run) send(node int32) {
	l := &r.links[node]
	for l.sending == none && l.first != none {
		f := l.first
		x := &r.flows[f]
		l.first = x.next
		x.queued = false
		if x.over || x.from != node {
			continue
		}
		x.sent++
		l.sent++
		l.sending = f
		to := &r.links[x.to]
		left := r.now + l.quantum
		to.free = max(r.now, to.free) + to.quantum
		r.agenda.add(event{at: left, id: node, what: evSent})
		r.agenda.add(event{at: max(left, to.free) + r.latency, id: f, epoch: x.epoch, what: evCame})
	}
}

// sent is called when a quantum has left a node.
func (r *run) sent(node int32) {
	l := &r.links[node]
	f := l.sending
	l.sending = none
	if l.dead {
		return
	}
	if r.flows[f].from == node {
		r.ready(f)
	}
	r.send(node)
}

// came is called when a quantum has come to a node, which can pass it on now.
func (r *run) came(f int32, epoch uint16) {
	x := &r.flows[f]
	if x.epoch != epoch || x.over {
		return
	}
	x.came++
	for c := x.child; c != none; c = r.flows[c].sibling {
		r.ready(c)
	}
	if x.came == r.quanta {
		r.complete(f)
		return
	}
	r.ready(f)
}
