package cache

import (
	"sync"
	"time"

	"github.com/shardwell/shardwell/internal/chunk"
)

// flight is one chunk while blocks of it are on their way or waited for. There is
// at most one a chunk and node.
type flight struct {
	obj   *object
	index uint32
	span  chunk.Span

	refs int // waiters and calls; under object.mu

	mu      sync.Mutex
	calls   []*call
	waiters []*waiter
}

// waiter is a reader or a peer that waits for blocks of a flight. Its fields
// but the first four are under flight.mu.
type waiter struct {
	req    chunk.Request // hops, from, held-only, background
	off    int64         // a reader's bytes: [off, off+n)
	n      int
	extend uint32 // by how many blocks a fetch may go beyond what is missing

	missing blockSet // not arrived and not given up
	copied  blockSet // in the reader's buffer
	p       []byte   // the reader's buffer; nil for a peer, or a reader that has none yet
	peer    bool
	fills   bool      // wants blocks in the tier only, and is given none
	ready   []arrival // for a peer: all that arrived; for a reader without p: what no tier keeps
	err     error     // of the fetch of a missing block
	until   time.Time // when it gives up, unless a block comes
	notify  chan struct{}
	timer   *time.Timer // reused; stopped unless it waits
}

// arrival is a block that came while somebody waited for it.
type arrival struct {
	block uint32
	from  Source
	page  *page // held; nil: it is in the tier
	held  bool  // in the tier, until it was sent
}

func (c *Cache) newWaiter(req chunk.Request) *waiter {
	w, _ := c.waiters.Get().(*waiter)
	if w == nil {
		w = &waiter{notify: make(chan struct{}, 1)}
	}
	w.req = req
	return w
}

// freeWaiter gives back what w holds of an object. It is in no flight any more.
func (c *Cache) freeWaiter(o *object, w *waiter) {
	for _, a := range w.ready {
		if a.page != nil {
			c.pages.put(a.page)
		}
		if a.held {
			o.tier.Return(a.block)
		}
	}
	select {
	case <-w.notify:
	default:
	}
	clear(w.ready)
	*w = waiter{notify: w.notify, timer: w.timer, ready: w.ready[:0]}
	c.waiters.Put(w)
}

func (w *waiter) wake() {
	select {
	case w.notify <- struct{}{}:
	default:
	}
}

// enter adds w, whose patience begins now. Callers hold mu.
func (fl *flight) enter(w *waiter) {
	fl.waiters = append(fl.waiters, w)
	w.until = time.Now().Add(fl.obj.c.patience(w.req))
	for _, c := range fl.calls {
		if w.missing.meets(&c.left) && c.serves(w.req) {
			c.join(w.until, w.req.Background)
		}
	}
}

// exit removes w. A call that w alone still waited for is left to linger.
// Callers hold mu.
func (fl *flight) exit(w *waiter) {
	for i, other := range fl.waiters {
		if other == w {
			last := len(fl.waiters) - 1
			fl.waiters[i] = fl.waiters[last]
			fl.waiters[last] = nil
			fl.waiters = fl.waiters[:last]
			break
		}
	}
	if w.missing.empty() || w.err != nil {
		return // it had what it wanted
	}
	for _, c := range fl.calls {
		if w.missing.meets(&c.left) && !c.detached && !fl.wanted(c) {
			c.linger()
		}
	}
}

// wanted reports whether anybody waits for a block that c is to bring. Callers hold mu.
func (fl *flight) wanted(c *call) bool {
	for _, w := range fl.waiters {
		if w.missing.meets(&c.left) {
			return true
		}
	}
	return false
}

// present returns those of set that can be read here without a fetch. What a call
// is about to land is not among them, though the tier has it already: it comes
// to the waiter in memory. Callers hold mu, so that no block lands between this and
// [flight.uncovered].
func (fl *flight) present(set *blockSet, req chunk.Request) blockSet {
	var have blockSet
	rest := fl.uncovered(set, req)
	for i, ok := rest.next(0); ok; i, ok = rest.next(i + 1) {
		if fl.obj.isLocal(fl.span.First + i) {
			have.add(i)
		}
	}
	return have
}

func (o *object) isLocal(block uint32) bool {
	return o.onDisk(block) || o.c.pages.has(pageKey{o.id, block})
}

