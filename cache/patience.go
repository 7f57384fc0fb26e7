package cache

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/objstore"
)

// Everybody who waits has one budget: [Config.ReadBudget], or for a peer what it says
// is left of its reader's. Each block of the call that somebody waits for begins it anew. An
// attempt is cut when the last of those who wait has no more time.
const (
	// readersGrace is how long readers wait beyond their time for the call's own error,
	// which tells more. A peer is told in time: it has somebody who waits.
	readersGrace = 1500 * time.Millisecond
	// peersGrace is how long an attempt waits for a peer beyond the time that this one
	// was given, so that it can say why it brought nothing.
	peersGrace = time.Second
	// minAttempt is what the last attempt has at least. It may be the first that
	// asks somebody who is there.
	minAttempt = time.Second
	// lastFor is how long an error that took a reader's whole time is the answer to the next
	// reader as well. The kernel reads a page once more when reading ahead has
	// failed: its reader would wait twice.
	lastFor = time.Second
	// starveAfter is how long an attempt that has brought blocks may stand still while other
	// fetches of the node bring starveBlocks, until it is made anew, over another connection;
	// maxStarved times in a call, then it may be the sender's fault. The origin has twice the
	// time: what was on its way from there is sent again.
	starveAfter  = 2 * time.Second
	starveBlocks = 8
	maxStarved   = 4
	starvePoll   = 250 * time.Millisecond
	// maxFailures bounds object.failures.
	maxFailures = 64
)

// patience returns how long somebody waits without a block.
func (c *Cache) patience(req chunk.Request) time.Duration {
	if p := req.Patience; p > 0 && p < c.cfg.ReadBudget {
		return p
	}
	return c.cfg.ReadBudget
}

// wait pauses until w has news, its time is over, or ctx ends. Callers hold mu, which
// it gives up meanwhile.
func (fl *flight) wait(ctx context.Context, w *waiter) {
	grace := readersGrace
	switch {
	case w.peer && w.req.Hops >= chunk.MaxHops:
		grace = 0
	case w.peer: // whom we ask has the grace of 0
		grace = peersGrace / 2
	}
	left := time.Until(w.until.Add(grace))
	fl.mu.Unlock()
	if w.timer == nil {
		w.timer = time.NewTimer(left)
	} else {
		w.timer.Reset(left)
	}
	select {
	case <-w.notify:
	case <-ctx.Done():
	case <-w.timer.C:
	}
	w.timer.Stop()
	fl.mu.Lock()
	if time.Until(w.until.Add(grace)) <= 0 && w.err == nil && !w.missing.empty() {
		w.err = fl.late(w)
	}
}

// late returns the error of a waiter whose time is over, or nil and more time if it
// waits in a queue that gets on. Callers hold mu.
func (fl *flight) late(w *waiter) error {
	cache, err := fl.obj.c, errLate
	for _, c := range fl.calls {
		if !w.missing.meets(&c.left) || !c.serves(w.req) {
			continue
		}
		if queued, moved := cache.slots.look(c.ticket); queued && time.Since(moved) < cache.patience(w.req) {
			w.until = moved.Add(cache.patience(w.req))
			c.join(w.until, true)
			return nil
		}
		if c.last != nil {
			err = fmt.Errorf("%w, at last: %w", err, c.last)
		}
		if c.atOrigin {
			err = objstore.Unavailable(err)
		}
		break
	}
	return fmt.Errorf("wait for %s %v: %w", fl.obj.URI(), fl.span, err)
}

// progress gives c, and all who wait for what it brings, their time anew. Callers hold mu.
func (fl *flight) progress(c *call) {
	cache, now := fl.obj.c, time.Now()
	c.extend(now.Add(cache.cfg.ReadBudget))
	for _, w := range fl.waiters {
		if w.missing.meets(&c.left) {
			w.until = now.Add(cache.patience(w.req))
		}
	}
	cache.slots.progress(c.ticket)
}

