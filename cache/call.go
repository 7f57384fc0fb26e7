package cache

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/objstore"
)

// Pauses between attempts after a transient error; each is drawn between a half
// and the whole of a doubling value.
const (
	firstPause = 50 * time.Millisecond
	maxPause   = 2 * time.Second
)

// Reasons to end a call's context.
var (
	errServed    = errors.New("all blocks came by other ways")
	errAbandoned = errors.New("nobody waits for the blocks any more")
	errStalled   = errors.New("no block came in time")
	errLate      = errors.New("no block came within the time of those who wait")
)

// call is one fetch of a run of blocks of a flight, with its retries.
type call struct {
	fl       *flight
	req      chunk.Request // with Source set, Span the whole run
	detached bool          // prefetch: goes on though nobody waits
	began    time.Time
	ran      time.Time // when its turn came; written by its own goroutine alone
	ticket   *ticket
	starved  int // attempts that were ended by ErrStarved; written while no leash is held
	ctx      context.Context
	cancel   context.CancelCauseFunc

	// Under flight.mu:
	left      blockSet                // to be brought by this call, not arrived
	counted   int64                   // of these in ahead.left
	ahead     blockSet                // those of left that memory is promised for
	atOrigin  bool                    // the one who asks the origin for left
	dead      bool                    // about to end: serves nobody
	pulled    bool                    // started for a peer by a node that will want the blocks itself
	deadline  time.Time               // of who waits longest; each block is a new beginning
	cut       context.CancelCauseFunc // ends the attempt under way; nil before the first
	last      error                   // of the last attempt that failed
	refusals  []refusal               // by the origin, so far; of the call's own goroutine
	lingering *time.Timer
}

// start begins a call for the blocks [first, end) of the chunk, for somebody who waits
// until deadline. Callers hold mu, and have had memory promised for the blocks [ahead, end).
func (fl *flight) start(first, ahead, end uint32, like chunk.Request, deadline time.Time, detached bool) {
	cache := fl.obj.c
	c := &call{fl: fl, detached: detached, req: like, began: time.Now(), deadline: deadline}
	c.req.Object, c.req.ID = fl.obj.Object, fl.obj.id
	c.req.Span = chunk.Span{First: fl.span.First + first, Count: end - first}
	c.req.HeldOnly, c.req.Settled = false, false
	c.req.Source = &chunk.Source{Shared: &fl.obj.shared}
	for i := first; i < end; i++ {
		c.left.add(i)
		if i >= ahead {
			c.ahead.add(i)
		}
	}
	c.ctx, c.cancel = context.WithCancelCause(cache.ctx)
	c.ticket = newTicket(bucketKey{fl.obj.Origin, fl.obj.Bucket}, like.Background, detached)
	if !cache.begin() {
		c.cancel(ErrClosed)
		if detached {
			cache.slots.unreserve()
		}
		cache.pages.unpromise(c.ahead.count())
		fl.fail(c, ErrClosed)
		return
	}
	fl.calls = append(fl.calls, c)
	c.recount()
	fl.obj.retain()
	fl.obj.join(fl.index)
	cache.stats.Fetches.Add(1)
	cache.stats.Fetching.Add(1)
	if detached {
		cache.ahead.calls.Add(1)
	}
	if !like.Idle {
		cache.idle.enter()
	}
	go c.run()
}

// recount tells how much of what is fetched ahead has not come. Callers hold flight.mu.
func (c *call) recount() {
	if !c.detached {
		return
	}
	n := int64(c.left.count())
	c.fl.obj.c.ahead.left.Add(n - c.counted)
	c.counted = n
}

// begin counts a call in, unless the cache is closed.
func (c *Cache) begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.calls.Add(1)
	return true
}

// serves reports whether a waiter with such a request may rely on c. The member
// from which c is receiving may not: each would wait for the other. A question for
// held blocks may when it is known who sends them. A fetch on behalf of a peer may only
// if c does not ask in a wider circle than the peer's own fetch would, else three
// nodes with three ring tables could wait in a ring. Callers hold flight.mu.
func (c *call) serves(req chunk.Request) bool {
	source := c.req.Source.Member()
	switch {
	case c.dead:
		return false
	case c.atOrigin:
		return true
	case req.From != "" && source == req.From:
		return false
	case req.HeldOnly:
		return (source != "" || c.pulled) && !req.Settled
	default:
		return c.req.Hops >= req.Hops || c.fl.obj.c.cfg.Owned(c.req)
	}
}

// join says that somebody waits for c until deadline. Callers hold flight.mu.
func (c *call) join(deadline time.Time, background bool) {
	c.extend(deadline)
	if c.lingering != nil {
		c.lingering.Stop()
		c.lingering = nil
	}
	if !background {
		c.fl.obj.c.slots.promote(c.ticket)
	}
}

