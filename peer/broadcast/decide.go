package broadcast

import (
	"container/list"
	"slices"
	"time"

	"github.com/shardwell/shardwell/internal/chunk"
)

// Ask decides where the asker gets its blocks from, and remembers that it does.
func (p *Plan) Ask(now time.Time, req Request) Decision {
	s := p.state(now, req.Chunk)
	p.noteFailures(now, s, req)
	p.Gather(now, req)
	var source *holder
	if !req.ServeOnly {
		source = p.choose(now, s, req)
	}
	if h := s.members[req.Member]; req.Fill && (h == nil || h.stranger) {
		k := p.casts[req.Chunk.Object]
		if f := k.members[req.Member]; f != nil {
			f.asked++
			k.most = max(k.most, f.asked)
		}
	}
	p.receiving(now, s, req, source)
	d := Decision{Lags: req.Fill && p.lags(p.casts[req.Chunk.Object], req.Member)}
	switch {
	case source != nil:
		d.Redirect = source.id
	case req.Delegate:
		d.Redirect = req.Member
	}
	return d
}

// Gather notes that a member fills an object, and returns how long its request is to wait
// before Ask, for others to be known by then.
func (p *Plan) Gather(now time.Time, req Request) time.Duration {
	if !req.Fill {
		return 0
	}
	k := p.casts[req.Chunk.Object]
	if k == nil {
		p.state(now, req.Chunk) // makes it
		k = p.casts[req.Chunk.Object]
	}
	if len(k.members) == 0 {
		k.begun = now
	}
	p.fills(k, req.Member, req.Zone, req.Rack, now)
	if req.Near != "" && req.Near != p.cfg.Self && k.members[req.Near] == nil && !p.isBlamed(req.Near, now) {
		p.fills(k, req.Near, req.NearZone, req.NearRack, now)
	}
	return p.cfg.Gather - now.Sub(k.begun)
}

func (p *Plan) fills(k *cast, member, zone, rack string, now time.Time) {
	f := k.members[member]
	if f == nil {
		if len(k.members) >= p.cfg.MaxMembers {
			return
		}
		f = &filler{place: placeOf(member)}
		k.add(member, f)
	}
	f.zone, f.rack, f.last = zone, rack, now
}

// Done says that this node's send to a member has ended well.
func (p *Plan) Done(now time.Time, c Chunk, member string) {
	s := p.chunk(c)
	if s == nil {
		return
	}
	if h := s.members[member]; h != nil && h.direct > 0 {
		h.direct--
		s.direct--
		if h.direct == 0 && h.source == nil {
			h.done = true
		}
	}
}

// Failed says that this node's send to a member broke.
func (p *Plan) Failed(now time.Time, c Chunk, member string) {
	s := p.chunk(c)
	if s == nil {
		return
	}
	h := s.members[member]
	if h == nil || h.direct == 0 {
		return
	}
	h.direct--
	s.direct--
	if h.direct == 0 && h.source == nil {
		h.span = chunk.Span{} // what it got of it is not known
	}
}

// Leave forgets a member that is none any more.
func (p *Plan) Leave(member string) {
	for e := p.order.Front(); e != nil; e = e.Next() {
		s := e.Value.(*state)
		s.forget(member)
	}
	for _, k := range p.casts {
		k.remove(member)
	}
	delete(p.blamed, member)
}

// Expire forgets the chunks that are no longer hot. Ask does so as it goes; this is for
// a node that nobody asks.
func (p *Plan) Expire(now time.Time) {
	for e := p.order.Front(); e != nil; e = p.order.Front() {
		s := e.Value.(*state)
		if now.Sub(s.last) < p.cfg.Hot {
			return
		}
		p.drop(e)
	}
}

// drop forgets a chunk, and who fills the object with its last one.
func (p *Plan) drop(e *list.Element) {
	c := e.Value.(*state).chunk
	p.order.Remove(e)
	delete(p.chunks, c)
	k := p.casts[c.Object]
	k.chunks--
	if k.chunks == 0 {
		delete(p.casts, c.Object)
	}
}

// Len returns how many chunks are remembered.
func (p *Plan) Len() int { return len(p.chunks) }

