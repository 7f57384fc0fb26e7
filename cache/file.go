package cache

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync/atomic"

	"github.com/shardwell/shardwell/internal/chunk"
)

// File is an open object version. Its methods are safe for concurrent use; none
// but Close may be under way or begin once Close is called.
type File struct {
	c      *Cache
	obj    *object
	who    func() chunk.Identity // on whose behalf it fetches; nil: the node's own
	closed atomic.Bool
	given  atomic.Bool // the kernel may read it by itself

	// Where the last read ended, and how many bytes were read in a row up to
	// there. Races between readers cost a guess, no more.
	next, streak atomic.Int64

	bound int64 // where the bytes end that will be read; 0: at the end of the object
}

// Object returns the version that the file reads.
func (f *File) Object() chunk.Object { return f.obj.Object }

// access returns on whose behalf the file fetches.
func (f *File) access() chunk.Access {
	if f.who == nil {
		return chunk.Access{}
	}
	return chunk.Access{Identity: f.who()}
}

// ReadAt fills p with the bytes from off on, or returns an error; it reads less
// than len(p) only at the end of the object, with [io.EOF]. When ctx ends, the
// reader was interrupted: ReadAt returns at once and what it caused to be fetched
// goes on for others, or ends if there are none. The error has a class of
// objstore or is what happened last before the read budget ended.
func (f *File) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	return f.read(ctx, read{off: off, n: len(p), p: p})
}

// ReadLate is ReadAt for n bytes into the buffer that take returns (of at least n
// bytes). It waits for the bytes before it takes the buffer, unless there is no
// other place for them. It calls take at most once, from the calling goroutine;
// an error of take ends the read.
func (f *File) ReadLate(ctx context.Context, off int64, n int, take func() ([]byte, error)) (int, error) {
	return f.read(ctx, read{off: off, n: n, take: take})
}

func (f *File) read(ctx context.Context, r read) (int, error) {
	if r.off < 0 || r.n < 0 {
		return 0, fmt.Errorf("read %s: offset %d, length %d: must not be negative", f.obj.URI(), r.off, r.n)
	}
	if r.off >= f.obj.Size {
		return 0, io.EOF
	}
	var end error
	if left := f.obj.Size - r.off; int64(r.n) > left {
		r.n, end = int(left), io.EOF
	}
	if r.n == 0 {
		return 0, end
	}
	if f.c.ahead.short.Load() {
		f.c.ahead.pump() // what this reader was given last may have made room
	}
	r.f, r.extend = f, f.within(f.guess(r.off, r.n), r.off, r.n)
	if r.p != nil {
		r.p = r.p[:r.n]
	}
	if g := f.c.cfg.Geometry; r.off/g.ChunkBytes != (r.off+int64(r.n)-1)/g.ChunkBytes {
		next := (r.off/g.ChunkBytes + 1) * g.ChunkBytes
		f.now(next, r.off+int64(r.n)-next) // not one chunk after the other
	}
	if err := r.all(ctx); err != nil {
		return 0, err
	}
	return r.n, end
}

// guess returns how many blocks a fetch may go beyond a read: as many as were read
// in a row before it. So a random read fetches its own blocks only, and a
// sequential one its head first and then growing ranges, up to whole chunks.
func (f *File) guess(off int64, n int) uint32 {
	before := int64(0)
	if d := off - f.next.Load(); d > -maxReorder && d < maxReorder {
		before = f.streak.Load()
	}
	f.next.Store(off + int64(n))
	f.streak.Store(before + int64(n))
	return uint32(min(before, f.c.cfg.Geometry.ChunkBytes) / f.c.cfg.Geometry.BlockBytes)
}

// maxReorder is how far from the expected offset a read, in bytes, still continues
// the row: the kernel's readahead requests overtake each other.
const maxReorder = 1 << 20

// Holds reports whether the disk tier of this node, or its memory where it has no disks, has all blocks of a span.
func (f *File) Holds(s chunk.Span) bool {
	for b := s.First; b != s.End(); b++ {
		if !f.obj.onDisk(b) && (f.c.cfg.Disk != nil || !f.c.pages.has(pageKey{f.obj.id, b})) {
			return false
		}
	}
	return true
}

// Backing returns a file that holds all the bytes and may be read by the kernel
// without us, when the disk tier has one. It stays open until Close.
func (f *File) Backing() (*os.File, bool) {
	if f.obj.tier == nil {
		return nil, false
	}
	file, ok := f.obj.tier.Backing()
	if ok {
		f.given.Store(true)
	}
	return file, ok
}

// consumed reports whether the reader has had all of it in a row, as far as is known: what the kernel reads
// by itself is not seen. Small files are indexes and the like, which are read again.
func (f *File) consumed() bool {
	size := f.obj.Size
	return size >= f.c.cfg.Geometry.ChunkBytes && (f.given.Load() || f.next.Load() == size && f.streak.Load() >= size-size/8)
}

// CachedBytes tells how many bytes of the object the disk tier of this node holds.
func (f *File) CachedBytes() int64 {
	if f.obj.tier == nil {
		return 0
	}
	return f.obj.tier.CachedBytes()
}

// Close gives the file back. What is fetched ahead for it, and nobody waits for, ends with the
// object's last file. A second Close does nothing.
func (f *File) Close() {
	if !f.closed.Swap(true) {
		f.c.ahead.forget(f)
		f.obj.spent.Store(f.consumed())
		if f.obj.files.Add(-1) == 0 {
			f.obj.abandon()
		}
		f.obj.traffic.open.Add(-1)
		f.obj.release()
	}
}
