package peer

import (
	"context"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/peer/transfer"
)

// gateFunc is a transfer.Gate that a test makes up.
type gateFunc func(transfer.Request) transfer.Verdict

func (g gateFunc) Admit(_ context.Context, r transfer.Request) transfer.Verdict { return g(r) }

// pretend puts a server with a gate of the test's own in a node's place. It knows
// the secret.
func (c *cluster) pretend(id string, lender chunk.Lender, bounds transfer.ServerConfig, gate transfer.Gate) (stop func()) {
	c.t.Helper()
	c.nodes[id].stop()
	bounds.Self, bounds.Geometry, bounds.Lender, bounds.Gate = id, small, lender, gate
	bounds.Verifier = transfer.NewVerifier(c.signer)
	srv := transfer.NewServer(bounds).HTTP()
	port := transfer.NewPort(c.net.listen(id+":1"), nil)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = port.Run(ctx) })
	wg.Go(func() { _ = srv.Serve(port.HTTP1()) })
	return func() { srv.Close(); cancel(); wg.Wait() }
}

func TestRedirectsThatLeadNowhere(t *testing.T) {
	for name, to := range map[string]string{
		"to nobody":      "203.0.113.7:80",
		"to the asker":   "n2",
		"to itself":      "n0",
		"to a dead node": "n3",
	} {
		t.Run(name, func(t *testing.T) {
			inCluster(t, 4, 512<<10, func(t *testing.T, c *cluster) {
				c.net.kill("n3:1")
				asked := 0
				var last []string
				stop := c.pretend("n0", c.nodes["n0"], transfer.ServerConfig{}, gateFunc(func(r transfer.Request) transfer.Verdict {
					asked, last = asked+1, r.Failed
					return transfer.Verdict{Redirect: to}
				}))
				within(t, time.Second, func() { c.readAll("n2") })
				if asked < 2 || !slices.Contains(last, transfer.AnyMember) {
					t.Errorf("the owner was asked %d times, at last with %v", asked, last)
				}
				if n := c.net.dials["203.0.113.7:80"]; n != 0 {
					t.Error("an address that is no member was dialled")
				}
				st := c.nodes["n2"].peers.Stats()
				if to != "n3" && st.RedirectsRefused.Load() == 0 {
					t.Error("not counted")
				}
				stop()
			})
		})
	}
}

// The redirect's target has it, and then the owner is asked again for the rest.
func TestRedirectFailsInTheMiddle(t *testing.T) {
	inCluster(t, 3, 512<<10, func(t *testing.T, c *cluster) {
		c.readAll("n0", "n1")
		c.nodes["n1"].slow = func(_ context.Context, index uint32) error {
			if index == 4 {
				c.net.kill("n1:1")
			}
			return nil
		}
		var failed []string
		var spans []chunk.Span
		stop := c.pretend("n0", c.nodes["n0"], transfer.ServerConfig{}, gateFunc(func(r transfer.Request) transfer.Verdict {
			spans = append(spans, r.Span)
			if failed = r.Failed; len(failed) == 0 {
				return transfer.Verdict{Redirect: "n1"}
			}
			return transfer.Verdict{}
		}))
		within(t, time.Second, func() { c.readAll("n2") })
		if !slices.Equal(failed, []string{"n1"}) || !slices.Equal(spans, []chunk.Span{{First: 0, Count: 8}, {First: 4, Count: 4}}) {
			t.Errorf("the owner was asked for %v, at last without %v", spans, failed)
		}
		c.wantCopies(1, 8)
		stop()
	})
}

