// Package budget divides the bytes a second that a cluster may take from an origin
// among its members: one of them, the lessor, leases parts for a second at a time
// ([Ledger]), the others keep to what they have leased ([Purse]).
//
// It promises that at any time the leases that are good add up to no more than the
// rate, that members which want less than an equal part leave the rest to the others, and that
// a lessor which dies or is replaced does not raise the sum: who cannot reach it lets its lease
// run out, waits until those of the others have, and goes on with an equal part; a new
// lessor gives nobody more than that until it cannot know less than the one before.
//
// It leaves to others who the lessor is and how it is asked, and what the bytes are. It is a
// part of package peer.
package budget

import (
	"slices"
	"time"
)

// How leases run.
const (
	LeaseTime  = time.Second
	firstTime  = LeaseTime / 10 // of a member that the lessor did not know: until others have asked as well
	retryTime  = LeaseTime / 20 // for who got nothing
	wantTime   = 2 * LeaseTime  // for so long a wish counts
	settleTime = 3 * LeaseTime  // of a new lessor: longer than anybody goes on without one
	maxLessees = 100_000        // members that a ledger remembers
)

// Lease is a part of the rate.
type Lease struct {
	BytesPerSecond float64       // 0: nothing is free now
	For            time.Duration // from when it was asked for; after that it is to be asked for again
}

// Ledger is the lessor's book for one origin. The zero value is ready. It is pure and not safe
// for concurrent use.
type Ledger struct {
	since   time.Time // of the first question since it is the lessor
	lessees map[string]lessee
}

type lessee struct {
	rate   float64
	until  time.Time // rate is good
	want   float64
	wanted time.Time
}

// Resign says that another member is the lessor now. A Ledger that is asked again begins anew.
func (l *Ledger) Resign() { *l = Ledger{} }

// Ask leases a part of rate, in bytes a second, to a member that wants so much, in a cluster of
// so many members.
func (l *Ledger) Ask(now time.Time, rate float64, member string, want float64, members int) Lease {
	if l.lessees == nil {
		l.since, l.lessees = now, make(map[string]lessee)
	}
	l.expire(now)
	me, known := l.lessees[member]
	if !known && len(l.lessees) >= maxLessees {
		return Lease{0, LeaseTime}
	}
	want = max(0, min(want, rate))
	me.want, me.wanted = want, now
	l.lessees[member] = me
	grant := l.fair(rate, member)
	if now.Sub(l.since) < settleTime {
		grant = min(grant, rate/float64(max(1, members)))
	}
	free := rate
	for id, other := range l.lessees {
		if id != member && other.until.After(now) {
			free -= other.rate
		}
	}
	grant = max(0, min(grant, free))
	for_ := LeaseTime
	switch {
	case want > 0 && grant <= rate*1e-9:
		grant, for_ = 0, retryTime
	case !known && members > 1:
		for_ = firstTime
	}
	me.rate, me.until = grant, now.Add(for_)
	l.lessees[member] = me
	return Lease{grant, for_}
}

// expire forgets members that have not asked for a while.
func (l *Ledger) expire(now time.Time) {
	for id, x := range l.lessees {
		if now.Sub(x.wanted) > wantTime && !x.until.After(now) {
			delete(l.lessees, id)
		}
	}
}

// fair returns a member's part when rate is divided so that nobody gets more than he wants, and
// who gets less has as much as anybody.
func (l *Ledger) fair(rate float64, member string) float64 {
	wants := make([]float64, 0, len(l.lessees))
	for _, x := range l.lessees {
		wants = append(wants, x.want)
	}
	slices.Sort(wants)
	left := rate
	for i, w := range wants {
		part := left / float64(len(wants)-i)
		if w > part {
			return min(part, l.lessees[member].want)
		}
		left -= w
	}
	return l.lessees[member].want
}
