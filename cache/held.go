package cache

import "github.com/shardwell/shardwell/internal/chunk"

// ReadHeld fills p from off with bytes that this node holds, and reports whether it could: it
// fetches nothing, and what it reads counts as read by nobody.
func (f *File) ReadHeld(p []byte, off int64) bool {
	o, g := f.obj, f.c.cfg.Geometry
	span := g.SpanOf(o.Size, off, int64(len(p)))
	if span.Count == 0 || off+int64(len(p)) > o.Size {
		return len(p) == 0
	}
	for b := span.First; b < span.End(); b++ {
		start := int64(b) * g.BlockBytes
		lo := max(off, start)
		hi := min(off+int64(len(p)), start+int64(g.BlockLen(o.Size, b)))
		if pg := f.c.pages.get(pageKey{o.id, b}); pg != nil {
			copyBlock(p, off, pg.data, start)
			f.c.pages.put(pg)
			continue
		}
		if !o.onDisk(b) || !o.readTier(p[lo-off:hi-off], lo, b, 1) {
			return false
		}
	}
	return true
}

// Bound says that nothing but the bytes [off, off+n) will be read of the file, so that no
// fetch goes beyond the blocks that hold them. It is called before the first read.
func (f *File) Bound(off, n int64) { f.bound = min(f.obj.Size, off+n) }

// within cuts what a fetch may go beyond a read to what the file is bound to, in blocks.
func (f *File) within(extend uint32, off int64, n int) uint32 {
	if f.bound <= 0 {
		return extend
	}
	span := f.c.cfg.Geometry.SpanOf(f.bound, off, f.bound-off)
	read := f.c.cfg.Geometry.SpanOf(f.bound, off, int64(n))
	return min(extend, span.Count-read.Count)
}

// arrived tells whoever wants to know of a block that has come to this node.
func (o *object) arrived(b chunk.Block) {
	if tell := o.c.cfg.Arrived; tell != nil {
		tell(o.Object, o.id, b)
	}
}
