package tarindex

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shardwell/shardwell/internal/chunk"
)

// Limits of indexes that grow.
const (
	maxGrowing      = 1024     // tars at a time; the one that heard nothing for longest gives way
	maxGrowingBytes = 64 << 20 // of these
	maxTailBytes    = 64 << 10 // of headers that go on in the next block
	maxReady        = 1024     // tars that wait for Run; others try again with their next block
)

// growth is the index of one tar, as far as its headers came by.
type growth struct {
	obj chunk.Object
	id  chunk.ObjectID

	users  int       // under growing.mu
	queued bool      // in growing.ready, or Run is at it, which counts as a user; under growing.mu
	again  bool      // it was to be queued meanwhile; under growing.mu
	heard  time.Time // under growing.mu
	bytes  int64     // as counted; under growing.mu

	// slow counts those who hold mu, or wait for it, to read the tar. Who brings blocks never
	// waits for them: they may wait for that block.
	slow   atomic.Int32
	mu     sync.Mutex // held while it is scanned
	s      *Scanner   // nil when it came to its end: then nothing is done when the tar comes by again
	tail   []byte     // of the tar, from tailAt on: where the next headers begin
	tailAt int64
	ahead  bool // bytes behind the next headers came before them
}

// growing are the indexes that grow. Lock order: growth.mu, then growing.mu.
type growing struct {
	ready chan *growth

	mu    sync.Mutex
	all   map[chunk.ObjectID]*growth
	bytes int64
}

func (g *growing) init() {
	g.ready = make(chan *growth, maxReady)
	g.all = make(map[chunk.ObjectID]*growth)
}

// of returns the growth of a tar, which release gives back.
func (g *growing) of(obj chunk.Object, id chunk.ObjectID) *growth {
	g.mu.Lock()
	defer g.mu.Unlock()
	x := g.all[id]
	if x == nil {
		if len(g.all) >= maxGrowing {
			g.drop()
		}
		x = &growth{obj: obj, id: id, s: NewScanner(obj.Size)}
		g.all[id] = x
	}
	x.users++
	x.heard = time.Now()
	return x
}

func (g *growing) release(x *growth) {
	g.mu.Lock()
	defer g.mu.Unlock()
	x.users--
}

// drop forgets what heard nothing for longest and nobody uses; mu is held.
func (g *growing) drop() bool {
	var oldest *growth
	for _, x := range g.all {
		if x.users == 0 && (oldest == nil || x.heard.Before(oldest.heard)) {
			oldest = x
		}
	}
	if oldest == nil {
		return false
	}
	g.bytes -= oldest.bytes
	oldest.bytes = 0
	delete(g.all, oldest.id)
	return true
}

// weigh counts what a growth takes by now; its mu is held.
func (g *growing) weigh(x *growth) {
	var n int64
	if x.s != nil {
		n = x.s.Bytes() + int64(len(x.tail))
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.all[x.id] != x {
		return
	}
	g.bytes += n - x.bytes
	x.bytes = n
	for g.bytes > maxGrowingBytes && g.drop() {
	}
}

// take locks a growth for who reads the tar for it, give unlocks it.
func (x *growth) take() {
	x.slow.Add(1)
	x.mu.Lock()
}

func (x *growth) give() {
	x.mu.Unlock()
	x.slow.Add(-1)
}

// end frees what a growth took when it came to its end; mu is held.
func (x *growth) end() { x.s, x.tail, x.ahead = nil, nil, false }

// queue has Run go on with a growth.
func (g *growing) queue(x *growth) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if x.queued {
		x.again = true
		return
	}
	g.enqueue(x)
}

// enqueue is queue for what is not queued; mu is held.
func (g *growing) enqueue(x *growth) {
	select {
	case g.ready <- x:
		x.queued = true
		x.users++
	default:
	}
}

func (g *growing) unqueue(x *growth) {
	g.mu.Lock()
	defer g.mu.Unlock()
	x.queued = false
	x.users--
	if x.again {
		x.again = false
		g.enqueue(x)
	}
}

// feed goes on with bytes of the tar that are at hand now. It reports whether there is
// something to do for Run: all is known, or headers that come next may have come before.
func (g *growing) feed(x *growth, off int64, data []byte) bool {
	for !x.mu.TryLock() {
		if x.slow.Load() > 0 {
			return true // is being read for, and what comes now may be missed
		}
		runtime.Gosched() // another block is at it, for a moment
	}
	defer x.mu.Unlock()
	if x.s == nil {
		return false
	}
	end := off + int64(len(data))
	next := x.s.Next()
	if next < off && (len(x.tail) == 0 || x.tailAt+int64(len(x.tail)) != off) {
		x.ahead = true
		return true
	}
	if next >= end {
		return false
	}
	defer g.weigh(x)
	w := window{tail: x.tail, at: x.tailAt, data: data, off: off}
	if x.s.Scan(w) == nil {
		x.tail = nil
		return true
	}
	x.tail = w.from(x.s.Next())
	x.tailAt = x.s.Next()
	return x.ahead && x.s.Next() >= end
}

// window is a tar of which a block is at hand, and perhaps the end of the one before.
type window struct {
	tail []byte // from at on; ends at off, or is empty
	at   int64
	data []byte
	off  int64
}

func (w window) ReadAt(p []byte, off int64) (int, error) {
	done := 0
	if len(w.tail) > 0 && off >= w.at && off < w.off {
		done = copy(p, w.tail[off-w.at:])
	}
	if at := off + int64(done) - w.off; done < len(p) && at >= 0 && at < int64(len(w.data)) {
		done += copy(p[done:], w.data[at:])
	}
	if done < len(p) {
		return done, errNotHere
	}
	return done, nil
}

// from returns a copy of the bytes from off on, nil when they are not at hand or too many.
func (w window) from(off int64) []byte {
	switch {
	case len(w.tail) > 0 && off >= w.at && off < w.off:
		if n := len(w.tail) + len(w.data); n <= maxTailBytes {
			return append(append(make([]byte, 0, n), w.tail[off-w.at:]...), w.data...)
		}
	case off >= w.off && off < w.off+int64(len(w.data)):
		if rest := w.data[off-w.off:]; len(rest) <= maxTailBytes {
			return append([]byte(nil), rest...)
		}
	}
	return nil
}
