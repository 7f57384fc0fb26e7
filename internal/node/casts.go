package node

import (
	"cmp"
	"slices"
	"time"

	"github.com/shardwell/shardwell/internal/control"
)

// Bounds of what is told of broadcasts.
const (
	maxRoles        = 64               // objects that a node tells of
	broadcastRecent = 30 * time.Second // since its last block: then it is no longer running
)

// role is what a node has to do with an object that has traffic.
type role struct {
	ID       string        `json:"id"`
	URI      string        `json:"uri"`
	Size     int64         `json:"size"`
	Here     int64         `json:"here"`
	Received int64         `json:"received"`
	Origin   int64         `json:"origin"`
	Sent     int64         `json:"sent"`
	Reading  bool          `json:"reading"`
	Took     time.Duration `json:"took"` // from its first block to its last
	Idle     time.Duration `json:"idle"` // since its last
}

// roles returns those of this node, the latest first.
func (n *Node) roles() []role {
	var list []role
	now := time.Now()
	for id, t := range n.cache.Traffic() {
		list = append(list, role{ID: id.String(), URI: t.Object.URI(), Size: t.Object.Size, Here: t.Here, Received: t.Received, Origin: t.FromOrigin,
			Sent: t.Sent, Reading: t.Open, Took: t.Last.Sub(t.Begun), Idle: now.Sub(t.Last)})
	}
	slices.SortFunc(list, func(a, b role) int { return cmp.Or(cmp.Compare(a.Idle, b.Idle), cmp.Compare(a.ID, b.ID)) })
	return list[:min(len(list), maxRoles)]
}

// broadcasts makes one of what several nodes have to do with the same object, for those
// that run: two nodes at least have got bytes of it, and one a moment ago.
func broadcasts(reports [][]role) []control.Broadcast {
	type sum struct {
		control.Broadcast
		size, origin, sent, most int64
		nodes, recent            int
	}
	byID := make(map[string]*sum)
	for _, roles := range reports {
		for _, p := range roles {
			if p.Received == 0 && p.Sent == 0 {
				continue
			}
			s := byID[p.ID]
			if s == nil {
				s = &sum{size: max(1, p.Size)}
				s.Object = p.URI
				byID[p.ID] = s
			}
			s.nodes++
			s.origin += p.Origin
			s.sent += p.Sent
			s.most = max(s.most, p.Sent)
			switch {
			case p.Here >= p.Size:
				s.NodesDone++
			case p.Idle < broadcastRecent:
				s.NodesReceiving++
			}
			if p.Idle < broadcastRecent {
				s.recent++
				if p.Took > 0 {
					s.BytesPerSecond += float64(p.Received) / p.Took.Seconds()
				}
			}
		}
	}
	var list []control.Broadcast
	for _, s := range byID {
		if s.nodes < 2 || s.recent == 0 || s.sent == 0 {
			continue
		}
		s.OriginCopies = float64(s.origin) / float64(s.size)
		s.MaxOverMeanSent = float64(s.most) * float64(s.nodes) / float64(s.sent)
		list = append(list, s.Broadcast)
	}
	slices.SortFunc(list, func(a, b control.Broadcast) int { return cmp.Compare(a.Object, b.Object) })
	return list
}