func TestBusyOwnerIsWaitedFor(t *testing.T) {
	inCluster(t, 2, 512<<10, func(t *testing.T, c *cluster) {
		n0 := c.nodes["n0"]
		c.origin.delay = func(ctx context.Context) error { return pause(ctx, 100*time.Millisecond) }
		stop := c.pretend("n0", n0, transfer.ServerConfig{MaxStreams: 1}, nil)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { // takes the one stream for 0.8 s
			client := transfer.NewClient(transfer.ClientConfig{Self: "x", Geometry: small, Signer: c.signer, Dial: c.net.dialer("x")})
			defer client.Close()
			req := transfer.Request{Request: chunk.Request{Object: c.object, ID: c.object.ID(), Span: chunk.Span{Count: 8}, Hops: 1}}
			if err := client.Fetch(ctx, transfer.Target{ID: "n0", Addr: "n0:1"}, req, func(chunk.Block) error { return nil }); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		within(t, 3*time.Second, func() { c.readAll("n1") })
		c.wantCopies(1, 8)
		wg.Wait()
		cancel()
		stop()
	})
}

// kill -9 of the owner and of a receiver while a chunk goes to all.
func TestKillInTheMiddleOfABroadcast(t *testing.T) {
	for _, victim := range []string{"n0", "n1"} {
		inCluster(t, 8, 1<<20, func(t *testing.T, c *cluster) {
			c.origin.delay = func(ctx context.Context) error { return pause(ctx, 20*time.Millisecond) }
			kill := sync.OnceFunc(func() {
				c.net.kill(victim + ":1")
				c.nodes[victim].peers.Close()
			})
			c.nodes[victim].slow = func(_ context.Context, index uint32) error {
				if index == 4 {
					kill()
				}
				return nil
			}
			within(t, 10*time.Second, func() { c.readAll("n2", "n3", "n4", "n5", "n6", "n7") })
			c.wantCopies(2, 2*16)
			if victim == "n1" {
				c.wantCopies(1, 16)
			}
		})
	}
}

// SEMANTICS C1: A node that dies, restarts or joins costs a reader a retry, never an error.
func TestMembersComeAndGo(t *testing.T) {
	inCluster(t, 6, 8<<20, func(t *testing.T, c *cluster) {
		c.origin.delay = func(ctx context.Context) error { return pause(ctx, 20*time.Millisecond) }
		owners := func(ids ...string) {
			for _, r := range c.rings {
				r.mu.Lock()
				r.earlier, r.owners = r.owners[:1], ids
				r.mu.Unlock()
			}
		}
		owners("n0", "n1", "n4")
		begin := time.Now()
		var wg sync.WaitGroup
		wg.Go(func() { c.readAll("n2", "n3", "n4") })
		after := func(d time.Duration, f func()) {
			if err := pause(t.Context(), d); err != nil {
				t.Fatal(err)
			}
			f()
		}
		after(300*time.Millisecond, func() { c.net.kill("n0:1") })   // dies
		after(300*time.Millisecond, func() { c.nodes["n1"].stop() }) // stops in order
		n0, n1 := c.nodes["n0"], c.nodes["n1"]
		after(400*time.Millisecond, func() { n0.stop(); c.start("n0") }) // comes back, with nothing
		after(300*time.Millisecond, func() { owners("n5", "n0", "n4") }) // joins, and owns all
		after(300*time.Millisecond, func() { c.net.kill("n5:1") })
		wg.Wait()
		if took := time.Since(begin); took > 10*time.Second {
			t.Errorf("took %v", took)
		}
		n1.stop()
		for _, id := range []string{"n2", "n3", "n4"} {
			if n := len(c.nodes[id].have); n != 128 {
				t.Errorf("%s has %d blocks", id, n)
			}
		}
	})
}

func TestStreamsEndWithinGrace(t *testing.T) {
	inCluster(t, 2, 512<<10, func(t *testing.T, c *cluster) {
		n0 := c.nodes["n0"]
		begun := make(chan struct{})
		n0.slow = func(ctx context.Context, index uint32) error {
			if index == 0 {
				close(begun)
			}
			return pause(ctx, 200*time.Millisecond)
		}
		var wg sync.WaitGroup
		wg.Go(func() { c.readAll("n1") })
		<-begun
		within(t, 3*time.Second, n0.stop)
		wg.Wait()
		c.wantCopies(1, 8)
	})
	inCluster(t, 2, 512<<10, func(t *testing.T, c *cluster) {
		n0 := c.nodes["n0"]
		begun := make(chan struct{})
		n0.slow = func(ctx context.Context, index uint32) error {
			if index == 0 {
				close(begun)
			}
			return pause(ctx, time.Hour)
		}
		var wg sync.WaitGroup
		wg.Go(func() { c.readAll("n1") })
		<-begun
		within(t, 4*time.Second, n0.stop)
		wg.Wait()
	})
}

// The same over TCP: blocks and calls through one port of the kernel's.
func TestOnePortOnLoopback(t *testing.T) {
	c := newCluster(t, 2, 512<<10)
	n0 := c.nodes["n0"]
	n0.stop()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv, err := NewServer(ServerConfig{Self: "n0", Geometry: small, Lender: n0, Names: n0, Members: c.members,
		Verifier: transfer.NewVerifier(c.signer)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- srv.Run(ctx, l) }()
	m := Member{ID: "n0", Addr: l.Addr().String()}
	c.members.Set([]Member{m, {ID: "n1", Addr: "n1:1"}})
	client := transfer.NewClient(transfer.ClientConfig{Self: "n1", Geometry: small, Signer: c.signer})
	p, err := New(Config{Self: "n1", Geometry: small, Ring: c.rings["n1"], Members: c.members, Transfer: client, Signer: c.signer})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Hello(ctx, m); err != nil {
		t.Error(err)
	}
	n := 0
	req := chunk.Request{Object: c.object, ID: c.object.ID(), Span: chunk.Span{Count: 8}}
	if err := p.Fetch(ctx, req, func(chunk.Block) error { n++; return nil }); err != nil || n != 8 {
		t.Errorf("%d blocks, %v", n, err)
	}
	stranger, err := New(Config{Self: "n1", Geometry: small, Ring: c.rings["n1"], Members: c.members, Transfer: client})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stranger.Hello(ctx, m); err == nil || !strings.Contains(err.Error(), "same secret") {
		t.Errorf("a call without a signature: %v", err)
	}
	p.Close()
	stranger.Close()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	c.stop()
}
