package transfer

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// watchdog ends a request whose peer shows no progress.
type watchdog struct {
	ctx     context.Context
	cancel  context.CancelCauseFunc
	timer   *time.Timer   // until the next sign of life
	block   *time.Timer   // until the next block
	wait    time.Duration // of block
	silence time.Duration // of timer, before the answer
	sign    atomic.Int64  // when the peer was last known to be at work, Unix nanoseconds
}

// silent is how long a peer says nothing, with a life sign due each second, until an
// asker who gives up says that it was the peer's fault.
const silent = 1500 * time.Millisecond

// watch returns a watchdog that bites after silence, or when wait is over before a
// block has come.
func watch(parent context.Context, silence, wait time.Duration) *watchdog {
	ctx, cancel := context.WithCancelCause(parent)
	w := &watchdog{ctx: ctx, cancel: cancel,
		timer: time.AfterFunc(silence, func() { cancel(ErrSlow) }),
		block: time.AfterFunc(wait, func() { cancel(ErrWaited) }), wait: wait, silence: silence}
	w.mark()
	return w
}

func (w *watchdog) mark() { w.sign.Store(time.Now().UnixNano()) }

// reset gives the peer d from now on.
func (w *watchdog) reset(d time.Duration) {
	w.mark()
	w.timer.Reset(d)
}

// pause lets time pass that is not the peer's.
func (w *watchdog) pause() {
	w.mark()
	w.timer.Stop()
	w.block.Stop()
}

// resume waits for a block.
func (w *watchdog) resume(d time.Duration) {
	w.reset(d)
	w.block.Reset(w.wait)
}

func (w *watchdog) end() {
	w.pause()
	w.cancel(nil)
}

// explain gives an error of the request its class: the caller's context (and
// ErrSlow when the peer had gone silent before it ended), a peer that was too slow, an
// answer that cannot be believed, a local error, or else a connection that broke.
func (w *watchdog) explain(parent context.Context, op string, err error) error {
	var deliver *DeliverError
	switch {
	case parent.Err() != nil && time.Since(time.Unix(0, w.sign.Load())) >= silent:
		return fmt.Errorf("%s: %w: %w", op, context.Cause(parent), ErrSlow)
	case parent.Err() != nil:
		return fmt.Errorf("%s: %w", op, context.Cause(parent))
	case errors.As(err, &deliver):
		return err
	case context.Cause(w.ctx) == ErrSlow || context.Cause(w.ctx) == ErrWaited:
		return fmt.Errorf("%s: %w", op, context.Cause(w.ctx))
	case errors.Is(err, ErrMalformed) || errors.As(err, new(*CorruptError)):
		return fmt.Errorf("%s: %w", op, err)
	}
	return fmt.Errorf("%s: %w: %w", op, ErrUnreachable, err)
}
