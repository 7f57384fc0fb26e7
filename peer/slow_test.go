package peer

import (
	"context"
	"testing"
	"time"
)

// SEMANTICS C9: Once a node was found to have a slower link than the others, nobody who fills an object waits for what it has yet to get, and what it owns is fetched once by those who want it. Until then, some five seconds, and a little longer where several are slow, the others may be slowed.
//
// The owner is slow, and neither sends a block nor asks the origin.
func TestSlowOwnerDelegates(t *testing.T) {
	inCluster(t, 6, 512<<10, func(t *testing.T, c *cluster) {
		c.origin.delay = func(ctx context.Context) error { return pause(ctx, 10*time.Millisecond) }
		for _, n := range c.nodes {
			n.fill = true
		}
		slow := c.nodes["n0"]
		slow.server.gate.link.slow.Store(time.Now().Add(time.Hour).UnixNano())
		within(t, 2*time.Second, func() { c.readAll("n1", "n2", "n3", "n4", "n5") })
		within(t, 2*time.Second, func() { c.readAll("n0") })
		c.wantCopies(1, 8)
		if sent := slow.peers.cfg.Transfer.Stats().SentBlocks.Load(); sent > 0 {
			t.Errorf("the slow owner sent %d blocks", sent)
		}
		if n := slow.peers.Stats().ActedAsOwner.Load(); n > 0 {
			t.Errorf("the slow owner asked the origin %d times", n)
		}
	})
}

// A delegate that dies is replaced by who asks next. Were that the owner, which is slow, it would ask the origin
// itself, as nobody else is there, and who asks after it would not wait for it.
func TestDelegateDies(t *testing.T) {
	inCluster(t, 4, 512<<10, func(t *testing.T, c *cluster) {
		for _, n := range c.nodes {
			n.fill = true
		}
		c.nodes["n0"].server.gate.link.slow.Store(time.Now().Add(time.Hour).UnixNano())
		c.readAll("n1")
		c.net.kill("n1:1")
		within(t, 20*time.Second, func() { c.readAll("n2", "n3") })
		within(t, 20*time.Second, func() { c.readAll("n0") })
		c.wantCopies(2, 16)
	})
}

// Only a rate that tells counts: a node whose link is full of what others send is not slow.
func TestSlowIsFoundByWhatComes(t *testing.T) {
	inCluster(t, 1, 1, func(t *testing.T, c *cluster) {
		s := c.nodes["n0"].server
		came := int64(0)
		s.gate.link.received = func() int64 { return came }
		isSlow := func() bool { return s.gate.link.slow.Load() > time.Now().UnixNano() }
		for _, per := range []int64{1000, 900, 600} {
			for range 5 {
				s.Slow(c.object.ID(), 1000)
				time.Sleep(time.Second)
				came += per
			}
			if isSlow() {
				t.Errorf("slow at %d of 1000", per)
			}
		}
		for range 3 {
			s.Slow(c.object.ID(), 1000)
			time.Sleep(time.Second)
			came += 250
		}
		if !isSlow() {
			t.Error("not slow at 250 of 1000")
		}
		time.Sleep(slowFor)
		if isSlow() {
			t.Error("slow for ever")
		}
	})
}
