package node

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/shardwell/shardwell/cache"
	"github.com/shardwell/shardwell/cache/evict"
	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/internal/config"
	"github.com/shardwell/shardwell/objstore"
	"github.com/shardwell/shardwell/peer"
	"github.com/shardwell/shardwell/peer/ring"
)

// How a node fills its share of datasets that are read elsewhere or here.
const (
	fillLook    = time.Second      // between looks for what is to be filled
	fillAfter   = 20 * time.Second // after it was first wanted: readers go first, and a short visit is none
	fillAgain   = time.Hour        // after a pass that found nothing more to do: the bucket may have grown
	fillRetry   = time.Minute      // after one that did not get on
	fillFull    = fillAgain / 6    // after one for which there was no room
	fillObjects = 4                // brought at once, one chunk of each
	maxFills    = 1024             // datasets that are remembered; of more none is filled
)

// fills are the datasets of which each member may fetch its share before anybody reads it. Mounts
// say so, and each member tells the others, as it tells them what it uses.
type fills struct {
	bytes atomic.Int64 // of the chunks that were brought

	mu     sync.Mutex
	own    map[evict.Dataset]int // mounts of this node
	others map[string]map[evict.Dataset]time.Time
	passes map[evict.Dataset]*pass
}

// pass is how far the filling of a dataset is.
type pass struct {
	wanted time.Time   // since when
	next   time.Time   // when it is due again; zero before the first
	table  *ring.Table // that the last one went by
}

// add says that a mount wants its dataset filled, until the returned function is called.
func (f *fills) add(ds evict.Dataset) (remove func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.own == nil {
		f.own = make(map[evict.Dataset]int)
	}
	f.own[ds]++
	return sync.OnceFunc(func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.own[ds]--; f.own[ds] == 0 {
			delete(f.own, ds)
		}
	})
}

// hear takes over what a member says.
func (f *fills) hear(member string, uses []peer.DatasetUse, ttl time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	said := make(map[evict.Dataset]time.Time)
	for _, u := range uses {
		if u.Fill && len(said) < maxFills {
			said[evict.Dataset{Origin: u.Bucket.Origin, Bucket: u.Bucket.Name, Prefix: u.Prefix}] = time.Now().Add(ttl)
		}
	}
	if f.others == nil {
		f.others = make(map[string]map[evict.Dataset]time.Time)
	}
	if delete(f.others, member); len(said) > 0 {
		f.others[member] = said
	}
}

// tell returns what the others should hear.
func (f *fills) tell() (all []peer.DatasetUse) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for ds := range f.own {
		all = append(all, peer.DatasetUse{Bucket: bucketOfDataset(ds), Prefix: ds.Prefix, Policy: evict.Epoch.String(), Fill: true})
	}
	return all
}

// due returns the datasets whose pass is due under a table of the ring.
func (f *fills) due(now time.Time, table *ring.Table) (due []evict.Dataset) {
	f.mu.Lock()
	defer f.mu.Unlock()
	wanted := make(map[evict.Dataset]bool)
	for ds := range f.own {
		wanted[ds] = true
	}
	for member, said := range f.others {
		for ds, until := range said {
			if now.After(until) {
				delete(said, ds)
			} else {
				wanted[ds] = true
			}
		}
		if len(said) == 0 {
			delete(f.others, member)
		}
	}
	for ds := range f.passes {
		if !wanted[ds] {
			delete(f.passes, ds)
		}
	}
	for ds := range wanted {
		p := f.passes[ds]
		if p == nil {
			if f.passes == nil {
				f.passes = make(map[evict.Dataset]*pass)
			}
			if len(f.passes) >= maxFills {
				continue
			}
			p = &pass{wanted: now}
			f.passes[ds] = p
		}
		if now.Sub(p.wanted) >= fillAfter && (now.After(p.next) || p.table != table) {
			due = append(due, ds)
		}
	}
	return due
}

// passed says that a pass has ended, and when the next is due.
func (f *fills) passed(ds evict.Dataset, next time.Time, table *ring.Table) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if p := f.passes[ds]; p != nil {
		p.next, p.table = next, table
	}
}

