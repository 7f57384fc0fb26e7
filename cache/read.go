package cache

import (
	"context"
	"errors"
	"fmt"

	"github.com/shardwell/shardwell/internal/chunk"
)

// read is one ReadAt or ReadLate on its way. All bytes lie within the object.
type read struct {
	f      *File
	off    int64
	n      int
	p      []byte // n bytes; nil until taken
	take   func() ([]byte, error)
	extend uint32 // blocks by which a fetch may go beyond
}

// part is what a read wants of one chunk.
type part struct {
	index uint32
	first uint32   // number of the chunk's first block
	want  blockSet // relative to first
}

// part returns the i-th part of the read, false behind the last.
func (r *read) part(i int) (part, bool) {
	g := r.f.c.cfg.Geometry
	span := g.SpanOf(r.f.obj.Size, r.off, int64(r.n))
	index := g.ChunkOf(span.First) + uint32(i)
	p := part{index: index, first: index * g.BlocksPerChunk()}
	for b := max(span.First, p.first); b < min(span.End(), p.first+g.BlocksPerChunk()); b++ {
		p.want.add(b - p.first)
	}
	return p, !p.want.empty()
}

// all reads every part. A read without a buffer waits for its parts one by one
// and then reads them; a block that has no other place makes it take the
// buffer early, and then it goes on like any other.
func (r *read) all(ctx context.Context) error {
	began := -1 // the part at which the buffer was taken early: that one is read
	if r.p == nil {
		for i := 0; ; i++ {
			p, ok := r.part(i)
			if !ok {
				break
			}
			if err := r.await(ctx, p); err != nil {
				return err
			}
			if r.p != nil {
				began = i
				break
			}
		}
		if err := r.buffer(); err != nil {
			return err
		}
	}
	for i := 0; ; i++ {
		p, ok := r.part(i)
		if !ok {
			return nil
		}
		if i == began {
			continue
		}
		if err := r.fill(ctx, p); err != nil {
			return err
		}
	}
}

// buffer makes sure that there is one.
func (r *read) buffer() error {
	if r.p != nil {
		return nil
	}
	buf, err := r.take()
	if err != nil {
		return fmt.Errorf("read %s: %w", r.f.obj.URI(), err)
	}
	r.p = buf[:r.n]
	return nil
}

// await waits until all blocks of a part are here. If it had to take the buffer
// for them, it returns with all of the part read.
func (r *read) await(ctx context.Context, p part) error {
	missing := p.want
	for i, ok := p.want.next(0); ok; i, ok = p.want.next(i + 1) {
		if r.f.obj.isLocal(p.first + i) {
			missing.remove(i)
		}
	}
	if missing.empty() {
		return nil
	}
	copied, err := r.fly(ctx, p, missing)
	if err != nil || r.p == nil {
		return err
	}
	p.want = p.want.minus(&copied)
	return r.fill(ctx, p)
}

// fill reads a part into the buffer.
func (r *read) fill(ctx context.Context, p part) error {
	missing := r.local(p, p.want)
	if missing.empty() {
		return nil
	}
	_, err := r.fly(ctx, p, missing)
	return err
}

// fly waits in the chunk's flight for missing blocks. With a buffer, all of them
// are in it at the end. Without, each is in a tier, or it took the buffer; it
// returns which blocks it copied.
func (r *read) fly(ctx context.Context, p part, missing blockSet) (copied blockSet, err error) {
	o := r.f.obj
	if err := o.justFailed(p.index); err != nil {
		return copied, err
	}
	fl := o.join(p.index)
	defer o.leave(fl)
	w := o.c.newWaiter(chunk.Request{Access: r.f.access()})
	defer o.c.freeWaiter(o, w)
	w.off, w.n, w.p, w.extend, w.missing = r.off, r.n, r.p, r.extend, missing

	fl.mu.Lock()
	fl.enter(w)
	for {
		here := fl.present(&w.missing, w.req)
		if len(w.ready) > 0 || (w.p != nil && !here.empty()) {
			r.collect(fl, w, p, here)
			continue
		}
		w.missing = w.missing.minus(&here)
		if w.missing.empty() || w.err != nil || ctx.Err() != nil {
			break
		}
		fl.launch(w)
		fl.wait(ctx, w)
	}
	fl.exit(w)
	copied, err = w.copied, w.err
	done := w.missing.empty()
	fl.mu.Unlock()
	switch {
	case err != nil:
		o.remember(p.index, err)
	case !done:
		err = fmt.Errorf("read %s: %w", o.URI(), ctx.Err())
	}
	return copied, err
}

// collect copies what arrived in memory only and, if there was a buffer
// before, what is here. Callers hold fl.mu, which it gives up meanwhile.
func (r *read) collect(fl *flight, w *waiter, p part, here blockSet) {
	arrived := w.ready
	w.ready = nil
	had := w.p != nil
	if had {
		w.missing = w.missing.minus(&here)
	}
	fl.mu.Unlock()

	err := r.buffer()
	var copied, failed blockSet
	for _, a := range arrived {
		if err == nil {
			r.copyPage(a.page, a.block, FromMemory)
			copied.add(a.block - p.first)
		}
		r.f.c.pages.put(a.page)
	}
	if had {
		failed = r.local(p, here)
		here = here.minus(&failed)
		copied.union(&here)
	}

	fl.mu.Lock()
	w.missing.union(&failed)
	w.copied.union(&copied)
	w.p = r.p
	if err != nil && w.err == nil {
		w.err = err
	}
}

