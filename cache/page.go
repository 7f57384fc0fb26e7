package cache

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/shardwell/shardwell/cache/evict"
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
	obj  chunk.Object

	class evict.Class // under pages.mu; decides which ring it rests in

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
// buffers come from the arena, at most max of them. On a node without disks it goes by the same
// classes as they do ([evict.Class]); within a class, which datasets that nobody uses share as well, the
// least recently used goes first. Elsewhere all are copies.
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
	idle   [evict.Pinned + 1]page // by class
	unused page
	// What is owned has at most keptMax pages, but for a few that come at the same time; kept counts them.
	keptMax, kept int
	admits        func(obj chunk.Object, id chunk.ObjectID, n int64) bool // asked of each; may be nil
	// ahead counts blocks promised to be kept until their readers come: on their
	// way, or fresh. At most half of what keptMax leaves, so that the other half serves readers now.
	ahead int
}

func newPages(arena *mem.Arena, max int, count *atomic.Int64) *pages {
	ps := &pages{arena: arena, max: max, count: count, m: make(map[pageKey]*page)}
	for _, root := range ps.roots() {
		root.prev, root.next = root, root
	}
	return ps
}

func (ps *pages) roots() []*page {
	roots := []*page{&ps.unused}
	for i := range ps.idle {
		roots = append(roots, &ps.idle[i])
	}
	return roots
}

// maxAhead bounds ahead.
func (ps *pages) maxAhead() int { return (ps.max - ps.keptMax) / 2 }

// maxUnused is how long a page that was fetched ahead is protected: much longer
// than a reader takes to get there.
const maxUnused = 30 * time.Second

// promise reserves room for up to n blocks that will be fetched ahead of their
// readers, and returns for how many. [pages.keep] or unpromise ends each promise.
func (ps *pages) promise(n int) int {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	for p := ps.stale(); p != nil && ps.ahead+n > ps.maxAhead(); p = ps.stale() {
		ps.free(p)
	}
	n = max(0, min(n, ps.maxAhead()-ps.ahead))
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
	root := &ps.idle[p.class]
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

// buffer takes a buffer for a copy, or returns nil. It never waits.
func (ps *pages) buffer() []byte {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	return ps.bufferFor(evict.Copy)
}

// bufferFor takes a free buffer, or that of the page which goes first for one of a class, or nil. Callers hold mu.
func (ps *pages) bufferFor(class evict.Class) []byte {
	full := class > evict.Copy && ps.kept >= ps.keptMax // only what is kept may make room
	if ps.shut {
		return nil
	}
	if ps.bufs < ps.max && !full {
		if buf := ps.arena.TryGet(); buf != nil {
			ps.bufs++
			return buf
		}
	}
	var p *page
	for there := range ps.idle {
		there := evict.Class(there)
		if p == nil && (!full || there > evict.Copy) && evict.Displaces(max(class, evict.Copy), there) {
			p = oldest(&ps.idle[there])
		}
	}
	if p == nil && !full {
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
	return ps.insertAs(evict.Copy, chunk.Object{}, key, buf, n, crc)
}

// insertAs is insert for a block of a class.
func (ps *pages) insertAs(class evict.Class, obj chunk.Object, key pageKey, buf []byte, n int, crc uint32) *page {
	ps.mu.Lock()
	p := ps.m[key]
	if p != nil {
		ps.hold(p)
		ps.mu.Unlock()
		ps.discard(buf)
		return p
	}
	p = &page{key: key, data: buf[:n], crc: crc, buf: buf, refs: 1, obj: obj, class: class}
	ps.m[key] = p
	if class > evict.Copy {
		ps.kept++
	}
	ps.count.Add(1)
	ps.mu.Unlock()
	return p
}

// keep makes a page of a copy of b and holds it, or returns nil when there is no
// room. Promised says that room was promised; the promise ends here, or when a
// fresh page is first used.
func (ps *pages) keep(o *object, b chunk.Block, promised bool) *page {
	key := pageKey{o.id, b.Index}
	p := ps.get(key)
	if p == nil {
		class := o.c.worth(o.Object, o.id, b.Index)
		if buf, class := ps.roomAs(class, o, len(b.Data)); buf != nil {
			p = ps.insertAs(class, o.Object, key, buf, copy(buf, b.Data), b.CRC)
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

// roomAs takes a buffer for a block of a class, or as a copy, which passes through, where there is none for that.
func (ps *pages) roomAs(class evict.Class, o *object, n int) ([]byte, evict.Class) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if class > evict.Copy && ps.admits != nil && !ps.admits(o.Object, o.id, int64(n)) {
		class = evict.Copy
	}
	if buf := ps.bufferFor(class); buf != nil || class <= evict.Copy {
		return buf, class
	}
	return ps.bufferFor(evict.Copy), evict.Copy
}

// judge gives pages the classes that they have now; what became a copy, or was one, is one until it goes.
func (ps *pages) judge(worth func(chunk.Object, chunk.ObjectID, uint32) evict.Class) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	for key, p := range ps.m {
		if p.class <= evict.Copy {
			continue
		}
		class := worth(p.obj, key.id, key.block)
		if class == p.class {
			continue
		}
		idle := p.next != nil
		ps.rouse(p)
		if p.class = class; class <= evict.Copy {
			ps.kept--
		}
		if idle {
			ps.rest(p)
		}
	}
}

// objects returns what is there, by object.
func (ps *pages) objects() map[chunk.ObjectID]*InMemory {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	all := make(map[chunk.ObjectID]*InMemory)
	for key, p := range ps.m {
		o := all[key.id]
		if o == nil {
			o = &InMemory{Object: p.obj, ID: key.id}
			all[key.id] = o
		}
		o.Blocks = append(o.Blocks, key.block)
	}
	return all
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
		if p.class > evict.Copy {
			ps.kept--
		}
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
	for _, root := range ps.roots() {
		for p := oldest(root); p != nil; p = oldest(root) {
			ps.free(p)
		}
	}
}
