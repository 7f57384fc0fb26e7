package peer

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/peer/transfer"
)

// Peers is the cluster as seen from this node. It implements chunk.Fetcher and
// objstore.Names: both answer with chunk.ErrNotHeld when this node is the one to
// ask the origin. Safe for concurrent use.
type Peers struct {
	cfg      Config
	stats    Stats
	breakers *breakers
	calls    *callers
	near     neighbours

	mu   sync.Mutex
	rand *rand.Rand // guarded by mu
}

// New returns Peers. Call Close when it is no longer used.
func New(cfg Config) (*Peers, error) {
	cfg.setDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	p := &Peers{cfg: cfg, rand: cfg.Rand}
	if p.rand == nil {
		p.rand = rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	}
	p.breakers = newBreakers(cfg.Breaker, &p.stats, rand.New(rand.NewPCG(p.rand.Uint64(), p.rand.Uint64())))
	p.calls = newCallers(cfg)
	p.near.self, p.near.known = cfg.Self, make(map[chunk.ObjectID]neighbour)
	return p, nil
}

// Stats returns the counters.
func (p *Peers) Stats() *Stats { return &p.stats }

// Close closes the connections that are idle and all control connections.
func (p *Peers) Close() error {
	p.cfg.Transfer.Close()
	return p.calls.close()
}

// jitter returns a duration between half of d and d.
func (p *Peers) jitter(d time.Duration) time.Duration {
	if d <= 1 {
		return d
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return d/2 + time.Duration(p.rand.Int64N(int64(d/2)+1))
}

// pause waits for d, or less when ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// verdict is what the outcome of a request says about the member.
type verdict int

const (
	nothing verdict = iota // our context ended, or a local error
	healthy
	failing  // counts towards the threshold
	damaging // set aside when it happens often
	harmful  // set aside at once
)

// judge reads a member's health off the outcome of a request.
func judge(ctx context.Context, err error) verdict {
	var deliver *transfer.DeliverError
	var remote *transfer.RemoteError
	switch {
	case err == nil || errors.As(err, new(*transfer.RedirectError)):
		return healthy
	case errors.As(err, &deliver), context.Cause(ctx) == chunk.ErrStarved, context.Cause(ctx) == chunk.ErrAnew:
		return nothing
	case errors.Is(err, transfer.ErrSlow): // the next wait would cost a reader as much
		return harmful
	case errors.Is(err, chunk.ErrCorrupt):
		return damaging
	case ctx.Err() != nil:
		return nothing
	case errors.Is(err, transfer.ErrMalformed), errors.Is(err, transfer.ErrImpostor):
		return harmful
	case errors.As(err, &remote):
		switch {
		case errors.Is(err, transfer.ErrUnauthorized), errors.Is(err, transfer.ErrClock), errors.Is(err, transfer.ErrMisdirected):
			return harmful
		case errors.Is(err, transfer.ErrRemote):
			return failing
		}
		return healthy // it answered; the answer is about the object
	}
	return failing // ErrWaited too: once it may be the origin that is slow
}

// report tells the breakers how a request to a member ended.
func (p *Peers) report(ctx context.Context, id string, err error) {
	switch judge(ctx, err) {
	case nothing:
		p.breakers.abandoned(id)
	case healthy:
		p.breakers.succeeded(id)
	case failing:
		p.breakers.failed(id, time.Now(), false)
	case damaging:
		p.breakers.sentDamage(id, time.Now())
	case harmful:
		p.breakers.failed(id, time.Now(), true)
	}
}
