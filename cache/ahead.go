package cache

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shardwell/shardwell/internal/chunk"
)

// ahead fetches what readers will want. Each file says which bytes that is, and they are fetched
// chunk by chunk: as many at once as the window allows, and always for the one who is
// nearest to what it lacks. So files that are read side by side get on alike, however many
// they are and whoever asked first, and what is wanted later comes when nothing else does.
type ahead struct {
	c     *Cache
	short atomic.Bool  // something was not fetched because memory is
	calls atomic.Int64 // under way
	left  atomic.Int64 // blocks that these are yet to bring
	// filling counts the objects that are filled: their readers have no wants, and come first all the same.
	filling atomic.Int64

	mu     sync.Mutex
	wants  []*want // bounded by the open files, maxWants of each
	turn   uint64
	window window
}

// maxWants are kept of one file: readers who share it. Of more the oldest is given up.
const maxWants = 8

// want is a run of bytes that a file's reader comes to.
type want struct {
	f              *File
	pos, next, end int64 // the reader is at pos; up to next everything was asked for
	turn           uint64
	later          bool // its reader has not opened the file yet
}

// Prefetch says that the bytes [off, off+n) will be read soon, by a reader who is at off. It
// returns at once. What it starts yields to readers, and waits until there is room for it;
// the next call for bytes that follow takes its place. It ends when the last file of the
// object is closed.
func (f *File) Prefetch(off, n int64) { f.want(off, n, false) }

// PrefetchLater is Prefetch for a file that nobody reads yet: it is served when there is no
// reader whose file is not here or asked for, and no file is filled, in the order of the calls, and if the disk tier takes it.
func (f *File) PrefetchLater(off, n int64) { f.want(off, n, true) }

func (f *File) want(off, n int64, later bool) {
	off = max(0, off)
	if end := off + min(n, f.obj.Size-off); off < end {
		f.c.ahead.add(f, off, end, later)
		f.c.ahead.pump()
	}
}

// Wanted reports whether something that was asked for ahead was not begun yet.
func (f *File) Wanted() bool {
	a := &f.c.ahead
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.ContainsFunc(a.wants, func(w *want) bool { return w.f == f })
}

func (a *ahead) add(f *File, off, end int64, later bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.turn++
	var oldest *want
	count := 0
	for _, w := range a.wants {
		if w.f != f {
			continue
		}
		if off >= w.pos && off <= w.end {
			w.pos, w.end = off, max(w.end, end)
			w.next, w.later = max(w.next, off), w.later && later
			return
		}
		if count++; oldest == nil || w.turn < oldest.turn {
			oldest = w
		}
	}
	if count >= maxWants {
		*oldest = want{f: f, pos: off, next: off, end: end, turn: a.turn, later: later}
		return
	}
	a.wants = append(a.wants, &want{f: f, pos: off, next: off, end: end, turn: a.turn, later: later})
}

// forget drops what a file wanted.
func (a *ahead) forget(f *File) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.wants = slices.DeleteFunc(a.wants, func(w *want) bool { return w.f == f })
}

// pump starts fetches while there is room for them.
func (a *ahead) pump() {
	for a.c.ctx.Err() == nil {
		f, off, end, later := a.take()
		if f == nil {
			return
		}
		// What the tier does not take would wait in memory, where what is read now has its window.
		began := later && f.obj.streams() || f.fetchAhead(off, end)
		if !began {
			a.putBack(f, off)
		}
		f.obj.release()
		if !began {
			return
		}
	}
}

// take returns the next part of a chunk to fetch, or nil. The file's object is retained.
func (a *ahead) take() (f *File, off, end int64, later bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	g := a.c.cfg.Geometry
	if !a.window.admits(int(a.calls.Load()), a.left.Load()*g.BlockBytes) {
		return nil, 0, 0, false
	}
	var best *want
	at := 0
	for i, w := range a.wants {
		if best == nil || w.before(best, g.ChunkBytes) {
			best, at = w, i
		}
	}
	if best == nil || best.later && a.filling.Load() > 0 {
		return nil, 0, 0, false
	}
	if read := best.f.passed(best.next, best.end); read > best.next {
		best.pos, best.next = read, read
	}
	off, end = best.next, min(best.end, (best.next/g.ChunkBytes+1)*g.ChunkBytes)
	best.next = end
	if !best.later {
		a.turn++
		best.turn = a.turn
	}
	if end == best.end {
		a.wants = slices.Delete(a.wants, at, at+1)
	}
	best.f.obj.retain()
	return best.f, off, end, best.later
}

// before reports whether w is served before v.
func (w *want) before(v *want, chunkBytes int64) bool {
	if w.later != v.later {
		return v.later
	}
	if ahead, other := (w.next-w.pos)/chunkBytes, (v.next-v.pos)/chunkBytes; ahead != other && !w.later {
		return ahead < other
	}
	return w.turn < v.turn
}

