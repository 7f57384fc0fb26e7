package broadcast

import (
	"slices"
	"sort"
	"time"
)

// maxLook is how many members choose looks at before it takes the next best kind. Nearly always the first
// will do; those that will not have failed lately, lag, or wait for the asker.
const maxLook = 64

// candidate is somebody who may be the asker's source, and what speaks for it.
type candidate struct {
	h      *holder // nil: this node
	room   bool    // below the limit of sends
	inRack bool    // of the asker
	inZone bool
	cost   int // receivers, and what counts like one
	// distance is how far the asker stands behind it in the circle.
	distance uint64
}

// question is a request and what choose needs beside it.
type question struct {
	Request
	now  time.Time
	s    *state
	k    *cast  // of the object
	at   uint64 // place of the asker in the circle
	look int    // members of a line that are looked at
}

// choose returns the best member to name, or nil when that is this node, or nobody.
func (p *Plan) choose(now time.Time, s *state, req Request) *holder {
	p.settle(now, s)
	q := &question{Request: req, now: now, s: s, k: p.casts[req.Chunk.Object], at: placeOf(req.Member), look: maxLook}
	best := candidate{room: s.direct < p.cfg.MaxSends, cost: s.given, distance: q.at - p.place,
		inRack: req.Rack != "" && p.cfg.Rack == req.Rack, inZone: req.Zone != "" && p.cfg.Zone == req.Zone}
	c := p.member(q)
	if req.Slow {
		c = p.idle(q)
	}
	if c.h == nil && (!best.room || req.Delegate) {
		q.look = len(s.members) // rather anybody than this node
		c = p.member(q)
	}
	if c.h != nil && (c.before(best) || req.Delegate || req.Slow) {
		best = c
	}
	if !req.Fill || req.Slow || req.Delegate && !p.mayCome(q, &best) {
		return best.h // nobody is to wait for whom nobody has told to come
	}
	if c, f := p.comer(q); f != nil && c.before(best) {
		return p.expect(now, s, req, f)
	}
	return best.h
}

// settle notes who counts as having the chunk by now.
func (p *Plan) settle(now time.Time, s *state) {
	for h := s.unsettled; h != nil && now.Sub(h.since) >= p.cfg.Settle; h = h.newer {
		h.settled = true
		s.unsettled = h.newer
		p.sort(s, h)
	}
}

// member returns the best of the chunk's members.
func (p *Plan) member(q *question) (best candidate) {
	for _, full := range [...]bool{false, true} {
		if q.Rack != "" {
			if g := q.s.racks[q.Rack]; g != nil {
				best = p.within(q, g, full, q.Zone != "")
			}
			if best.h != nil {
				return best
			}
		}
		if q.Zone != "" {
			if g := q.s.zones[q.Zone]; g != nil {
				best = p.within(q, g, full, false)
			}
			if best.h != nil {
				return best
			}
		}
		if best = p.within(q, &q.s.all, full, false); best.h != nil {
			return best
		}
	}
	return best
}

// within returns the best of a group's members. Those that cost less are looked at first, and the nearest
// before the asker first among those that cost the same. mixed says that only some may be in the asker's zone.
func (p *Plan) within(q *question, g *group, full, mixed bool) (best candidate) {
	lines := g.open
	if full {
		lines = g.full
	}
	for cost := range lines {
		if best.h != nil && best.cost < cost && (best.inZone || !mixed) {
			break
		}
		left := q.look
		lines[cost].before(q.at, func(h *holder) bool {
			left--
			c := p.candidate(q, h)
			if c.before(best) || best.h == nil {
				if p.mayServe(q.now, q.s, h, q.Request) && p.isFed(q.now, q.s, h, q.Request) {
					best = c
				}
			}
			// Who comes now is farther than this one, and costs no less than the line says.
			found := best.h != nil && best.cost <= cost && best.distance <= c.distance && (best.inZone || !mixed)
			return left > 0 && !found
		})
	}
	return best
}

// candidate says what speaks for a member.
func (p *Plan) candidate(q *question, h *holder) candidate {
	c := candidate{h: h, room: !h.full, cost: h.cost, distance: q.at - h.place,
		inRack: q.Rack != "" && h.rack == q.Rack, inZone: q.Zone != "" && h.zone == q.Zone}
	switch {
	case p.isSlow(q.k, h.id, q.now):
		c.cost += p.cfg.MaxSends
	case p.isBlamed(h.id, q.now) || q.Fill && p.lags(q.k, h.id, q.now):
		c.cost++
	}
	return c
}

