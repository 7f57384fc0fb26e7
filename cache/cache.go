// Package cache is the read path of one node: its own tiers, then its peers,
// then the origin.
//
// The life of a read. [File.ReadAt] takes the blocks it needs from memory and
// from the disk tier. For those that are missing it joins the flight of their
// chunk: one a chunk and node, which knows every block that is on its way and
// everybody who waits for it. A block that nobody fetches yet is fetched by a
// call of the flight, first from [Config.Peers]; when these answer
// [chunk.ErrNotHeld] this node is the one to ask [Config.Origin]. A block that
// lands is put into the disk tier, then copied to each reader and lent to each
// peer that waits ([Cache.Lend]), all in the order in which blocks arrive. A
// block that the disk does not admit stays in memory while there is room, and
// streams through to those who wait when there is none.
//
// It promises: right bytes or an error, never a short read before the end; every
// block is fetched once however many ask, here or from peers; what an upstream
// delivered before it failed is kept and only the rest asked again; a failure
// of the disk costs a hit, never a read; one buffer of the arena is enough for
// progress. Errors keep their class (objstore.ErrChanged and its siblings). Those who wait
// for a block may have different rights at the origin: when it refuses one of them, he alone
// gets the error, and the fetch goes on with the right of the next.
//
// It leaves to others: who owns a chunk and which peer to ask (package peer),
// what to prefetch (fuse/prefetch), what to evict (cache/disk), names (cache/meta), and who may
// open what: what is here is served to whoever opened it.
//
// Parts: cache/mem, the arena. Implementations: cache/disk, a
// [Tier] by way of [TierOf]. cache/meta stands beside it.
//
// Lock order: leash.mu, then flight.mu, then object.mu, then fill.mu, then ahead.mu, then Cache.mu; idle.mu and unread.mu stand
// alone. No I/O under any of them.
package cache

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shardwell/shardwell/cache/mem"
	"github.com/shardwell/shardwell/internal/chunk"
)

// Defaults of a [Config].
const (
	DefaultReadBudget    = 60 * time.Second
	DefaultPeerStall     = 30 * time.Second
	DefaultOriginStall   = 30 * time.Second
	DefaultLinger        = time.Second
	DefaultMaxFetches    = 256 // calls to upstreams; each holds at most one buffer
	DefaultMaxPrefetches = 128 // of these and of those queued, where that many fill a link
	DefaultFillChunks    = 4

	// DefaultFastFillChunks hides the way down a chain of some fifty nodes, which takes as
	// long as fifty blocks, where links are so fast that the share of one chunk is no matter.
	DefaultFastFillChunks = 16
)

// Config is what a [Cache] stands on. Peers, Disk, Owned and Keeps may be nil.
type Config struct {
	Geometry chunk.Geometry
	Disk     Tier       // nil: blocks are kept in memory only
	Arena    *mem.Arena // its buffers hold a block at least
	Peers    chunk.Fetcher
	Origin   chunk.Fetcher

	// Owned reports whether this node is the owner of the request's span. An
	// owner's flight asks peers only for what they hold, so any peer may wait for it.
	Owned func(chunk.Request) bool

	// Cut reports whether an origin cannot be reached from this node while other members are there, nil:
	// never. Then peers are given what is here and on its way, and told to ask those.
	Cut func(origin string) bool

	// Keeps reports whether this node owns a part of an object. Then the tier keeps
	// the object as one of its own: it drops objects whole, and with one that is owned chunk by
	// chunk it would drop what nobody else is to have. nil: Owned of the first chunk.
	Keeps func(chunk.Object, chunk.ObjectID) bool

	// Arrived, unless nil, is told of each block that comes to this node, by whatever way, after
	// the disk tier has had it. It must not block, and keeps nothing of the block's data.
	Arrived func(chunk.Object, chunk.ObjectID, chunk.Block)

	// MemoryBlocks is how many buffers of the arena may hold blocks for later
	// readers; the rest is for blocks in transit, at least one. Default and
	// maximum: half of the arena. Negative keeps none.
	MemoryBlocks int
	// Memory says what blocks are worth there, on a node without disks; nil: the least recently used goes.
	Memory MemoryPolicy

	// ReadBudget is how long a reader waits without a block before he gets an error. It is
	// one budget, whoever is asked how often: each is told what is left of it.
	ReadBudget time.Duration
	Linger     time.Duration // how long a fetch goes on after the last who wanted it was interrupted

	// How long an attempt may bring no block before it is cut and made anew. They
	// are the last resort: peer/transfer tells a peer that is dead from one that waits
	// for the origin within seconds, and objstore/s3 a body that stalls. A shorter time
	// than theirs would have a slow origin asked again and again.
	PeerStall   time.Duration
	OriginStall time.Duration

	MaxFetches          int // at once, for the node
	MaxFetchesPerBucket int // at once, so that one slow bucket leaves room; default 3/4 of MaxFetches
	MaxPrefetches       int // fetches ahead of readers, running or queued
	FillChunks          int // of an object that [File.Fill] has under way at once
	FastFillChunks      int // the same where chunks take less than fastChunk

	Logger *slog.Logger
	Trace  func(Event) // for tests; called while others wait
}

