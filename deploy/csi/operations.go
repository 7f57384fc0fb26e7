package csi

import (
	"context"
	"sync"
)

// operations lets one operation at a time work on a volume. An unpublish ends the
// publish that is at work, for the kubelet asks for it when nobody wants the volume any more.
type operations struct {
	mu    sync.Mutex
	byKey map[string]*operation
}

type operation struct {
	turn   chan struct{}      // holds one token while somebody works
	users  int                // who works or waits; under operations.mu
	cancel context.CancelFunc // of who works, if it may be ended; under operations.mu
}

// begin waits for its turn. With evict it ends the one at work first, if that may be ended.
// The returned context ends when somebody evicts this one, which is so unless evict is set. end gives the turn back.
func (o *operations) begin(ctx context.Context, key string, evict bool) (_ context.Context, end func(), err error) {
	o.mu.Lock()
	if o.byKey == nil {
		o.byKey = make(map[string]*operation)
	}
	op := o.byKey[key]
	if op == nil {
		op = &operation{turn: make(chan struct{}, 1)}
		o.byKey[key] = op
	}
	op.users++
	if evict && op.cancel != nil {
		op.cancel()
	}
	o.mu.Unlock()
	select {
	case op.turn <- struct{}{}:
	case <-ctx.Done():
		o.leave(key, op)
		return ctx, nil, ctx.Err()
	}
	ctx, cancel := context.WithCancel(ctx)
	if !evict {
		o.mu.Lock()
		op.cancel = cancel
		o.mu.Unlock()
	}
	return ctx, func() {
		o.mu.Lock()
		op.cancel = nil
		o.mu.Unlock()
		cancel()
		<-op.turn
		o.leave(key, op)
	}, nil
}

// leave forgets an operation that nobody uses.
func (o *operations) leave(key string, op *operation) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if op.users--; op.users == 0 {
		delete(o.byKey, key)
	}
}