// comer returns the best of those who fill the object and have not asked for the chunk yet.
func (p *Plan) comer(q *question) (candidate, *filler) {
	if len(q.k.members) == 0 {
		return candidate{}, nil
	}
	if q.Rack != "" {
		if c, f := p.comerOf(q, q.k.racks[q.Rack], q.s.racks[q.Rack], q.Zone != ""); f != nil {
			return c, f
		}
	}
	if q.Zone != "" {
		if c, f := p.comerOf(q, q.k.zones[q.Zone], q.s.zones[q.Zone], false); f != nil {
			return c, f
		}
	}
	return p.comerOf(q, q.k.circle, &q.s.all, false)
}

// comerOf looks at some of those who fill the object in the order of the circle, from this node on. g is
// the same ones' group in the chunk, nil for none; mixed is as in within.
func (p *Plan) comerOf(q *question, from []*filler, g *group, mixed bool) (best candidate, who *filler) {
	n := len(from)
	start := sort.Search(n, func(i int) bool { return from[i].place >= p.place })
	skip := 0
	if n > maxLook && g != nil {
		skip = sort.Search(n, func(i int) bool { return from[(start+i)%n].place-p.place >= g.passed })
	}
	all := true // before this one are members
	for i := skip; i < min(n, skip+maxLook); i++ {
		f := from[(start+i)%n]
		if q.s.includes(f) {
			if all && g != nil {
				g.passed = f.place - p.place + 1
			}
			continue
		}
		all = false
		if !p.comes(q, f) {
			continue
		}
		c := candidate{h: &expected, room: true, distance: q.at - f.place, cost: q.k.rank(p.place, f.place) / p.cfg.MaxChain,
			inRack: q.Rack != "" && f.rack == q.Rack, inZone: q.Zone != "" && f.zone == q.Zone}
		switch {
		case who == nil || c.before(best):
			best, who = c, f
		case c.cost > best.cost && (best.inZone || !mixed):
			return best, who // and so do all behind it
		}
	}
	return best, who
}

// comes reports whether one who fills the object will ask for the chunk soon, other than the asker.
func (p *Plan) comes(q *question, f *filler) bool {
	return f.id != q.Member && q.now.Sub(f.last) < p.cfg.FillFor && !p.lags(q.k, f.id, q.now) && !p.isSlow(q.k, f.id, q.now) &&
		!p.isBlamed(f.id, q.now) && !slices.Contains(q.Failed, f.id)
}

// expected stands for a member that has not asked for the chunk yet.
var expected holder

// before orders candidates: who has room, same rack, same zone, fewest receivers,
// nearest before the asker in the circle, and the id at last, so that equal states give equal
// decisions. The circle has each node receive from the same one whoever owns a chunk: an
// uplink that feeds one downlink fills it, several that meet at random do not.
func (a candidate) before(b candidate) bool {
	switch {
	case a.room != b.room:
		return a.room
	case !a.room && (a.h == nil) != (b.h == nil):
		return a.h != nil // all are full: rather another
	case a.inRack != b.inRack:
		return a.inRack
	case a.inZone != b.inZone:
		return a.inZone
	case a.cost != b.cost:
		return a.cost < b.cost
	case a.distance != b.distance:
		return a.distance < b.distance
	case a.h == nil || b.h == nil:
		return a.h == nil
	}
	return a.h.id < b.h.id
}

// mayServe reports whether h can be the asker's source at all.
func (p *Plan) mayServe(now time.Time, s *state, h *holder, req Request) bool {
	if h.id == req.Member || slices.Contains(req.Failed, h.id) {
		return false
	}
	if !h.done && p.isSlow(p.casts[req.Chunk.Object], h.id, now) {
		return false
	}
	if !h.failed.IsZero() && now.Sub(h.failed) < p.cfg.FailedFor {
		return false
	}
	if h.expected && now.Sub(h.since) >= p.cfg.FillFor {
		return false // it did not come
	}
	if req.Span.First < h.span.First || req.Span.End() > h.span.End() {
		return false
	}
	return !p.mayWaitFor(now, h, req)
}

// mayWaitFor reports whether h, of which this node does not know it, may wait for the asker: it fills the
// object, and the asker represents the rack of both. It asked this node while the rack had no representative, and may have
// turned to him since.
func (p *Plan) mayWaitFor(now time.Time, h *holder, req Request) bool {
	return h.fills && !req.Fill && req.Rack != "" && req.Rack == h.rack && req.Rack != p.cfg.Rack &&
		!h.done && now.Sub(h.since) < p.cfg.Settle
}

// isFed follows the sources of h up to this node, or to one that is done, and reports whether it
// gets there without the asker.
func (p *Plan) isFed(now time.Time, s *state, h *holder, req Request) bool {
	for range len(s.members) + 1 {
		switch {
		case h.done || now.Sub(h.since) >= p.cfg.Settle:
			return true
		case h.source == nil:
			return h.delegate || h.expected || !req.Delegate // else it waits for this node
		}
		h = h.source
		if h.id == req.Member || h.gone || h.stranger && !h.expected {
			return false // forgotten: and who it waits for with it
		}
	}
	return false
}