func (c *Config) setDefaults() {
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{
		{&c.ReadBudget, DefaultReadBudget}, {&c.PeerStall, DefaultPeerStall},
		{&c.OriginStall, DefaultOriginStall}, {&c.Linger, DefaultLinger},
	} {
		if *d.field <= 0 {
			*d.field = d.value
		}
	}
	half := c.Arena.Buffers() / 2
	if c.MemoryBlocks == 0 || c.MemoryBlocks > half {
		c.MemoryBlocks = half
	}
	if c.MaxFetches <= 0 {
		c.MaxFetches = DefaultMaxFetches
	}
	if c.MaxFetchesPerBucket <= 0 {
		c.MaxFetchesPerBucket = max(1, c.MaxFetches*3/4)
	}
	if c.MaxPrefetches <= 0 {
		c.MaxPrefetches = DefaultMaxPrefetches
	}
	if c.FillChunks <= 0 {
		c.FillChunks = DefaultFillChunks
	}
	if c.FastFillChunks <= 0 {
		c.FastFillChunks = max(c.FillChunks, DefaultFastFillChunks)
	}
	if c.Owned == nil {
		c.Owned = func(chunk.Request) bool { return c.Peers == nil }
	}
	if c.Keeps == nil {
		c.Keeps = func(obj chunk.Object, id chunk.ObjectID) bool {
			return c.Owned(chunk.Request{Object: obj, ID: id, Span: c.Geometry.ChunkSpan(obj.Size, 0)})
		}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
}

// ErrClosed says that the cache was closed.
var ErrClosed = errors.New("cache is closed")

// Cache is the read path of one node. Its methods are safe for concurrent use.
type Cache struct {
	cfg   Config
	pages *pages
	slots *slots
	ahead ahead
	idle  idle
	stats Stats

	refused atomic.Bool // the tier did not admit the last block of any object
	without atomic.Bool // nor open the last object

	ctx    context.Context // of all calls; ends with Close
	cancel context.CancelCauseFunc
	calls  sync.WaitGroup

	traffic trafficTable
	arrived atomic.Int64 // blocks, by all fetches

	waiters sync.Pool // of *waiter; not global, since their channels belong to one synctest bubble

	mu      sync.Mutex
	closed  bool
	objects map[chunk.ObjectID]*object // those in use; refs > 0
}

var _ chunk.Lender = (*Cache)(nil)

// New returns a cache. Close it, or let [Cache.Run] do so.
func New(cfg Config) (*Cache, error) {
	if err := cfg.Geometry.Validate(); err != nil {
		return nil, err
	}
	if cfg.Arena == nil || cfg.Origin == nil {
		return nil, errors.New("cache: an arena and an origin are needed")
	}
	if int64(cfg.Arena.BufBytes()) < cfg.Geometry.BlockBytes {
		return nil, fmt.Errorf("cache: the arena's buffers of %d bytes do not hold a block of %d", cfg.Arena.BufBytes(), cfg.Geometry.BlockBytes)
	}
	cfg.setDefaults()
	c := &Cache{cfg: cfg, objects: make(map[chunk.ObjectID]*object)}
	c.pages = newPages(cfg.Arena, cfg.MemoryBlocks, &c.stats.MemoryBlocks)
	if cfg.Memory != nil && cfg.Disk == nil {
		c.pages.keptMax, c.pages.admits = keptOf(c.pages.max), cfg.Memory.Admits
	}
	c.slots = newSlots(cfg.MaxFetches, cfg.MaxFetchesPerBucket, cfg.MaxPrefetches)
	c.ahead.c, c.ahead.window = c, newWindow(cfg.MaxPrefetches, cfg.Geometry.ChunkBytes)
	c.ctx, c.cancel = context.WithCancelCause(context.Background())
	return c, nil
}

// Run waits until ctx ends, then closes the cache.
func (c *Cache) Run(ctx context.Context) error {
	<-ctx.Done()
	c.Close()
	return nil
}

// Close ends all fetches and waits for them; who waits for a block gets
// [ErrClosed]. Files may be closed afterwards.
func (c *Cache) Close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.cancel(ErrClosed)
	c.calls.Wait()
	c.pages.close()
}

// Stats returns the counters, which go on counting.
func (c *Cache) Stats() *Stats { return &c.stats }

// Open opens an object for readers, who fetch what is missing in this node's own name.
func (c *Cache) Open(obj chunk.Object) (*File, error) { return c.OpenAs(obj, nil) }

// OpenAs opens an object for readers. It does no I/O beyond the look-up in the disk
// tier; a tier that fails is done without. What is missing is fetched on behalf of who, asked
// each time, nil being the node itself. What is here is served to all alike: the caller
// has seen to it that this one may read the object.
func (c *Cache) OpenAs(obj chunk.Object, who func() chunk.Identity) (*File, error) {
	if obj.Size < 0 || obj.Size > chunk.MaxObjectBytes {
		return nil, fmt.Errorf("open %s: size %d is out of range", obj.URI(), obj.Size)
	}
	o, err := c.acquire(obj, obj.ID())
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", obj.URI(), err)
	}
	o.files.Add(1)
	o.traffic.open.Add(1)
	return &File{c: c, obj: o, who: who}, nil
}

// Suspect implements [chunk.Lender].
func (c *Cache) Suspect(id chunk.ObjectID, block uint32) {
	c.pages.drop(pageKey{id, block})
	if c.cfg.Disk == nil {
		return
	}
	f, err := c.cfg.Disk.Find(id)
	if err != nil {
		return // nothing there that could be damaged
	}
	defer f.Release()
	had := f.Has(block)
	f.Suspect(block)
	if had && !f.Has(block) {
		c.stats.CorruptBlocks.Add(1)
	}
}