// linger ends c after a while unless somebody joins. Callers hold flight.mu.
func (c *call) linger() {
	if c.lingering != nil {
		return
	}
	var timer *time.Timer
	timer = time.AfterFunc(c.fl.obj.c.cfg.Linger, func() {
		c.fl.mu.Lock()
		defer c.fl.mu.Unlock()
		if c.lingering == timer && !c.fl.wanted(c) {
			c.fl.obj.c.stats.Abandoned.Add(1)
			c.stop(errAbandoned)
		}
	})
	c.lingering = timer
}

// stop makes c end soon. Callers hold flight.mu.
func (c *call) stop(reason error) {
	c.dead = true
	c.cancel(reason)
}

func (c *call) run() {
	cache := c.fl.obj.c
	defer cache.calls.Done()
	err := cache.slots.acquire(c.ctx, c.ticket)
	if err == nil {
		c.ran = time.Now()
		c.admitted()
		err = c.fetch()
		cache.slots.release(c.ticket)
	}
	c.finish(err)
}

// finish takes c out of its flight and tells those who relied on it.
func (c *call) finish(err error) {
	fl := c.fl
	fl.mu.Lock()
	c.dead = true
	for i, other := range fl.calls {
		if other == c {
			fl.calls = append(fl.calls[:i], fl.calls[i+1:]...)
			break
		}
	}
	if c.lingering != nil {
		c.lingering.Stop()
	}
	switch {
	case errors.Is(err, errAbandoned), errors.Is(err, errServed):
		err = nil // whoever joined meanwhile starts anew
	case err != nil && !c.left.empty():
		fl.obj.c.stats.Failures.Add(1)
	}
	fl.fail(c, err)
	ahead, lost := c.ahead.count(), uint32(c.left.count())
	c.left = blockSet{}
	c.recount()
	fl.mu.Unlock()
	fl.obj.c.pages.unpromise(ahead)

	c.cancel(nil)
	fl.obj.c.stats.Fetching.Add(-1)
	if !c.req.Idle {
		fl.obj.c.idle.leave()
	}
	if a := &fl.obj.c.ahead; c.detached {
		a.calls.Add(-1)
		if lost == 0 {
			a.landed(c.ran, c.req.Span.Count)
		}
		a.pump()
	}
	fl.obj.leave(fl)
	fl.obj.release()
}

// fail wakes all who wait for blocks that c did not bring, with err for those
// that no other call brings them; readers here begin anew where only peers are to ask
// elsewhere. Callers hold mu.
func (fl *flight) fail(c *call, err error) {
	for _, w := range fl.waiters {
		if !w.missing.meets(&c.left) {
			continue
		}
		if err != nil && w.err == nil && (w.peer || !errors.Is(err, chunk.ErrNoRoute)) {
			var lost blockSet
			for i := range lost {
				lost[i] = w.missing[i] & c.left[i]
			}
			if lost = fl.uncovered(&lost, w.req); !lost.empty() {
				w.err = err
			}
		}
		w.wake()
	}
}

// next returns the first run of blocks that c still has to bring.
func (c *call) next() (chunk.Span, bool) {
	c.fl.mu.Lock()
	defer c.fl.mu.Unlock()
	first, end, ok := c.left.run(0)
	return chunk.Span{First: c.fl.span.First + first, Count: end - first}, ok
}

// fetch brings all the blocks, trying again after transient errors.
func (c *call) fetch() error {
	pause, attempts := firstPause, 0
	for {
		span, ok := c.next()
		if !ok {
			return nil
		}
		attempts++
		progress, err := c.try(span)
		switch {
		case err == nil:
			continue
		case c.ctx.Err() != nil:
			return context.Cause(c.ctx)
		case errors.Is(err, chunk.ErrAnew):
			continue
		case refuses(err) && c.askForNext(err):
			continue
		case objstore.Final(err):
			return c.failed(err, attempts)
		case c.fl.obj.c.leaves(c.req):
			return c.failed(fmt.Errorf("%w: %w", chunk.ErrNoRoute, err), attempts)
		}
		if progress {
			pause = firstPause
		}
		if !c.mayRetry(err, pause) {
			return c.failed(err, attempts)
		}
		c.fl.obj.c.stats.Retries.Add(1)
		timer := time.NewTimer(pause/2 + rand.N(pause/2))
		select {
		case <-timer.C:
		case <-c.ctx.Done():
			timer.Stop()
			return context.Cause(c.ctx)
		}
		pause = min(2*pause, maxPause)
	}
}

// mayRetry notes why an attempt failed, and reports whether there is time for another
// after a pause.
func (c *call) mayRetry(err error, pause time.Duration) bool {
	c.fl.mu.Lock()
	defer c.fl.mu.Unlock()
	c.last = err
	return time.Now().Add(pause).Before(c.deadline)
}