// state returns what is known of a chunk, now the one asked for last.
func (p *Plan) state(now time.Time, c Chunk) *state {
	p.Expire(now)
	if e := p.chunks[c]; e != nil {
		p.order.MoveToBack(e)
		s := e.Value.(*state)
		s.last = now
		return s
	}
	for len(p.chunks) >= p.cfg.MaxChunks {
		p.drop(p.order.Front())
	}
	s := &state{chunk: c, last: now, members: make(map[string]*holder)}
	p.chunks[c] = p.order.PushBack(s)
	k := p.casts[c.Object]
	if k == nil {
		k = &cast{members: make(map[string]*filler)}
		p.casts[c.Object] = k
	}
	k.chunks++
	return s
}

func (p *Plan) chunk(c Chunk) *state {
	e := p.chunks[c]
	if e == nil {
		return nil
	}
	return e.Value.(*state)
}

// forget drops a member, and its place behind its source.
func (s *state) forget(member string) {
	h := s.members[member]
	if h == nil {
		return
	}
	s.detach(h)
	s.direct -= h.direct
	h.gone = true
	delete(s.members, member)
}

// detach ends what a member counts for at its source.
func (s *state) detach(h *holder) {
	switch {
	case h.stranger, h.delegate:
	case h.source == nil:
		s.given--
	default:
		h.source.children--
	}
}

// noteFailures remembers who could not help an asker, also when it was not known
// before: it may ask for the chunk itself next.
func (p *Plan) noteFailures(now time.Time, s *state, req Request) {
	if req.Blameless {
		return
	}
	for _, id := range req.Failed {
		if f := p.casts[req.Chunk.Object].members[id]; f != nil {
			f.last = time.Time{} // not expected until it asks again
		}
		if h := p.remember(s, id, now); h != nil {
			h.failed = now
		}
		if _, ok := p.blamed[id]; ok || len(p.blamed) < p.cfg.MaxMembers {
			p.blamed[id] = now
		}
	}
}

// isBlamed reports whether a member has failed lately, for whatever chunk.
func (p *Plan) isBlamed(id string, now time.Time) bool {
	at, ok := p.blamed[id]
	if ok && now.Sub(at) >= p.cfg.FailedFor {
		delete(p.blamed, id)
		return false
	}
	return ok
}

// remember returns what is known of a member, or nil when there is no room for it.
func (p *Plan) remember(s *state, id string, now time.Time) *holder {
	h := s.members[id]
	if h == nil {
		if len(s.members) >= p.cfg.MaxMembers && !p.makeRoom(s) {
			return nil
		}
		h = &holder{id: id, since: now, stranger: true, place: placeOf(id)}
		s.members[id] = h
	}
	return h
}

// receiving remembers from whom the asker receives from now on.
func (p *Plan) receiving(now time.Time, s *state, req Request, source *holder) {
	h := p.remember(s, req.Member, now)
	if h == nil {
		return // it is served, and named to nobody
	}
	s.detach(h)
	h.zone, h.rack = req.Zone, req.Rack
	h.span = union(h.span, req.Span)
	h.since, h.source, h.done, h.stranger, h.expected, h.depth = now, source, false, false, false, 1
	h.delegate = source == nil && req.Delegate
	switch {
	case h.delegate:
	case source == nil:
		h.direct++
		s.direct++
		s.given++
	default:
		source.children++
		h.depth = 1 + p.depth(now, source)
	}
}

// depth is how many hops what a member passes on is behind this node.
func (p *Plan) depth(now time.Time, h *holder) int {
	if h.done || now.Sub(h.since) >= p.cfg.Settle {
		return 0 // it has all of it
	}
	return h.depth
}

// makeRoom forgets the member that has been receiving for longest, other than
// those this node sends to.
func (p *Plan) makeRoom(s *state) bool {
	var oldest *holder
	for _, h := range s.members {
		if h.direct > 0 {
			continue
		}
		if oldest == nil || h.since.Before(oldest.since) || (h.since.Equal(oldest.since) && h.id < oldest.id) {
			oldest = h
		}
	}
	if oldest == nil {
		return false
	}
	s.forget(oldest.id)
	return true
}

// union returns a span that both reach into one whole, or the newer one.
func union(a, b chunk.Span) chunk.Span {
	if a.Count == 0 || a.End() < b.First || b.End() < a.First {
		return b
	}
	first, end := min(a.First, b.First), max(a.End(), b.End())
	return chunk.Span{First: first, Count: end - first}
}

