package transfer

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/objstore"
)

// wait waits in synctest's time.
func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// within fails unless f took between low and high.
func within(t *testing.T, low, high time.Duration, f func()) {
	t.Helper()
	begin := time.Now()
	f()
	if d := time.Since(begin); d < low || d > high {
		t.Errorf("took %v, want %v to %v", d, low, high)
	}
}

func TestLifeSignsKeepAPatientAsker(t *testing.T) {
	inBubble(t, 200<<10, nil, func(t *testing.T, r *rig) {
		r.before = func(ctx context.Context, sent int) error {
			if sent == 0 {
				return wait(ctx, 18*time.Second) // a slow origin
			}
			return nil
		}
		within(t, 18*time.Second, 19*time.Second, func() {
			if order, err := r.fetch(t, r.request(0)); err != nil || len(order) != 4 {
				t.Errorf("%v, %v", order, err)
			}
		})
		// The connection is as good as new, long after the last deadline.
		_ = wait(t.Context(), 60*time.Second)
		r.before = nil
		if _, err := r.fetch(t, r.request(0)); err != nil {
			t.Error(err)
		}
	})
}

func TestWaitingHasAnEnd(t *testing.T) {
	inBubble(t, 200<<10, nil, func(t *testing.T, r *rig) {
		r.before = func(ctx context.Context, _ int) error { return wait(ctx, time.Hour) }
		within(t, 19*time.Second, 21*time.Second, func() {
			if _, err := r.fetch(t, r.request(0)); !errors.Is(err, ErrWaited) {
				t.Errorf("%v", err)
			}
		})
	})
}

// A peer is told how long its asker waits, and is given a moment more to say why it
// brings nothing.
func TestPatienceOfAnAsker(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Request)
		told   time.Duration
	}{
		"short":        {func(r *Request) { r.Patience = 5 * time.Second }, 5 * time.Second},
		"long":         {func(r *Request) { r.Patience = time.Minute }, 20 * time.Second},
		"passed on":    {func(r *Request) { r.Patience, r.Hops = time.Minute, 2 }, 10 * time.Second},
		"what is held": {func(r *Request) { r.Patience, r.HeldOnly = 5*time.Second, true }, 2500 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 200<<10, nil, func(t *testing.T, r *rig) {
				req := r.request(0)
				c.change(&req)
				r.before = func(ctx context.Context, _ int) error {
					if err := wait(ctx, c.told); err != nil {
						return err
					}
					return objstore.ErrUnavailable
				}
				within(t, c.told, c.told, func() {
					if _, err := r.fetch(t, req); !errors.Is(err, objstore.ErrUnavailable) || objstore.Final(err) {
						t.Errorf("%v", err)
					}
				})
				if got := r.requests[0].Patience; got != c.told {
					t.Errorf("the peer was told %v, want %v", got, c.told)
				}
				r.before = func(ctx context.Context, _ int) error { return wait(ctx, time.Hour) }
				within(t, c.told+answerGrace, c.told+answerGrace, func() {
					if _, err := r.fetch(t, req); !errors.Is(err, ErrWaited) {
						t.Errorf("%v", err)
					}
				})
			})
		})
	}
}

func TestErrorAfterLifeSigns(t *testing.T) {
	inBubble(t, 200<<10, nil, func(t *testing.T, r *rig) {
		r.before = func(ctx context.Context, _ int) error {
			if err := wait(ctx, 5*time.Second); err != nil {
				return err
			}
			return chunk.ErrNotHeld
		}
		if _, err := r.fetch(t, r.request(0)); !errors.Is(err, chunk.ErrNotHeld) {
			t.Errorf("%v", err)
		}
	})
}

func TestSilentPeer(t *testing.T) {
	inBubble(t, 200<<10, func(s *ServerConfig, _ *ClientConfig) { s.LifeSign = time.Hour }, func(t *testing.T, r *rig) {
		r.before = func(ctx context.Context, _ int) error { return wait(ctx, time.Minute) }
		within(t, 3*time.Second, 4*time.Second, func() {
			if _, err := r.fetch(t, r.request(0)); !errors.Is(err, ErrSlow) {
				t.Errorf("%v", err)
			}
		})
	})
}