// bounds returns which bytes of the object the read wants of a block, and
// whether that is all of it.
func (r *read) bounds(block uint32) (lo, hi int64, whole bool) {
	g := r.f.c.cfg.Geometry
	start := int64(block) * g.BlockBytes
	end := min(start+g.BlockBytes, r.f.obj.Size)
	lo, hi = max(start, r.off), min(end, r.off+int64(r.n))
	return lo, hi, lo == start && hi == end
}

func (r *read) copyPage(pg *page, block uint32, tier Source) {
	start := int64(block) * r.f.c.cfg.Geometry.BlockBytes
	n := copyBlock(r.p, r.off, pg.data, start)
	r.f.obj.served(max(r.off, start), n, tier)
}

// local reads those blocks of set that memory or the tier has, and returns the others.
//
// Whole blocks come straight from the tier, which checks them. Of a block that
// is read in part, a checked copy is kept in memory: the next steps of a reader
// (10 KiB each, say) are then copies of 10 KiB and not checks of 256.
func (r *read) local(p part, set blockSet) (missing blockSet) {
	o := r.f.obj
	for i, ok := set.next(0); ok; i, ok = set.next(i + 1) {
		block := p.first + i
		if pg := o.c.pages.get(pageKey{o.id, block}); pg != nil {
			r.copyPage(pg, block, FromMemory)
			o.c.pages.put(pg)
			continue
		}
		if !o.onDisk(block) {
			missing.add(i)
			continue
		}
		if lo, hi, whole := r.bounds(block); !whole {
			if !r.step(block, lo, hi) {
				missing.add(i)
			}
			continue
		}
		end := r.diskRun(p, set, i)
		if !r.fromDisk(p.first+i, end-i) {
			for j := i; j < end; j++ { // all but what is damaged
				if end-i == 1 || !r.fromDisk(p.first+j, 1) {
					missing.add(j)
				}
			}
		}
		i = end - 1
	}
	return missing
}

// diskRun returns the end of the run of whole blocks from i on that come from the tier.
func (r *read) diskRun(p part, set blockSet, i uint32) uint32 {
	o := r.f.obj
	for i++; set.has(i); i++ {
		_, _, whole := r.bounds(p.first + i)
		if !whole || !o.onDisk(p.first+i) || o.c.pages.has(pageKey{o.id, p.first + i}) {
			break
		}
	}
	return i
}

// fromDisk reads the read's part of count blocks from the tier. False means
// that at least one of them has to be fetched.
func (r *read) fromDisk(block, count uint32) bool {
	o := r.f.obj
	lo, _, _ := r.bounds(block)
	_, hi, _ := r.bounds(block + count - 1)
	if !o.readTier(r.p[lo-r.off:hi-r.off], lo, block, count) {
		return false
	}
	for b := block; b < block+count; b++ {
		lo, hi, _ := r.bounds(b)
		o.served(lo, int(hi-lo), FromDisk)
	}
	return true
}

// step reads a part of a block by way of a copy of all of it in memory, or
// directly when memory is short.
func (r *read) step(block uint32, lo, hi int64) bool {
	o := r.f.obj
	buf := o.c.pages.buffer()
	if buf == nil {
		return r.fromDisk(block, 1)
	}
	g := o.c.cfg.Geometry
	n, start := g.BlockLen(o.Size, block), int64(block)*g.BlockBytes
	if !o.readTier(buf[:n], start, block, 1) {
		o.c.pages.discard(buf)
		return false
	}
	crc := uint32(0)
	if p, ok := o.tier.Lend(block); ok { // it knows, and was just read against it
		crc = p.CRC
		o.tier.Return(block)
	} else {
		crc = chunk.Checksum(buf[:n])
	}
	pg := o.c.pages.insert(pageKey{o.id, block}, buf, n, crc)
	r.copyPage(pg, block, FromDisk)
	o.c.pages.put(pg)
	return true
}

// readTier reads bytes of count blocks and counts what goes wrong. It logs
// damage; the tier is asked no more for a block that it has and cannot read.
func (o *object) readTier(p []byte, off int64, block, count uint32) bool {
	if count == 1 && !o.onDisk(block) {
		return false
	}
	_, err := o.tier.ReadAt(p, off)
	switch {
	case err == nil:
		return true
	case errors.Is(err, chunk.ErrCorrupt):
		o.c.stats.CorruptBlocks.Add(1)
		o.c.cfg.Logger.Warn("damaged block is fetched again", "op", "read", "object", o.URI(), "block", block, "error", err)
	case count == 1 && o.tier.Has(block):
		o.c.stats.DiskErrors.Add(1)
		o.setUnreadable(block)
		o.c.cfg.Logger.Warn("disk tier cannot read a block", "op", "read", "object", o.URI(), "block", block, "error", err)
	}
	return false
}
