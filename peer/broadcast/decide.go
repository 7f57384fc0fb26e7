package broadcast

import (
	"container/list"
	"time"

	"github.com/shardwell/shardwell/internal/chunk"
)

// Ask decides where the asker gets its blocks from, and remembers that it does.
func (p *Plan) Ask(now time.Time, req Request) Decision {
	s := p.state(now, req.Chunk)
	p.noteFailures(now, s, req)
	p.Gather(now, req)
	if h := s.members[req.Member]; h != nil {
		p.detach(s, h) // it asks anew
	}
	var source *holder
	probe := false
	if !req.ServeOnly {
		source = p.choose(now, s, req)
		probe = source == nil && !req.Delegate && p.probes(req)
		req.Delegate = req.Delegate || probe
	}
	if h := s.members[req.Member]; req.Fill && (h == nil || h.stranger) {
		k := p.casts[req.Chunk.Object]
		if f := k.members[req.Member]; f != nil {
			f.asked++
			k.most = max(k.most, f.asked)
		}
	}
	p.receiving(now, s, req, source)
	d := Decision{Lags: req.Fill && p.lags(p.casts[req.Chunk.Object], req.Member, now)}
	switch {
	case source != nil:
		d.Redirect = source.id
	case req.Delegate:
		d.Redirect, d.Probe = req.Member, probe
		d.Against = p.casts[req.Chunk.Object].left
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
	switch f := k.members[req.Member]; {
	case f == nil:
	case req.Slow:
		if f.slow.IsZero() {
			k.slow++
			k.level()
		}
		f.slow = now
	case !f.slow.IsZero(): // no longer; who left it did so for that
		f.slow = time.Time{}
		k.slow--
		delete(p.blamed, req.Member)
	}
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
		f = &filler{id: member, place: placeOf(member), zone: zone, rack: rack}
		k.add(f)
	}
	f.last = now
	if f.zone != zone || f.rack != rack {
		k.move(f, zone, rack)
	}
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
			p.sort(s, h)
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
		p.sort(s, h)
	}
}

// Leave forgets a member that is none any more.
func (p *Plan) Leave(member string) {
	for e := p.order.Front(); e != nil; e = e.Next() {
		s := e.Value.(*state)
		p.forget(s, member)
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
	p.holders -= len(e.Value.(*state).members)
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
		k = &cast{members: make(map[string]*filler), zones: make(map[string][]*filler), racks: make(map[string][]*filler)}
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
func (p *Plan) forget(s *state, member string) {
	h := s.members[member]
	if h == nil {
		return
	}
	p.detach(s, h)
	s.direct -= h.direct
	h.gone = true
	delete(s.members, member)
	p.holders--
	s.lost(p.casts[s.chunk.Object].members[member])
	for _, g := range s.groupsOf(h) {
		if g != nil {
			g.passed = min(g.passed, h.place-p.place)
		}
	}
	p.sort(s, h)
	s.ages.remove(h)
}

// detach ends what a member counts for at its source.
func (p *Plan) detach(s *state, h *holder) {
	if h.detached || h.stranger || h.delegate {
		return
	}
	h.detached = true
	switch {
	case h.source == nil && !h.slow:
		s.given--
	case h.source == nil:
	case h.slow:
		h.source.slowChildren--
		p.sort(s, h.source)
	default:
		h.source.children--
		p.sort(s, h.source)
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
		for p.holders >= p.cfg.MaxHolders && p.order.Front().Value != s {
			p.drop(p.order.Front())
		}
		h = &holder{id: id, since: now, stranger: true, place: placeOf(id)}
		s.members[id] = h
		p.holders++
		s.ages.push(h)
	}
	return h
}

// receiving remembers from whom the asker receives from now on.
func (p *Plan) receiving(now time.Time, s *state, req Request, source *holder) {
	h := p.remember(s, req.Member, now)
	if h == nil {
		return // it is served, and named to nobody
	}
	p.detach(s, h)
	h.zone, h.rack = req.Zone, req.Rack
	h.span = union(h.span, req.Span)
	h.since, h.source, h.done, h.stranger, h.expected, h.depth = now, source, false, false, false, 1
	h.delegate, h.fills = source == nil && req.Delegate, req.Fill
	h.slow, h.detached = req.Slow, false
	switch {
	case h.delegate:
	case source == nil:
		h.direct++
		s.direct++
		if !h.slow {
			s.given++
		}
	default:
		if h.slow {
			source.slowChildren++
		} else {
			source.children++
		}
		p.sort(s, source)
		h.depth = 1 + p.depth(now, source)
	}
	s.ages.push(h)
	p.sort(s, h)
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
	oldest := s.oldest
	for oldest != nil && oldest.direct > 0 {
		oldest = oldest.newer
	}
	if oldest == nil {
		return false
	}
	p.forget(s, oldest.id)
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

// expect makes a member that will ask for the chunk one that others can be sent to:
// it asks at once then.
func (p *Plan) expect(now time.Time, s *state, req Request, f *filler) *holder {
	h := p.remember(s, f.id, now)
	if h == nil {
		return nil
	}
	h.expected, h.fills, h.span, h.zone, h.rack = true, true, req.Span, f.zone, f.rack
	h.depth = 1 + p.casts[req.Chunk.Object].rank(p.place, f.place)
	p.sort(s, h)
	return h
}
