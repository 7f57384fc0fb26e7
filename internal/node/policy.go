package node

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/shardwell/shardwell/cache/disk"
	"github.com/shardwell/shardwell/cache/evict"
	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/peer/ring"
)

// policy tells the cache directories what this node owns, by the ring, and what that is
// worth, by what is known of the datasets.
type policy struct {
	self       string
	geometry   chunk.Geometry
	placeWhole int64
	ring       atomic.Pointer[ring.History] // nil until the cluster is open: then everything is owned
	datasets   *datasets
	stale      staleVersions
	held       holdings

	mu    sync.Mutex
	quota map[evict.Dataset]int64 // bytes that this node owns of datasets with a quota
}

var _ disk.Policy = (*policy)(nil)

// Owns implements disk.Policy. What each node is to hold counts as owned by each.
func (p *policy) Owns(obj chunk.Object, id chunk.ObjectID, block uint32) bool {
	h := p.ring.Load()
	if h == nil {
		return true
	}
	m := h.Current().Owner(ring.KeyOf(id, obj.Size, p.placeWhole, p.geometry.ChunkOf(block)))
	return m != nil && m.ID == p.self || p.held.covers(obj, time.Now())
}

// Judge implements disk.Policy.
func (p *policy) Judge(obj chunk.Object, id chunk.ObjectID) (evict.Class, int64) {
	if p.stale.has(id) {
		return evict.Stale, 0
	}
	return p.datasets.now().Judge(obj, time.Now().UnixNano())
}

// Admits implements disk.Policy. A quota is the cluster's: this node's part of it is its
// part of the ring.
func (p *policy) Admits(obj chunk.Object, _ chunk.ObjectID, n int64) bool {
	u, ok := p.datasets.now().Quota(obj)
	if !ok {
		return true
	}
	share := 1.0
	if h := p.ring.Load(); h != nil {
		share = h.Current().OwnedShare(p.self)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if float64(p.quota[u.Dataset]+n) > share*float64(u.QuotaBytes) {
		return false
	}
	if p.quota == nil {
		p.quota = make(map[evict.Dataset]int64)
	}
	p.quota[u.Dataset] += n
	return true
}

// Rotates implements disk.Policy.
func (p *policy) Rotates(obj chunk.Object) (evict.Dataset, bool) {
	table := p.datasets.now()
	u, ok := table.Quota(obj)
	if !ok {
		return evict.Dataset{}, false
	}
	class, _ := table.Judge(obj, time.Now().UnixNano())
	return u.Dataset, class == evict.Recent
}

// Freed implements disk.Policy.
func (p *policy) Freed(ds evict.Dataset, n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if have, ok := p.quota[ds]; ok {
		p.quota[ds] = max(0, have-n)
	}
}

// count replaces what is known of the bytes of datasets with a quota, by what a walk over the
// disks has found.
func (p *policy) count(shares []share) {
	found := make(map[evict.Dataset]int64)
	for _, u := range p.datasets.now().Uses() {
		if u.QuotaBytes > 0 {
			_, found[u.Dataset] = under(shares, bucketOfDataset(u.Dataset), u.Prefix)
		}
	}
	p.mu.Lock()
	p.quota = found
	p.mu.Unlock()
}

// hasQuota reports whether any dataset has one.
func (p *policy) hasQuota() bool {
	for _, u := range p.datasets.now().Uses() {
		if u.QuotaBytes > 0 {
			return true
		}
	}
	return false
}

// Bounds of what is remembered as overwritten. After a time a version counts as any other:
// an object may be put back as it was.
const (
	maxStale = 64 << 10
	staleFor = 10 * time.Minute

	freeEvery = time.Second // a look for those whose time has come
)

// staleVersions are objects that were overwritten, and go first. The zero value is ready.
type staleVersions struct {
	mu  sync.Mutex
	ids map[chunk.ObjectID]time.Time // when it became known
	any atomic.Bool

	later map[chunk.ObjectID]time.Time // when it is to be dropped
}

// due returns the versions that are to be dropped by now, each once.
func (s *staleVersions) due(now time.Time) (ids []chunk.ObjectID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, at := range s.later {
		if !at.After(now) {
			ids = append(ids, id)
			delete(s.later, id)
		}
	}
	return ids
}

// add notes a version that was overwritten, to be due after a time, unless that is 0.
func (s *staleVersions) add(id chunk.ObjectID, after time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ids == nil || len(s.ids) >= maxStale {
		s.ids = make(map[chunk.ObjectID]time.Time) // what is forgotten ages like everything else
	}
	s.ids[id] = time.Now()
	s.any.Store(true)
	if after == 0 {
		return
	}
	if s.later == nil || len(s.later) >= maxStale {
		s.later = make(map[chunk.ObjectID]time.Time)
	}
	s.later[id] = time.Now().Add(min(after, staleFor))
}

func (s *staleVersions) has(id chunk.ObjectID) bool {
	if !s.any.Load() {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	at, ok := s.ids[id]
	return ok && time.Since(at) < staleFor
}
