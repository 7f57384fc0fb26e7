package cache

import (
	"sync"
	"sync/atomic"
)

// unread says of the blocks of an open object which of them came from afar and
// were not read here yet, and from where: to the reader that is their source,
// though prefetch saw to it that they lie in a tier when the reader comes.
//
// A block that lands is good for as many bytes of its source as it has, so that no more
// bytes are counted as from the origin than came from there, however they are
// read. Its end being read ends that, also for a reader who began in the middle: so a block
// read in order, in whatever steps, counts as its source wholly, and once.
// What is read at random counts as its source up to the block's last byte.
//
// It takes 4 bytes a block, in parts that are made when a block of them lands and
// dropped when all such were read and another is made, and 8 bytes a part: for 1 TB
// in blocks of 256 KiB that is 32 KiB and what is fetched ahead, 16 MiB at most. It
// goes away with the object's last release: what was fetched and not read by then counts
// as from its tier when it is opened again.
//
// Readers take from it without a lock. The zero value is ready for use.
type unread struct {
	parts atomic.Pointer[[]atomic.Pointer[unreadPart]]
	mu    sync.Mutex // held by whoever adds a mark; no lock is taken under it
}

// unreadPart holds the marks of partBlocks blocks: 256 MiB in blocks of the usual size.
type unreadPart struct {
	blocks atomic.Int32    // with a mark, or a moment ago
	marks  []atomic.Uint32 // source+1 above markShift, below it the bytes left; 0: none
}

const (
	partBlocks = 1024
	markShift  = 24 // the longest block, chunk.MaxBlockBytes, takes 21 bits
)

// add marks a block of n bytes of an object of so many blocks.
func (u *unread) add(block, blocks uint32, n int, from Source) {
	u.mu.Lock()
	defer u.mu.Unlock()
	parts := u.parts.Load()
	if parts == nil {
		made := make([]atomic.Pointer[unreadPart], (blocks+partBlocks-1)/partBlocks)
		parts = &made
		u.parts.Store(parts)
	}
	p := (*parts)[block/partBlocks].Load()
	if p == nil {
		for i := range *parts {
			if spent := (*parts)[i].Load(); spent != nil && spent.blocks.Load() == 0 {
				(*parts)[i].Store(nil)
			}
		}
		p = &unreadPart{marks: make([]atomic.Uint32, min(partBlocks, blocks))}
		(*parts)[block/partBlocks].Store(p)
	}
	p.blocks.Add(1)
	if p.marks[block%partBlocks].Swap(uint32(from+1)<<markShift|uint32(n)) != 0 {
		p.blocks.Add(-1)
	}
}

// take tells whence n bytes of a block come to their reader: from tier, where they
// lie, if they are not the first. Last says that the block's last byte is one of them.
func (u *unread) take(block uint32, n int, last bool, tier Source) Source {
	parts := u.parts.Load()
	if parts == nil {
		return tier
	}
	p := (*parts)[block/partBlocks].Load()
	if p == nil {
		return tier
	}
	for mark := &p.marks[block%partBlocks]; ; {
		old := mark.Load()
		if old == 0 {
			return tier
		}
		from, left := Source(old>>markShift)-1, int(old&(1<<markShift-1))
		if n > left {
			from = tier // a part of it was read more than once
		} else {
			left -= n
		}
		next := old&^(1<<markShift-1) | uint32(left)
		if last || left == 0 {
			next = 0
		}
		if mark.CompareAndSwap(old, next) {
			if next == 0 {
				p.blocks.Add(-1)
			}
			return from
		}
	}
}
