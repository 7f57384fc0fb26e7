package tarindex

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/shardwell/shardwell/internal/chunk"
)

// Limits and defaults of a [Library].
const (
	DefaultMemoryBytes = 64 << 20 // of indexes in use
	// DefaultScanBytes is what the tars that are read for their headers at once may take in
	// memory: a few large ones, or many of the size of shards.
	DefaultScanBytes = 256 << 20

	DefaultDiskTimeout = 3 * time.Second

	scanShare    = 16 // of the size of a tar, is what its index is thought to take at most,
	minScanBytes = 1 << 20

	prefetchBytes = 16 << 20 // ahead of a scan that finds headers in every block
	denseBlocks   = 4        // in a row, that make it one
)

// Source is one tar, as this node reads it.
type Source interface {
	// ReadAt reads bytes from wherever they are, and fetches the blocks that hold them and
	// no others, unless they are read one after the other.
	ReadAt(ctx context.Context, p []byte, off int64) (int, error)
	// ReadHeld reads bytes that this node holds; false when it lacks some of them.
	ReadHeld(p []byte, off int64) bool
	// Prefetch says that bytes will be read soon.
	Prefetch(off, n int64)
	Close()
}

// Config is what a [Library] stands on.
type Config struct {
	Open func(obj chunk.Object) (Source, error) // in the node's own name
	// Ask gets the encoded index of an object from the node that keeps it, or says
	// chunk.ErrNotHeld: then this node makes it. nil: there are no others.
	Ask func(ctx context.Context, obj chunk.Object) ([]byte, error)

	// Give has the node that keeps the index of an object know one that was made here, unless
	// this is that node. nil: there are no others.
	Give func(ctx context.Context, obj chunk.Object, encoded []byte) error
	// WholeBytes is how large a tar is at most that comes to the node that keeps its index
	// whenever it comes to others: that makes the index as well.
	WholeBytes int64

	BlockBytes  int64 // in which tars are read
	MemoryBytes int64 // of indexes in use, the last one not counted; 0 means DefaultMemoryBytes

	ScanBytes int64 // of tars that are read for their headers; at least MaxIndexBytes, 0 means DefaultScanBytes

	// Dir keeps indexes on disk; it is made when it is missing. "" keeps none.
	Dir      string
	DirBytes int64 // that it may take
	// DiskTimeout is how long the disk may take for one thing before indexes are had without it.
	DiskTimeout time.Duration
	// Room books bytes that Dir takes more (or less), and refuses those that do not fit.
	Room func(delta int64) bool

	Logger *slog.Logger // nil discards
}

// Stats counts what a [Library] did. Read the fields with Load.
type Stats struct {
	Scanned  atomic.Int64 // indexes made by reading headers for them
	Streamed atomic.Int64 // indexes made while the tar came by
	Asked    atomic.Int64 // indexes that another node had
	Given    atomic.Int64 // indexes that another node had made, and gave to this one to keep
	Loaded   atomic.Int64 // read from disk
	Damaged  atomic.Int64 // indexes on disk or from another node that were none
}

// Library has the indexes of tars. It is safe for concurrent use.
type Library struct {
	cfg   Config
	stats Stats
	shelf *shelf
	scans *semaphore.Weighted

	ctx    context.Context // of all flights; ends with Close
	cancel context.CancelFunc
	group  sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	memory  list.List // of *book, the one used last first
	byID    map[chunk.ObjectID]*list.Element
	bytes   int64
	flights map[flightKey]*flight

	growing growing
	gifts   chan chunk.Object // whose indexes are for the nodes that keep them
}

type book struct {
	id chunk.ObjectID
	x  *Index
}

// flightKey tells those that may ask others from those that were asked, and those who read
// with different rights.
type flightKey struct {
	id  chunk.ObjectID
	who string
	ask bool
}

type opener = func(chunk.Object) (Source, error)

// flight gets one index for all who wait. It ends when nobody does.
type flight struct {
	waiters int // under Library.mu
	cancel  context.CancelFunc
	done    chan struct{}
	x       *Index // set, like err, before done is closed
	err     error
}

// ErrClosed says that the library was closed.
var ErrClosed = errors.New("library of tar indexes is closed")

