package meta

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shardwell/shardwell/objstore"
)

// query gets an answer that the origin was asked for at need or later. It notes in
// state what it waits for.
type query func(ctx context.Context, need time.Time, s *state) (*answer, error)

// state is what those who cannot wait any more may say.
type state struct {
	atOrigin atomic.Bool           // it waits for the origin
	last     atomic.Pointer[error] // why the last attempt failed
}

// late returns the error of a caller whose time is over.
func (s *state) late() error {
	var err error = errLate
	if last := s.last.Load(); last != nil {
		err = fmt.Errorf("%w, at last: %w", errLate, *last)
	}
	if s.atOrigin.Load() {
		return objstore.Unavailable(err)
	}
	return err
}

var errLate = errors.New("no answer about names in time")

// flights makes at most one query at a time for each name. How many there are
// is bounded by those who wait.
type flights struct {
	budget time.Duration
	ctx    context.Context
	cancel context.CancelCauseFunc
	done   sync.WaitGroup

	mu     sync.Mutex
	closed bool
	m      map[string]*flight // those that run
}

// flight is one query, on its way or to follow the one on its way. answer and
// err are set before done is closed; the rest is under flights.mu.
type flight struct {
	name    string
	fn      query
	need    time.Time // the latest that any of its callers needs
	until   time.Time // when the last who waited before it began has no more time
	waiters int
	cancel  context.CancelFunc // nil until it runs
	next    *flight            // for those who need a younger answer
	done    chan struct{}
	answer  *answer
	err     error
	state   state
}

func newFlights(budget time.Duration) *flights {
	f := &flights{budget: budget, m: make(map[string]*flight)}
	f.ctx, f.cancel = context.WithCancelCause(context.Background())
	return f
}

// close ends all queries and waits for them.
func (f *flights) close() {
	f.mu.Lock()
	f.closed = true
	f.mu.Unlock()
	f.cancel(ErrClosed)
	f.done.Wait()
}

// do returns an answer that was asked for at need or later: that of the query on
// its way if that promises one, else that of the next, which all who wait for it
// share. A query ends when nobody waits for it. Shared tells that another
// caller began it.
// It may end before a later caller's time does, who then begins another.
func (f *flights) do(ctx context.Context, name string, need time.Time, fn query) (a *answer, shared bool, err error) {
	until, ok := ctx.Deadline()
	if latest := time.Now().Add(f.budget); !ok || until.After(latest) {
		until = latest
	}
	f.mu.Lock()
	if f.closed {
		f.mu.Unlock()
		return nil, false, ErrClosed
	}
	fl := f.m[name]
	switch {
	case fl == nil:
		fl = &flight{name: name, fn: fn, need: need, until: until, done: make(chan struct{})}
		f.run(fl)
	case !need.After(fl.need):
		shared = true
	case fl.next == nil:
		fl.next = &flight{name: name, fn: fn, need: need, until: until, done: make(chan struct{})}
		fl = fl.next
	default:
		fl, shared = fl.next, true
		if need.After(fl.need) {
			fl.need = need
		}
		if until.After(fl.until) {
			fl.until = until
		}
	}
	fl.waiters++
	f.mu.Unlock()

	select {
	case <-fl.done:
		return fl.answer, shared, fl.err
	case <-ctx.Done():
		f.leave(fl)
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return nil, shared, fl.state.late()
		}
		return nil, shared, fmt.Errorf("wait for an answer about names: %w", ctx.Err())
	}
}

// run begins a query. Callers hold mu.
func (f *flights) run(fl *flight) {
	ctx, cancel := context.WithDeadline(f.ctx, fl.until)
	fl.cancel = cancel
	f.m[fl.name] = fl
	f.done.Add(1)
	need := fl.need
	go func() {
		defer f.done.Done()
		defer cancel()
		a, err := fl.fn(ctx, need, &fl.state)
		f.mu.Lock()
		defer f.mu.Unlock()
		f.end(fl, a, err)
	}()
}

// end hands out what a query brought, and lets the next begin, unless the answer
// is young enough for its callers as well.
// Callers hold mu.
func (f *flights) end(fl *flight, a *answer, err error) {
	if err != nil && f.ctx.Err() != nil {
		err = ErrClosed
	}
	if f.m[fl.name] == fl {
		delete(f.m, fl.name)
	}
	fl.answer, fl.err = a, err
	close(fl.done)
	next := fl.next
	switch {
	case next == nil || next.waiters == 0:
	case f.closed || err == nil && !a.asked.Before(next.need):
		f.end(next, a, err)
	default:
		f.run(next)
	}
}

// leave says that one waits no more. Nobody joins a query that was cancelled.
func (f *flights) leave(fl *flight) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fl.waiters--
	running := f.m[fl.name]
	if running == nil || running.waiters > 0 || running.next != nil && running.next.waiters > 0 {
		return
	}
	running.cancel()
	delete(f.m, running.name)
}

// pauseFor pauses and reports whether ctx goes on.
func pauseFor(ctx context.Context, pause time.Duration) bool {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
