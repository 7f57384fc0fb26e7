package cache

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/shardwell/shardwell/internal/chunk"
)

// ErrNoRoom says that what was brought is kept nowhere: the disk tier does not take it.
var ErrNoRoom = errors.New("the disk tier does not take it")

// errDisturbed ends what is brought when there is something else to do.
var errDisturbed = errors.New("somebody needs the links")

// quietFor is how long nothing must have been fetched for anybody before something is brought that
// nobody asked for.
const quietFor = time.Second

// idle knows whether anything is fetched that somebody reads or will read, and ends what is
// done only for want of that. The zero value is ready.
type idle struct {
	mu       sync.Mutex
	busy     int       // calls under way, but those of BringIdle
	since    time.Time // the last of them ended
	bringing map[*context.CancelCauseFunc]struct{}
}

// enter says that a call begins that is not BringIdle's.
func (i *idle) enter() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.busy++
	for cancel := range i.bringing {
		(*cancel)(errDisturbed)
	}
	clear(i.bringing)
}

// leave says that it has ended.
func (i *idle) leave() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.busy--
	i.since = time.Now()
}

// join returns a context that ends with the quiet, or else how long to wait for that at least.
func (i *idle) join(ctx context.Context) (run context.Context, end func(), wait time.Duration) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.busy > 0 {
		return nil, nil, quietFor
	}
	if wait := quietFor - time.Since(i.since); wait > 0 {
		return nil, nil, wait
	}
	run, cancel := context.WithCancelCause(ctx)
	if i.bringing == nil {
		i.bringing = make(map[*context.CancelCauseFunc]struct{})
	}
	i.bringing[&cancel] = struct{}{}
	return run, func() {
		i.mu.Lock()
		delete(i.bringing, &cancel)
		i.mu.Unlock()
		cancel(nil)
	}, 0
}

// BringIdle fetches what is missing of a chunk and returns when it is here, in the disk tier. It does so while
// nothing else is fetched by this node, for its readers, ahead of them or for peers: it waits for that, and
// when something is, it stops and begins anew later. The error is [ErrNoRoom], ctx's, or of a class of objstore.
func (f *File) BringIdle(ctx context.Context, index uint32) error {
	o := f.obj
	for {
		missing := o.missing(index)
		if missing.empty() {
			return nil
		}
		run, end, wait := o.c.idle.join(ctx)
		if wait > 0 {
			timer := time.NewTimer(wait)
			select {
			case <-timer.C:
			case <-ctx.Done():
				timer.Stop()
				return fmt.Errorf("bring %s: %w", o.URI(), context.Cause(ctx))
			}
			continue
		}
		err := o.fillChunk(run, index, chunk.Request{Background: true, Idle: true, Access: f.access()})
		disturbed := context.Cause(run) == errDisturbed
		end()
		switch {
		case ctx.Err() != nil:
			o.yield(index)
			return fmt.Errorf("bring %s: %w", o.URI(), context.Cause(ctx))
		case disturbed:
			o.yield(index)
		case err != nil:
			return fmt.Errorf("bring %s: %w", o.URI(), err)
		case o.streams():
			return fmt.Errorf("bring %s: %w", o.URI(), ErrNoRoom)
		default:
			return nil
		}
	}
}

// yield ends at once what was begun to be brought, unless somebody waits for it by now.
func (o *object) yield(index uint32) {
	fl := o.join(index)
	defer o.leave(fl)
	fl.mu.Lock()
	defer fl.mu.Unlock()
	for _, c := range fl.calls {
		if c.req.Idle && !c.dead && !fl.wanted(c) {
			o.c.stats.Abandoned.Add(1)
			c.stop(errAbandoned)
		}
	}
}