// NewLibrary returns a Library. Run serves it, Close ends it.
func NewLibrary(cfg Config) *Library {
	if cfg.MemoryBytes <= 0 {
		cfg.MemoryBytes = DefaultMemoryBytes
	}
	if cfg.ScanBytes <= 0 {
		cfg.ScanBytes = DefaultScanBytes
	}
	cfg.ScanBytes = max(cfg.ScanBytes, MaxIndexBytes)
	if cfg.DiskTimeout <= 0 {
		cfg.DiskTimeout = DefaultDiskTimeout
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	l := &Library{cfg: cfg, scans: semaphore.NewWeighted(cfg.ScanBytes), byID: make(map[chunk.ObjectID]*list.Element), flights: make(map[flightKey]*flight),
		gifts: make(chan chunk.Object, maxGifts)}
	l.shelf = newShelf(cfg, &l.stats)
	l.growing.init()
	l.ctx, l.cancel = context.WithCancel(context.Background())
	return l
}

// Stats returns the counters.
func (l *Library) Stats() *Stats { return &l.stats }

// Close ends what is under way and waits for it.
func (l *Library) Close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.cancel()
	l.group.Wait()
}

// Index returns the index of a tar: from memory, from disk, from the node that keeps it, or by
// reading headers. An error has a class of this package when there is none, and of objstore
// when the tar cannot be read.
func (l *Library) Index(ctx context.Context, obj chunk.Object) (*Index, error) {
	return l.IndexAs(ctx, obj, "", l.cfg.Open)
}

// IndexAs is Index on behalf of somebody with a name, for whom open opens tars to read their
// headers. What is known already is told to all alike: the caller has seen to it that this one
// may read the tar.
func (l *Library) IndexAs(ctx context.Context, obj chunk.Object, who string, open func(chunk.Object) (Source, error)) (*Index, error) {
	x, err := l.get(ctx, obj, flightKey{obj.ID(), who, l.cfg.Ask != nil}, open)
	if err == nil {
		err = x.Err()
	}
	if err != nil {
		return nil, fmt.Errorf("index %s: %w", obj.URI(), err)
	}
	return x, nil
}

// Encoded returns the index of a tar for another node, and asks none itself. That the tar
// has no index is no error but in what it returns.
func (l *Library) Encoded(ctx context.Context, obj chunk.Object) ([]byte, error) {
	x, err := l.get(ctx, obj, flightKey{obj.ID(), "", false}, l.cfg.Open)
	if err != nil {
		return nil, fmt.Errorf("index %s: %w", obj.URI(), err)
	}
	return encode(x, obj.ID()), nil
}

