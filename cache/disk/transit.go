package disk

import (
	"encoding/binary"
	"io/fs"
	"math/bits"
	"slices"
	"sync"

	"github.com/shardwell/shardwell/cache/evict"
	"github.com/shardwell/shardwell/internal/chunk"
)

// Policy knows what this node owns and what that is worth. Methods are safe for
// concurrent use, fast, and do no I/O; answers may change at any time.
type Policy interface {
	// Owns reports whether this node owns the chunk in which a block lies.
	Owns(obj chunk.Object, id chunk.ObjectID, block uint32) bool
	// Judge returns what the owned part of an object is worth, as in [evict.Table.Judge].
	Judge(obj chunk.Object, id chunk.ObjectID) (class evict.Class, rank int64)
	// Admits reports whether n more bytes of an object that this node owns may be stored,
	// and counts them if so.
	Admits(obj chunk.Object, id chunk.ObjectID, n int64) bool
	// Rotates returns the dataset whose quota keeps an object out and that is to give up what of it
	// was used least recently; ok is false when there is none.
	Rotates(obj chunk.Object) (ds evict.Dataset, ok bool)
	// Freed says that n bytes of such a dataset are there no more.
	Freed(ds evict.Dataset, n int64)
}

// owns reports whether this node owns a block.
func (f *File) owns(block uint32) bool {
	if p := f.d.cfg.Policy; p != nil {
		return p.Owns(f.obj, f.id, block)
	}
	return f.owned.Load()
}

// worth returns the class of a block, and whether it is a copy of what another node owns.
func (f *File) worth(block uint32) (class evict.Class, copied bool) {
	class = evict.Idle
	if p := f.d.cfg.Policy; p != nil {
		class, _ = p.Judge(f.obj, f.id)
	}
	if class > evict.Stale && !f.owns(block) {
		return evict.Copy, true
	}
	return class, class == evict.Stale
}

// copiesIn counts the present blocks of a body that are copies or guests.
func (d *Dir) copiesIn(b *body, owns func(block uint32) bool) (n uint32) {
	perChunk := d.cfg.Geometry.BlocksPerChunk()
	for first := uint32(0); first < b.blocks; first += perChunk {
		here, through := uint32(0), uint32(0)
		for block := first; block < min(first+perChunk, b.blocks); block++ {
			if b.has(block) {
				here++
				if b.guests.has(block) {
					through++
				}
			}
		}
		if here > 0 && !owns(first) {
			through = here
		}
		n += through
	}
	return n
}

// recount brings up to date what of an open object are copies.
func (f *File) recount(b *body) {
	b.mu.Lock()
	f.adopt(b)
	n := f.d.copiesIn(b, f.owns)
	same := n == b.copies
	b.copies = n
	b.mu.Unlock()
	if !same || b.mode != b.modeOf(f.owned.Load()) {
		f.d.settle(f, b)
	}
}

// useOf divides what the files of a body take. Callers hold mu, or nobody else has it.
func (b *body) useOf(used, blockBytes int64) use {
	switch present := b.present.Load(); {
	case b.copies == 0:
		return use{used, 0}
	case b.copies >= present:
		return use{used, used}
	}
	return use{used, min(used, int64(b.copies)*blockBytes)}
}

// modeOf is the mode that tells the same to a walk.
func (b *body) modeOf(owned bool) fs.FileMode {
	switch present := b.present.Load(); {
	case present == 0:
		return modeOf(owned)
	case b.copies == 0:
		return modeOwned
	case b.copies >= present && b.guests.count > 0:
		return modeGuest
	case b.copies >= present:
		return modeCopy
	}
	return modeMixed
}

// useFromDisk is useOf for files that nobody has open.
func (d *Dir) useFromDisk(id chunk.ObjectID, meta, data FileStat) (use, error) {
	used := meta.Used + data.Used
	switch meta.Mode {
	case modeCopy, modeGuest:
		return use{used, used}, nil
	case modeMixed:
		obj, b, err := d.peek(id)
		if err != nil {
			return use{used, 0}, err
		}
		b.copies = d.copiesIn(b, func(block uint32) bool {
			return d.cfg.Policy == nil || d.cfg.Policy.Owns(obj, id, block)
		})
		return b.useOf(used, d.cfg.Geometry.BlockBytes), nil
	}
	return use{used, 0}, nil
}

// transit is how the copies in one object come and go one by one.
type transit struct {
	mu    sync.Mutex
	lent  map[uint32]int      // by block: pieces that the kernel is sending, or is about to
	going map[uint32]struct{} // blocks that are being taken away
	fifo  []uint32            // copies since the object was opened, in the order of their arrival

	sliding sync.Mutex // who makes room; before the others
}

// maxWindowBlocks bounds transit.fifo: 1 TiB in blocks of the usual size, 16 MiB of memory.
// Copies that came before are left to eviction.
const maxWindowBlocks = 4 << 20

// lend keeps a block until giveBack, unless it is being taken away.
func (t *transit) lend(block uint32) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, goes := t.going[block]; goes {
		return false
	}
	if t.lent == nil {
		t.lent = make(map[uint32]int)
	}
	t.lent[block]++
	return true
}

// take begins to take a block away, until took, unless it is lent.
func (t *transit) take(block uint32) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.lent[block] > 0 {
		return false
	}
	if t.going == nil {
		t.going = make(map[uint32]struct{})
	}
	t.going[block] = struct{}{}
	return true
}

func (t *transit) took(block uint32) {
	t.mu.Lock()
	delete(t.going, block)
	t.mu.Unlock()
}

func (t *transit) giveBack(block uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.lent[block]--; t.lent[block] <= 0 {
		delete(t.lent, block)
	}
}

