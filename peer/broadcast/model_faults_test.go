package broadcast_test

import (
	"slices"
	"time"
)

// die stops a node.
func (r *run) die(i int32) {
	r.links[i].dead = true
	for c, have := range r.have {
		if have != nil && have[i] != whole {
			r.close(int32(c))
		}
	}
	for f := range r.flows {
		x := &r.flows[f]
		if r.have[x.chunk] == nil || r.have[x.chunk][x.to] != int32(f)+1 || x.over {
			continue // free
		}
		switch i {
		case x.to:
			x.over = true
			if x.started {
				r.connect(x, -1)
			}
		case x.from:
			r.broke(int32(f), r.cfg.Detect.Nanoseconds())
		}
	}
}

// maxCircles is how many times nodes may wait for each other before a run is given up.
const maxCircles = 1000

// stall is how long the product waits for somebody who waits himself before it asks anew.
const stall = 2 * time.Second

// part has all who wait for each other ask anew when they have found out, of whom the ring names by then.
func (r *run) part(f int32) {
	if r.result.Circles++; r.result.Circles > maxCircles {
		panic("nodes wait for each other again and again")
	}
	for first := f; ; {
		up := r.flows[f].up
		r.flows[f].tracker, r.flows[f].past = none, false
		r.broke(f, stall.Nanoseconds())
		if f = up; f == first {
			return
		}
	}
}

// unlink takes a flow from those that wait for what another one brings.
func (r *run) unlink(f int32) {
	x := &r.flows[f]
	if x.up == none {
		return
	}
	at := &r.flows[x.up].child
	for *at != f {
		at = &r.flows[*at].sibling
	}
	*at, x.up, x.sibling = x.sibling, none, none
}

// waits reports whether what a flow brings comes by another one, however far up.
func (r *run) waits(f, by int32) bool {
	for ; f != none; f = r.flows[f].up {
		if f == by {
			return true
		}
	}
	return false
}

// broke has a flow ask anew after a time, when its source is known to have stopped. What came is kept.
func (r *run) broke(f int32, after int64) {
	x := &r.flows[f]
	if x.started {
		r.connect(x, -1)
	}
	if x.from != r.origin && r.dead(x.from) {
		id := r.nodes[x.from].id
		if n := &r.nodes[x.to]; n.near == x.from {
			n.near = none
		}
		if !slices.Contains(r.failed[f], id) {
			r.failed[f] = append(r.failed[f], id)
		}
	}
	r.unlink(f)
	x.from, x.sent, x.queued = none, x.came, false
	x.epoch++
	r.agenda.add(event{at: r.now + after, id: f, what: evAgain})
}