// get returns an index from memory, or shares in the flight that gets it.
func (l *Library) get(ctx context.Context, obj chunk.Object, key flightKey, open opener) (*Index, error) {
	l.mu.Lock()
	if x := l.recall(key.id); x != nil {
		l.mu.Unlock()
		return x, nil
	}
	f := l.flights[key]
	if f == nil {
		if l.closed {
			l.mu.Unlock()
			return nil, ErrClosed
		}
		f = &flight{done: make(chan struct{})}
		l.flights[key] = f
		l.start(f, key, obj, open)
	}
	f.waiters++
	l.mu.Unlock()
	select {
	case <-f.done:
		return f.x, f.err
	case <-ctx.Done():
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	f.waiters--
	if f.waiters == 0 { // what was scanned stays for the next who asks
		f.cancel()
		if l.flights[key] == f {
			delete(l.flights, key)
		}
	}
	return nil, ctx.Err()
}

// start begins a flight; mu is held.
func (l *Library) start(f *flight, key flightKey, obj chunk.Object, open opener) {
	ctx, cancel := context.WithCancel(l.ctx)
	f.cancel = cancel
	l.group.Go(func() {
		defer cancel()
		x, err := l.find(ctx, obj, key, open)
		if err != nil && l.ctx.Err() != nil {
			err = ErrClosed
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		f.x, f.err = x, err
		if l.flights[key] == f {
			delete(l.flights, key)
		}
		close(f.done)
	})
}

// find gets an index that is not in memory.
func (l *Library) find(ctx context.Context, obj chunk.Object, key flightKey, open opener) (*Index, error) {
	if x := l.shelf.load(key.id, obj.Size); x != nil {
		l.remember(key.id, x)
		return x, nil
	}
	if key.ask {
		b, err := l.cfg.Ask(ctx, obj)
		if err == nil {
			var x *Index
			if x, err = decode(b, key.id, obj.Size); err == nil {
				l.stats.Asked.Add(1)
				l.remember(key.id, x)
				l.shelf.keep(key.id, b)
				return x, nil
			}
			l.stats.Damaged.Add(1)
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if !errors.Is(err, chunk.ErrNotHeld) {
			l.cfg.Logger.Info("no index of a tar from the node that keeps it", "object", obj.URI(), "error", err)
		}
	}
	return l.scan(ctx, obj, key.id, open)
}

// scan reads the headers of a tar, from where the last scan of it stopped.
func (l *Library) scan(ctx context.Context, obj chunk.Object, id chunk.ObjectID, open opener) (*Index, error) {
	room := max(minScanBytes, min(obj.Size/scanShare, MaxIndexBytes))
	if err := l.scans.Acquire(ctx, room); err != nil {
		return nil, err
	}
	defer l.scans.Release(room)
	g := l.growing.of(obj, id)
	defer l.growing.release(g)
	g.take()
	defer g.give()
	if g.s == nil { // it came to its end meanwhile, or long ago
		if x := l.known(id, obj.Size); x != nil {
			l.remember(id, x)
			return x, nil
		}
		g.s = NewScanner(obj.Size)
	}
	src, err := open(obj)
	if err != nil {
		return nil, err
	}
	defer src.Close()
	r := &scanReader{size: obj.Size, buf: make([]byte, l.cfg.BlockBytes), at: -1, src: src}
	r.read = func(p []byte, off int64) error {
		n, err := src.ReadAt(ctx, p, off)
		if n == len(p) {
			return nil
		}
		if err == nil || errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return err
	}
	defer l.growing.weigh(g)
	if err := g.s.Scan(r); err != nil {
		return nil, err
	}
	l.stats.Scanned.Add(1)
	return l.complete(g, true), nil
}

// complete keeps the index of a tar of which all is known, and has it given to the node that
// keeps it for others; g.mu is held.
func (l *Library) complete(g *growth, give bool) *Index {
	x := g.s.Index()
	g.end()
	l.remember(g.id, x)
	l.shelf.keep(g.id, encode(x, g.id))
	if give && l.cfg.Give != nil {
		select {
		case l.gifts <- g.obj:
		default:
		}
	}
	if left, first := x.LeftOut(); left > 0 || x.Damage() != "" {
		args := []any{"object", g.obj.URI(), "members", x.Files(), "left out", left, "damage", x.Damage()}
		if left > 0 {
			args = append(args, "first", first[0].Name, "reason", first[0].Reason)
		}
		l.cfg.Logger.Info("tar with members that are not shown", args...)
	}
	return x
}

// recall returns an index from memory, or nil; mu is held.
func (l *Library) recall(id chunk.ObjectID) *Index {
	e := l.byID[id]
	if e == nil {
		return nil
	}
	l.memory.MoveToFront(e)
	return e.Value.(*book).x
}

// remember keeps an index in memory, in place of those that were used before all others.
func (l *Library) remember(id chunk.ObjectID, x *Index) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.byID[id] != nil {
		return
	}
	l.byID[id] = l.memory.PushFront(&book{id, x})
	l.bytes += x.Bytes()
	for l.bytes > l.cfg.MemoryBytes && l.memory.Len() > 1 {
		b := l.memory.Remove(l.memory.Back()).(*book)
		delete(l.byID, b.id)
		l.bytes -= b.x.Bytes()
	}
}

// Arrived tells of bytes of an object that came to this node, in any order: the index
// grows as far as they reach. It keeps nothing of data and does not block.
func (l *Library) Arrived(obj chunk.Object, id chunk.ObjectID, off int64, data []byte) {
	if !strings.HasSuffix(obj.Key, ".tar") {
		return
	}
	g := l.growing.of(obj, id)
	defer l.growing.release(g)
	if l.growing.feed(g, off, data) {
		l.growing.queue(g)
	}
}

// Run completes indexes of tars that came by, and gives them to those who keep them, until ctx ends.
func (l *Library) Run(ctx context.Context) error {
	l.shelf.count()
	var giving sync.WaitGroup
	defer giving.Wait()
	giving.Go(func() { l.giveAway(ctx) })
	buf := make([]byte, l.cfg.BlockBytes)
	for {
		select {
		case <-ctx.Done():
			return nil
		case g := <-l.growing.ready:
			l.grow(g, buf)
			l.growing.unqueue(g)
		}
	}
}

// errNotHere is what a reader says of bytes that are not at hand.
var errNotHere = errors.New("bytes are not here")

// grow goes on with what this node holds, and completes what is known whole.
func (l *Library) grow(g *growth, buf []byte) {
	if g.slow.Load() > 0 {
		return // whoever reads it completes it
	}
	g.take()
	defer g.give()
	if g.s == nil {
		return
	}
	defer l.growing.weigh(g)
	if !g.s.Done() {
		src, err := l.cfg.Open(g.obj)
		if err != nil {
			return
		}
		defer src.Close()
		r := &scanReader{size: g.obj.Size, buf: buf, at: -1, read: func(p []byte, off int64) error {
			if !src.ReadHeld(p, off) {
				return errNotHere
			}
			return nil
		}}
		if g.s.Scan(r) != nil {
			return
		}
	}
	if l.shelf.has(g.id) { // since an earlier time
		g.end()
		return
	}
	l.stats.Streamed.Add(1)
	l.complete(g, g.obj.Size > l.cfg.WholeBytes)
}
