package peer

import (
	"sync"
	"time"

	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/peer/broadcast"
)

// Limits of [neighbours].
const (
	maxNeighbours = 256         // objects remembered
	neighbourFor  = time.Minute // since it last gave a chunk
)

// neighbours remembers, for each object that this node fills, the nearest member
// before it in the circle that gave it a chunk. Owners that know nothing of the
// others yet learn from it whom to name.
type neighbours struct {
	self string

	mu    sync.Mutex
	known map[chunk.ObjectID]neighbour // guarded by mu
}

type neighbour struct {
	id   string
	last time.Time
}

// of returns the neighbour for a request, or "".
func (n *neighbours) of(req chunk.Request) string {
	if !req.Fill {
		return ""
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	k, ok := n.known[req.ID]
	if !ok || time.Since(k.last) > neighbourFor {
		return ""
	}
	return k.id
}

// note says that a member gave all that it was asked for.
func (n *neighbours) note(req chunk.Request, id string) {
	if !req.Fill {
		return
	}
	now := time.Now()
	n.mu.Lock()
	defer n.mu.Unlock()
	k, ok := n.known[req.ID]
	if ok && k.id != id && now.Sub(k.last) <= neighbourFor &&
		broadcast.Distance(k.id, n.self) < broadcast.Distance(id, n.self) {
		return
	}
	if !ok && len(n.known) >= maxNeighbours {
		for other, k := range n.known {
			if now.Sub(k.last) > neighbourFor || len(n.known) >= maxNeighbours {
				delete(n.known, other)
			}
		}
	}
	n.known[req.ID] = neighbour{id, now}
}

// forget says that a member failed.
func (n *neighbours) forget(req chunk.Request, id string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.known[req.ID].id == id {
		delete(n.known, req.ID)
	}
}
