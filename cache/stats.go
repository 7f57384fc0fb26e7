package cache

import (
	"fmt"
	"sync/atomic"

	"github.com/shardwell/shardwell/internal/chunk"
)

// Source is where bytes came from. To readers a block's first bytes come from
// the origin or a peer, also when they were fetched ahead and lie on disk by then; to
// peers all come from where they are.
type Source uint8

// The sources of bytes, from the farthest to the nearest.
const (
	FromOrigin Source = iota
	FromPeer
	FromDisk
	FromMemory
	sources
)

var sourceNames = [sources]string{"origin", "peer", "disk", "memory"}

// Sources returns all sources, for who makes metrics of [Stats].
func Sources() []Source { return []Source{FromOrigin, FromPeer, FromDisk, FromMemory} }

func (s Source) String() string {
	if s < sources {
		return sourceNames[s]
	}
	return fmt.Sprintf("source %d", uint8(s))
}

// Stats counts what a [Cache] did since it was made.
type Stats struct {
	// ReadBytes and ReadOps count what readers of this node got, by [Source]. An
	// op is one block's part of a read. What was fetched counts once as from origin or
	// peer, for its first reader; for those who waited with him, and who come later, it
	// counts as from disk or memory. So both together tell hits from misses, and
	// ReadBytes is never more than FetchedBytes of the same source. Exceptions, in favour of
	// disk and memory: a block's part that was not read when its end was, and what
	// was fetched for others, or ahead, and not read before the object's last user left.
	ReadBytes, ReadOps [sources]atomic.Int64
	// LentBytes counts what was handed to peers: FromOrigin or FromPeer if they
	// waited for it, else by the tier it was in.
	LentBytes [sources]atomic.Int64
	// FetchedBytes counts blocks that came into the node: FromOrigin or FromPeer.
	FetchedBytes [sources]atomic.Int64

	CorruptBlocks   atomic.Int64 // found damaged when read here
	DiskErrors      atomic.Int64 // reads of the tier that failed otherwise
	NotAdmitted     atomic.Int64 // blocks that the tier did not take
	Streamed        atomic.Int64 // blocks that no tier kept: neither disk nor memory
	Fetches         atomic.Int64 // fetches started: runs of blocks
	Fills           atomic.Int64 // objects that were begun to be fetched as a whole
	Retries         atomic.Int64 // attempts after a transient error
	Stalls          atomic.Int64 // attempts cut because nothing came
	Starved         atomic.Int64 // attempts cut because others got on and they did not
	Failures        atomic.Int64 // fetches given up with an error
	Refusals        atomic.Int64 // fetches that went on for somebody else after the origin had refused one
	Abandoned       atomic.Int64 // fetches cancelled because nobody waited any more
	PrefetchDropped atomic.Int64 // times that a fetch ahead was put off, or cut short: too many of them, or memory is short

	Fetching     atomic.Int64 // fetches that run or queue now
	OpenObjects  atomic.Int64 // objects in use now
	MemoryBlocks atomic.Int64 // blocks held in memory now
}

// Event says which source served one block's part, as [Stats] counts it, for tests that
// show where bytes came from.
type Event struct {
	Op     string // "read" for a reader of this node, "lend" for a peer
	Peer   string // ring id of the peer, for lend
	Key    string
	Block  uint32
	Bytes  int
	Source Source
}

func (e Event) String() string {
	who := e.Op
	if e.Peer != "" {
		who += " " + e.Peer
	}
	return fmt.Sprintf("%s %s block %d: %d bytes from %s", who, e.Key, e.Block, e.Bytes, e.Source)
}

// served counts the bytes [off, off+n) of one block, which a reader got and which
// are in tier by now.
func (o *object) served(off int64, n int, tier Source) {
	c := o.c
	size := c.cfg.Geometry.BlockBytes
	block := uint32(off / size)
	last := off+int64(n) == min((int64(block)+1)*size, o.Size)
	from := o.unread.take(block, n, last, tier)
	c.stats.ReadBytes[from].Add(int64(n))
	c.stats.ReadOps[from].Add(1)
	if c.cfg.Trace != nil {
		c.cfg.Trace(Event{Op: "read", Key: o.Key, Block: block, Bytes: n, Source: from})
	}
}

// lent counts a piece that a peer got.
func (c *Cache) lent(obj *object, req chunk.Request, p chunk.Piece, from Source) {
	c.stats.LentBytes[from].Add(int64(p.Len))
	obj.traffic.sent.Add(int64(p.Len))
	obj.traffic.touch()
	if c.cfg.Trace != nil {
		c.cfg.Trace(Event{Op: "lend", Peer: req.From, Key: obj.Key, Block: p.Index, Bytes: p.Len, Source: from})
	}
}
