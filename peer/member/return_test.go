package member

import (
	"testing"
	"testing/synctest"
	"time"
)

// The first node of a cluster often has no seeds. When it was stopped in good order and starts
// again, it knows nobody: the others have to ask whether it is back.
func TestOneWithoutSeedsIsFoundAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		defer c.stopAll()
		c.addMany(3)
		c.eventually(30*time.Second, "start", c.allKnow(3))
		first := c.nodes[0]
		first.stop()
		<-first.done
		time.Sleep(time.Second)
		c.nodes[0] = c.start(first.cfg, first.addr) // its Join is empty, as it was
		took := c.eventually(90*time.Second, "it is found again", func() bool {
			return c.allKnow(3)() && c.allSee("id-000", "alive")()
		})
		t.Logf("found after %s", took)
		c.agree(3)
	})
}

// Killed and back at the same address: it takes part at once, for nobody else can be there, and waits for no
// answer of those that it was before.
func TestAKilledMemberComesBackInItsPlaceWithoutAWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		defer c.stopAll()
		c.addMany(4)
		c.eventually(30*time.Second, "start", c.allKnow(4))
		for range 3 { // each leaves one more behind
			old := c.nodes[2]
			old.crash()
			c.nodes[2] = c.start(old.cfg, old.addr)
			began := time.Now()
			c.eventually(15*time.Second, "it takes part", func() bool { _, calls, _, _ := c.nodes[2].seen(); return calls > 0 })
			if took := time.Since(began); took >= 150*time.Millisecond { // of time that is the test's own
				t.Errorf("it waited for %v", took)
			}
		}
	})
}
