package objstoretest

import (
	"context"
	"fmt"
	"io"
	"sync"

	"github.com/shardwell/shardwell/objstore"
)

// Failure is what happens to one request instead of, or before, the right answer.
// The zero value does nothing.
type Failure struct {
	Gate *Gate // the request waits here first
	Err  error // the request fails with it

	// Body breaks the body of a GET after At bytes. The other fields say how.
	Body    bool
	At      int64
	BodyErr error // the body ends with it; nil means io.ErrUnexpectedEOF
	Stall   bool  // the body yields nothing more until the context ends
	Flip    bool  // the byte at At is inverted, and the body goes on

	// Shift answers with the range that begins Shift bytes later than asked for:
	// a liar that only checksums find.
	Shift int64
}

// Fault is a store that fails as told. It is safe for concurrent use.
type Fault struct {
	store objstore.Store

	mu     sync.Mutex
	queue  [objstore.NumOps][]Failure
	always [objstore.NumOps]func(n int64, key string) Failure
	count  [objstore.NumOps]int64
}

// NewFault wraps store.
func NewFault(store objstore.Store) *Fault { return &Fault{store: store} }

// Next gives the following requests of op one failure each.
func (f *Fault) Next(op objstore.Op, failures ...Failure) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.queue[op] = append(f.queue[op], failures...)
}

// Set decides about all requests of op for which Next has nothing. n counts
// them from 1; nil ends it.
func (f *Fault) Set(op objstore.Op, decide func(n int64, key string) Failure) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.always[op] = decide
}

// Requests returns how many requests of op came, failed ones included.
func (f *Fault) Requests(op objstore.Op) int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.count[op]
}

// begin takes the failure of a request, and lives through what comes first.
func (f *Fault) begin(ctx context.Context, op objstore.Op, key string) (Failure, error) {
	f.mu.Lock()
	f.count[op]++
	var fail Failure
	switch {
	case len(f.queue[op]) > 0:
		fail, f.queue[op] = f.queue[op][0], f.queue[op][1:]
	case f.always[op] != nil:
		fail = f.always[op](f.count[op], key)
	}
	f.mu.Unlock()
	if fail.Gate != nil {
		if err := fail.Gate.Pass(ctx); err != nil {
			return fail, fmt.Errorf("%v %q: %w", op, key, err)
		}
	}
	if fail.Err != nil {
		return fail, fmt.Errorf("%v %q: %w", op, key, fail.Err)
	}
	return fail, nil
}

// Get implements objstore.Store.
func (f *Fault) Get(ctx context.Context, key, etag string, off, n int64) (io.ReadCloser, error) {
	fail, err := f.begin(ctx, objstore.OpGet, key)
	if err != nil {
		return nil, err
	}
	body, err := f.store.Get(ctx, key, etag, off+fail.Shift, n)
	if err != nil || !fail.Body {
		return body, err
	}
	return &faultBody{ctx: ctx, body: body, fail: fail}, nil
}

// Head implements objstore.Store.
func (f *Fault) Head(ctx context.Context, key string) (objstore.Info, error) {
	if _, err := f.begin(ctx, objstore.OpHead, key); err != nil {
		return objstore.Info{}, err
	}
	return f.store.Head(ctx, key)
}

// List implements objstore.Store.
func (f *Fault) List(ctx context.Context, req objstore.ListRequest) (objstore.Page, error) {
	if _, err := f.begin(ctx, objstore.OpList, req.Prefix); err != nil {
		return objstore.Page{}, err
	}
	return f.store.List(ctx, req)
}

// faultBody breaks at a byte.
type faultBody struct {
	ctx  context.Context
	body io.ReadCloser
	fail Failure
	off  int64
}

func (b *faultBody) Read(p []byte) (int, error) {
	left := b.fail.At - b.off
	if left == 0 && !b.fail.Flip {
		if b.fail.Stall {
			<-b.ctx.Done()
			return 0, b.ctx.Err()
		}
		if b.fail.BodyErr != nil {
			return 0, b.fail.BodyErr
		}
		return 0, io.ErrUnexpectedEOF
	}
	if !b.fail.Flip && int64(len(p)) > left {
		p = p[:left]
	}
	n, err := b.body.Read(p)
	if b.fail.Flip && left >= 0 && left < int64(n) {
		p[left] ^= 0xff
	}
	b.off += int64(n)
	return n, err
}

func (b *faultBody) Close() error { return b.body.Close() }
