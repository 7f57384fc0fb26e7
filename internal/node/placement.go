package node

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/peer"
	"github.com/shardwell/shardwell/peer/member"
	"github.com/shardwell/shardwell/peer/ring"
)

// actedSuccessors is how many successors an owner asks for what they fetched in
// its place, while it may have been away.
const actedSuccessors = 2

// joinWindow is how long after this node met others those that it gets to know count as
// having been there before it: three rounds of the exchange in which members tell each other all.
const joinWindow = 30 * time.Second

// placement is the ring as package peer wants it, with a memory for who acted for
// an owner while that one was away, and for who owned what before this node came.
type placement struct {
	peer.Ring
	self       string
	geometry   chunk.Geometry
	placeWhole int64
	grace      time.Duration
	history    *ring.History
	changed    atomic.Int64 // when the members changed last, Unix nanoseconds
	met        time.Time    // when there were other members first; of update alone
}

func newPlacement(self string, g chunk.Geometry, placeWhole int64, grace time.Duration) *placement {
	h := ring.NewHistory(0)
	return &placement{Ring: peer.RingOf(h, g, placeWhole), self: self, geometry: g, placeWhole: placeWhole, grace: grace, history: h}
}

// update makes the table of the members. It is called by one goroutine at a time.
//
// A node that joins has no earlier tables to tell it who holds what it owns from now on.
// So the tables of its first time follow one of the same members without it, which is what
// the others had, or would have had. That may be wrong, when others join at the same time or all
// start at once: then it costs a question that is answered with no.
func (p *placement) update(all []member.Member) error {
	list := make([]ring.Member, 0, len(all))
	least := leastCapacity(all)
	for _, m := range all {
		r := ring.Member{ID: m.ID, Zone: m.Zone, Rack: m.Rack, Weight: weightOf(m, least), NoOwner: m.NoOwner || m.Draining}
		if m.State != member.Alive {
			r.State = ring.Restarting
		}
		list = append(list, r)
	}
	t, err := ring.Build(p.history.Current(), list)
	if err != nil {
		return err
	}
	others := slices.DeleteFunc(list, func(m ring.Member) bool { return m.ID == p.self })
	now := time.Now()
	if p.met.IsZero() && len(others) > 0 {
		p.met = now
	}
	if len(others) > 0 && now.Sub(p.met) <= joinWindow {
		before, err := ring.Build(t, others)
		if err != nil {
			return err
		}
		p.history.Push(t, before)
	} else {
		p.history.Push(t)
	}
	p.changed.Store(now.UnixNano())
	return nil
}

// capacityUnit is what counts of a capacity: weights up to 64 and 4 PiB fit the ring.
const capacityUnit = 16 << 10

// weightOf returns the share of a member in relation to others: what its user says, times what it
// has room for. One that does not tell counts as the smallest of those that do.
func weightOf(m member.Member, leastBytes int64) int64 {
	capacity := m.CapacityBytes
	if capacity == 0 {
		capacity = leastBytes
	}
	return max(1, min(int64(m.Weight)*min(max(1, capacity/capacityUnit), ring.MaxWeight/member.MaxWeight), ring.MaxWeight))
}

// leastCapacity returns the smallest capacity that an owner tells, 0 when none tells.
func leastCapacity(all []member.Member) (least int64) {
	for _, m := range all {
		if c := m.CapacityBytes; c > 0 && !m.NoOwner && !m.Draining && (least == 0 || c < least) {
			least = c
		}
	}
	return least
}

// EarlierOwners implements peer.Ring. For a while after members came, went or
// restarted, the successors count as well: they answered for an owner that was away
// and may hold what it missed.
func (p *placement) EarlierOwners(key peer.Key, buf []string) []string {
	buf = p.Ring.EarlierOwners(key, buf)
	if time.Since(time.Unix(0, p.changed.Load())) > 2*p.grace {
		return buf
	}
	owners := p.Owners(key, nil)
	for _, id := range owners[:min(len(owners), 1+actedSuccessors)] {
		if id != p.self && !slices.Contains(buf, id) {
			buf = append(buf, id)
		}
	}
	return buf
}

// keeps reports whether this node owns an object or a chunk of it, or acts for an owner that
// restarts. As a disk drops objects whole, such a one goes after the copies of what others own. Of
// a large object nearly every node owns a chunk: on the average a search ends after
// as many chunks as there are members.
func (p *placement) keeps(obj chunk.Object, id chunk.ObjectID) bool {
	t := p.history.Current()
	if t.OwnedShare(p.self) == 0 {
		return false
	}
	chunks := p.geometry.Chunks(obj.Size)
	if obj.Size <= p.placeWhole {
		chunks = 1
	}
	for i := range chunks {
		if m := t.Acting(ring.KeyOf(id, obj.Size, p.placeWhole, i)); m != nil && m.ID == p.self {
			return true
		}
	}
	return false
}
