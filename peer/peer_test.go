package peer

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/objstore"
	"github.com/shardwell/shardwell/peer/transfer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// inCluster runs f with n nodes and an object of size bytes in synctest's time.
func inCluster(t *testing.T, n, size int, f func(t *testing.T, c *cluster)) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, n, size)
		f(t, c)
		c.stop()
	})
}

// within fails unless f took at most d of the bubble's time.
func within(t *testing.T, d time.Duration, f func()) {
	t.Helper()
	begin := time.Now()
	f()
	if took := time.Since(begin); took > d {
		t.Errorf("took %v, want at most %v", took, d)
	}
}

func TestEachBlockLeavesTheOriginOnce(t *testing.T) {
	for _, n := range []int{1, 3, 8} {
		inCluster(t, n, 2<<20+77, func(t *testing.T, c *cluster) {
			within(t, time.Second, func() { c.readAll(c.ids()...) })
			c.wantCopies(1, 33)
		})
	}
}

// An owner that sends enough copies names others, so nobody sends to everybody.
func TestOwnerNamesOthers(t *testing.T) {
	inCluster(t, 8, 512<<10, func(t *testing.T, c *cluster) {
		c.origin.delay = func(ctx context.Context) error { return pause(ctx, 10*time.Millisecond) }
		c.readAll(c.ids()...)
		c.wantCopies(1, 8)
		given := c.nodes["n0"].peers.Stats().RedirectsGiven.Load()
		if given < 3 {
			t.Errorf("the owner named others %d times", given)
		}
		if sent := c.nodes["n0"].peers.cfg.Transfer.Stats().SentBlocks.Load(); sent > 4*8 {
			t.Errorf("the owner sent %d blocks for 8", sent)
		}
	})
}

// SEMANTICS C7: Nodes that walk through one large object at once have it from each other: one copy leaves the origin, and no node sends more than a few times what it received.
//
// Two hundred nodes, through the real transfer code.
func TestBroadcastTo200Nodes(t *testing.T) {
	const nodes, blocks = 200, 32
	inCluster(t, nodes, blocks*64<<10, func(t *testing.T, c *cluster) {
		c.origin.delay = func(ctx context.Context) error { return pause(ctx, 10*time.Millisecond) }
		for _, n := range c.nodes {
			n.fill = true
		}
		within(t, 40*time.Second, func() { c.readAll(c.ids()...) })
		c.wantCopies(1, blocks)
		synctest.Wait() // senders count a block when it has left
		var most, sum int64
		for _, n := range c.nodes {
			sent := n.peers.cfg.Transfer.Stats().SentBlocks.Load()
			most, sum = max(most, sent), sum+sent
		}
		if sum != (nodes-1)*blocks {
			t.Errorf("%d blocks were sent, want %d", sum, (nodes-1)*blocks)
		}
		if most > 4*blocks {
			t.Errorf("a node sent %d blocks of an object of %d", most, blocks)
		}
	})
}

func TestOwnerDiesInTheMiddle(t *testing.T) {
	inCluster(t, 4, 512<<10, func(t *testing.T, c *cluster) {
		c.nodes["n0"].slow = func(_ context.Context, index uint32) error {
			if index == 5 {
				c.net.kill("n0:1")
			}
			return nil
		}
		within(t, 2*time.Second, func() { c.readAll("n2") })
		// n1 acts for n0, from the block on that n2 still lacks.
		c.wantCopies(2, 8+3)
	})
}

func TestOwnerIsGone(t *testing.T) {
	inCluster(t, 4, 2<<20, func(t *testing.T, c *cluster) {
		c.net.kill("n0:1")
		within(t, 2*time.Second, func() { c.readAll("n1", "n2", "n3") })
		c.wantCopies(1, 32)
	})
}

func TestOwnerIsUnplugged(t *testing.T) {
	inCluster(t, 4, 512<<10, func(t *testing.T, c *cluster) {
		for _, id := range []string{"n1", "n2", "n3"} {
			c.net.sever(id, "n0:1")
		}
		within(t, 5*time.Second, func() { c.readAll("n1", "n2", "n3") })
		c.wantCopies(1, 8)
	})
}

