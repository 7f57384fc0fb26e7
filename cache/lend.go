package cache

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/shardwell/shardwell/internal/chunk"
)

// Lend implements [chunk.Lender]. What is here goes out first, in order; the
// rest as it arrives. To a question for held blocks it gives those that it holds or is
// receiving, and returns [chunk.ErrNotHeld] at the end if that was not all.
func (c *Cache) Lend(ctx context.Context, req chunk.Request, send func(chunk.Piece) error) error {
	g := c.cfg.Geometry
	index := g.ChunkOf(req.Span.First)
	if whole := g.ChunkSpan(req.Object.Size, index); req.Span.Count == 0 || req.Span.First < whole.First || req.Span.End() > whole.End() {
		return fmt.Errorf("lend %s: %v do not lie within one chunk", req.Object.URI(), req.Span)
	}
	o, err := c.acquire(req.Object, req.ID)
	if err != nil {
		return fmt.Errorf("lend %s: %w", req.Object.URI(), err)
	}
	defer o.release()
	if o.files.Load() > 0 {
		o.shared.Store(true)
	}
	l := lending{c: c, o: o, req: req, send: send}
	missing, err := l.here()
	if err != nil || missing.empty() {
		return err
	}
	leave := !req.HeldOnly && c.leaves(req)
	if leave { // what is on its way from others may be what the asker is to fetch
		l.req.HeldOnly, l.req.Settled = true, true
	}
	err = l.fly(ctx, index, missing)
	if leave && errors.Is(err, chunk.ErrNotHeld) {
		return fmt.Errorf("lend %s: %w", req.Object.URI(), chunk.ErrNoRoute)
	}
	return err
}

// leaves reports whether a peer's request had better be fetched for by another member.
func (c *Cache) leaves(req chunk.Request) bool {
	return req.From != "" && c.cfg.Cut != nil && c.cfg.Cut(req.Object.Origin)
}

// lending is one Lend on its way.
type lending struct {
	c    *Cache
	o    *object
	req  chunk.Request
	send func(chunk.Piece) error

	pulled bool // a fetch was started for blocks that this node is about to want
}

// here sends what is here and returns what is not, numbered from the chunk's first block.
func (l *lending) here() (missing blockSet, err error) {
	first := l.c.cfg.Geometry.ChunkOf(l.req.Span.First) * l.c.cfg.Geometry.BlocksPerChunk()
	for b := l.req.Span.First; b < l.req.Span.End(); b++ {
		ok, err := l.one(b, nil)
		if err != nil {
			return missing, err
		}
		if !ok {
			missing.add(b - first)
		}
	}
	return missing, nil
}

// one sends a block from the tier or from memory, if it is there. from says
// that it has just arrived, and whence.
func (l *lending) one(block uint32, from *Source) (ok bool, err error) {
	source := FromDisk
	if l.o.onDisk(block) {
		if p, ok := l.o.tier.Lend(block); ok {
			if from != nil {
				source = *from
			}
			defer l.o.tier.Return(block)
			return true, l.give(p, source)
		}
	}
	pg := l.c.pages.get(pageKey{l.o.id, block})
	if pg == nil {
		return false, nil
	}
	defer l.c.pages.put(pg)
	source = FromMemory
	if from != nil {
		source = *from
	}
	return true, l.page(pg, block, source)
}

func (l *lending) page(pg *page, block uint32, from Source) error {
	return l.give(chunk.Piece{Index: block, CRC: pg.crc, Len: len(pg.data), Data: pg.data}, from)
}

func (l *lending) give(p chunk.Piece, from Source) error {
	if err := l.send(p); err != nil {
		return err
	}
	l.c.lent(l.o, l.req, p, from)
	return nil
}

// fly sends missing blocks as they arrive.
func (l *lending) fly(ctx context.Context, index uint32, missing blockSet) error {
	fl := l.o.join(index)
	defer l.o.leave(fl)
	w := l.c.newWaiter(l.req)
	defer l.c.freeWaiter(l.o, w)
	w.peer, w.missing = true, missing

	fl.mu.Lock()
	fl.enter(w)
	err := l.loop(ctx, fl, w)
	fl.exit(w)
	fl.mu.Unlock()
	return err
}

