package transfer

import (
	"sync"
	"time"
)

// Bounds of [pace].
const (
	// paceEvery is how often the rates are looked at: those since the look before the last, since a second is
	// what a few blocks need.
	paceEvery = 500 * time.Millisecond
	// paceFull is the part of what comes to this node from which on what leaves tells that its link is the limit, and
	// paceSlow the part of it that a member takes which is the limit itself.
	paceFull, paceSlow = 0.75, 0.4
	// paceBusy is the part of the time in which a slow taker keeps this node waiting.
	paceBusy = 0.9
	// paceTimes is how often in a row that has to be so.
	paceTimes = 3
	// paceFor is how long a taker is held to be slow after it was last found so.
	paceFor = 10 * time.Second
	// maxTakers bounds how many are remembered.
	maxTakers = 1024
)

// pace finds those among the members that this node sends to that seem to take less than it could
// send: writes to them wait all the time, and yet they take much less than comes to this node, and others do not take
// the rest. Who forwards what it receives would make all behind it as slow. What comes now tells what this node's link
// can do: what left at other times does not, as the link may have become slow since. Whether the member's link
// is slow, or full of what others send, only the member itself can tell.
// Safe for concurrent use.
type pace struct {
	moved func() int64 // bytes that have come to this node, ever

	mu     sync.Mutex
	sent   int64   // bytes that have left, ever
	last   [2]look // the later one first
	in     float64 // bytes a second that came of late
	takers map[string]*taker
}

// look is a moment and what had left and come by then.
type look struct {
	at         time.Time
	sent, came int64
}

// taker is a member that this node sends to, or sent to lately.
type taker struct {
	writers int              // under way
	since   time.Time        // writers is not 0
	waited  [2]time.Duration // since the last look, and between it and the one before
	took    [2]int64         // bytes, likewise
	times   int              // in a row that it was found slow
	slow    time.Time        // it last was
}

func newPace(moved func() int64) *pace {
	return &pace{moved: moved, takers: make(map[string]*taker)}
}

// begin notes that a write to a member begins.
func (p *pace) begin(member string, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.takers[member]
	if t == nil {
		if len(p.takers) >= maxTakers {
			return
		}
		t = &taker{}
		p.takers[member] = t
	}
	if t.writers == 0 {
		t.since = now
	}
	t.writers++
}

// end notes that a write to a member has ended, by which n bytes have left. When the member is
// slow it returns how many bytes a second could leave, else 0.
func (p *pace) end(member string, n int64, now time.Time) float64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sent += n
	t := p.takers[member]
	if t != nil && t.writers > 0 {
		t.took[0] += n
		if t.writers--; t.writers == 0 {
			t.waited[0] += now.Sub(t.since)
		}
	}
	p.look(now)
	if t == nil || !p.isSlow(t, now) {
		return 0
	}
	return p.in
}

func (p *pace) isSlow(t *taker, now time.Time) bool {
	return !t.slow.IsZero() && now.Sub(t.slow) < paceFor
}

// look compares what has left of late with what came. The caller holds mu.
func (p *pace) look(now time.Time) {
	if now.Sub(p.last[0].at) < paceEvery {
		return
	}
	l, from := look{at: now, sent: p.sent, came: p.moved()}, p.last[1]
	past := now.Sub(from.at)
	known := !from.at.IsZero() && past < 5*paceEvery // else nothing left meanwhile, or little
	p.last = [2]look{l, p.last[0]}
	out := float64(l.sent-from.sent) / past.Seconds()
	p.in = float64(l.came-from.came) / past.Seconds()
	for member, t := range p.takers {
		if t.writers > 0 {
			t.waited[0] += now.Sub(t.since)
			t.since = now
		}
		waited, took := t.waited[0]+t.waited[1], t.took[0]+t.took[1]
		if known && out < paceFull*p.in && waited.Seconds() >= paceBusy*past.Seconds() && float64(took)/past.Seconds() < paceSlow*p.in {
			t.times++
		} else {
			t.times = 0
		}
		if t.times >= paceTimes {
			t.slow = now
		}
		t.waited, t.took = [2]time.Duration{0, t.waited[0]}, [2]int64{0, t.took[0]}
		if waited == 0 && !p.isSlow(t, now) {
			delete(p.takers, member)
		}
	}
}
