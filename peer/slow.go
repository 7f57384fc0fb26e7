package peer

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/peer/broadcast"
	"github.com/shardwell/shardwell/peer/transfer"
)

// Bounds of what is found out about this node's link.
const (
	// slowFor is how long this node counts as slow after a peer last found it so, and probedFor after a probe did: there
	// are few of these.
	slowFor, probedFor = 20 * time.Second, 2 * time.Minute
	// slowPart is the part of what another node could send it, or receives, that has to come to this node,
	// from whomever, lest it counts as slow.
	slowPart = 0.5
	// goodPart is the part of it from which on a node is slow no longer.
	goodPart = 0.6
	// A rate is that of the time since a mark of such an age. A shorter time has few blocks in it.
	minSlowPast, maxSlowPast = 800 * time.Millisecond, 2 * time.Second
	// markEvery is how far marks lie apart at least, and maxMarks how many are kept: more than maxSlowPast.
	markEvery = 200 * time.Millisecond
	maxMarks  = 12
	// maxProbes bounds the probes whose end is awaited, and probeFor how long.
	maxProbes = 64
	probeFor  = 30 * time.Second
	// anewAfter is how long those who waited for this node have to ask others before it does.
	anewAfter = 300 * time.Millisecond
	maxSlows  = 16 // objects that wait for it
)

// link is what this node knows of its own link: what comes, and whether that is little beside others. Safe for
// concurrent use.
type link struct {
	received func() int64 // bytes that have come to this node, from peers and origins, ever
	slow     atomic.Int64 // until when it counts as slow, Unix nanoseconds
	beside   atomic.Int64 // bytes a second, beside which it was found slow

	mu     sync.Mutex
	marks  []mark // oldest first; at most maxMarks
	probes map[chunk.ObjectID]probe
}

// mark is what had come to this node at some time.
type mark struct {
	at    time.Time
	bytes int64
}

// probe is a chunk that a member fetches from the origin while this node fetches another one.
type probe struct {
	mark
	member  string
	against chunk.Span // what this node fetches
}

func newLink(received func() int64) *link {
	return &link{received: received, probes: make(map[chunk.ObjectID]probe)}
}

// isSlow reports whether this node counts as slow.
func (l *link) isSlow(now time.Time) bool { return now.UnixNano() < l.slow.Load() }

// pace returns how many bytes a second have come to this node of late, 0 when it does not know.
func (l *link) pace(now time.Time) float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	got := l.received()
	rate := 0.0
	for i := len(l.marks) - 1; i >= 0; i-- {
		if past := now.Sub(l.marks[i].at); past >= minSlowPast {
			if past <= maxSlowPast {
				rate = float64(got-l.marks[i].bytes) / past.Seconds()
			}
			break
		}
	}
	if n := len(l.marks); n == 0 || now.Sub(l.marks[n-1].at) >= markEvery {
		if n == maxMarks {
			l.marks = append(l.marks[:0], l.marks[1:]...)
		}
		l.marks = append(l.marks, mark{now, got})
	}
	return rate
}

// takesLess reports whether little comes to this node, compared with a rate.
func (l *link) takesLess(now time.Time, rate float64) bool {
	came := l.pace(now)
	return came > 0 && came < slowPart*rate
}

// compare begins a probe.
func (l *link) compare(now time.Time, object chunk.ObjectID, member string, against chunk.Span) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, p := range l.probes {
		if now.Sub(p.at) >= probeFor || len(l.probes) >= maxProbes {
			delete(l.probes, id)
		}
	}
	l.probes[object] = probe{mark{now, l.received()}, member, against}
}

// compared ends the probe of an object whose member asks for more of it, and reports whether much less
// came to this node meanwhile than comes to the member. holds tells whether this node has got what it was to fetch.
func (l *link) compared(now time.Time, req transfer.Request, holds func(chunk.Span) bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	p, ok := l.probes[req.ID]
	if !ok || p.member != req.From || req.Pace == 0 {
		return false
	}
	past := now.Sub(p.at)
	if past < minSlowPast {
		return false
	}
	delete(l.probes, req.ID)
	came := float64(l.received() - p.bytes)
	return past < probeFor && came > 0 && came < slowPart*float64(req.Pace)*past.Seconds() && !holds(p.against)
}

// Pace returns how many bytes a second have come to this node of late, 0 when that is not known, and whether its
// link was found slow. It fits [Config].Pace.
func (s *Server) Pace() (bytesPerSecond int64, slow bool) {
	now, l := time.Now(), s.gate.link
	rate := int64(l.pace(now))
	if l.isSlow(now) && float64(rate) > goodPart*float64(l.beside.Load()) {
		l.slow.Store(0)
	}
	return rate, l.isSlow(now)
}

// Slow is told that a peer found this node to take less of an object than the peer could send,
// which is rate, in bytes a second. If no more comes from others either, this node promises nothing to
// those who fill an object for a while: they get what it holds, and what it would have to fetch
// as the owner they are to fetch themselves; and it asks anew for what it is receiving, so that its owner sends it to who has time
// left. It fits transfer.ClientConfig.OnSlow.
func (s *Server) Slow(object chunk.ObjectID, rate float64) {
	if now := time.Now(); s.gate.link.takesLess(now, rate) {
		s.slowed(now, slowFor, object, rate)
	}
}

// slowed makes this node count as slow for a while.
func (s *Server) slowed(now time.Time, d time.Duration, object chunk.ObjectID, rate float64) {
	l := s.gate.link
	l.beside.Store(int64(rate))
	was := l.slow.Load()
	l.slow.Store(max(was, now.Add(d).UnixNano()))
	if was >= now.UnixNano() {
		return
	}
	s.cfg.Logger.Info("this node's link is slower than its peers'", "object id", object, "peers' bytes/s", int64(rate))
	if t := s.sender.Load(); t != nil {
		t.CutAllFills(object)
	}
	select {
	case s.slows <- object:
	default: // many objects at once: streams of this one go on as they are
	}
}

// askAnew has objects asked for again for which this node was found slow, a little later: those who waited for this node have
// asked others by then, and these can be named to it.
func (s *Server) askAnew(ctx context.Context) error {
	for {
		select {
		case object := <-s.slows:
			if pause(ctx, anewAfter) == nil {
				s.cfg.Anew(object, chunk.Span{})
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// Elsewhere returns a member that has what is asked for, or gets it without this node, which
// is the owner, or "". delegate says that it is to get it from the origin. It fits [Config].Elsewhere.
func (s *Server) Elsewhere(req chunk.Request, failed []string) (member string, delegate bool) {
	g := s.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	c := broadcast.Chunk{Object: req.ID, Index: g.geometry.ChunkOf(req.Span.First)}
	return g.plan.Elsewhere(time.Now(), c, req.Span, g.geometry.ChunkSpan(req.Object.Size, c.Index), failed, g.link.isSlow(time.Now()))
}