// failed logs an error, once for all who wait, and names what it is about.
func (c *call) failed(err error, attempts int) error {
	err = fmt.Errorf("fetch %s %v: %w", c.req.Object.URI(), c.req.Span, err)
	c.fl.obj.c.cfg.Logger.Warn("blocks cannot be had", "op", "fetch", "object", c.req.Object.URI(),
		"blocks", c.req.Span.String(), "attempts", attempts, "peer", c.req.Source.Member(), "error", err)
	return err
}

// try asks the peers and, when they say that it is this node's turn, the origin.
func (c *call) try(span chunk.Span) (progress bool, err error) {
	cfg := &c.fl.obj.c.cfg
	if cfg.Peers != nil {
		progress, err = c.attempt(cfg.Peers, span, FromPeer, cfg.PeerStall, peersGrace)
		c.req.Source.Set("")
		if !errors.Is(err, chunk.ErrNotHeld) {
			return progress, err
		}
	}
	span, ok := c.claim()
	if !ok {
		return true, nil // another call of this flight asks the origin for them
	}
	more, err := c.attempt(cfg.Origin, span, FromOrigin, cfg.OriginStall, 0)
	err = objstore.Unavailable(err)
	if err != nil && cfg.Peers != nil {
		// The next attempt begins with the peers again, who may then wait for others.
		c.fl.mu.Lock()
		c.atOrigin = false
		c.fl.mu.Unlock()
	}
	return progress || more, err
}

// claim makes c the one who asks the origin, for what no other call asks it for,
// and returns the first run of that.
func (c *call) claim() (chunk.Span, bool) {
	fl := c.fl
	fl.mu.Lock()
	defer fl.mu.Unlock()
	for _, other := range fl.calls {
		if other != c && other.atOrigin && !other.dead {
			c.left = c.left.minus(&other.left)
		}
	}
	c.recount()
	c.atOrigin = true
	first, end, ok := c.left.run(0)
	return chunk.Span{First: fl.span.First + first, Count: end - first}, ok
}

// attempt fetches a span from one upstream. It cuts an upstream that brings no
// block within stall, or within the time of those who wait and grace.
func (c *call) attempt(up chunk.Fetcher, span chunk.Span, from Source, stall, grace time.Duration) (progress bool, err error) {
	ctx, cancel := context.WithCancelCause(c.ctx)
	defer cancel(nil)
	c.fl.mu.Lock()
	c.cut = cancel
	c.fl.mu.Unlock()
	leash := c.hold(from, stall, grace, cancel)
	defer leash.loosen()
	req := c.req
	req.Span = span
	req.Patience = max(c.timeLeft(), minAttempt)
	got := uint32(0)
	err = up.Fetch(ctx, req, func(b chunk.Block) error {
		leash.loosen() // time that readers take is not the upstream's
		defer leash.fasten()
		got++
		return c.deliver(ctx, b, span, from)
	})
	cause := context.Cause(ctx)
	switch {
	case err == nil && got < span.Count:
		err = fmt.Errorf("%v from %v: %d blocks came and no error", span, from, got)
	case err != nil && cause == chunk.ErrStarved:
		leash.loosen()
		c.starved++
		c.fl.obj.c.stats.Starved.Add(1)
		err = fmt.Errorf("%v from %v: %w", span, from, cause)
	case err != nil && cause == chunk.ErrAnew:
		err = fmt.Errorf("%v from %v: %w", span, from, cause)
	case err != nil && (cause == errStalled || cause == errLate):
		if cause == errStalled {
			c.fl.obj.c.stats.Stalls.Add(1)
		}
		// Not a context's end: err may be one, and say what was waited for.
		err = fmt.Errorf("%v from %v: %w: %v", span, from, cause, err)
	case err != nil && ctx.Err() == nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)):
		err = fmt.Errorf("%v from %v: %v", span, from, err) // the upstream's own: transient
	}
	return got > 0, err
}

// deliver lands one block: in the tier first, then with those who wait.
func (c *call) deliver(ctx context.Context, b chunk.Block, span chunk.Span, from Source) error {
	o := c.fl.obj
	if !span.Contains(b.Index) || len(b.Data) != o.c.cfg.Geometry.BlockLen(o.Size, b.Index) {
		return fmt.Errorf("block %d of %d bytes is not of %v", b.Index, len(b.Data), span)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	o.arrive(b, from)
	stored := o.store(b)
	o.arrived(b)
	c.fl.mu.Lock()
	borrowed := c.fl.land(c, b, from, stored)
	c.fl.mu.Unlock()
	if c.detached {
		o.c.ahead.pump()
	}
	if borrowed != nil {
		<-borrowed.done // b.Data is lent to us until we return, and to them until they are done
	}
	return nil
}
