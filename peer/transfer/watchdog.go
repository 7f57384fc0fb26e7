package transfer

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// watchdog ends a request whose peer shows no progress.
type watchdog struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	timer  *time.Timer // until the next sign of life
	begin  *time.Timer // until the first block
}

// watch returns a watchdog that bites after d.
func (c *Client) watch(parent context.Context, d time.Duration) *watchdog {
	ctx, cancel := context.WithCancelCause(parent)
	w := &watchdog{ctx: ctx, cancel: cancel}
	bite := func() { cancel(ErrSlow) }
	w.timer = time.AfterFunc(d, bite)
	w.begin = time.AfterFunc(c.cfg.MaxWait, bite)
	return w
}

// reset gives the peer d from now on.
func (w *watchdog) reset(d time.Duration) { w.timer.Reset(d) }

// pause lets time pass that is not the peer's; the answer has begun.
func (w *watchdog) pause() {
	w.timer.Stop()
	w.begin.Stop()
}

func (w *watchdog) end() {
	w.pause()
	w.cancel(nil)
}

// explain gives an error of the request its class: the caller's context, a
// peer that was too slow, an answer that cannot be believed, a local error, or else
// a connection that broke.
func (w *watchdog) explain(parent context.Context, op string, err error) error {
	var deliver *DeliverError
	switch {
	case parent.Err() != nil:
		return fmt.Errorf("%s: %w", op, context.Cause(parent))
	case errors.As(err, &deliver):
		return err
	case context.Cause(w.ctx) == ErrSlow:
		return fmt.Errorf("%s: %w", op, ErrSlow)
	case errors.Is(err, ErrMalformed) || errors.As(err, new(*CorruptError)):
		return fmt.Errorf("%s: %w", op, err)
	}
	return fmt.Errorf("%s: %w: %w", op, ErrUnreachable, err)
}
