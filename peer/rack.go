package peer

import (
	"slices"

	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/peer/broadcast"
)

// minRack is how many members of a rack make it worth while that one of them fetches for all.
const minRack = 2

// representative returns who of this node's rack asks the owner for a chunk that the
// rack fills: this node, or another one, which is asked instead of the owner. It
// returns "" where there is none: racks are not known, or the owner stands in this one.
func (p *Peers) representative(req chunk.Request, owner string) string {
	racks, ok := p.cfg.Members.(Racks)
	if !ok || !req.Fill {
		return ""
	}
	self, ok := p.cfg.Members.Lookup(p.cfg.Self)
	if !ok {
		return ""
	}
	rack := racks.Rack(self)
	if o, ok := p.cfg.Members.Lookup(owner); len(rack) < minRack || ok && o.Rack == self.Rack && o.Zone == self.Zone {
		return ""
	}
	c := broadcast.Chunk{Object: req.ID, Index: p.cfg.Geometry.ChunkOf(req.Span.First)}
	return broadcast.Represent(c, slices.Values(rack))
}

// Represents reports whether this node is the one of its rack that asks the owner. So
// the others of the rack may wait for it.
func (p *Peers) Represents(req chunk.Request) bool {
	if !req.Fill {
		return false
	}
	owners := p.cfg.Ring.Owners(p.cfg.Ring.KeyOfBlocks(req.Object, req.ID, req.Span), nil)
	return len(owners) > 0 && p.representative(req, owners[0]) == p.cfg.Self
}
