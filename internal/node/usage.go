package node

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	"github.com/shardwell/shardwell/cache"
	"github.com/shardwell/shardwell/cache/disk"
	"github.com/shardwell/shardwell/peer/ring"
)

// Bounds of what a node tells about its cache.
const (
	usageMinAge   = time.Second     // an answer is good for so long,
	usageRest     = 20              // and for so many times what the walk over sidecars took: one twentieth of a disk's time at most
	usagePatience = 3 * time.Second // how long a question waits for one; a large cache takes longer
)

// usage is the last answer to what the disks hold.
type usage struct {
	mu     sync.Mutex
	at     time.Time     // of shares: when the walk ended; zero before the first
	took   time.Duration // the walk
	shares []share       // replaced, never changed
	walk   chan struct{} // closed when the walk under way has ended; nil when none is
}

// fresh reports whether what is known is good enough. Callers hold mu.
func (u *usage) fresh() bool {
	return !u.at.IsZero() && time.Since(u.at) < max(usageMinAge, usageRest*u.took)
}

// shares returns what this node holds, by directory. When what it knows is not
// fresh it walks the disks, on behalf of all who ask meanwhile; who does not
// get to see the end of the walk in time gets what was known before.
func (n *Node) shares(ctx context.Context) ([]share, error) {
	u := &n.usage
	u.mu.Lock()
	if u.fresh() {
		defer u.mu.Unlock()
		return u.shares, nil
	}
	if u.walk == nil {
		done := make(chan struct{})
		if !n.requests.begin(func(ctx context.Context) { n.walkDisks(ctx, done) }) {
			u.mu.Unlock()
			return nil, ErrStopping
		}
		u.walk = done
	}
	walk := u.walk
	u.mu.Unlock()

	patience := time.NewTimer(usagePatience)
	defer patience.Stop()
	select {
	case <-walk:
	case <-patience.C:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.shares, nil
}

// walkDisks counts what the disks hold and closes done.
func (n *Node) walkDisks(ctx context.Context, done chan<- struct{}) {
	t, began := newTally(maxUsageDirs), time.Now()
	for _, d := range n.disks.dirs {
		err := d.Each(ctx, func(e disk.Entry) error {
			local := min(int64(e.Present)*n.geometry.BlockBytes, e.Object.Size)
			t.add(e.Object, local, n.ownedBytes(e, local))
			return nil
		})
		if err != nil && ctx.Err() == nil { // the other directories, and what was seen of this one, still tell something
			n.log.Warn("count what is cached", "directory", d.Path(), "error", err)
		}
	}
	_ = n.cache.EachInMemory(func(m cache.InMemory) error { // of a node without disks
		t.add(m.Object, n.bytesOf(m, func(uint32) bool { return true }), n.bytesOf(m, func(b uint32) bool { return n.policy.Owns(m.Object, m.ID, b) }))
		return nil
	})
	u := &n.usage
	u.mu.Lock()
	defer u.mu.Unlock()
	if ctx.Err() == nil {
		u.at, u.shares = time.Now(), t.list()
		u.took = u.at.Sub(began)
	}
	u.walk = nil
	close(done)
}

// bytesOf adds up those blocks in memory that count.
func (n *Node) bytesOf(m cache.InMemory, counts func(block uint32) bool) (sum int64) {
	for _, b := range m.Blocks {
		if counts(b) {
			sum += int64(n.geometry.BlockLen(m.Object.Size, b))
		}
	}
	return sum
}

// ownedBytes returns how many of the local bytes of an object belong here: all or
// none of one that has one owner, those of its chunks otherwise.
func (n *Node) ownedBytes(e disk.Entry, local int64) int64 {
	mine := func(index uint32) bool {
		m := n.cluster.ring.history.Current().Owner(ring.KeyOf(e.ID, e.Object.Size, int64(n.cfg.PlaceWhole), index))
		return m != nil && m.ID == n.id
	}
	if e.Object.Size <= int64(n.cfg.PlaceWhole) {
		if mine(0) {
			return local
		}
		return 0
	}
	f, err := n.disks.Find(e.ID)
	if err != nil {
		return 0 // gone meanwhile
	}
	defer f.Release()
	var owned int64
	for i := range n.geometry.Chunks(e.Object.Size) {
		if !mine(i) {
			continue
		}
		for s, b := n.geometry.ChunkSpan(e.Object.Size, i), uint32(0); b < s.Count; b++ {
			if f.Has(s.First + b) {
				owned += int64(n.geometry.BlockLen(e.Object.Size, s.First+b))
			}
		}
	}
	return owned
}

// report is what a member tells the others of itself.
type report struct {
	Shares        []share `json:"shares"`
	Casts         []role  `json:"casts"`
	CapacityBytes int64   `json:"capacityBytes"` // for what this node owns
}

// statusHere is this node's answer to the status question of others.
func (n *Node) statusHere(ctx context.Context) ([]byte, error) {
	shares, err := n.shares(ctx)
	if err != nil {
		return nil, err
	}
	return json.Marshal(report{Shares: shares, Casts: n.roles(), CapacityBytes: n.capacityHere()})
}
