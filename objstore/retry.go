package objstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"time"
)

// RetryConfig says how long and how often a request is made again.
type RetryConfig struct {
	// Budget is how long a request may go without progress before its error is
	// returned. Every byte of a body is progress.
	Budget time.Duration
	// MinWait and MaxWait bound the pause before the next attempt: a random time
	// between 0 and MinWait·2^attempt, at most MaxWait.
	MinWait, MaxWait time.Duration
	// OnRetry, when not nil, is told of each failed attempt that will be repeated
	// after wait. It is called from the goroutine of the request.
	OnRetry func(op Op, key string, attempt int, wait time.Duration, err error)
	// GiveUp, when not nil, is asked after each failed attempt whether its error is to be returned
	// at once: somebody else may be better placed to ask. It must not block.
	GiveUp func(err error) bool
}

// DefaultRetryConfig returns what the design promises: 60 s until a reader sees an error.
func DefaultRetryConfig() RetryConfig {
	return RetryConfig{Budget: 60 * time.Second, MinWait: 100 * time.Millisecond, MaxWait: 5 * time.Second}
}

// maxRetryAfter bounds what an origin can make us wait at once, so that a wrong
// Retry-After costs less than the budget.
const maxRetryAfter = 30 * time.Second

// Retry is a [Store] that makes failed requests again, unless they are
// [Final], and goes on with a broken body at the byte where it broke, under the
// same version.
type Retry struct {
	store Store
	cfg   RetryConfig
}

// NewRetry wraps store. Zero durations of cfg take their defaults.
func NewRetry(store Store, cfg RetryConfig) *Retry {
	def := DefaultRetryConfig()
	if cfg.Budget <= 0 {
		cfg.Budget = def.Budget
	}
	if cfg.MinWait <= 0 {
		cfg.MinWait = def.MinWait
	}
	if cfg.MaxWait <= 0 {
		cfg.MaxWait = def.MaxWait
	}
	return &Retry{store: store, cfg: cfg}
}

// Unwrap returns the store below.
func (r *Retry) Unwrap() Store { return r.store }

// tries is the state of one request between its attempts.
type tries struct {
	r     *Retry
	op    Op
	key   string
	n     int       // failed attempts since the last progress
	since time.Time // of the last progress, or the beginning
}

// again waits before the next attempt, or returns why there is none.
func (t *tries) again(ctx context.Context, err error) error {
	if ctx.Err() != nil || Final(err) || t.r.cfg.GiveUp != nil && t.r.cfg.GiveUp(err) {
		return err
	}
	t.n++
	wait := t.wait(err)
	left := t.r.cfg.Budget - time.Since(t.since)
	if wait >= left {
		return fmt.Errorf("given up after %d attempts in %v: %w", t.n, time.Since(t.since).Round(time.Millisecond), err)
	}
	if t.r.cfg.OnRetry != nil {
		t.r.cfg.OnRetry(t.op, t.key, t.n, wait, err)
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w (while waiting after: %w)", ctx.Err(), err)
	}
}

// wait returns the pause after the n-th failure, err. What the origin asks for
// is a lower bound, spread over half as much again so that those who wait do not
// come back together.
func (t *tries) wait(err error) time.Duration {
	top := t.r.cfg.MaxWait
	if shift := t.n - 1; shift < 16 {
		top = min(top, t.r.cfg.MinWait<<shift)
	}
	var th *Throttled
	if errors.As(err, &th) && th.After > 0 {
		after := min(th.After, maxRetryAfter)
		return after + rand.N(after/2+1)
	}
	if errors.Is(err, ErrThrottled) {
		return top/2 + rand.N(top/2+1)
	}
	return rand.N(top + 1)
}

func (r *Retry) tries(op Op, key string) *tries {
	return &tries{r: r, op: op, key: key, since: time.Now()}
}

// Get implements [Store].
func (r *Retry) Get(ctx context.Context, key, etag string, off, n int64) (io.ReadCloser, error) {
	b := &retryBody{ctx: ctx, tries: r.tries(OpGet, key), etag: etag, off: off, left: n}
	if err := b.open(); err != nil {
		return nil, err
	}
	return b, nil
}

// Head implements [Store].
func (r *Retry) Head(ctx context.Context, key string) (Info, error) {
	t := r.tries(OpHead, key)
	for {
		info, err := r.store.Head(ctx, key)
		if err == nil {
			return info, nil
		}
		if err = t.again(ctx, err); err != nil {
			return Info{}, err
		}
	}
}

// List implements [Store].
func (r *Retry) List(ctx context.Context, req ListRequest) (Page, error) {
	t := r.tries(OpList, req.Prefix)
	for {
		page, err := r.store.List(ctx, req)
		if err == nil {
			return page, nil
		}
		if err = t.again(ctx, err); err != nil {
			return Page{}, err
		}
	}
}

// retryBody is a range that mends itself.
type retryBody struct {
	ctx   context.Context
	tries *tries
	etag  string
	off   int64 // of the next byte
	left  int64 // bytes still to come
	body  io.ReadCloser
	err   error // final
}

// open opens the rest of the range, with as many attempts as it takes.
func (b *retryBody) open() error {
	for {
		body, err := b.tries.r.store.Get(b.ctx, b.tries.key, b.etag, b.off, b.left)
		if err == nil {
			b.body = body
			return nil
		}
		if err = b.tries.again(b.ctx, err); err != nil {
			return err
		}
	}
}

func (b *retryBody) Read(p []byte) (int, error) {
	for {
		if b.err != nil {
			return 0, b.err
		}
		if b.left == 0 {
			return 0, io.EOF
		}
		if b.body == nil {
			if b.err = b.open(); b.err != nil {
				continue
			}
		}
		n, err := b.body.Read(p)
		if n > 0 {
			b.off += int64(n)
			b.left -= int64(n)
			b.tries.n, b.tries.since = 0, time.Now()
		}
		switch {
		case b.left < 0:
			b.err = fmt.Errorf("get %q: the store gave %d bytes too many", b.tries.key, -b.left)
			return 0, b.err
		case err == io.EOF && b.left > 0:
			err = io.ErrUnexpectedEOF
		case err == io.EOF:
			err = nil // the next Read says so
		}
		if err != nil {
			b.mend(err)
		}
		if n > 0 {
			return n, nil
		}
	}
}

// mend drops a broken body and prepares for the next, or sets the final error.
func (b *retryBody) mend(err error) {
	_ = b.body.Close() // broken already; the reason is err
	b.body = nil
	if b.left == 0 {
		// All bytes came, and then the store found the answer wrong: ask for
		// nothing more, but do not call it good.
		b.err = err
		return
	}
	b.err = b.tries.again(b.ctx, err)
}

func (b *retryBody) Close() error {
	if b.err == nil {
		b.err = errors.New("read of a closed body")
	}
	if b.body == nil {
		return nil
	}
	err := b.body.Close()
	b.body = nil
	return err
}
