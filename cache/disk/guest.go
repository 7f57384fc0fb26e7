package disk

import (
	"io/fs"
	"math/bits"
)

// Guests are blocks that this node owns and for which it has no room as an owner: it is full of what
// may not go. They pass through the transit area like copies of what others own, count as such and
// go as such. Without them an owner would ask its origin again for each of those who come to it for
// one chunk. Where there is room by the next use of the object, they are guests no more.
type guests struct {
	set   []uint64 // by block; nil: none
	count uint32
}

func (g *guests) has(block uint32) bool {
	return g.set != nil && g.set[block/64]&(1<<(block%64)) != 0
}

// add is for a block that is none, of an object of so many blocks.
func (g *guests) add(block, blocks uint32) {
	if g.set == nil {
		g.set = make([]uint64, (blocks+63)/64)
	}
	g.set[block/64] |= 1 << (block % 64)
	g.count++
}

// remove reports whether a block was one.
func (g *guests) remove(block uint32) bool {
	if !g.has(block) {
		return false
	}
	g.set[block/64] &^= 1 << (block % 64)
	g.count--
	return true
}

// list returns the blocks.
func (g *guests) list() (blocks []uint32) {
	for i, word := range g.set {
		for ; word != 0; word &= word - 1 {
			blocks = append(blocks, uint32(i*64+bits.TrailingZeros64(word)))
		}
	}
	return blocks
}

// recallGuests makes guests of what is owned of an object in which all blocks passed through when it was
// closed. Callers have the body alone.
func (f *File) recallGuests(b *body, mode fs.FileMode) {
	if mode != modeGuest {
		return
	}
	for block := range b.blocks {
		if b.has(block) && f.owns(block) {
			b.guests.add(block, b.blocks)
		}
	}
}

// adopt makes the guests of an object what they are, if there is room by now. Callers hold b.mu.
func (f *File) adopt(b *body) {
	if b.guests.count == 0 {
		return
	}
	n := int64(b.guests.count) * f.d.cfg.Geometry.BlockBytes
	if !f.d.ledger.hasRoomForOwned(n) {
		return
	}
	if p := f.d.cfg.Policy; p != nil && !p.Admits(f.obj, f.id, n) {
		return
	}
	b.guests = guests{}
}

// dismissGuests takes guests away from beside what is kept, when an object is closed: a sidecar tells of
// guests only when there is nothing else. What was complete once is not punched; there they stay as owned.
func (f *File) dismissGuests(b *body) {
	b.mu.Lock()
	n, whole := b.guests.count, b.whole || b.complete
	beside := n > 0 && b.copies < b.present.Load()
	list := b.guests.list()
	if beside && whole {
		b.guests, b.copies = guests{}, b.copies-n
	}
	b.mu.Unlock()
	if beside && !whole {
		f.punch(b, list)
	}
}
