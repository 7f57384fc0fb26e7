package peer

import (
	"testing"
	"time"

	"github.com/shardwell/shardwell/internal/chunk"
)

// racked puts the owner into one rack and all others into another, and returns who stands for that: first and second.
func (c *cluster) racked() (first, second string) {
	var all []Member
	for _, id := range c.ids() {
		m, _ := c.members.Lookup(id)
		if m.Zone, m.Rack = "z", "r1"; id == "n0" {
			m.Rack = "r0"
		}
		all = append(all, m)
		c.nodes[id].fill = true
	}
	c.members.Set(all)
	req := chunk.Request{Object: c.object, ID: c.object.ID(), Span: small.ChunkSpan(c.object.Size, 0), Fill: true}
	p := c.nodes["n1"].peers
	first = p.representative(req, "n0", "")
	return first, p.representative(req, "n0", first)
}

// One member of a rack asks the owner, and the others ask that one. When it dies, the next one does, for
// those who find out by themselves as for those who have heard.
func TestRepresentativeDies(t *testing.T) {
	for _, dies := range []bool{false, true} {
		inCluster(t, 8, 512<<10, func(t *testing.T, c *cluster) {
			first, second := c.racked()
			stands, readers := first, []string{}
			if dies {
				c.net.kill(first + ":1")
				stands = second
			}
			for _, id := range c.ids() {
				if id != "n0" && (id != first || !dies) {
					readers = append(readers, id)
				}
			}
			within(t, 10*time.Second, func() { c.readAll(readers...) })
			c.wantCopies(1, 8)
			if n := c.nodes["n0"].peers.Stats().RedirectsGiven.Load(); n > 0 {
				t.Errorf("dies %v: the owner was asked by others than the representative %d times", dies, n)
			}
			for _, id := range readers {
				if got := c.nodes[id].peers.Stats().RedirectsGiven.Load(); (got > 0) != (id == stands) {
					t.Errorf("dies %v: %s, not %s, named members %d times", dies, id, stands, got)
				}
			}
		})
	}
}
