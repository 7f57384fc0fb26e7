package cache

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/objstore"
)

// fill brings a whole object to this node: a window of chunks at a time, in the
// order of the object, from where the reader is to the end and then what lies before
// it. All nodes that fill an object do so in one order. Since every receiver of a
// chunk passes it on at once, all uplinks work whichever chunks it is that are under way,
// and the origin is read in a narrow window that moves on.
type fill struct {
	o *object
	f *File // who asked for it first: chunks are fetched on its behalf

	mu      sync.Mutex
	next    uint32 // chunk to look at next
	seen    []bool // by chunk: taken by a worker, or found complete
	left    int    // not seen
	workers int
	most    int // workers now: one more with each chunk that came, up to the window
	stopped bool
}

// firstWorkers is how many chunks a fill begins with. The fewer streams share a link, the
// sooner the first blocks reach the last of those who pass them on.
const firstWorkers = 2

// fastChunk is how long a chunk takes at most for the window to be Config.FastFillChunks.
const fastChunk = 500 * time.Millisecond

// fillPause is how long a worker waits after a chunk could not be had.
const fillPause = time.Second

// Fill has all of the object brought into the disk tier, beginning at off: for a
// reader that walks through a large object while others do the same. It returns at
// once, and reports whether that is under way; if not, because nobody else is known to
// receive the object, or the tier does not admit blocks or has had its fill,
// [File.Prefetch] is what is left. It
// yields to readers and ends when the last file of the object is closed.
func (f *File) Fill(off int64) bool {
	o, c := f.obj, f.c
	chunks := c.cfg.Geometry.Chunks(o.Size)
	at := uint32(min(max(0, off), o.Size) / c.cfg.Geometry.ChunkBytes)
	if chunks < 2 || !o.shared.Load() || o.streams() || at >= chunks {
		return false
	}
	if !f.fill(at, chunks) {
		return false
	}
	c.ahead.forget(f) // a window beside the fill's would have half of the link
	return true
}

// fill makes sure that a fill of the object is under way, and comes to a chunk soon.
func (f *File) fill(at, chunks uint32) bool {
	o, c := f.obj, f.c
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.fill == nil {
		if o.filled {
			return false
		}
		o.fill = &fill{o: o, f: f, most: min(firstWorkers, c.cfg.FillChunks), next: at, seen: make([]bool, chunks), left: int(chunks)}
		c.stats.Fills.Add(1)
		c.ahead.filling.Add(1)
	}
	return o.fill.run(at)
}

// run makes sure that workers are at it, and that they come to the reader's chunk
// before what lies behind it.
func (f *fill) run(at uint32) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.stopped {
		return false
	}
	if !f.seen[at] {
		f.next = at
	}
	return f.staff()
}

// staff starts workers up to their number. Callers hold mu.
func (f *fill) staff() bool {
	for f.workers < min(f.most, f.left) {
		if !f.o.c.begin() {
			return false
		}
		f.o.retain()
		f.workers++
		go f.work()
	}
	return true
}

// came widens the window after a chunk, or narrows it when chunks have become slow.
func (f *fill) came(took time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.most = min(f.most+1, f.o.c.cfg.FillChunks)
	if took < fastChunk {
		f.most = min(f.workers+1, f.o.c.cfg.FastFillChunks)
	}
	if !f.stopped {
		f.staff()
	}
}

// work takes chunk after chunk.
func (f *fill) work() {
	o := f.o
	defer o.c.calls.Done()
	defer o.release()
	for {
		index, ok := f.take()
		if !ok {
			o.c.ahead.pump() // what waited for the end of fills
			return
		}
		begin, missing := time.Now(), o.missing(index)
		err := o.fillChunk(o.c.ctx, index, chunk.Request{Background: true, Fill: true, Access: f.f.access()})
		switch {
		case err == nil:
			took := time.Since(begin)
			if missing.count() < int(o.c.cfg.Geometry.ChunkSpan(o.Size, index).Count) {
				took = fastChunk // at least: a part had come already, for others
			}
			f.came(took)
		case objstore.Final(err) || o.c.ctx.Err() != nil:
			f.stop()
		default:
			f.putBack(index)
			timer := time.NewTimer(fillPause)
			select {
			case <-timer.C:
			case <-o.c.ctx.Done():
				timer.Stop()
			}
		}
	}
}

