package disk

import (
	"fmt"
	"io/fs"
	"math/bits"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shardwell/shardwell/internal/chunk"
)

// stripeCount is how many blocks of one object can be written or dropped at once.
const stripeCount = 8

// File is one object on the disk, shared by all who acquired it. All methods
// are safe for concurrent use. It stays readable, whatever eviction does, until
// it is released.
type File struct {
	d  *Dir
	id chunk.ObjectID

	// Under Dir.mu.
	refs       int
	prev, next *File // in Dir.idle while refs is 0

	lastUse atomic.Int64 // nanoseconds since 1970
	spent   atomic.Bool  // lastUse says so, whatever the time on the disk

	mu     sync.Mutex
	loaded bool        // the disk was looked at
	known  bool        // obj is set, for good
	owned  atomic.Bool // what Acquire said; counts when there is no [Policy]

	transit transit // copies that pass through

	obj  chunk.Object         // set before anybody but load sees the File
	body atomic.Pointer[body] // nil: nothing on the disk

	stripes [stripeCount]sync.Mutex // by block: one writer or dropper of a block at a time
	doomed  atomic.Bool             // unlinked while in use: its space goes free with the last Release
	given   atomic.Bool             // the kernel may read it by itself
}

// body is what is open of an object on the disk.
type body struct {
	data, meta FSFile
	inode      uint64 // of data
	l          layout
	blocks     uint32 // of the object
	bits       []atomic.Uint64
	present    atomic.Uint32 // how many bits are set

	// verified has the blocks that were written or checked in this boot; nil when the
	// stamp vouches for all. unverified counts the present blocks without it.
	verified   []atomic.Uint64
	unverified atomic.Int64

	mu       sync.Mutex // over changes of bits, stamp and what follows
	complete bool       // the stamp on the disk says so
	whole    bool       // it was complete once: it may be mapped somewhere, and is never punched
	copies   uint32     // present blocks that this node does not own, and guests
	guests   guests     // present blocks that it owns and that pass through
	use      use        // as the ledger has it
	unlinked bool       // by doom
	mode     fs.FileMode
}

func (b *body) has(block uint32) bool {
	return b != nil && block < b.blocks && b.bits[block/64].Load()&(1<<(block%64)) != 0
}

func (b *body) isVerified(block uint32) bool {
	return b.verified == nil || b.verified[block/64].Load()&(1<<(block%64)) != 0
}

func (b *body) close() {
	b.data.Close()
	b.meta.Close()
}

// Object returns the object's identity.
func (f *File) Object() chunk.Object { return f.obj }

// ID returns the object's id.
func (f *File) ID() chunk.ObjectID { return f.id }

// Blocks returns how many blocks the object has.
func (f *File) Blocks() uint32 { return f.d.cfg.Geometry.Blocks(f.obj.Size) }

// Has reports whether a block is on the disk.
func (f *File) Has(block uint32) bool { return f.body.Load().has(block) }

// Missing appends to dst the runs of blocks of s that are not on the disk.
func (f *File) Missing(dst []chunk.Span, s chunk.Span) []chunk.Span {
	b := f.body.Load()
	var run chunk.Span
	for block := s.First; block != s.End(); block++ {
		switch {
		case b.has(block):
			if run.Count > 0 {
				dst = append(dst, run)
			}
			run = chunk.Span{}
		case run.Count == 0:
			run = chunk.Span{First: block, Count: 1}
		default:
			run.Count++
		}
	}
	if run.Count > 0 {
		dst = append(dst, run)
	}
	return dst
}

// HasAll reports whether every block of s is on the disk.
func (f *File) HasAll(s chunk.Span) bool {
	b := f.body.Load()
	for block := s.First; block != s.End(); block++ {
		if !b.has(block) {
			return false
		}
	}
	return true
}

// PresentBlocks returns how many blocks are on the disk.
func (f *File) PresentBlocks() uint32 {
	if b := f.body.Load(); b != nil {
		return b.present.Load()
	}
	return 0
}

// CachedBytes returns how many of the object's bytes are on the disk.
func (f *File) CachedBytes() int64 {
	b := f.body.Load()
	if b == nil {
		return 0
	}
	bytes := int64(b.present.Load()) * f.d.cfg.Geometry.BlockBytes
	if last := b.blocks - 1; b.has(last) {
		bytes += int64(f.d.cfg.Geometry.BlockLen(f.obj.Size, last)) - f.d.cfg.Geometry.BlockBytes
	}
	return max(0, bytes)
}

// Complete reports whether every block is on the disk.
func (f *File) Complete() bool { return f.PresentBlocks() == f.Blocks() }