// uncovered returns those of set that no call is to bring for such a request.
// Callers hold mu.
func (fl *flight) uncovered(set *blockSet, req chunk.Request) blockSet {
	rest := *set
	for _, c := range fl.calls {
		if c.serves(req) {
			rest = rest.minus(&c.left)
		}
	}
	return rest
}

// launch starts calls for what w misses and nobody brings. Callers hold mu.
func (fl *flight) launch(w *waiter) {
	rest := fl.uncovered(&w.missing, w.req)
	for first, end, ok := rest.run(0); ok; first, end, ok = rest.run(end) {
		wanted := end
		if w.extend > 0 {
			end = fl.extended(end, w)
		}
		ahead := end
		if fl.obj.streams() {
			ahead, end = wanted, wanted+uint32(fl.obj.c.pages.promise(int(end-wanted)))
		}
		fl.start(first, ahead, end, w.req, w.until, false)
	}
}

// extended returns how far a run that ends at end may reach: at most w.extend
// blocks on, up to the first that is here or on its way. Callers hold mu.
func (fl *flight) extended(end uint32, w *waiter) uint32 {
	limit := min(end+w.extend, fl.span.Count)
	for end < limit {
		var one blockSet
		one.add(end)
		if free := fl.uncovered(&one, w.req); free.empty() || fl.obj.isLocal(fl.span.First+end) {
			break
		}
		end++
	}
	return end
}

// land hands out a block that a call brought. It returns a page of borrowed data
// on which the caller must wait, if there is one. Callers hold mu.
func (fl *flight) land(by *call, b chunk.Block, from Source, stored bool) *page {
	ps := fl.obj.c.pages
	i := b.Index - fl.span.First
	fl.progress(by)
	promises := 0
	for _, c := range fl.calls {
		if !c.left.has(i) {
			continue
		}
		c.left.remove(i)
		c.recount()
		if c.ahead.has(i) {
			c.ahead.remove(i)
			promises++
		}
		if c != by && c.left.empty() { // by ends by itself, and its connection lives on
			c.stop(errServed)
		}
	}
	var kept, borrowed *page
	if !stored || fl.inSteps(i, b) {
		promised := promises > 0 && !stored && !fl.awaited(i)
		kept = ps.keep(fl.obj, b, promised)
		if promised {
			promises--
		}
	}
	ps.unpromise(promises)
	for _, w := range fl.waiters {
		if !w.missing.has(i) {
			continue
		}
		w.missing.remove(i)
		switch {
		case w.fills:
		case w.p != nil:
			w.copyFrom(fl, b)
			w.copied.add(i)
		case stored && !w.peer:
			// it finds the block in the tier
		case stored:
			w.ready = append(w.ready, arrival{b.Index, from, nil, fl.obj.hold(b.Index)})
		default:
			p := kept
			if p == nil {
				if borrowed == nil {
					borrowed = ps.borrow(b)
				}
				p = borrowed
			}
			ps.retain(p)
			w.ready = append(w.ready, arrival{b.Index, from, p, false})
		}
		w.wake()
	}
	if kept != nil {
		ps.put(kept)
	} else if !stored {
		fl.obj.c.stats.Streamed.Add(1)
	}
	return borrowed
}

// awaited reports whether anybody waits for a block. Callers hold mu.
func (fl *flight) awaited(i uint32) bool {
	for _, w := range fl.waiters {
		if w.missing.has(i) {
			return true
		}
	}
	return false
}

// inSteps reports whether a reader waits for a part of the block only, so that
// the next step is about to ask for more of it. Callers hold mu.
func (fl *flight) inSteps(i uint32, b chunk.Block) bool {
	start := int64(b.Index) * fl.obj.c.cfg.Geometry.BlockBytes
	for _, w := range fl.waiters {
		if !w.peer && !w.fills && w.missing.has(i) && (w.off > start || w.off+int64(w.n) < start+int64(len(b.Data))) {
			return true
		}
	}
	return false
}

// copyFrom copies w's part of a block into its buffer.
func (w *waiter) copyFrom(fl *flight, b chunk.Block) {
	start := int64(b.Index) * fl.obj.c.cfg.Geometry.BlockBytes
	n := copyBlock(w.p[:w.n], w.off, b.Data, start)
	fl.obj.served(max(w.off, start), n, FromMemory)
}

// copyBlock copies what dst, which begins at offset off of the object, and a
// block that begins at start have in common.
func copyBlock(dst []byte, off int64, block []byte, start int64) int {
	if start < off {
		return copy(dst, block[off-start:])
	}
	return copy(dst[start-off:], block)
}
