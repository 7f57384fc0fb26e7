package cache

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/shardwell/shardwell/cache/mem"
	"github.com/shardwell/shardwell/internal/chunk"
)

type pageKey struct {
	id    chunk.ObjectID
	block uint32
}

// page is one checked block in memory.
type page struct {
	key  pageKey
	data []byte
	crc  uint32
	buf  []byte // the arena's, nil for borrowed data

	// Under pages.mu:
	refs    int
	dropped bool      // to be freed with the last reference
	fresh   bool      // fetched ahead of its readers, not used yet; one of pages.ahead
	since   time.Time // when a fresh page was kept
	prev    *page     // in one of the rings, exactly when refs is 0
	next    *page
	done    chan struct{} // of borrowed data: closed with the last reference
}

// pages is the memory tier: the blocks last used that the disk does not have,
// or that are being read in small steps, so that one check serves all steps. Its
// buffers come from the arena, at most max of them.
type pages struct {
	arena *mem.Arena
	max   int
	count *atomic.Int64

	mu   sync.Mutex
	m    map[pageKey]*page
	bufs int // taken from the arena, those being filled included
	shut bool
	// Roots of the rings of pages that nobody holds; next is the oldest. Those
	// that were fetched ahead give way only when they have been waiting for long.
	idle, unused page
	// ahead counts blocks promised to be kept until their readers come: on their
	// way, or fresh. At most half of max, so that the other half serves readers now.
	ahead int
}

func newPages(arena *mem.Arena, max int, count *atomic.Int64) *pages {
	ps := &pages{arena: arena, max: max, count: count, m: make(map[pageKey]*page)}
	for _, root := range [...]*page{&ps.idle, &ps.unused} {
		root.prev, root.next = root, root
	}
	return ps
}

// maxUnused is how long a page that was fetched ahead is protected: much longer
// than a reader takes to get there.
const maxUnused = 30 * time.Second

// promise reserves room for up to n blocks that will be fetched ahead of their
// readers, and returns for how many. [pages.keep] or unpromise ends each promise.
func (ps *pages) promise(n int) int {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	for p := ps.stale(); p != nil && ps.ahead+n > ps.max/2; p = ps.stale() {
		ps.free(p)
	}
	n = max(0, min(n, ps.max/2-ps.ahead))
	ps.ahead += n
	return n
}

func (ps *pages) unpromise(n int) {
	ps.mu.Lock()
	ps.ahead -= n
	ps.mu.Unlock()
}

// stale returns a page that was fetched ahead and in vain, or nil.
func (ps *pages) stale() *page {
	if p := oldest(&ps.unused); p != nil && time.Since(p.since) > maxUnused {
		return p
	}
	return nil
}

// rest makes p the newest idle page. The ring is in the pages themselves: a read
// that hits memory allocates nothing.
func (ps *pages) rest(p *page) {
	root := &ps.idle
	if p.fresh {
		root = &ps.unused
	}
	p.prev, p.next = root.prev, root
	p.prev.next, p.next.prev = p, p
}

// rouse takes p out of the ring, if it is in it.
func (ps *pages) rouse(p *page) {
	if p.next != nil {
		p.prev.next, p.next.prev = p.next, p.prev
		p.prev, p.next = nil, nil
	}
}

// oldest returns the first page of a ring, or nil.
func oldest(root *page) *page {
	if root.next != root {
		return root.next
	}
	return nil
}

// spend ends a page's freshness.
func (ps *pages) spend(p *page) {
	if p.fresh {
		p.fresh = false
		ps.ahead--
	}
}

// get returns a page and holds it until put, or nil.
func (ps *pages) get(key pageKey) *page {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	p := ps.m[key]
	if p != nil {
		ps.hold(p)
	}
	return p
}

func (ps *pages) has(key pageKey) bool {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	return ps.m[key] != nil
}

func (ps *pages) hold(p *page) {
	p.refs++
	ps.rouse(p)
	ps.spend(p)
}

// retain adds a hold to a page that is held.
func (ps *pages) retain(p *page) {
	ps.mu.Lock()
	p.refs++
	ps.mu.Unlock()
}

// put ends a hold.
func (ps *pages) put(p *page) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	p.refs--
	switch {
	case p.refs > 0:
	case p.done != nil:
		close(p.done)
	case p.dropped || ps.shut:
		ps.free(p)
	default:
		ps.rest(p)
	}
}

// buffer takes a free buffer, or that of the page idle for longest, or nil. It
// never waits.
func (ps *pages) buffer() []byte {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if ps.shut {
		return nil
	}
	if ps.bufs < ps.max {
		if buf := ps.arena.TryGet(); buf != nil {
			ps.bufs++
			return buf
		}
	}
	p := oldest(&ps.idle)
	if p == nil {
		p = ps.stale()
	}
	if p == nil {
		return nil
	}
	ps.unlink(p)
	buf := p.buf
	p.buf, p.data = nil, nil
	return buf
}

// discard gives back a buffer that became no page.
func (ps *pages) discard(buf []byte) {
	ps.mu.Lock()
	ps.bufs--
	ps.mu.Unlock()
	ps.arena.Put(buf)
}

// insert makes a page of buf, whose first n bytes are the checked block, and
// holds it. If there is such a page already, that one is held and buf given back.
func (ps *pages) insert(key pageKey, buf []byte, n int, crc uint32) *page {
	ps.mu.Lock()
	p := ps.m[key]
	if p != nil {
		ps.hold(p)
		ps.mu.Unlock()
		ps.discard(buf)
		return p
	}
	p = &page{key: key, data: buf[:n], crc: crc, buf: buf, refs: 1}
	ps.m[key] = p
	ps.count.Add(1)
	ps.mu.Unlock()
	return p
}

// keep makes a page of a copy of b and holds it, or returns nil when there is no
// room. Promised says that room was promised; the promise ends here, or when a
// fresh page is first used.
func (ps *pages) keep(id chunk.ObjectID, b chunk.Block, promised bool) *page {
	key := pageKey{id, b.Index}
	p := ps.get(key)
	if p == nil {
		if buf := ps.buffer(); buf != nil {
			p = ps.insert(key, buf, copy(buf, b.Data), b.CRC)
		}
	}
	if !promised {
		return p
	}
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if p == nil || p.fresh || ps.m[key] != p {
		ps.ahead--
	} else {
		p.fresh, p.since = true, time.Now()
	}
	return p
}

// borrow makes a page of data that is only lent: who made it waits for done
// before the data goes away. It has no hold yet and is found by nobody.
func (ps *pages) borrow(b chunk.Block) *page {
	return &page{data: b.Data, crc: b.CRC, done: make(chan struct{})}
}

// drop forgets a block; who holds it keeps it.
func (ps *pages) drop(key pageKey) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	p := ps.m[key]
	if p == nil {
		return
	}
	idle := p.refs == 0
	ps.unlink(p)
	if idle {
		ps.free(p)
	} else {
		p.dropped = true
	}
}

// unlink takes p out of the map and the list.
func (ps *pages) unlink(p *page) {
	ps.rouse(p)
	ps.spend(p)
	if ps.m[p.key] == p {
		delete(ps.m, p.key)
		ps.count.Add(-1)
	}
}

func (ps *pages) free(p *page) {
	ps.unlink(p)
	ps.bufs--
	ps.arena.Put(p.buf)
	p.buf, p.data = nil, nil
}

// close frees what is idle; the rest is freed by who holds it.
func (ps *pages) close() {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.shut = true
	for _, root := range [...]*page{&ps.idle, &ps.unused} {
		for p := oldest(root); p != nil; p = oldest(root) {
			ps.free(p)
		}
	}
}
