package cache

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/shardwell/shardwell/internal/chunk"
)

// object is what all files, peers and calls of one object version share while
// any of them is there.
type object struct {
	chunk.Object
	id chunk.ObjectID
	c  *Cache

	refs int // under Cache.mu

	traffic *traffic

	opened sync.Once
	tier   TierFile // nil without a disk; set once, before acquire returns

	files   atomic.Int64 // open
	shared  atomic.Bool  // others receive it while it is open here
	spent   atomic.Bool  // the last reader to close it had read all of it in a row
	refused atomic.Bool  // the tier did not admit the last block
	unread  unread       // what came from afar and no reader has had yet

	mu      sync.Mutex
	flights map[uint32]*flight // by chunk; each has refs > 0
	fill    *fill              // nil when none is under way
	filled  bool               // by one that came to its end

	// unreadable holds the blocks which the tier has and could not read. They are
	// fetched again and served from memory.
	unreadable    map[uint32]struct{}
	anyUnreadable atomic.Bool

	failures map[uint32]failure // of readers, by chunk; those of the last moment
}

// maxUnreadable bounds object.unreadable: behind it all of the file counts as unreadable.
const maxUnreadable = 4096

// acquire returns the object's shared state; release gives it back.
func (c *Cache) acquire(obj chunk.Object, id chunk.ObjectID) (*object, error) {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil, ErrClosed
	}
	o := c.objects[id]
	if o == nil {
		o = &object{Object: obj, id: id, c: c, traffic: c.traffic.of(obj, id), flights: make(map[uint32]*flight)}
		o.refused.Store(c.refused.Load()) // what holds for others will hold for it
		c.objects[id] = o
		c.stats.OpenObjects.Add(1)
	}
	o.refs++
	c.mu.Unlock()
	o.opened.Do(o.openTier)
	return o, nil
}

func (o *object) openTier() {
	if o.c.cfg.Disk == nil {
		return
	}
	f, err := o.c.cfg.Disk.Acquire(o.Object, o.id, o.c.cfg.Keeps(o.Object, o.id))
	if err != nil {
		o.c.stats.DiskErrors.Add(1)
		level := slog.LevelWarn
		if o.c.without.Swap(true) { // a disk that is down refuses each, and has said why
			level = slog.LevelDebug
		}
		o.c.cfg.Logger.Log(context.Background(), level, "disk tier does without an object", "op", "acquire", "object", o.URI(), "error", err)
		return
	}
	o.c.without.Store(false)
	o.tier = f
}

// hold keeps a block in the tier until Return, if that can be.
func (o *object) hold(block uint32) bool {
	h, ok := o.tier.(holder)
	return ok && h.Hold(block)
}

// retain adds a reference to an object that has one.
func (o *object) retain() {
	o.c.mu.Lock()
	o.refs++
	o.c.mu.Unlock()
}

func (o *object) release() {
	c := o.c
	c.mu.Lock()
	o.refs--
	last := o.refs == 0
	if last {
		delete(c.objects, o.id)
		c.stats.OpenObjects.Add(-1)
	}
	c.mu.Unlock()
	switch tier, ok := o.tier.(spender); {
	case !last || o.tier == nil:
	case ok && o.spent.Load():
		tier.ReleaseSpent()
	default:
		o.tier.Release()
	}
}

// onDisk reports whether the tier has a block that can be read.
func (o *object) onDisk(block uint32) bool {
	if o.tier == nil || !o.tier.Has(block) {
		return false
	}
	return !o.anyUnreadable.Load() || !o.isUnreadable(block)
}

func (o *object) isUnreadable(block uint32) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	_, bad := o.unreadable[block]
	return bad || len(o.unreadable) >= maxUnreadable
}

func (o *object) setUnreadable(block uint32) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.unreadable == nil {
		o.unreadable = make(map[uint32]struct{})
	}
	if len(o.unreadable) < maxUnreadable {
		o.unreadable[block] = struct{}{}
	}
	o.anyUnreadable.Store(true)
}

// streams reports whether blocks are not to be expected in the tier, so that
// what is fetched ahead needs a place in memory.
func (o *object) streams() bool { return o.tier == nil || o.refused.Load() }

// arrive notes that a block is about to land, before anybody can see it. One that
// is here already, by another call, stays what it is.
func (o *object) arrive(b chunk.Block, from Source) {
	o.c.stats.FetchedBytes[from].Add(int64(len(b.Data)))
	o.c.arrived.Add(1)
	o.traffic.received.Add(int64(len(b.Data)))
	if from == FromOrigin {
		o.traffic.fromOrigin.Add(int64(len(b.Data)))
	}
	if !o.isLocal(b.Index) {
		o.unread.add(b.Index, o.c.cfg.Geometry.Blocks(o.Size), len(b.Data), from)
	}
}

// store puts a block into the tier and reports whether it can be served from there.
func (o *object) store(b chunk.Block) bool {
	if o.tier == nil {
		return false
	}
	err := o.tier.Put(b)
	o.refused.Store(err != nil)
	o.c.refused.Store(err != nil)
	if err != nil {
		if o.c.stats.NotAdmitted.Add(1) == 1 { // the tier logs its own state
			o.c.cfg.Logger.Info("disk tier does not admit a block; it streams through", "object", o.URI(), "block", b.Index, "error", err)
		}
		return false
	}
	o.traffic.here.Store(o.tier.CachedBytes())
	o.traffic.touch()
	return o.onDisk(b.Index)
}

// join returns the flight of a chunk, made if need be; leave gives it back.
func (o *object) join(index uint32) *flight {
	o.mu.Lock()
	defer o.mu.Unlock()
	fl := o.flights[index]
	if fl == nil {
		fl = &flight{obj: o, index: index, span: o.c.cfg.Geometry.ChunkSpan(o.Size, index)}
		o.flights[index] = fl
	}
	fl.refs++
	return fl
}

func (o *object) leave(fl *flight) {
	o.mu.Lock()
	defer o.mu.Unlock()
	fl.refs--
	if fl.refs == 0 {
		delete(o.flights, fl.index)
	}
}