// candidate is somebody who may be the asker's source, and what speaks for it.
type candidate struct {
	h      *holder // nil: this node
	room   bool    // below the limit of sends
	inRack bool    // of the asker
	inZone bool
	cost   int // receivers, and what counts like one
	depth  int
	// distance is how far the asker stands behind it in the circle.
	distance uint64
}

// choose returns the best member to name, or nil when that is this node, or nobody.
func (p *Plan) choose(now time.Time, s *state, req Request) *holder {
	at := placeOf(req.Member)
	best := candidate{room: s.direct < p.cfg.MaxSends, cost: s.given, distance: at - p.place,
		inRack: req.Rack != "" && p.cfg.Rack == req.Rack, inZone: req.Zone != "" && p.cfg.Zone == req.Zone}
	for _, h := range s.members {
		if !p.mayServe(now, s, h, req) {
			continue
		}
		depth := p.depth(now, h)
		c := candidate{h: h, room: h.children < p.cfg.MaxSends, cost: h.children + depth/p.cfg.MaxChain, depth: depth, distance: at - h.place,
			inRack: req.Rack != "" && h.rack == req.Rack, inZone: req.Zone != "" && h.zone == req.Zone}
		if p.isBlamed(h.id, now) || req.Fill && p.lags(p.casts[req.Chunk.Object], h.id) {
			c.cost++
		}
		if (c.before(best) || req.Delegate && best.h == nil) && p.isFed(now, s, h, req) {
			best = c
		}
	}
	if !req.Fill || req.Delegate {
		return best.h // nobody is to wait for whom nobody has told to come
	}
	id := ""
	k := p.casts[req.Chunk.Object]
	for other, f := range k.members {
		if s.members[other] != nil || other == req.Member || now.Sub(f.last) >= p.cfg.FillFor || p.lags(k, other) || p.isBlamed(other, now) || slices.Contains(req.Failed, other) {
			continue
		}
		c := candidate{h: &expected, room: true, distance: at - f.place, cost: k.rank(p.place, f.place) / p.cfg.MaxChain,
			inRack: req.Rack != "" && f.rack == req.Rack, inZone: req.Zone != "" && f.zone == req.Zone}
		if c.before(best) {
			best, id = c, other
		}
	}
	if id == "" {
		return best.h
	}
	return p.expect(now, s, req, id)
}

// expected stands for a member that has not asked for the chunk yet.
var expected holder

// expect makes a member that will ask for the chunk one that others can be sent to:
// it asks at once then.
func (p *Plan) expect(now time.Time, s *state, req Request, id string) *holder {
	h := p.remember(s, id, now)
	if h == nil {
		return nil
	}
	f := p.casts[req.Chunk.Object].members[id]
	h.expected, h.span, h.zone, h.rack = true, req.Span, f.zone, f.rack
	h.depth = 1 + p.casts[req.Chunk.Object].rank(p.place, f.place)
	return h
}

// Elsewhere returns a member that has a span of a chunk, or is receiving it from somebody
// other than this node, or "" for none: what was delegated, or was given away before this node lost it.
func (p *Plan) Elsewhere(now time.Time, c Chunk, span chunk.Span, failed []string) string {
	s := p.chunk(c)
	if s == nil || len(s.members) == 0 {
		return ""
	}
	h := p.choose(now, s, Request{Chunk: c, Span: span, Member: p.cfg.Self, Failed: failed, Delegate: true})
	if h == nil {
		return ""
	}
	return h.id
}

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
	if !h.failed.IsZero() && now.Sub(h.failed) < p.cfg.FailedFor {
		return false
	}
	if h.expected && now.Sub(h.since) >= p.cfg.FillFor {
		return false // it did not come
	}
	if req.Span.First < h.span.First || req.Span.End() > h.span.End() {
		return false
	}
	return true
}

// isFed follows the sources of h up to this node, or to one that is done, and reports whether it
// gets there without the asker.
func (p *Plan) isFed(now time.Time, s *state, h *holder, req Request) bool {
	for range len(s.members) + 1 {
		switch {
		case h.done || now.Sub(h.since) >= p.cfg.Settle:
			return true
		case h.source == nil:
			return h.delegate || !req.Delegate // else it waits for this node
		}
		h = h.source
		if h.id == req.Member || h.gone || h.stranger && !h.expected {
			return false // forgotten: and who it waits for with it
		}
	}
	return false
}
