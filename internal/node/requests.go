package node

import (
	"context"
	"errors"
	"sync"
)

// ErrStopping says that the node ends and takes no requests any more.
var ErrStopping = errors.New("the node is stopping")

// requests are the calls from outside that a node is answering: of the control
// socket, of peers, of those who collect metrics, and what these set going. They
// use all that the node has, so none begins or goes on once it gives that back.
type requests struct {
	ctx    context.Context // ends with close
	cancel context.CancelCauseFunc

	mu     sync.Mutex
	closed bool
	group  sync.WaitGroup // grows under mu only, and not once closed
}

func newRequests() *requests {
	r := &requests{}
	r.ctx, r.cancel = context.WithCancelCause(context.Background())
	return r
}

// close ends the context of all requests and waits for them. It may be called again.
func (r *requests) close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.cancel(ErrStopping)
	r.group.Wait()
}

// enter counts one request more, unless the node is stopping.
func (r *requests) enter() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return false
	}
	r.group.Add(1)
	return true
}

// do runs f with a context that ends with ctx and when the node stops. The
// error is [ErrStopping] in the latter case.
func (r *requests) do(ctx context.Context, f func(context.Context) error) error {
	if !r.enter() {
		if err := ctx.Err(); err != nil {
			return err
		}
		return ErrStopping
	}
	defer r.group.Done()
	inner, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(r.ctx, func() { cancel(ErrStopping) })()
	err := f(inner)
	if err != nil && ctx.Err() == nil && r.ctx.Err() != nil {
		return ErrStopping
	}
	return err
}

// begin runs f beside the request that calls it, for longer than that lasts. It
// reports false when the node is stopping.
func (r *requests) begin(f func(context.Context)) bool {
	if !r.enter() {
		return false
	}
	go func() {
		defer r.group.Done()
		f(r.ctx)
	}()
	return true
}