func (t *transit) arrived(block uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.fifo) >= maxWindowBlocks {
		t.fifo = slices.Delete(t.fifo, 0, maxWindowBlocks/2)
	}
	t.fifo = append(t.fifo, block)
}

// Shares of a window that slides.
const (
	windowShare   = 8  // an object slides once its copies take one part in this many of the transit area,
	slideShare    = 32 // and gives up one part in this many of its own: the longer a block stays, the more get it
	minSlideCount = 4  // but so many blocks at least
	slideTries    = 4  // for one block: what goes free others may take
)

// putSliding is put for a block for which there was no room: of an object whose own copies fill the transit area
// the oldest go for it. Who comes meanwhile waits, for a block that an owner does not keep it asks its origin for again.
func (f *File) putSliding(block chunk.Block, class evict.Class, copied bool) (err error) {
	f.transit.sliding.Lock()
	defer f.transit.sliding.Unlock()
	for range slideTries {
		if err = f.put(block, class, copied); err != plainRejects[RejectBudget] || !f.slide() {
			return err
		}
	}
	return f.put(block, class, copied)
}

// slide makes room for the next block of an object whose own copies fill the transit area:
// the oldest go, but those that are being sent. So an object that is larger than the
// area streams through it, and each block stays for others as long as there is room. It
// reports whether something went. A file that the kernel was ever given is left alone. Callers hold transit.sliding.
func (f *File) slide() bool {
	d, b := f.d, f.body.Load()
	if b == nil {
		return false
	}
	d.ledger.mu.Lock()
	share := d.ledger.transit() / windowShare
	d.ledger.mu.Unlock()
	b.mu.Lock()
	large := b.use.copies >= share && !b.whole && !b.complete
	b.mu.Unlock()
	if !large || f.doomed.Load() {
		return false
	}
	f.transit.mu.Lock()
	n := min(len(f.transit.fifo), max(minSlideCount, len(f.transit.fifo)/slideShare))
	oldest := slices.Clone(f.transit.fifo[:n])
	f.transit.fifo = slices.Delete(f.transit.fifo, 0, n)
	f.transit.mu.Unlock()
	went := f.punch(b, oldest)
	if held := slices.DeleteFunc(oldest, func(block uint32) bool { return !b.has(block) }); len(held) > 0 {
		f.transit.mu.Lock()
		f.transit.fifo = append(f.transit.fifo, held...) // they were being sent: not yet
		f.transit.mu.Unlock()
	}
	return went > 0
}

// punch takes away blocks and gives their space back: first the bit, then the
// checksum, then the bytes. A read that is under way finds that the checksum does not
// fit, looks again and finds the block absent. It returns how many went; those that
// are being sent stay.
func (f *File) punch(b *body, blocks []uint32) (n int) {
	for _, block := range blocks {
		if f.punchOne(b, block) {
			n++
		}
	}
	f.d.settle(f, b)
	f.d.stats.PunchedBlocks.Add(int64(n))
	return n
}

func (f *File) punchOne(b *body, block uint32) bool {
	g := f.d.cfg.Geometry
	stripe := &f.stripes[block%stripeCount]
	stripe.Lock()
	defer stripe.Unlock()
	if !b.has(block) || !f.transit.take(block) { // nobody lends it from now on
		return false
	}
	defer f.transit.took(block)
	if err := f.clear(b, block); err != nil {
		f.doom(b, err)
		return true
	}
	off, length := int64(block)*g.BlockBytes, int64(g.BlockLen(f.obj.Size, block))
	if err := b.data.Punch(off, length); err != nil {
		f.d.log.Debug("punch hole", "object", f.id, "block", block, "err", err)
	}
	return true
}

// evictCopies takes the copies out of an object of which this node owns a part. The caller
// has claimed it. What was given to the kernel once may be mapped still: then the owned
// blocks move to a file of their own, and the old one is unlinked whole.
func (f *File) evictCopies() error {
	if err := f.d.retryWithFewer(f.readFiles); err != nil {
		return err
	}
	f.loaded = true
	b := f.body.Load()
	if b == nil {
		return nil
	}
	var copies, owned []uint32
	for i := range b.bits {
		for left := b.bits[i].Load(); left != 0; left &= left - 1 {
			block := uint32(i*64 + bits.TrailingZeros64(left))
			if f.owns(block) {
				owned = append(owned, block)
			} else {
				copies = append(copies, block)
			}
		}
	}
	if !b.whole && !b.complete {
		f.punch(b, copies)
		return nil
	}
	return f.rewrite(b, owned)
}

// rewrite moves blocks of a claimed object to new files and unlinks the old ones. A kill in
// between costs the blocks that were not moved yet.
func (f *File) rewrite(old *body, blocks []uint32) error {
	g := f.d.cfg.Geometry
	buf := make([]byte, g.BlockBytes)
	if err := f.d.removeFiles(f.id, false); err != nil {
		return err
	}
	f.body.Store(nil)
	defer old.close()
	var sum [4]byte
	for _, block := range blocks {
		p := buf[:g.BlockLen(f.obj.Size, block)]
		if _, err := old.data.ReadAt(p, int64(block)*g.BlockBytes); err != nil {
			continue
		}
		if _, err := old.meta.ReadAt(sum[:], old.l.sums+4*int64(block)); err != nil {
			continue
		}
		crc := binary.LittleEndian.Uint32(sum[:])
		if chunk.Checksum(p) != crc {
			continue // what is damaged is not moved
		}
		b, err := f.create()
		if err != nil {
			return err
		}
		if _, err := b.data.WriteAt(p, int64(block)*g.BlockBytes); err != nil {
			return err
		}
		if err := f.publish(b, block, crc, false); err != nil {
			return err
		}
	}
	if b := f.body.Load(); b != nil {
		f.d.settle(f, b)
	}
	return nil
}