// extend puts c's deadline off. Callers hold mu.
func (c *call) extend(deadline time.Time) {
	if deadline.After(c.deadline) {
		c.deadline = deadline
	}
}

// admitted begins the time of c and of those who wait for it anew when it had to queue and
// the others got on. Behind an origin that is gone it does not.
func (c *call) admitted() {
	c.fl.mu.Lock()
	defer c.fl.mu.Unlock()
	if _, moved := c.fl.obj.c.slots.look(c.ticket); moved.After(c.began) {
		c.fl.progress(c)
	}
}

// timeLeft returns how much of the time of those who wait for c is left.
func (c *call) timeLeft() time.Duration {
	c.fl.mu.Lock()
	defer c.fl.mu.Unlock()
	return time.Until(c.deadline)
}

// leash cuts an attempt that brings no block within stall, or within the time of those
// who wait and grace.
type leash struct {
	c            *call
	stall, grace time.Duration
	least        time.Time // not cut before, unless it stalls
	cut          context.CancelCauseFunc

	mu     sync.Mutex // taken before flight.mu
	loose  bool       // time that passes is not the upstream's
	since  time.Time  // of the last block, or the beginning
	origin bool       // asks the origin
	begun  bool       // a block has come
	count  int64      // of blocks that had come to the node by then
	timer  *time.Timer
}

// hold returns a leash that is fastened.
func (c *call) hold(from Source, stall, grace time.Duration, cut context.CancelCauseFunc) *leash {
	l := &leash{c: c, origin: from == FromOrigin, stall: stall, grace: grace, least: time.Now().Add(minAttempt), cut: cut}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.since, l.count = time.Now(), c.fl.obj.c.arrived.Load()
	l.timer = time.AfterFunc(l.left(), l.check)
	return l
}

// left returns when the leash is to be looked at again, from now on. Callers hold mu.
func (l *leash) left() time.Duration {
	late := max(l.c.timeLeft()+l.grace, time.Until(l.least))
	left := min(late, l.stall-time.Since(l.since))
	if l.begun && l.c.starved < maxStarved {
		left = min(left, max(starvePoll, l.starveAfter()-time.Since(l.since)))
	}
	return left
}

func (l *leash) starveAfter() time.Duration {
	if l.origin {
		return 2 * starveAfter
	}
	return starveAfter
}

// starves reports whether the others get on. Callers hold mu.
func (l *leash) starves() bool {
	return l.begun && l.c.starved < maxStarved && time.Since(l.since) >= l.starveAfter() && l.c.fl.obj.c.arrived.Load()-l.count >= starveBlocks
}

func (l *leash) check() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.loose {
		return
	}
	switch left := l.left(); {
	case l.starves():
		l.cut(chunk.ErrStarved)
	case left > 0: // somebody joined
		l.timer.Reset(left)
	case time.Since(l.since) >= l.stall:
		l.cut(errStalled)
	default:
		l.cut(errLate)
	}
}

func (l *leash) loosen() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.loose = true
	l.timer.Stop()
}

func (l *leash) fasten() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.loose, l.begun, l.since, l.count = false, true, time.Now(), l.c.fl.obj.c.arrived.Load()
	l.timer.Reset(l.left())
}

// failure is what a reader got after all of its time.
type failure struct {
	at  time.Time
	err error
}

// remember keeps the error of a reader whose time was over.
func (o *object) remember(index uint32, err error) {
	if !errors.Is(err, errLate) && !errors.Is(err, objstore.ErrUnavailable) {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for i, f := range o.failures {
		if time.Since(f.at) >= lastFor {
			delete(o.failures, i)
		}
	}
	if o.failures == nil {
		o.failures = make(map[uint32]failure)
	}
	if len(o.failures) < maxFailures {
		o.failures[index] = failure{time.Now(), err}
	}
}

// justFailed returns the error of a reader whose time was over a moment ago.
func (o *object) justFailed(index uint32) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if f, ok := o.failures[index]; ok && time.Since(f.at) < lastFor {
		return f.err
	}
	return nil
}