// loop runs until everything was sent or cannot be. Callers hold fl.mu, which it
// gives up while it sends or waits.
func (l *lending) loop(ctx context.Context, fl *flight, w *waiter) error {
	lacking := false
	for {
		here := fl.present(&w.missing, w.req)
		if len(w.ready) > 0 || !here.empty() {
			if err := l.collect(fl, w, here); err != nil {
				return err
			}
			continue
		}
		switch {
		case w.missing.empty() && lacking:
			return chunk.ErrNotHeld
		case w.missing.empty():
			return nil
		case w.err != nil && l.req.HeldOnly:
			return chunk.ErrNotHeld // what we were receiving we do not hold
		case w.err != nil:
			return w.err
		case ctx.Err() != nil:
			return fmt.Errorf("lend %s: %w", l.o.URI(), ctx.Err())
		}
		if l.req.HeldOnly {
			if gone := fl.uncovered(&w.missing, w.req); !gone.empty() {
				if l.pull(fl, gone) {
					continue
				}
				lacking = true
				w.missing = w.missing.minus(&gone)
				continue
			}
		} else {
			fl.launch(w)
		}
		fl.wait(ctx, w)
	}
}

// pull starts to fetch what a fill of this node has not come to yet: the asker was
// sent here because it will. Callers hold fl.mu.
func (l *lending) pull(fl *flight, gone blockSet) bool {
	if l.pulled || l.req.Settled || !l.req.Fill || l.o.streams() {
		return false
	}
	as, filling := l.o.filling()
	if !filling {
		return false
	}
	l.pulled = true
	// It is this node's own fetch: the asker's patience, a half of which each hop of a chain
	// gives to the next, says nothing about it.
	until := time.Now().Add(l.c.cfg.ReadBudget)
	for first, end, ok := gone.run(0); ok; first, end, ok = gone.run(end) {
		fl.start(first, end, end, chunk.Request{Background: true, Fill: true, Access: as}, until, false)
	}
	for _, c := range fl.calls {
		c.pulled = c.pulled || c.left.meets(&gone)
	}
	return true
}

// Holds reports whether a block is here.
func (c *Cache) Holds(obj chunk.Object, id chunk.ObjectID, block uint32) bool {
	o, err := c.acquire(obj, id)
	if err != nil {
		return false
	}
	defer o.release()
	return o.isLocal(block)
}

// HeldOf returns how many blocks of a span are here.
func (c *Cache) HeldOf(obj chunk.Object, id chunk.ObjectID, s chunk.Span) (n uint32) {
	o, err := c.acquire(obj, id)
	if err != nil {
		return 0
	}
	defer o.release()
	for b := s.First; b < s.End(); b++ {
		if o.isLocal(b) {
			n++
		}
	}
	return n
}

// Reading reports whether a reader of this node has an object open.
func (c *Cache) Reading(_ chunk.Object, id chunk.ObjectID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	o := c.objects[id]
	return o != nil && o.files.Load() > 0
}

// HoldsAll reports whether all blocks of a span are here.
func (c *Cache) HoldsAll(obj chunk.Object, id chunk.ObjectID, s chunk.Span) bool {
	o, err := c.acquire(obj, id)
	if err != nil {
		return false
	}
	defer o.release()
	for b := s.First; b < s.End(); b++ {
		if !o.isLocal(b) {
			return false
		}
	}
	return true
}

// collect sends what arrived and what is here. Callers hold fl.mu, which it
// gives up meanwhile.
func (l *lending) collect(fl *flight, w *waiter, here blockSet) (err error) {
	arrived := w.ready
	w.ready = nil
	w.missing = w.missing.minus(&here)
	fl.mu.Unlock()

	var lost blockSet
	for _, a := range arrived {
		ok := true
		switch {
		case err != nil:
		case a.page != nil:
			err = l.page(a.page, a.block, a.from)
		default:
			ok, err = l.one(a.block, &a.from)
		}
		if !ok { // dropped between arrival and now
			lost.add(a.block - fl.span.First)
		}
		if a.page != nil {
			l.c.pages.put(a.page)
		}
		if a.held {
			l.o.tier.Return(a.block)
		}
	}
	for i, ok := here.next(0); ok && err == nil; i, ok = here.next(i + 1) {
		var sent bool
		if sent, err = l.one(fl.span.First+i, nil); !sent {
			lost.add(i)
		}
	}
	fl.mu.Lock()
	w.missing.union(&lost)
	return err
}