func TestNobodyElseIsLeft(t *testing.T) {
	inCluster(t, 4, 512<<10, func(t *testing.T, c *cluster) {
		for _, id := range []string{"n0", "n1", "n2"} {
			c.net.kill(id + ":1")
		}
		within(t, 2*time.Second, func() { c.readAll("n3") })
		c.wantCopies(1, 8)
	})
}

// A member that is left alone is probed, and asked again once it is back.
func TestBreakerProbes(t *testing.T) {
	inCluster(t, 2, 4<<20, func(t *testing.T, c *cluster) {
		c.net.kill("n0:1")
		for i := range uint32(6) {
			if _, err := c.nodes["n1"].read(t.Context(), i); err != nil {
				t.Fatal(err)
			}
		}
		if n := c.net.dials["n0:1"]; n > 4 {
			t.Errorf("a dead member was dialled %d times", n)
		}
		c.nodes["n0"].stop()
		c.start("n0")
		time.Sleep(time.Minute)
		if _, err := c.nodes["n1"].read(t.Context(), 6); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if n := c.nodes["n0"].peers.cfg.Transfer.Stats().SentBlocks.Load(); n != 8 {
			t.Errorf("the member that came back sent %d blocks", n)
		}
	})
}

func TestEarlierOwnerHasIt(t *testing.T) {
	inCluster(t, 3, 1<<20, func(t *testing.T, c *cluster) {
		c.readAll("n1") // n0 fetches, and both have it
		for _, r := range c.rings {
			r.mu.Lock()
			r.owners, r.earlier = []string{"n2", "n0", "n1"}, []string{"n0"}
			r.mu.Unlock()
		}
		c.readAll("n2")
		c.wantCopies(1, 16)
		if n := c.nodes["n2"].peers.Stats().EarlierOwnerHits.Load(); n != 2 {
			t.Errorf("%d chunks from the earlier owner", n)
		}
	})
}

// Tables that disagree, in every order of three, cost neither a circle nor a wait.
func TestTablesDisagree(t *testing.T) {
	inCluster(t, 3, 512<<10, func(t *testing.T, c *cluster) {
		c.rings["n0"].owners = []string{"n1", "n2", "n0"}
		c.rings["n1"].owners = []string{"n2", "n0", "n1"}
		c.rings["n2"].owners = []string{"n0", "n1", "n2"}
		within(t, time.Minute, func() { c.readAll("n0") })
		c.wantCopies(1, 8)
	})
	inCluster(t, 2, 512<<10, func(t *testing.T, c *cluster) {
		c.rings["n0"].owners = []string{"n1", "n0"}
		within(t, time.Minute, func() { c.readAll("n0", "n1") })
		c.wantCopies(2, 16)
	})
}

func TestAnswersOfTheOriginAreFinal(t *testing.T) {
	for _, class := range []error{objstore.ErrChanged, objstore.ErrPermission, objstore.ErrNotExist, objstore.ErrThrottled, objstore.ErrUnavailable} {
		inCluster(t, 3, 512<<10, func(t *testing.T, c *cluster) {
			c.origin.err = class
			_, err := c.nodes["n2"].read(t.Context(), 0)
			if !errors.Is(err, class) || errors.Is(err, chunk.ErrNotHeld) {
				t.Errorf("%v", err)
			}
			if n := c.nodes["n1"].peers.cfg.Transfer.Stats().RequestsServed.Load(); n != 0 {
				t.Errorf("the successor was asked too")
			}
		})
	}
}