// Trusted reports whether every present block was written or checked in this
// boot of the kernel. It says nothing about absent blocks.
func (f *File) Trusted() bool {
	b := f.body.Load()
	return b != nil && b.unverified.Load() == 0
}

// Backing returns the data file for the kernel to read by itself, when the object is
// complete and trusted and the disk is well: what the kernel reads by itself cannot be
// had from elsewhere when the disk fails. It is the File's own: valid until Release, and not to
// be closed. While the File is held its bytes are neither punched nor
// truncated; it can only be unlinked whole.
func (f *File) Backing() (*os.File, bool) {
	b := f.body.Load()
	if b == nil || f.d.cfg.Verify == VerifyAlways || f.doomed.Load() || f.d.health.State() != Normal ||
		b.present.Load() != b.blocks || b.unverified.Load() != 0 {
		return nil, false
	}
	// The kernel would read a file that somebody cut or grew up to its wrong end.
	if st, err := b.data.Stat(); err != nil || st.Size != f.obj.Size {
		f.d.stats.Lost[LossTruncated].Add(1)
		f.doom(b, fmt.Errorf("data has %d bytes, want %d (%v)", st.Size, f.obj.Size, err))
		return nil, false
	}
	if !f.checkup(b) {
		return nil, false
	}
	file := b.data.OS()
	f.given.Store(file != nil)
	return file, file != nil
}

// Release gives up the reference. The File, and what was lent from it, must not
// be used by the caller afterwards.
func (f *File) Release() { f.release(time.Now().UnixNano()) }

// spentAgo is how far back a use counts that was the last for an epoch: before all others, and in
// the order of the others among themselves.
const spentAgo = 20 * 365 * 24 * time.Hour

// ReleaseSpent is Release after a reader has read all of it, once, as an epoch does. If all that is here are
// copies of what other nodes own, they go before copies that somebody is still to read.
func (f *File) ReleaseSpent() {
	if b := f.body.Load(); b == nil || !b.onlyCopies() {
		f.Release()
		return
	}
	f.spent.Store(true)
	f.lastUse.Store(time.Now().Add(-spentAgo).UnixNano())
	f.release(f.lastUse.Load())
}

func (b *body) onlyCopies() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.copies > 0 && b.copies == b.present.Load()
}

// release is Release for a use at a time; of several the last one counts.
func (f *File) release(used int64) {
	if used > f.lastUse.Load() {
		f.lastUse.Store(used)
		f.spent.Store(false)
	}
	d := f.d
	d.mu.Lock()
	f.refs--
	switch {
	case f.refs < 0:
		d.mu.Unlock()
		panic("disk: File released twice")
	case f.refs > 0:
		d.mu.Unlock()
		return
	case f.body.Load() != nil && !d.closed && !f.doomed.Load():
		d.idle.add(f)
		_, drop := d.drops[f.id]
		d.mu.Unlock()
		if drop {
			d.wake()
		}
		return
	}
	if d.open[f.id] == f {
		delete(d.open, f.id)
	}
	d.mu.Unlock()
	f.closeFiles()
}

// closeFiles closes a File that nobody refers to and that is out of Dir.open.
func (f *File) closeFiles() {
	f.mu.Lock()
	defer f.mu.Unlock()
	b := f.body.Swap(nil)
	if b == nil {
		return
	}
	if f.doomed.Load() {
		b.close()
		if b.unlinked {
			f.d.ledger.orphan(-b.use.used)
		}
		return
	}
	f.dismissGuests(b)
	f.d.settle(f, b)
	// The time is where the next process, and a later walk, find the last use.
	if err := b.meta.SetTimes(time.Unix(0, f.lastUse.Load())); err != nil {
		f.d.log.Debug("note last use", "object", f.id, "err", err)
	}
	b.close()
}

// fileList is a list of idle files, least recently used first.
type fileList struct {
	head, tail *File
	n          int
}

func (l *fileList) add(f *File) {
	l.n++
	f.prev, f.next = l.tail, nil
	if l.tail != nil {
		l.tail.next = f
	} else {
		l.head = f
	}
	l.tail = f
}

func (l *fileList) remove(f *File) {
	l.n--
	if f.prev != nil {
		f.prev.next = f.next
	} else {
		l.head = f.next
	}
	if f.next != nil {
		f.next.prev = f.prev
	} else {
		l.tail = f.prev
	}
	f.prev, f.next = nil, nil
}

// countBits returns how many bits are set.
func countBits(words []atomic.Uint64) (n uint32) {
	for i := range words {
		n += uint32(bits.OnesCount64(words[i].Load()))
	}
	return n
}