// keepFilling fetches what this node owns of datasets that are to be filled, while nothing else is
// fetched, until ctx ends.
func (n *Node) keepFilling(ctx context.Context) error {
	tick := time.NewTicker(fillLook)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		n.mounts.wantFills()
		if len(n.disks.dirs) == 0 {
			continue
		}
		table := n.cluster.ring.history.Current()
		for _, ds := range n.fills.due(time.Now(), table) {
			err := n.fill(ctx, ds)
			if ctx.Err() != nil {
				return nil
			}
			wait := fillAgain
			if err != nil {
				wait = fillRetry
				if errors.Is(err, cache.ErrNoRoom) {
					wait = fillFull
				}
				n.log.Debug("a dataset is not filled any further for now", "bucket", ds.Bucket, "prefix", ds.Prefix, "error", err)
			}
			n.fills.passed(ds, time.Now().Add(wait), table)
		}
	}
}

// wantFills notes which mounts want their datasets filled by now: those that were told to, and those in
// which files are read in order. Those that read with rights of their own never do.
func (m *mounts) wantFills() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for x := range m.live {
		auto := x.options.BackgroundFill == config.FillAuto && x.session.Stats().Walks.Load() > 0
		if x.filled == nil && x.who == nil && x.options.CachePolicy != evict.None.String() && (auto || x.options.BackgroundFill == config.FillOn) {
			x.filled = m.n.fills.add(x.dataset())
			m.n.uses.signal()
		}
	}
}

// fill fetches what this node owns of a dataset and lacks. Its error says why it did not come to the end.
func (n *Node) fill(ctx context.Context, ds evict.Dataset) error {
	bucket := bucketOfDataset(ds)
	if _, err := n.origins.Open(ctx, bucket); err != nil {
		return err // another's endpoint, that this node does not read
	}
	// Who cannot go on ends the others after the chunk that they are at: to cut it off would waste it.
	var group errgroup.Group
	var ended atomic.Bool
	group.SetLimit(fillObjects)
	q := objstore.Query{Bucket: bucket, MaxAge: fillAgain / 2}
	dirs := []string{ds.Prefix}
	var err error
	for err == nil && len(dirs) > 0 && !ended.Load() {
		r := objstore.ListRequest{Prefix: dirs[len(dirs)-1], Delimiter: "/"}
		dirs = dirs[:len(dirs)-1]
		for more := true; more && !ended.Load(); more = r.Token != "" {
			var page objstore.Page
			if page, _, err = n.names.List(ctx, q, r); err != nil {
				break
			}
			dirs, r.Token = append(dirs, page.Prefixes...), page.Next
			for _, o := range page.Objects {
				if obj := (chunk.Object{Origin: ds.Origin, Bucket: ds.Bucket, Key: o.Key, ETag: o.ETag, Size: o.Size}); o.ETag != "" && n.ownsPart(obj) {
					group.Go(func() error {
						err := n.fillObject(ctx, obj, &ended)
						if err != nil {
							ended.Store(true)
						}
						return err
					})
				}
			}
		}
	}
	if failed := group.Wait(); failed != nil {
		return failed
	}
	return err
}

// ownsPart reports whether this node owns a chunk of an object.
func (n *Node) ownsPart(obj chunk.Object) bool {
	return obj.Size > 0 && n.cluster.ring.keeps(obj, obj.ID())
}

// fillObject fetches the chunks of one object that this node owns, until ended. Its error ends the pass.
func (n *Node) fillObject(ctx context.Context, obj chunk.Object, ended *atomic.Bool) error {
	f, err := n.cache.Open(obj)
	if err != nil {
		return err
	}
	defer f.Close()
	id, g := obj.ID(), n.geometry
	for i := range g.Chunks(obj.Size) {
		span := g.ChunkSpan(obj.Size, i)
		if ended.Load() {
			return nil
		}
		if !n.policy.Owns(obj, id, span.First) || f.Holds(span) {
			continue
		}
		_, bytes := g.Bytes(obj.Size, span)
		if !n.roomToFill(id) {
			return cache.ErrNoRoom
		}
		err := f.BringIdle(ctx, i)
		switch {
		case errors.Is(err, objstore.ErrChanged), errors.Is(err, objstore.ErrNotExist), errors.Is(err, objstore.ErrPermission):
			return nil // this object only
		case err != nil:
			return err
		}
		n.fills.bytes.Add(bytes)
	}
	return nil
}

// roomToFill reports whether the directory of an object takes as many chunks as are brought at once: what
// is fetched and not kept is fetched in vain.
func (n *Node) roomToFill(id chunk.ObjectID) bool {
	owned, limit := n.disks.place(id).Capacity()
	return owned+fillObjects*n.geometry.ChunkBytes <= limit
}