// SEMANTICS C3: A peer that sends wrong, short or foreign bytes is found out on arrival; the block is fetched elsewhere and the reader never sees it.
// Short and foreign answers, of every kind, are in transfer's TestFaultyAnswers.
func TestPoisonedPeer(t *testing.T) {
	for name, spoil := range map[string]func(*chunk.Piece){
		"wrong bytes":    func(p *chunk.Piece) { p.Data = bytes.Clone(p.Data); p.Data[1] ^= 1 },
		"wrong checksum": func(p *chunk.Piece) { p.CRC++ },
	} {
		t.Run(name, func(t *testing.T) {
			inCluster(t, 3, 1<<20, func(t *testing.T, c *cluster) {
				c.nodes["n0"].spoil = func(p *chunk.Piece) {
					if p.Index == 3 {
						spoil(p)
					}
				}
				within(t, time.Second, func() { c.readAll("n2") })
				n0, n2 := c.nodes["n0"], c.nodes["n2"]
				// Asked once more in case that it mended it, by n2 and by n1 that acts for n0.
				if !slices.Equal(n0.suspects, []uint32{3, 3, 3, 3}) {
					t.Errorf("the member heard of %v", n0.suspects)
				}
				if n := n2.peers.cfg.Transfer.Stats().CorruptBlocks.Load(); n != 2 {
					t.Errorf("%d damaged blocks were counted", n)
				}
				c.wantCopies(2, 16+5) // the rest of that chunk
				if !strings.Contains(c.logs.String(), "peer=n0") {
					t.Errorf("log: %s", c.logs.String())
				}
			})
		})
	}
}

// A bad block on a member's disk costs that block: the member hears of it, fetches it
// again and is asked again at once.
func TestDamagedBlockCostsThatBlock(t *testing.T) {
	for _, asked := range []string{"as the owner", "as an earlier owner"} {
		t.Run(asked, func(t *testing.T) {
			inCluster(t, 3, 1<<20, func(t *testing.T, c *cluster) {
				c.readAll("n0")
				n0 := c.nodes["n0"]
				n0.mu.Lock()
				n0.have[3] = bytes.Clone(n0.have[3])
				n0.have[3][7] ^= 1
				n0.mends = true
				n0.mu.Unlock()
				if asked == "as an earlier owner" {
					for _, r := range c.rings {
						r.owners, r.earlier = []string{"n2", "n1"}, []string{"n0"}
					}
				}
				within(t, time.Second, func() { c.readAll("n2") })
				c.wantCopies(2, 16+1)
				st := c.nodes["n2"].peers.Stats()
				if st.BreakerOpens.Load() != 0 || st.NextCandidate.Load() != 0 {
					t.Errorf("the member was set aside %d times, and others asked %d times", st.BreakerOpens.Load(), st.NextCandidate.Load())
				}
			})
		})
	}
}

// A member whose blocks are damaged again and again is set aside after the fourth.
func TestMemberThatDamagesIsSetAside(t *testing.T) {
	inCluster(t, 3, 4<<20, func(t *testing.T, c *cluster) {
		c.nodes["n0"].spoil = func(p *chunk.Piece) { p.CRC++ }
		within(t, time.Second, func() { c.readAll("n2") })
		n2 := c.nodes["n2"]
		if opens, bad := n2.peers.Stats().BreakerOpens.Load(), n2.peers.cfg.Transfer.Stats().CorruptBlocks.Load(); opens != 1 || bad != 4 {
			t.Errorf("set aside %d times after %d blocks", opens, bad)
		}
	})
}

func TestSlowPeerIsLeft(t *testing.T) {
	inCluster(t, 3, 512<<10, func(t *testing.T, c *cluster) {
		c.nodes["n0"].slow = func(ctx context.Context, index uint32) error {
			if index >= 2 {
				return pause(ctx, time.Hour)
			}
			return nil
		}
		// n2 waits for 20 s until it asks n1, which waits half as long.
		within(t, 31*time.Second, func() { c.readAll("n2") })
		c.wantCopies(2, 14)
	})
}