// take returns the next chunk that lacks something, or ends the worker.
func (f *fill) take() (uint32, bool) {
	f.mu.Lock()
	for !f.stopped && f.left > 0 && f.workers <= f.most && f.o.files.Load() > 0 && !f.o.streams() {
		for f.seen[f.next] {
			f.next = (f.next + 1) % uint32(len(f.seen))
		}
		index := f.next
		f.seen[index] = true
		f.left--
		if missing := f.o.missing(index); !missing.empty() {
			f.mu.Unlock()
			return index, true
		}
	}
	f.workers--
	last, done := f.workers == 0, f.left == 0
	f.stopped = f.stopped || last
	f.mu.Unlock()
	if last {
		o := f.o
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.fill == f {
			o.fill, o.filled = nil, done
			o.c.ahead.filling.Add(-1)
		}
	}
	return 0, false
}

func (f *fill) stop() {
	f.mu.Lock()
	f.stopped = true
	f.mu.Unlock()
}

func (f *fill) putBack(index uint32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.seen[index] {
		f.seen[index] = false
		f.left++
	}
}

// Anew has what is on its way of an object that is filled, and of a span if that is not empty, asked for again, by whatever
// way it comes: this node has learnt something that those who know of others' ways are to hear.
func (c *Cache) Anew(id chunk.ObjectID, s chunk.Span) {
	c.mu.Lock()
	o := c.objects[id]
	if o != nil {
		o.refs++
	}
	c.mu.Unlock()
	if o == nil {
		return
	}
	defer o.release()
	o.mu.Lock()
	flights := slices.Collect(maps.Values(o.flights))
	o.mu.Unlock()
	for _, fl := range flights {
		if s.Count > 0 && (fl.span.End() <= s.First || s.End() <= fl.span.First) {
			continue
		}
		fl.mu.Lock()
		for _, call := range fl.calls {
			if call.req.Background && call.cut != nil && !call.dead {
				call.cut(chunk.ErrAnew)
			}
		}
		fl.mu.Unlock()
	}
}

// filling returns on whose behalf the object is filled, or false when it is not.
func (o *object) filling() (chunk.Access, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.fill == nil {
		return chunk.Access{}, false
	}
	return o.fill.f.access(), true
}

// missing returns the blocks of a chunk that are not here.
func (o *object) missing(index uint32) (set blockSet) {
	span := o.c.cfg.Geometry.ChunkSpan(o.Size, index)
	for i := range span.Count {
		if !o.isLocal(span.First + i) {
			set.add(i)
		}
	}
	return set
}

// fillChunk waits until all blocks of a chunk have come, fetched by such a request if need be.
func (o *object) fillChunk(ctx context.Context, index uint32, req chunk.Request) error {
	missing := o.missing(index)
	if missing.empty() {
		return nil
	}
	fl := o.join(index)
	defer o.leave(fl)
	w := o.c.newWaiter(req)
	defer o.c.freeWaiter(o, w)
	w.fills, w.missing = true, missing

	fl.mu.Lock()
	defer fl.mu.Unlock()
	fl.enter(w)
	defer fl.exit(w)
	for {
		here := fl.present(&w.missing, w.req)
		w.missing = w.missing.minus(&here)
		switch {
		case w.missing.empty():
			return nil
		case w.err != nil:
			return w.err
		case ctx.Err() != nil:
			return context.Cause(ctx)
		}
		fl.launch(w)
		fl.wait(ctx, w)
	}
}
