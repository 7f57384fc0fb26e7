package peer

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/shardwell/shardwell/objstore"
)

// ways is what a node knows of its own way to the origin.
type ways struct {
	mu         sync.Mutex
	cut, shaky bool
}

func (w *ways) set(cut, shaky bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut, w.shaky = cut, shaky
}

func (w *ways) Cut(string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.cut
}

func (w *ways) Shaky(string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.cut || w.shaky
}

// heads asks each node for a name, and returns which of them asked the origin.
func (c *cluster) heads(ctx context.Context, ids ...string) (by []string, err error) {
	q := objstore.Query{Bucket: objstore.Bucket{Origin: c.object.Origin, Name: "b"}, MaxAge: time.Minute}
	for _, id := range ids {
		info, _, e := c.nodes[id].Head(ctx, q, "a/b")
		_, _, listErr := c.nodes[id].List(ctx, q, objstore.ListRequest{Prefix: "a/"})
		by, err = append(by, info.ETag), errors.Join(err, e, listErr)
	}
	return by, err
}

// SEMANTICS O8: A node that the origin does not answer, while it answers others, costs nobody an error: what it owns another
// member fetches in its place, once, also for its own readers.
//
// While owners cannot reach the origin the next successor who can fetches in their place, once for all, also for
// their own readers; what they hold they give.
func TestOwnersWayToTheOriginIsCut(t *testing.T) {
	for cut := 1; cut < 4; cut++ {
		inCluster(t, 4, 2<<20+77, func(t *testing.T, c *cluster) {
			for _, id := range c.ids()[:cut] {
				c.nodes[id].ways.set(true, true)
			}
			within(t, time.Second, func() { c.readAll(c.ids()...) })
			c.wantCopies(1, 33)
			acts := c.ids()[cut]
			by, err := c.heads(t.Context(), c.ids()...)
			for i, who := range by {
				if who != acts {
					t.Errorf("of %d cut off, %s is answered by %q, want %s", cut, c.ids()[i], who, acts)
				}
			}
			if err != nil {
				t.Errorf("of %d cut off: %v", cut, err)
			}
			c.readAll(c.ids()...) // from the owner, who has it by now
			c.wantCopies(1, 33)
		})
	}
}

// An origin that answers nobody is asked by nobody in another's place, and when it comes back to one after the
// other it is still the owner who asks, once.
func TestOriginComesBack(t *testing.T) {
	inCluster(t, 4, 512<<10, func(t *testing.T, c *cluster) {
		for _, id := range c.ids() {
			c.nodes[id].ways.set(true, true)
		}
		silent := func(when string) {
			t.Helper()
			for _, id := range c.ids() {
				if _, err := c.nodes[id].read(t.Context(), 0); !errors.Is(err, objstore.ErrUnavailable) {
					t.Errorf("%s: %s reads: %v", when, id, err)
				}
				if _, err := c.heads(t.Context(), id); !errors.Is(err, objstore.ErrUnavailable) {
					t.Errorf("%s: %s looks up: %v", when, id, err)
				}
			}
			if most, _ := c.origin.copies(); most != 0 || c.origin.heads != 0 {
				t.Errorf("%s: the origin was asked for %d blocks and %d names", when, most, c.origin.heads)
			}
		}
		silent("nobody reaches it")
		for _, id := range []string{"n1", "n2", "n3"} {
			c.nodes[id].ways.set(false, true)
		}
		silent("it has just come back, and not to the owner")
		c.nodes["n0"].ways.set(false, true)
		c.readAll(c.ids()...)
		c.wantCopies(1, 8)
		if by, err := c.heads(t.Context(), c.ids()...); err != nil || by[3] != "n0" {
			t.Errorf("names by %q, %v", by, err)
		}
	})
	// Whoever's way is shaky acts in the place of the dead all the same.
	inCluster(t, 4, 512<<10, func(t *testing.T, c *cluster) {
		c.net.kill("n0:1")
		for _, id := range []string{"n1", "n2", "n3"} {
			c.nodes[id].ways.set(false, true)
		}
		within(t, 2*time.Second, func() { c.readAll("n1", "n2", "n3") })
		c.wantCopies(1, 8)
	})
}
