package cache

import (
	"sync"
	"sync/atomic"

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
	dropped bool  // to be freed with the last reference
	prev    *page // in the ring of idle pages, exactly when refs is 0
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
	used int  // buffers taken from the arena, those being filled included
	idle page // root of the ring of pages that nobody holds; next is the oldest
	shut bool
}

func newPages(arena *mem.Arena, max int, count *atomic.Int64) *pages {
	ps := &pages{arena: arena, max: max, count: count, m: make(map[pageKey]*page)}
	ps.idle.prev, ps.idle.next = &ps.idle, &ps.idle
	return ps
}

// rest makes p the newest idle page. The ring is in the pages themselves: a read
// that hits memory allocates nothing.
func (ps *pages) rest(p *page) {
	p.prev, p.next = ps.idle.prev, &ps.idle
	p.prev.next, p.next.prev = p, p
}

// rouse takes p out of the ring, if it is in it.
func (ps *pages) rouse(p *page) {
	if p.next != nil {
		p.prev.next, p.next.prev = p.next, p.prev
		p.prev, p.next = nil, nil
	}
}

// oldest returns the page idle for longest, or nil.
func (ps *pages) oldest() *page {
	if p := ps.idle.next; p != &ps.idle {
		return p
	}
	return nil
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
	if ps.used < ps.max {
		if buf := ps.arena.TryGet(); buf != nil {
			ps.used++
			return buf
		}
	}
	p := ps.oldest()
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
	ps.used--
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

// keep makes a page of a copy of b and holds it, or returns nil when there is no room.
func (ps *pages) keep(id chunk.ObjectID, b chunk.Block) *page {
	key := pageKey{id, b.Index}
	if p := ps.get(key); p != nil {
		return p
	}
	buf := ps.buffer()
	if buf == nil {
		return nil
	}
	return ps.insert(key, buf, copy(buf, b.Data), b.CRC)
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
	if ps.m[p.key] == p {
		delete(ps.m, p.key)
		ps.count.Add(-1)
	}
}

func (ps *pages) free(p *page) {
	ps.unlink(p)
	ps.used--
	ps.arena.Put(p.buf)
	p.buf, p.data = nil, nil
}

// close frees what is idle; the rest is freed by who holds it.
func (ps *pages) close() {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.shut = true
	for p := ps.oldest(); p != nil; p = ps.oldest() {
		ps.free(p)
	}
}
