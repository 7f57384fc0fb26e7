package peer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shardwell/shardwell/internal/chunk"
)

// stream is one fetch that a test has in its hands.
type stream struct {
	req     chunk.Request
	deliver chunk.Deliver
	end     chan error
}

// heldFetches is an Owning whose fetches a test ends.
type heldFetches struct {
	mu      sync.Mutex
	begun   []*stream
	isOwned bool
}

func (h *heldFetches) Owned(chunk.Request) bool { return h.isOwned }

func (h *heldFetches) Fetch(ctx context.Context, req chunk.Request, deliver chunk.Deliver) error {
	s := &stream{req: req, deliver: deliver, end: make(chan error, 1)}
	h.mu.Lock()
	h.begun = append(h.begun, s)
	h.mu.Unlock()
	select {
	case err := <-s.end:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// order tells which requests have begun, by their keys.
func (h *heldFetches) order() (keys string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.begun {
		keys += s.req.Object.Key
	}
	return keys
}

func (h *heldFetches) at(i int) *stream {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.begun[i]
}

func readOf(key string) chunk.Request { return chunk.Request{Object: chunk.Object{Key: key}} }

// begin starts a fetch and waits until it runs or queues.
func begin(ctx context.Context, wg *sync.WaitGroup, s *Turns, req chunk.Request) {
	wg.Go(func() { _ = s.Fetch(ctx, req, func(chunk.Block) error { return nil }) })
	synctest.Wait()
}

func TestTurnsGoInOrderPrefetchLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &heldFetches{}
		s := NewTurns(h, 2)
		var wg sync.WaitGroup
		for _, key := range []string{"a", "b", "c"} {
			begin(t.Context(), &wg, s, readOf(key))
		}
		ahead := readOf("p")
		ahead.Background = true
		begin(t.Context(), &wg, s, ahead)
		begin(t.Context(), &wg, s, readOf("d"))
		if got := h.order(); got != "ab" {
			t.Fatalf("begun: %q, want the first two", got)
		}
		for i, want := range []string{"abc", "abcd", "abcdp", "abcdp", "abcdp"} {
			h.at(i).end <- nil
			synctest.Wait()
			if got := h.order(); got != want {
				t.Fatalf("begun after %d ended: %q, want %q", i+1, got, want)
			}
		}
		wg.Wait()
		if s.free != 2 {
			t.Errorf("%d turns are free at the end, want 2", s.free)
		}
	})
}

// A stream whose peer brings nothing does not keep others waiting; one that delivers
// does, however long the delivery takes here.
func TestTurnOfAnIdleStreamEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &heldFetches{}
		s := NewTurns(h, 1)
		var wg sync.WaitGroup
		slow := make(chan struct{})
		wg.Go(func() {
			_ = s.Fetch(t.Context(), readOf("a"), func(chunk.Block) error { <-slow; return nil })
		})
		synctest.Wait()
		begin(t.Context(), &wg, s, readOf("b"))
		wg.Go(func() { _ = h.at(0).deliver(chunk.Block{}) })
		synctest.Wait()
		time.Sleep(2 * turnIdle)
		synctest.Wait()
		if got := h.order(); got != "a" {
			t.Fatalf("begun while the first delivers: %q", got)
		}
		close(slow)
		synctest.Wait()
		time.Sleep(turnIdle / 2)
		synctest.Wait()
		if got := h.order(); got != "a" {
			t.Fatalf("begun before the first was idle for long: %q", got)
		}
		time.Sleep(turnIdle / 2)
		synctest.Wait()
		if got := h.order(); got != "ab" {
			t.Fatalf("begun when the first was idle: %q", got)
		}
		h.at(0).end <- nil
		h.at(1).end <- nil
		wg.Wait()
		if s.free != 1 {
			t.Errorf("%d turns are free at the end, want 1", s.free)
		}
	})
}

func TestTurnIsNotAwaitedForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &heldFetches{}
		s := NewTurns(h, 1)
		var wg sync.WaitGroup
		// Blocks come all the time, so the turn is kept.
		ctx, cancel := context.WithCancel(t.Context())
		begin(ctx, &wg, s, readOf("a"))
		wg.Go(func() {
			for ctx.Err() == nil {
				_ = h.at(0).deliver(chunk.Block{})
				time.Sleep(turnIdle / 4)
			}
		})
		impatient := readOf("i")
		impatient.Patience = 4 * time.Second
		begin(t.Context(), &wg, s, impatient)
		begin(t.Context(), &wg, s, readOf("b"))
		left, interrupt := context.WithCancelCause(t.Context())
		gone := errors.New("reader is gone")
		wg.Go(func() {
			if err := s.Fetch(left, readOf("x"), nil); err != gone {
				t.Errorf("interrupted while waiting: got %v", err)
			}
		})
		synctest.Wait()
		interrupt(gone)
		for _, want := range []struct {
			after time.Duration
			begun string
		}{{time.Second - 1, "a"}, {1, "ai"}, {maxTurnWait - time.Second - 1, "ai"}, {1, "aib"}} {
			time.Sleep(want.after)
			synctest.Wait()
			if got := h.order(); got != want.begun {
				t.Fatalf("begun: %q, want %q", got, want.begun)
			}
		}
		if got := h.at(1).req.Patience; got != 3*time.Second {
			t.Errorf("patience after a wait of 1 s of 4: %v", got)
		}
		h.at(1).end <- nil
		h.at(2).end <- nil
		cancel()
		wg.Wait()
		if s.free != 1 || len(s.waiting[0]) != 0 {
			t.Errorf("at the end %d turns are free and %d wait", s.free, len(s.waiting[0]))
		}
	})
}

func TestWhoNeedsNoTurn(t *testing.T) {
	forPeer, question := readOf("h"), readOf("q")
	forPeer.Hops, question.HeldOnly = 1, true
	for _, c := range []struct {
		req   chunk.Request
		owned bool
	}{{forPeer, false}, {question, false}, {readOf("o"), true}} {
		t.Run(fmt.Sprintf("%s owned %v", c.req.Object.Key, c.owned), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := &heldFetches{}
				s := NewTurns(h, 1)
				var wg sync.WaitGroup
				begin(t.Context(), &wg, s, readOf("a"))
				h.isOwned = c.owned
				begin(t.Context(), &wg, s, c.req)
				if got := h.order(); got != "a"+c.req.Object.Key {
					t.Errorf("begun: %q", got)
				}
				h.at(0).end <- nil
				h.at(1).end <- nil
				wg.Wait()
			})
		})
	}
}
