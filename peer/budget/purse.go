package budget

import (
	"context"
	"sync"
	"time"
)

// How a purse pays.
const (
	burstTime   = LeaseTime / 10  // what is not paid out at once may pile up for so long
	askPatience = LeaseTime / 2   // with the lessor
	aloneTime   = 4 * askPatience // of an equal part without a lessor: it is asked again meanwhile
	renewShare  = 4               // a lease is renewed when one part in this many is left of it
	wantMore    = 1.5             // times what was used: what a member wants that did not have to wait
	floorShare  = 100             // but one part in this many of the rate at least
	minPayBytes = 4 << 10         // that make a waiter go on
	maxSleep    = 100 * time.Millisecond
)

// Config is what a [Purse] stands on.
type Config struct {
	BytesPerSecond float64 // of the cluster
	// Ask asks the lessor; it returns promptly when ctx ends.
	Ask func(ctx context.Context, want float64) (Lease, error)
	// Members returns how many members the cluster has.
	Members func() int
}

// Purse holds a member's lease and pays from it. It is safe for concurrent use. Somebody runs
// [Purse.Run], or nothing is ever paid.
type Purse struct {
	cfg  Config
	turn chan struct{} // holds one token: who waits first is paid first
	need chan struct{} // somebody wants to be paid

	mu      sync.Mutex
	lease   float64       // bytes a second, of the present lease
	from    time.Time     // up to when the lease was turned into tokens
	until   time.Time     // the end of the lease
	tokens  float64       // bytes
	used    float64       // since the last question
	waited  bool          // likewise: somebody had to wait
	changed chan struct{} // closed when there is a new lease
}

// New returns a purse that is empty.
func New(cfg Config) *Purse {
	p := &Purse{cfg: cfg, turn: make(chan struct{}, 1), need: make(chan struct{}, 1), changed: make(chan struct{})}
	p.turn <- struct{}{}
	return p
}

// WaitN waits until n bytes are paid for, or ctx ends.
func (p *Purse) WaitN(ctx context.Context, n int) error {
	select {
	case <-p.turn:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { p.turn <- struct{}{} }()
	for left := float64(n); ; {
		paid, again, changed := p.pay(time.Now(), left)
		if left -= paid; left <= 0 {
			return nil
		}
		timer := time.NewTimer(again)
		select {
		case <-timer.C:
		case <-changed:
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		}
		timer.Stop()
	}
}

// pay takes up to so many tokens. It says when to look again for the rest, and what tells of a
// new lease.
func (p *Purse) pay(now time.Time, want float64) (paid float64, again time.Duration, changed <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.earn(now)
	paid = min(want, p.tokens)
	p.tokens -= paid
	p.used += paid
	select {
	case p.need <- struct{}{}:
	default:
	}
	if paid == want {
		return paid, 0, nil
	}
	p.waited = true
	again = maxSleep
	if p.lease > 0 && now.Before(p.until) {
		again = min(again, max(time.Millisecond, time.Duration(min(want-paid, max(minPayBytes, p.lease/100))/p.lease*float64(time.Second))))
	}
	return paid, again, p.changed
}

// earn turns the time that a lease has run into tokens. Callers hold mu.
func (p *Purse) earn(now time.Time) {
	end := now
	if p.until.Before(end) {
		end = p.until
	}
	if end.After(p.from) {
		p.tokens = min(p.tokens+p.lease*end.Sub(p.from).Seconds(), p.lease*burstTime.Seconds()+1)
		p.from = end
	}
}

// take replaces the lease.
func (p *Purse) take(asked, now time.Time, l Lease) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.earn(now)
	p.lease, p.from, p.until = l.BytesPerSecond, now, asked.Add(l.For)
	close(p.changed)
	p.changed = make(chan struct{})
}

// wish returns what to ask for, and whether anybody wants anything.
func (p *Purse) wish(since time.Duration) (want float64, any bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	rate := p.cfg.BytesPerSecond
	want, any = rate, p.waited || p.used > 0
	if !p.waited && since > 0 {
		want = min(rate, max(rate/floorShare, wantMore*p.used/since.Seconds()))
	}
	p.used, p.waited = 0, false
	return want, any
}

// end returns when the lease ends.
func (p *Purse) end() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.until
}

// Run keeps a lease while somebody wants to be paid, until ctx ends.
func (p *Purse) Run(ctx context.Context) error {
	lost := false // the last question had no answer
	for last := time.Now(); ; {
		select {
		case <-p.need:
		case <-ctx.Done():
			return nil
		}
		asked := time.Now()
		want, any := p.wish(asked.Sub(last))
		if !any {
			continue
		}
		last = asked
		lease, err := p.ask(ctx, want)
		if ctx.Err() != nil {
			return nil
		}
		switch {
		case err == nil:
			lost = false
		default:
			if !lost && !sleep(ctx, LeaseTime) { // what others have leased runs out first
				return nil
			}
			lost, asked = true, time.Now()
			lease = Lease{p.cfg.BytesPerSecond / float64(max(1, p.cfg.Members())), aloneTime}
		}
		p.take(asked, time.Now(), lease)
		if !sleep(ctx, time.Until(p.end())-lease.For/renewShare) {
			return nil
		}
	}
}

func (p *Purse) ask(ctx context.Context, want float64) (Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, askPatience)
	defer cancel()
	return p.cfg.Ask(ctx, want)
}

// sleep reports whether so much time has passed before ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(max(0, d))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
