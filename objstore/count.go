package objstore

import (
	"context"
	"io"
	"sync/atomic"
	"time"
)

// Stats counts what went to an origin. The zero value is ready; fields only grow.
type Stats struct {
	Requests [NumOps][NumClasses]atomic.Int64 // by outcome; a GET counts when it is opened
	Nanos    [NumOps]atomic.Int64             // time until the answer began, summed, in nanoseconds
	Bytes    atomic.Int64                     // of bodies, as they were read
	Broken   atomic.Int64                     // bodies that ended in an error
	Open     atomic.Int64                     // bodies open now (a gauge)
}

// Total returns the requests of op, whatever their outcome.
func (s *Stats) Total(op Op) int64 {
	var n int64
	for c := range s.Requests[op] {
		n += s.Requests[op][c].Load()
	}
	return n
}

// Count is a [Store] that counts what passes through it.
type Count struct {
	store Store
	stats *Stats
}

// NewCount wraps store. Several wrappers may share one stats.
func NewCount(store Store, stats *Stats) *Count { return &Count{store: store, stats: stats} }

// Unwrap returns the store below.
func (c *Count) Unwrap() Store { return c.store }

// done counts a request that began at start and ended with err.
func (c *Count) done(op Op, start time.Time, err error) {
	c.stats.Requests[op][ClassOf(err)].Add(1)
	c.stats.Nanos[op].Add(int64(time.Since(start)))
}

// Get implements [Store].
func (c *Count) Get(ctx context.Context, key, etag string, off, n int64) (io.ReadCloser, error) {
	start := time.Now()
	body, err := c.store.Get(ctx, key, etag, off, n)
	c.done(OpGet, start, err)
	if err != nil {
		return nil, err
	}
	c.stats.Open.Add(1)
	return &countBody{body: body, stats: c.stats}, nil
}

// Head implements [Store].
func (c *Count) Head(ctx context.Context, key string) (Info, error) {
	start := time.Now()
	info, err := c.store.Head(ctx, key)
	c.done(OpHead, start, err)
	return info, err
}

// List implements [Store].
func (c *Count) List(ctx context.Context, req ListRequest) (Page, error) {
	start := time.Now()
	page, err := c.store.List(ctx, req)
	c.done(OpList, start, err)
	return page, err
}

type countBody struct {
	body   io.ReadCloser
	stats  *Stats
	broken bool
	closed atomic.Bool
}

func (b *countBody) Read(p []byte) (int, error) {
	n, err := b.body.Read(p)
	b.stats.Bytes.Add(int64(n))
	if err != nil && err != io.EOF && !b.broken {
		b.broken = true
		b.stats.Broken.Add(1)
	}
	return n, err
}

func (b *countBody) Close() error {
	if !b.closed.Swap(true) {
		b.stats.Open.Add(-1)
	}
	return b.body.Close()
}
