package broadcast

import (
	"slices"
	"time"

	"github.com/shardwell/shardwell/internal/chunk"
)

// Ask decides where the asker gets its blocks from, and remembers that it does.
func (p *Plan) Ask(now time.Time, req Request) Decision {
	s := p.state(now, req.Chunk)
	p.noteFailures(now, s, req.Failed)
	source := ""
	if !req.ServeOnly && s.sends() >= p.cfg.MaxSends {
		source = p.choose(now, s, req)
	}
	p.receiving(now, s, req, source)
	return Decision{Redirect: source}
}

// Done says that this node's send to a member has ended well.
func (p *Plan) Done(now time.Time, c Chunk, member string) {
	if h := p.holder(c, member); h != nil && h.direct > 0 {
		h.direct--
		if h.direct == 0 && h.source == "" {
			h.done = true
		}
	}
}

// Failed says that this node's send to a member broke.
func (p *Plan) Failed(now time.Time, c Chunk, member string) {
	h := p.holder(c, member)
	if h == nil || h.direct == 0 {
		return
	}
	h.direct--
	if h.direct == 0 && h.source == "" {
		h.span = chunk.Span{} // what it got of it is not known
	}
}

// Leave forgets a member that is none any more.
func (p *Plan) Leave(member string) {
	for e := p.order.Front(); e != nil; e = e.Next() {
		s := e.Value.(*state)
		delete(s.members, member)
	}
}

// Expire forgets the chunks that are no longer hot. Ask does so as it goes; this is for
// a node that nobody asks.
func (p *Plan) Expire(now time.Time) {
	for e := p.order.Front(); e != nil; e = p.order.Front() {
		s := e.Value.(*state)
		if now.Sub(s.last) < p.cfg.Hot {
			return
		}
		p.order.Remove(e)
		delete(p.chunks, s.chunk)
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
		e := p.order.Front()
		p.order.Remove(e)
		delete(p.chunks, e.Value.(*state).chunk)
	}
	s := &state{chunk: c, last: now, members: make(map[string]*holder)}
	p.chunks[c] = p.order.PushBack(s)
	return s
}

func (p *Plan) holder(c Chunk, member string) *holder {
	e := p.chunks[c]
	if e == nil {
		return nil
	}
	return e.Value.(*state).members[member]
}

// noteFailures remembers who could not help an asker, also when it was not known
// before: it may ask for the chunk itself next.
func (p *Plan) noteFailures(now time.Time, s *state, failed []string) {
	for _, id := range failed {
		if h := p.remember(s, id, now); h != nil {
			h.failed = now
		}
	}
}

// remember returns what is known of a member, or nil when there is no room for it.
func (p *Plan) remember(s *state, id string, now time.Time) *holder {
	h := s.members[id]
	if h == nil {
		if len(s.members) >= p.cfg.MaxMembers && !p.makeRoom(s) {
			return nil
		}
		h = &holder{id: id, since: now, stranger: true}
		s.members[id] = h
	}
	return h
}

// sends counts the sends from this node that are under way.
func (s *state) sends() int {
	n := 0
	for _, h := range s.members {
		n += h.direct
	}
	return n
}

// receiving remembers from whom the asker receives from now on.
func (p *Plan) receiving(now time.Time, s *state, req Request, source string) {
	h := p.remember(s, req.Member, now)
	if h == nil {
		return // it is served, and named to nobody
	}
	h.zone, h.rack = req.Zone, req.Rack
	h.span = union(h.span, req.Span)
	h.since, h.source, h.done, h.stranger = now, source, false, false
	if source == "" {
		h.direct++
	}
	if src := s.members[source]; src != nil {
		src.named++
	}
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
	delete(s.members, oldest.id)
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

// choose returns the best member to name, or "" when there is none.
func (p *Plan) choose(now time.Time, s *state, req Request) string {
	load := s.loads(now, p.cfg.Settle)
	var best *holder
	for _, h := range s.members {
		if !p.mayServe(now, s, h, req) {
			continue
		}
		if best == nil || p.better(h, best, load, req) {
			best = h
		}
	}
	if best == nil {
		return ""
	}
	return best.id
}

// mayServe reports whether h can be the asker's source at all.
func (p *Plan) mayServe(now time.Time, s *state, h *holder, req Request) bool {
	if h.id == req.Member || slices.Contains(req.Failed, h.id) {
		return false
	}
	if !h.failed.IsZero() && now.Sub(h.failed) < p.cfg.FailedFor {
		return false
	}
	if req.Span.First < h.span.First || req.Span.End() > h.span.End() {
		return false
	}
	// Follow the sources up to this node, to one that is done, or to the asker.
	for range len(s.members) + 1 {
		if h.done || now.Sub(h.since) >= p.cfg.Settle || h.source == "" {
			return true
		}
		if h.source == req.Member {
			return false
		}
		if h = s.members[h.source]; h == nil || h.stranger {
			return false // forgotten, and who it waits for with it
		}
	}
	return false
}

// loads counts the members that receive from each member now.
func (s *state) loads(now time.Time, settle time.Duration) map[string]int {
	load := make(map[string]int, len(s.members))
	for _, h := range s.members {
		if h.source != "" && !h.done && now.Sub(h.since) < settle {
			load[h.source]++
		}
	}
	return load
}

// better orders the members that may be named: one that has room, same rack, same
// zone, fewest receivers, named least often, longest at it, and the id at last, so
// that equal states give equal decisions.
func (p *Plan) better(a, b *holder, load map[string]int, req Request) bool {
	if x, y := load[a.id] < p.cfg.MaxSends, load[b.id] < p.cfg.MaxSends; x != y {
		return x
	}
	if x, y := req.Rack != "" && a.rack == req.Rack, req.Rack != "" && b.rack == req.Rack; x != y {
		return x
	}
	if x, y := req.Zone != "" && a.zone == req.Zone, req.Zone != "" && b.zone == req.Zone; x != y {
		return x
	}
	if x, y := load[a.id], load[b.id]; x != y {
		return x < y
	}
	if a.named != b.named {
		return a.named < b.named
	}
	if !a.since.Equal(b.since) {
		return a.since.Before(b.since)
	}
	return a.id < b.id
}
