package peer

import (
	"sync/atomic"

	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/peer/member"
	"github.com/shardwell/shardwell/peer/ring"
)

// historyRing is Ring by the tables of peer/ring.
type historyRing struct {
	history    *ring.History
	geometry   chunk.Geometry
	placeWhole int64
}

// RingOf returns the Ring of a history of tables. Objects of up to placeWhole bytes
// have one owner; all nodes of a cluster must agree about it.
func RingOf(h *ring.History, g chunk.Geometry, placeWhole int64) Ring {
	return historyRing{history: h, geometry: g, placeWhole: placeWhole}
}

func (r historyRing) KeyOfBlocks(obj chunk.Object, id chunk.ObjectID, span chunk.Span) Key {
	return Key(ring.KeyOf(id, obj.Size, r.placeWhole, r.geometry.ChunkOf(span.First)))
}

func (r historyRing) KeyOfName(name string) Key { return Key(ring.KeyOfName(name)) }

func (r historyRing) Owners(key Key, buf []string) []string {
	var room [1 + ring.Successors]*ring.Member
	return appendAlive(buf, r.history.Current().Owners(ring.Key(key), room[:0]))
}

func (r historyRing) EarlierOwners(key Key, buf []string) []string {
	var room [ring.DefaultHistoryTables]*ring.Member
	return appendAlive(buf, r.history.EarlierOwners(ring.Key(key), room[:0]))
}

func appendAlive(buf []string, members []*ring.Member) []string {
	for _, m := range members {
		if m.State == ring.Alive {
			buf = append(buf, m.ID)
		}
	}
	return buf
}

// Directory is Members as a snapshot that somebody replaces when membership
// changes. The zero value has no members.
type Directory struct {
	now atomic.Pointer[directoryState]
}

type directoryState struct {
	all   []Member
	byID  map[string]Member
	racks map[string][]string // ring ids
}

// Set makes members those of now. The slice is not kept.
func (d *Directory) Set(members []Member) {
	s := &directoryState{all: append([]Member(nil), members...), byID: make(map[string]Member, len(members))}
	s.racks = make(map[string][]string)
	for _, m := range members {
		s.byID[m.ID] = m
		if m.Rack != "" {
			rack := m.Zone + "/" + m.Rack
			s.racks[rack] = append(s.racks[rack], m.ID)
		}
	}
	d.now.Store(s)
}

// Lookup implements Members.
func (d *Directory) Lookup(id string) (Member, bool) {
	s := d.now.Load()
	if s == nil {
		return Member{}, false
	}
	m, ok := s.byID[id]
	return m, ok
}

// All implements Members. The slice is shared: do not change it.
func (d *Directory) All() []Member {
	s := d.now.Load()
	if s == nil {
		return nil
	}
	return s.all
}

// Rack implements Racks.
func (d *Directory) Rack(m Member) []string {
	s := d.now.Load()
	if s == nil || m.Rack == "" {
		return nil
	}
	return s.racks[m.Zone+"/"+m.Rack]
}

// Reachable returns those of a group's members that can be asked: who is restarting or
// down keeps its place on the ring, and is left out here.
func Reachable(group []member.Member) []Member {
	out := make([]Member, 0, len(group))
	for _, m := range group {
		if m.State == member.Alive || m.Self {
			out = append(out, Member{ID: m.ID, Name: m.Name, Addr: m.PeerAddr.String(), Zone: m.Zone, Rack: m.Rack})
		}
	}
	return out
}