func TestStalledStream(t *testing.T) {
	inBubble(t, 512<<10, func(s *ServerConfig, _ *ClientConfig) { s.LifeSign = time.Hour }, func(t *testing.T, r *rig) {
		r.before = func(ctx context.Context, sent int) error {
			switch sent {
			case 0:
				return nil
			case 3:
				return wait(ctx, time.Minute)
			}
			return wait(ctx, 4*time.Second) // each block within its time
		}
		within(t, 13*time.Second, 14*time.Second, func() {
			if order, err := r.fetch(t, r.request(0)); !errors.Is(err, ErrSlow) || len(order) != 3 {
				t.Errorf("%v, %v", order, err)
			}
		})
	})
}

// An origin that is throttled in the middle of a chunk is no reason to leave the owner.
func TestLifeSignsWithinTheStream(t *testing.T) {
	inBubble(t, 512<<10, nil, func(t *testing.T, r *rig) {
		r.before = func(ctx context.Context, sent int) error {
			if sent == 2 || sent == 4 {
				return wait(ctx, 18*time.Second) // more signs than there are, in all
			}
			return nil
		}
		within(t, 36*time.Second, 37*time.Second, func() {
			if order, err := r.fetch(t, r.request(0)); err != nil || len(order) != 8 {
				t.Errorf("%v, %v", order, err)
			}
		})
	})
	inBubble(t, 512<<10, nil, func(t *testing.T, r *rig) {
		r.before = func(ctx context.Context, sent int) error {
			if sent == 2 {
				return wait(ctx, time.Hour)
			}
			return nil
		}
		within(t, 20*time.Second, 21*time.Second, func() {
			if order, err := r.fetch(t, r.request(0)); !errors.Is(err, ErrWaited) || len(order) != 2 {
				t.Errorf("%v, %v", order, err)
			}
		})
	})
}

// A disk of the receiver's that takes its time is no reason to leave the peer, but the
// sender does not wait for it for ever.
func TestSlowReceiver(t *testing.T) {
	inBubble(t, 512<<10, nil, func(t *testing.T, r *rig) {
		n := 0
		deliver := func(d time.Duration) chunk.Deliver {
			return func(chunk.Block) error { n++; return wait(t.Context(), d) }
		}
		if err := r.client.Fetch(t.Context(), r.to, r.request(0), deliver(15*time.Second)); err != nil || n != 8 {
			t.Errorf("%d blocks, %v", n, err)
		}
		if err := r.client.Fetch(t.Context(), r.to, r.request(0), deliver(25*time.Second)); !errors.Is(err, ErrUnreachable) {
			t.Errorf("%v", err)
		}
		r.settle()
		if r.stats.StreamsInUse.Load() != 0 {
			t.Error("the stream is still in use")
		}
	})
}

func TestAskerGivesUp(t *testing.T) {
	inBubble(t, 200<<10, nil, func(t *testing.T, r *rig) {
		ended := make(chan error, 1)
		r.before = func(ctx context.Context, _ int) error {
			err := wait(ctx, time.Hour)
			ended <- err
			return err
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		err := r.client.Fetch(ctx, r.to, r.request(0), func(chunk.Block) error { return nil })
		if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrSlow) { // it showed signs of life
			t.Errorf("%v", err)
		}
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("the lender ended with %v", err)
		}
	})
}

// A connection that says nothing, or too little, is closed, and takes nobody's place.
func TestSilentConnections(t *testing.T) {
	inBubble(t, 200<<10, nil, func(t *testing.T, r *rig) {
		for _, said := range []string{"", "GE", "GET /v1/blocks/x HTTP/1.1\r\nHost:"} {
			c, err := r.client.cfg.Dial(t.Context(), r.to.Addr)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.WriteString(c, said); err != nil {
				t.Fatal(err)
			}
			within(t, 5*time.Second, 11*time.Second, func() { _, _ = io.Copy(io.Discard, c) })
			c.Close()
		}
	})
}

// Both protocols come through one port, whatever pieces their first bytes come in.
func TestPortParts(t *testing.T) {
	inBubble(t, 200<<10, nil, func(t *testing.T, r *rig) {
		a, b := net.Pipe()
		p := NewPort(newHalf(pipeAddr("x")), nil)
		done := make(chan struct{})
		go func() { defer close(done); p.slots <- struct{}{}; p.part(t.Context(), p.wrap(b)) }()
		for _, c := range http2Preface {
			if _, err := a.Write([]byte{c}); err != nil {
				t.Fatal(err)
			}
		}
		c, err := p.HTTP2().Accept()
		<-done
		if err != nil {
			t.Fatal(err)
		}
		head := make([]byte, 4)
		if _, err := io.ReadFull(c, head); err != nil || string(head) != "PRI " {
			t.Errorf("%q, %v", head, err)
		}
		c.Close()
		a.Close()
	})
}