// putBack says that what was taken from off on could not be begun. Who is about to
// read it asks again.
func (a *ahead) putBack(f *File, off int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, w := range a.wants {
		if w.f == f && off >= w.pos && off < w.next {
			w.next = off
		}
	}
}

// landed takes note of a chunk, or a part of one, that was fetched ahead.
func (a *ahead) landed(began time.Time, blocks uint32) {
	g := a.c.cfg.Geometry
	if blocks < g.BlocksPerChunk()/2 {
		return // tells little of the rate
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.window.came(began, time.Now(), a.c.arrived.Load()*g.BlockBytes)
}

// fetchAhead starts background calls for what is missing of a part of a chunk. It reports whether it
// did, or had nothing to do.
func (f *File) fetchAhead(off, end int64) bool {
	o, g := f.obj, f.c.cfg.Geometry
	index := uint32(off / g.ChunkBytes)
	span := g.SpanOf(o.Size, off, end-off)
	var want blockSet
	first := index * g.BlocksPerChunk()
	for b := span.First; b < span.End(); b++ {
		if !o.isLocal(b) {
			want.add(b - first)
		}
	}
	if want.empty() {
		return true
	}
	fl := o.join(index)
	defer o.leave(fl)
	fl.mu.Lock()
	defer fl.mu.Unlock()
	if o.files.Load() == 0 {
		return true // closed meanwhile: nobody wants it any more
	}
	for b := span.First; b < uint32(f.passed(off, end)/g.BlockBytes); b++ {
		want.remove(b - first)
	}
	req := chunk.Request{Background: true, Access: f.access()}
	here := fl.present(&want, req)
	want = want.minus(&here)
	want = fl.uncovered(&want, req)
	for first, end, ok := want.run(0); ok; first, end, ok = want.run(end) {
		if !fl.startAhead(first, end, req) {
			return false
		}
	}
	return true
}

// passed returns up to where bytes that are wanted were read meanwhile, if no tier may have kept
// them: then to fetch them would be to fetch them twice, for nobody.
func (f *File) passed(off, end int64) int64 {
	if read := f.next.Load(); read > off && read < end && f.obj.streams() {
		return read
	}
	return off
}

// startAhead starts one background call, or as much of it as memory allows, and reports whether
// that was all. Callers hold mu.
func (fl *flight) startAhead(first, end uint32, req chunk.Request) bool {
	c := fl.obj.c
	if !c.slots.reserve() {
		c.stats.PrefetchDropped.Add(1)
		return false
	}
	if !c.memoryToSpare() {
		c.slots.unreserve()
		c.stats.PrefetchDropped.Add(1)
		c.ahead.short.Store(true)
		return false
	}
	ahead, cut := end, false
	if fl.obj.streams() {
		room := uint32(c.pages.promise(int(end - first)))
		ahead, cut, end = first, room < end-first, first+room
	}
	c.ahead.short.Store(cut)
	if end == first {
		c.slots.unreserve()
	} else {
		fl.start(first, ahead, end, req, time.Now().Add(c.cfg.ReadBudget), true)
	}
	if cut {
		c.stats.PrefetchDropped.Add(1)
	}
	return !cut
}

// memoryToSpare reports whether the arena has buffers beyond what readers may need.
func (c *Cache) memoryToSpare() bool {
	buf := c.cfg.Arena.TryGetBackground()
	if buf == nil {
		return false
	}
	c.cfg.Arena.Put(buf)
	return true
}

// now fetches bytes that a reader is about to wait for, if there is room.
func (f *File) now(off, n int64) {
	g := f.c.cfg.Geometry
	for end := off + n; off < end; {
		next := min(end, (off/g.ChunkBytes+1)*g.ChunkBytes)
		if !f.fetchAhead(off, next) {
			return
		}
		off = next
	}
}

// nearlyDone is the part of a chunk, one in so many, that a fetch may lack and yet go on when its readers have
// gone: to end it would cost the connection and what is on its way, and a reader of a tar closes it at its end
// marker, a little before the end of the file.
const nearlyDone = 8

// abandon ends what was fetched ahead of readers who have all gone, but what a peer waits for or
// is nearly here.
func (o *object) abandon() {
	o.mu.Lock()
	flights := make([]*flight, 0, len(o.flights))
	for _, fl := range o.flights {
		flights = append(flights, fl)
	}
	o.mu.Unlock()
	for _, fl := range flights {
		fl.mu.Lock()
		for _, c := range fl.calls {
			few := c.left.count() <= int(o.c.cfg.Geometry.BlocksPerChunk())/nearlyDone
			if c.detached && !c.dead && !few && o.files.Load() == 0 && !fl.wanted(c) {
				o.c.stats.Abandoned.Add(1)
				c.stop(errAbandoned)
			}
		}
		fl.mu.Unlock()
	}
}
