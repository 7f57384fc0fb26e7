package peer

import (
	"slices"
	"time"

	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/peer/broadcast"
)

// minRack is how many members of a rack make it worth while that one of them fetches for all.
const minRack = 2

// representative returns who of this node's rack asks the owner for a chunk that the
// rack fills: this node, or another one, which is asked instead of the owner. It
// returns "" where there is none: racks are not known, or the owner stands in this one.
// Members that are being left alone, and one other, are passed over: whoever finds the first representative dead turns to
// the same next one as those who know of it, so that one member goes on to order the rack.
func (p *Peers) representative(req chunk.Request, owner, but string) string {
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
	now := time.Now()
	return broadcast.Represent(c, func(yield func(string) bool) {
		for _, id := range rack {
			if id != but && !p.breakers.isOpen(id, now) && !yield(id) {
				return
			}
		}
	})
}

// instead returns whom a request goes to, which may be this node: up to two representatives of its rack, and then
// the owner and its successors.
func (p *Peers) instead(req chunk.Request, owners []string) (representatives int, ids []string) {
	if len(owners) == 0 || owners[0] == p.cfg.Self || req.Hops > 0 {
		return 0, owners
	}
	first := p.representative(req, owners[0], "")
	if first == "" {
		return 0, owners
	}
	ids = []string{first}
	if first != p.cfg.Self {
		if second := p.representative(req, owners[0], first); second != "" {
			ids = append(ids, second)
		}
	}
	representatives = len(ids)
	for _, id := range owners {
		if !slices.Contains(ids[:representatives], id) || id == p.cfg.Self {
			ids = append(ids, id)
		}
	}
	return representatives, ids
}

// Represents reports whether this node is the one of its rack that asks the owner. So
// the others of the rack may wait for it.
func (p *Peers) Represents(req chunk.Request) bool {
	if !req.Fill {
		return false
	}
	owners := p.cfg.Ring.Owners(p.cfg.Ring.KeyOfBlocks(req.Object, req.ID, req.Span), nil)
	return len(owners) > 0 && p.representative(req, owners[0], "") == p.cfg.Self
}
