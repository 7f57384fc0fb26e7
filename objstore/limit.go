package objstore

import (
	"context"
	"fmt"
	"io"
	"sync"

	"golang.org/x/time/rate"
)

// DefaultMaxRequests bounds the requests of one node to one origin that are
// under way at once. A stream gives some 100 MB/s, so 128 fill 100 Gb/s.
const DefaultMaxRequests = 128

// burstBytes is the most that passes at once under a rate: a little less than
// what a reader asks for in one Read, so that the rate is even over 100 ms or so.
const burstBytes = 256 << 10

// Pace bounds the bytes a second of several stores, of other nodes' perhaps as well.
type Pace interface {
	// WaitN waits until n more bytes may be taken, or ctx ends. n is at most 256 KiB.
	WaitN(ctx context.Context, n int) error
}

// Limit is a [Store] that bounds requests under way and bytes a second.
type Limit struct {
	store Store
	slots chan struct{}
	rate  *rate.Limiter
	pace  Pace // may be nil
}

// NewLimit wraps store. maxRequests are under way at once, a GET until its body
// is closed; 0 means [DefaultMaxRequests]. Bodies yield maxBytesPerSecond in
// all; 0 means no limit. Several buckets share limits by [Limit.Share].
func NewLimit(store Store, maxRequests int, maxBytesPerSecond int64) *Limit {
	if maxRequests <= 0 {
		maxRequests = DefaultMaxRequests
	}
	l := &Limit{
		store: store,
		slots: make(chan struct{}, maxRequests),
		rate:  rate.NewLimiter(rate.Inf, burstBytes),
	}
	l.SetRate(maxBytesPerSecond)
	return l
}

// Share wraps another store under the same limits.
func (l *Limit) Share(store Store) *Limit {
	return &Limit{store: store, slots: l.slots, rate: l.rate, pace: l.pace}
}

// Paced wraps another store under the same limits, and the pace as well; nil is none.
func (l *Limit) Paced(store Store, pace Pace) *Limit {
	return &Limit{store: store, slots: l.slots, rate: l.rate, pace: pace}
}

// Unwrap returns the store below.
func (l *Limit) Unwrap() Store { return l.store }

// SetRate changes the bytes a second; 0 means no limit. It holds at once.
func (l *Limit) SetRate(maxBytesPerSecond int64) {
	if maxBytesPerSecond <= 0 {
		l.rate.SetLimit(rate.Inf)
		return
	}
	l.rate.SetLimit(rate.Limit(maxBytesPerSecond))
}

// enter waits for a slot.
func (l *Limit) enter(ctx context.Context) error {
	select {
	case l.slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (l *Limit) leave() { <-l.slots }

// Get implements [Store].
func (l *Limit) Get(ctx context.Context, key, etag string, off, n int64) (io.ReadCloser, error) {
	if err := l.enter(ctx); err != nil {
		return nil, fmt.Errorf("get %q: wait for a place among requests: %w", key, err)
	}
	body, err := l.store.Get(ctx, key, etag, off, n)
	if err != nil {
		l.leave()
		return nil, err
	}
	return &limitBody{ctx: ctx, body: body, limit: l}, nil
}

// Head implements [Store].
func (l *Limit) Head(ctx context.Context, key string) (Info, error) {
	if err := l.enter(ctx); err != nil {
		return Info{}, fmt.Errorf("head %q: wait for a place among requests: %w", key, err)
	}
	defer l.leave()
	return l.store.Head(ctx, key)
}

// List implements [Store].
func (l *Limit) List(ctx context.Context, req ListRequest) (Page, error) {
	if err := l.enter(ctx); err != nil {
		return Page{}, fmt.Errorf("list %q: wait for a place among requests: %w", req.Prefix, err)
	}
	defer l.leave()
	return l.store.List(ctx, req)
}

// limitBody pays for what was read before it hands it out.
type limitBody struct {
	ctx   context.Context
	body  io.ReadCloser
	limit *Limit
	once  sync.Once
}

func (b *limitBody) Read(p []byte) (int, error) {
	l := b.limit
	bounded := l.rate.Limit() != rate.Inf
	if !bounded && l.pace == nil {
		return b.body.Read(p)
	}
	if len(p) > burstBytes {
		p = p[:burstBytes]
	}
	n, err := b.body.Read(p)
	if n <= 0 {
		return n, err
	}
	if bounded {
		if werr := l.rate.WaitN(b.ctx, n); werr != nil {
			return 0, fmt.Errorf("wait for the origin's rate: %w", werr)
		}
	}
	if l.pace != nil {
		if werr := l.pace.WaitN(b.ctx, n); werr != nil {
			return 0, fmt.Errorf("wait for the cluster's part of the origin's rate: %w", werr)
		}
	}
	return n, err
}

func (b *limitBody) Close() error {
	err := b.body.Close()
	b.once.Do(b.limit.leave)
	return err
}