// Nobody else is asked when the time of the asker is over, and an owner that waits for
// the rest of a chunk is asked once more what for.
func TestPatienceIsOneForAllMembers(t *testing.T) {
	fetch := func(c *cluster, patience time.Duration) error {
		req := chunk.Request{Object: c.object, ID: c.object.ID(), Span: small.ChunkSpan(c.object.Size, 0), Patience: patience}
		return c.nodes["n3"].peers.Fetch(c.t.Context(), req, func(chunk.Block) error { return nil })
	}
	inCluster(t, 4, 512<<10, func(t *testing.T, c *cluster) {
		for _, id := range []string{"n0", "n1", "n2"} {
			c.nodes[id].slow = func(ctx context.Context, _ uint32) error { return pause(ctx, time.Hour) }
		}
		within(t, 6*time.Second, func() {
			if err := fetch(c, 5*time.Second); !errors.Is(err, transfer.ErrWaited) {
				t.Errorf("%v", err)
			}
		})
		if n := c.nodes["n3"].peers.Stats().NextCandidate.Load(); n != 0 {
			t.Errorf("%d others were asked", n)
		}
	})
	inCluster(t, 4, 512<<10, func(t *testing.T, c *cluster) {
		begun := false
		c.origin.delay = func(ctx context.Context) error {
			if !begun {
				begun = true
				return nil
			}
			if err := pause(ctx, 30*time.Second); err != nil {
				return err
			}
			return objstore.ErrUnavailable
		}
		within(t, 45*time.Second, func() {
			if err := fetch(c, time.Minute); !errors.Is(err, objstore.ErrUnavailable) {
				t.Errorf("%v", err)
			}
		})
		if n := c.nodes["n3"].peers.Stats().NextCandidate.Load(); n != 0 {
			t.Log(c.logs.String())
			t.Errorf("%d others were asked", n)
		}
	})
}

// A caller that gives up on a silent member before we do is not sent there again.
func TestImpatientCaller(t *testing.T) {
	inCluster(t, 3, 1<<20, func(t *testing.T, c *cluster) {
		c.net.sever("n2", "n0:1")
		tooSlow := errors.New("no block for 1.8 s")
		fetch := func(index uint32) error {
			ctx, cancel := context.WithTimeoutCause(t.Context(), 1800*time.Millisecond, tooSlow)
			defer cancel()
			req := chunk.Request{Object: c.object, ID: c.object.ID(), Span: small.ChunkSpan(c.object.Size, index)}
			return c.nodes["n2"].peers.Fetch(ctx, req, func(chunk.Block) error { return nil })
		}
		if err := fetch(0); !errors.Is(err, tooSlow) {
			t.Errorf("%v", err)
		}
		within(t, time.Second, func() {
			if err := fetch(0); err != nil {
				t.Errorf("%v", err)
			}
		})
		if n := c.nodes["n2"].peers.Stats().BreakerOpens.Load(); n != 1 {
			t.Errorf("%d members were set aside", n)
		}
	})
}

func TestNames(t *testing.T) {
	inCluster(t, 3, 64<<10, func(t *testing.T, c *cluster) {
		q := objstore.Query{Bucket: objstore.Bucket{Origin: "o", Name: "b"}, MaxAge: time.Minute}
		for _, id := range c.ids() {
			info, age, err := c.nodes[id].Head(t.Context(), q, "a/b\xff")
			if err != nil || info != (objstore.Info{Key: "a/b\xff", Size: 7, ETag: "n0"}) || age != time.Second {
				t.Errorf("%s: %+v, %v, %v", id, info, age, err)
			}
			page, age, err := c.nodes[id].List(t.Context(), q, objstore.ListRequest{Prefix: "a/", Delimiter: "/", Token: "\xfd"})
			if err != nil || age != 2*time.Second || page.Next != "\xfe\xfd" || page.Prefixes[0] != "a/d/" ||
				page.Objects[0].Key != "a/\xff" || page.Objects[0].ETag != "n0" || !page.Objects[0].ModTime.Equal(time.Unix(5, 6)) {
				t.Errorf("%s: %+v, %v, %v", id, page, age, err)
			}
		}
		c.origin.err = errors.Join(errors.New("head \xff"), objstore.ErrNotExist)
		if _, age, err := c.nodes["n1"].Head(t.Context(), q, "a/b"); !errors.Is(err, objstore.ErrNotExist) || age != time.Second {
			t.Errorf("%v, %v", age, err)
		}
		c.origin.err = nil
		c.net.kill("n0:1")
		within(t, 5*time.Second, func() {
			for _, id := range []string{"n1", "n2"} {
				if info, _, err := c.nodes[id].Head(t.Context(), q, "a/b"); err != nil || info.ETag != "n1" {
					t.Errorf("%s without n0: %+v, %v", id, info, err)
				}
			}
		})
	})
}

