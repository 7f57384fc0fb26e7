package peer

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/shardwell/shardwell/internal/chunk"
)

// DefaultMaxStreams is how many fetches of a node's readers receive from peers at
// once. Each of 64 streams into a link of 500 Mbit/s had so small a share of the switch's
// queue that losses came in rows: some stood still for seconds, and their peer was
// taken for dead. 16 filled the link.
const DefaultMaxStreams = 16

const (
	// turnIdle is how long a stream may bring nothing until it counts no more: then the
	// peer waits itself. A block takes 70 ms when 16 streams share 500 Mbit/s.
	turnIdle = 400 * time.Millisecond
	// maxTurnWait bounds the wait for a turn, as does a quarter of the asker's patience.
	// Who has waited so long goes without.
	maxTurnWait = 10 * time.Second
)

// Owning is a chunk.Fetcher that knows when this node is to ask the origin.
type Owning interface {
	chunk.Fetcher
	Owned(chunk.Request) bool
}

// Turns is an [Owning] that lets few fetches of this node's readers receive at once.
// Those who wait go in order, prefetch last. A stream that brings nothing for a while
// ends its turn and goes on: objects whose origin is slow do not hold up what peers
// have, and nodes that wait for each other get on. What is fetched for a peer, or as the
// owner, needs no turn. Safe for concurrent use.
type Turns struct {
	next Owning

	mu      sync.Mutex
	free    int
	waiting [2][]*turn // readers and prefetch; bounded by the fetches of the node
}

// NewTurns returns Turns of at most max streams, at least one.
func NewTurns(next Owning, max int) *Turns {
	if max < 1 {
		max = 1
	}
	return &Turns{next: next, free: max}
}

// Owned implements [Owning].
func (s *Turns) Owned(req chunk.Request) bool { return s.next.Owned(req) }

// Fetch implements chunk.Fetcher.
func (s *Turns) Fetch(ctx context.Context, req chunk.Request, deliver chunk.Deliver) error {
	if req.HeldOnly || req.Hops > 0 || s.next.Owned(req) {
		return s.next.Fetch(ctx, req, deliver)
	}
	limit := maxTurnWait
	if req.Patience > 0 {
		limit = min(limit, req.Patience/4)
	}
	began := time.Now()
	t, err := s.take(ctx, req.Background, limit)
	if err != nil {
		return err
	}
	defer t.end()
	if req.Patience > 0 {
		req.Patience = max(time.Millisecond, req.Patience-time.Since(began))
	}
	return s.next.Fetch(ctx, req, func(b chunk.Block) error {
		t.timer.Stop() // what happens to the block here is not the peer's to answer for
		defer t.timer.Reset(turnIdle)
		return deliver(b)
	})
}

// turn is one stream's.
type turn struct {
	s     *Turns
	given chan struct{} // closed when it is the stream's turn; nil if that was at once
	timer *time.Timer   // until the turn ends though the stream goes on
	has   bool          // under Turns.mu
}

// take waits for a turn, at most for limit.
func (s *Turns) take(ctx context.Context, background bool, limit time.Duration) (*turn, error) {
	t := &turn{s: s}
	queue := &s.waiting[0]
	if background {
		queue = &s.waiting[1]
	}
	s.mu.Lock()
	if s.free > 0 {
		s.free--
		t.has = true
	} else {
		t.given = make(chan struct{})
		*queue = append(*queue, t)
	}
	s.mu.Unlock()
	if t.given != nil {
		timer := time.NewTimer(limit)
		defer timer.Stop()
		select {
		case <-t.given:
		case <-timer.C:
			s.leave(queue, t)
		case <-ctx.Done():
			s.leave(queue, t)
			t.release()
			return nil, context.Cause(ctx)
		}
	}
	t.timer = time.AfterFunc(turnIdle, t.release)
	return t, nil
}

// leave takes t out of its queue, if it is still there.
func (s *Turns) leave(queue *[]*turn, t *turn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(*queue, t); i >= 0 {
		*queue = slices.Delete(*queue, i, i+1)
	}
}

// end gives the turn up when the stream has ended.
func (t *turn) end() {
	t.timer.Stop()
	t.release()
}

// release gives the turn to who waits. A second one does nothing.
func (t *turn) release() {
	s := t.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if !t.has {
		return
	}
	t.has = false
	for i := range s.waiting {
		if queue := &s.waiting[i]; len(*queue) > 0 {
			next := (*queue)[0]
			*queue = slices.Delete(*queue, 0, 1)
			next.has = true
			close(next.given)
			return
		}
	}
	s.free++
}
