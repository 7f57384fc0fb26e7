package broadcast

import (
	"math"
	"slices"
	"time"

	"github.com/shardwell/shardwell/internal/chunk"
)

// probes notes that a chunk is left to this node, and reports whether the asker is rather to fetch it.
func (p *Plan) probes(req Request) bool {
	k := p.casts[req.Chunk.Object]
	k.fetched++
	if k.fetched > 1 && k.fetched >= k.probeAt && p.cfg.ProbeEvery > 0 && req.Fresh && !req.Slow {
		k.probeAt = k.fetched + p.cfg.ProbeEvery
		return true
	}
	k.left = req.Chunk.Index
	return false
}

// level forgets who asked for how much: those who stood behind a slow member are not to blame.
func (k *cast) level() {
	for _, f := range k.members {
		f.asked = k.most
	}
}

// isSlow reports whether a member that fills the object said of late that its link is slow, and most others did not.
func (p *Plan) isSlow(k *cast, member string, now time.Time) bool {
	f := k.members[member]
	return f != nil && !f.slow.IsZero() && now.Sub(f.slow) < p.cfg.SlowFor && 2*k.slow < len(k.members)
}

// Elsewhere returns a member that has a span of a chunk, all of which is whole, or is receiving it from somebody
// other than this node, or "" for none: what was delegated, or was given away before this node lost it. delegate says that it is
// to fetch the span from the origin, and may not have begun yet. When nobody has it and this node is slow, that is a member that
// fills the object, from now on.
func (p *Plan) Elsewhere(now time.Time, c Chunk, span, whole chunk.Span, failed []string, slow bool) (member string, delegate bool) {
	k := p.casts[c.Object]
	if k == nil {
		return "", false
	}
	s := p.chunk(c)
	if s == nil {
		if !slow {
			return "", false
		}
		s = p.state(now, c)
	}
	req := Request{Chunk: c, Span: span, Member: p.cfg.Self, Failed: failed, Delegate: true, Slow: slow}
	h := p.choose(now, s, req)
	if h == nil && slow {
		req.Span = whole
		req.Slow = false // its link is not
		h = p.commission(now, s, req)
	}
	if h == nil {
		return "", false
	}
	if s.from != nil {
		s.from.children--
		p.sort(s, s.from)
		s.from = nil
	}
	if !slow {
		h.children++
		p.sort(s, h)
		s.from = h
	}
	return h.id, h.delegate && !h.done
}

// vice returns who fetches what this node, which is slow, is left with: the member that stands nearest behind it in the circle of those
// that fill the object, or "".
func (p *Plan) vice(now time.Time, k *cast, req Request) string {
	start := seat(k.circle, p.place)
	for i := range k.circle {
		f := k.circle[(start+i)%len(k.circle)]
		if f.id != p.cfg.Self && now.Sub(f.last) < p.cfg.FillFor && !p.isSlow(k, f.id, now) && !p.isBlamed(f.id, now) && !slices.Contains(req.Failed, f.id) {
			return f.id
		}
	}
	return ""
}

// commission makes the vice a delegate for a chunk, and returns it, or nil when there is none.
func (p *Plan) commission(now time.Time, s *state, req Request) *holder {
	k := p.casts[req.Chunk.Object]
	id := p.vice(now, k, req)
	if id == "" {
		return nil
	}
	f := k.members[id]
	p.receiving(now, s, Request{Chunk: req.Chunk, Span: req.Span, Member: id, Zone: f.zone, Rack: f.rack, Delegate: true}, nil)
	return s.members[id]
}

// idle returns the best source for a member whose link is slow: whoever is last in the circle has time left.
func (p *Plan) idle(q *question) (best candidate) {
	for cost := range q.s.all.open {
		left := q.look
		q.s.all.open[cost].before(p.place, func(h *holder) bool {
			left--
			c := p.candidate(q, h)
			c.cost, c.distance = h.slowChildren+c.cost-h.cost, p.place-h.place
			if (best.h == nil || c.before(best)) && p.mayServe(q.now, q.s, h, q.Request) && p.isFed(q.now, q.s, h, q.Request) {
				best = c
			}
			return left > 0
		})
	}
	return best
}

// mayCome reports whether one who has not asked for a chunk yet may be named though this node, being slow, does not fetch it.
// Then best is, when nobody has the chunk, worse than anybody: who is expected asks in turn, up to the vice, who is to fetch it.
func (p *Plan) mayCome(q *question, best *candidate) bool {
	if q.Member == p.cfg.Self {
		return false
	}
	if best.h != nil {
		return true
	}
	vice := p.vice(q.now, q.k, q.Request)
	if len(q.s.members) > 0 && !q.s.viced || vice == "" || vice == q.Member {
		return false
	}
	*best = candidate{cost: math.MaxInt, distance: math.MaxUint64}
	q.s.viced = true
	return true
}