// An owner whose origin does not answer says so before its asker's time is over, and
// nobody else is asked.
func TestNamesWhileTheOriginHangs(t *testing.T) {
	inCluster(t, 3, 64<<10, func(t *testing.T, c *cluster) {
		c.origin.hang = func(ctx context.Context) error {
			<-ctx.Done()
			return objstore.ErrUnavailable
		}
		q := objstore.Query{Bucket: objstore.Bucket{Origin: "o", Name: "b"}, MaxAge: time.Minute}
		ask := map[string]func(context.Context) error{
			"head": func(ctx context.Context) error { _, _, err := c.nodes["n2"].Head(ctx, q, "a/b"); return err },
			"list": func(ctx context.Context) error {
				_, _, err := c.nodes["n2"].List(ctx, q, objstore.ListRequest{Prefix: "a/"})
				return err
			},
		}
		for op, ask := range ask {
			for _, limit := range []time.Duration{5 * time.Second, time.Minute} {
				ctx, cancel := context.WithTimeout(t.Context(), limit)
				within(t, min(limit, 20*time.Second), func() {
					if err := ask(ctx); !errors.Is(err, objstore.ErrUnavailable) || ctx.Err() != nil {
						t.Errorf("%s: %v", op, err)
					}
				})
				cancel()
			}
		}
		if st := c.nodes["n2"].peers.Stats(); st.NextCandidate.Load() != 0 || st.BreakerOpens.Load() != 0 {
			t.Errorf("others were asked %d times, members set aside %d times", st.NextCandidate.Load(), st.BreakerOpens.Load())
		}
	})
}

func TestCallsToAll(t *testing.T) {
	inCluster(t, 4, 64<<10, func(t *testing.T, c *cluster) {
		p := c.nodes["n1"].peers
		if n, err := p.Forget(t.Context(), objstore.Bucket{Name: "b"}, "a/"); n != 9 || err != nil {
			t.Errorf("%d, %v", n, err)
		}
		m, _ := c.members.Lookup("n0")
		if h, err := p.Hello(t.Context(), m); err != nil || h.Member != "n0" {
			t.Errorf("%v, %v", h, err)
		}
		c.net.kill("n0:1")
		all, err := p.Statuses(t.Context())
		if len(all) != 2 || string(all["n3"]) != `{"node":"n3"}` || !errors.Is(err, transfer.ErrUnreachable) || !strings.Contains(err.Error(), "n0") {
			t.Errorf("%s, %v", all, err)
		}
		m.Addr = "n2:1" // another member has the address now
		if _, err := p.Hello(t.Context(), m); err == nil {
			t.Error("a call to another member was answered")
		}
	})
}

func TestReadersThatOwnNothing(t *testing.T) {
	inCluster(t, 3, 512<<10, func(t *testing.T, c *cluster) {
		for _, r := range c.rings {
			r.owners = []string{"n0"}
		}
		c.readAll("n1", "n2")
		c.wantCopies(1, 8)
		for _, r := range c.rings {
			r.mu.Lock()
			r.owners = nil
			r.mu.Unlock()
		}
		if !c.nodes["n1"].peers.Owned(chunk.Request{Object: c.object, Span: chunk.Span{Count: 1}}) {
			t.Error("without owners everybody asks the origin")
		}
	})
}
