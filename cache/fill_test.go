package cache

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shardwell/shardwell/internal/chunk"
)

// watched counts the fetches of an upstream that are under way, and notes the chunks in their order.
type watched struct {
	up chunk.Fetcher

	mu         sync.Mutex
	now, most  int
	chunks     []uint32
	blockCount int
}

// seen returns what was counted so far.
func (w *watched) seen() (now, most, blocks int, chunks []uint32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now, w.most, w.blockCount, slices.Clone(w.chunks)
}

func (w *watched) Fetch(ctx context.Context, req chunk.Request, deliver chunk.Deliver) error {
	w.mu.Lock()
	w.now++
	w.most = max(w.most, w.now)
	w.chunks = append(w.chunks, small.ChunkOf(req.Span.First))
	w.mu.Unlock()
	ended := sync.OnceFunc(func() {
		w.mu.Lock()
		w.now--
		w.mu.Unlock()
	})
	defer ended()
	left := req.Span.Count
	return w.up.Fetch(ctx, req, func(b chunk.Block) error {
		w.mu.Lock()
		w.blockCount++
		w.mu.Unlock()
		if left--; left == 0 {
			ended() // the next one may begin once the last block is there
		}
		return deliver(b)
	})
}

// A fill brings all of an object, from where it begins to the end and then the rest,
// each block once, in a window that begins narrow.
func TestFill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		data := make([]byte, 12*512<<10+77)
		w := &watched{up: slowly(data, 10*time.Millisecond)}
		r := newRig(t, 16, func(c *Config) { c.Origin, c.FillChunks, c.FastFillChunks = w, 4, 4 })
		obj, _ := r.put("k", len(data))
		defer r.shut(t)
		f := r.open(t, obj)
		f.obj.shared.Store(true)
		defer f.Close()
		if !f.Fill(5*512<<10 + 3) {
			t.Fatal("the fill is not under way")
		}
		time.Sleep(5 * time.Millisecond)
		if now, _, _, _ := w.seen(); now != firstWorkers {
			t.Errorf("it begins with %d chunks", now)
		}
		f.Fill(6 * 512 << 10) // again is no other one
		time.Sleep(time.Minute)
		if got := f.CachedBytes(); got != obj.Size {
			t.Errorf("%d bytes of %d came", got, obj.Size)
		}
		_, most, blocks, chunks := w.seen()
		if most != 4 || blocks != 12*8+1 {
			t.Errorf("%d at once, %d blocks", most, blocks)
		}
		// Up to four chunks begin in the order in which their goroutines run.
		if len(chunks) != 13 || slices.Min(chunks[:5]) < 5 || slices.Max(chunks[11:]) > 4 {
			t.Errorf("chunks came as %v", chunks)
		}
		if f.Fill(0) {
			t.Error("an object that is here is filled again")
		}
	})
}

// What nobody reads yet does not share the links with a fill, and comes after it.
func TestFillComesBeforeWhatIsReadLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		data := make([]byte, 12*chunkBytes)
		w := &watched{up: slowly(data, 10*time.Millisecond)}
		r := newRig(t, 16, func(c *Config) { c.Origin, c.FillChunks, c.FastFillChunks = w, 2, 2 })
		now, _ := r.put("now", len(data))
		next, _ := r.put("next", len(data))
		defer r.shut(t)
		f, later := r.open(t, now), r.open(t, next)
		defer f.Close()
		defer later.Close()
		f.obj.shared.Store(true)
		if !f.Fill(0) {
			t.Fatal("the fill is not under way")
		}
		later.PrefetchLater(0, next.Size)
		for f.CachedBytes() < now.Size {
			if n := later.CachedBytes(); n > 0 && now.Size-f.CachedBytes() > 2*chunkBytes {
				t.Fatalf("%d bytes of what is read later came while %d of %d were filled", n, f.CachedBytes(), now.Size)
			}
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Minute)
		if n := later.CachedBytes(); n != next.Size {
			t.Errorf("%d bytes of %d came after the fill", n, next.Size)
		}
		if n := r.ahead.filling.Load(); n != 0 {
			t.Errorf("%d objects are filled at the end", n)
		}
	})
}

// A fill takes no new chunk when nobody has the object open, or the tier is full.
func TestFillEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		data := make([]byte, 20*512<<10)
		w := &watched{up: slowly(data, 10*time.Millisecond)}
		r := newRig(t, 16, func(c *Config) { c.Origin, c.FillChunks, c.FastFillChunks = w, 2, 2 })
		obj, _ := r.put("k", len(data))
		defer r.shut(t)
		f := r.open(t, obj)
		f.obj.shared.Store(true)
		f.Fill(0)
		time.Sleep(100 * time.Millisecond)
		f.Close()
		time.Sleep(time.Minute)
		if _, _, _, chunks := w.seen(); len(chunks) > 4 {
			t.Errorf("chunks %v after the end", chunks)
		}
		f = r.open(t, obj)
		f.obj.shared.Store(true)
		defer f.Close()
		r.tier.mu.Lock()
		r.tier.full = true
		r.tier.mu.Unlock()
		f.Fill(0)
		time.Sleep(time.Minute)
		if _, _, _, chunks := w.seen(); len(chunks) > 8 {
			t.Errorf("chunks %v though the tier is full", chunks)
		}
		if f.Fill(0) {
			t.Error("a fill goes on though the tier is full")
		}
	})
}

// A node that fills an object gives a peer what it has not come to yet, and fetches it once.
func TestFillIsPulled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		data := make([]byte, 8*512<<10)
		w := &watched{up: slowly(data, 10*time.Millisecond)}
		r := newRig(t, 16, func(c *Config) { c.Origin, c.FillChunks, c.FastFillChunks = w, 1, 1 })
		obj, _ := r.put("k", len(data))
		defer r.shut(t)
		ask := chunk.Request{Object: obj, ID: obj.ID(), Span: small.ChunkSpan(obj.Size, 6), From: "p", Hops: 1, HeldOnly: true, Background: true, Fill: true}
		if got, err := r.collect(t.Context(), ask); err != chunk.ErrNotHeld || len(got) > 0 {
			t.Errorf("a node that does not fill gave %d blocks, %v", len(got), err)
		}
		f := r.open(t, obj)
		f.obj.shared.Store(true)
		defer f.Close()
		f.Fill(0)
		if got, err := r.collect(t.Context(), ask); err != nil || len(got) != 8 {
			t.Errorf("a node that fills gave %d blocks, %v", len(got), err)
		}
		time.Sleep(time.Minute)
		if _, _, blocks, _ := w.seen(); blocks != 64 {
			t.Errorf("%d blocks were fetched for 64", blocks)
		}
	})
}

// A stream that stands still while others get on is made anew within seconds, for what it lacks.
func TestStarvedStreamIsMadeAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		data := make([]byte, 64*512<<10)
		var mu sync.Mutex
		hung := 0
		up := fetcherFunc(func(ctx context.Context, req chunk.Request, deliver chunk.Deliver) error {
			mu.Lock()
			first := small.ChunkOf(req.Span.First) == 1 && hung == 0
			if first {
				hung++
			}
			mu.Unlock()
			if !first {
				return slowly(data, 50*time.Millisecond)(ctx, req, deliver)
			}
			if err := deliver(blockOf(data, req.Span.First)); err != nil {
				return err
			}
			<-ctx.Done()
			return ctx.Err()
		})
		w := &watched{up: up}
		r := newRig(t, 16, func(c *Config) { c.Origin = w })
		obj, _ := r.put("k", len(data))
		defer r.shut(t)
		f := r.open(t, obj)
		f.obj.shared.Store(true)
		defer f.Close()
		f.Fill(0)
		time.Sleep(6 * time.Second)
		if got := r.Stats().Starved.Load(); got != 1 || f.obj.missing(1) != (blockSet{}) {
			t.Errorf("%d streams were made anew; chunk 1 lacks %v", got, f.obj.missing(1))
		}
		time.Sleep(time.Minute)
		if _, _, blocks, _ := w.seen(); blocks != 64*8 {
			t.Errorf("%d blocks were fetched for %d", blocks, 64*8)
		}
	})
}

// What is on its way of an object is asked for again at once, for what it lacks.
func TestAskedAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		data := make([]byte, 8*512<<10)
		w := &watched{up: slowly(data, 100*time.Millisecond)}
		r := newRig(t, 16, func(c *Config) { c.Origin, c.FillChunks, c.FastFillChunks = w, 2, 2 })
		obj, _ := r.put("k", len(data))
		defer r.shut(t)
		r.Anew(obj.ID(), chunk.Span{}) // nobody uses it
		f := r.open(t, obj)
		f.obj.shared.Store(true)
		defer f.Close()
		f.Fill(0)
		time.Sleep(350 * time.Millisecond)
		r.Anew(obj.ID(), small.ChunkSpan(obj.Size, 1))
		synctest.Wait()
		if _, _, _, chunks := w.seen(); len(chunks) != 3 || chunks[2] != 1 {
			t.Errorf("chunks %v were asked for", chunks)
		}
		r.Anew(obj.ID(), chunk.Span{})
		synctest.Wait()
		if now, _, _, chunks := w.seen(); len(chunks) != 5 || now != 2 {
			t.Errorf("chunks %v were asked for, %d are under way", chunks, now)
		}
		time.Sleep(time.Minute)
		if _, _, blocks, _ := w.seen(); blocks != 64 || f.CachedBytes() != obj.Size {
			t.Errorf("%d blocks were fetched for 64, %d bytes are here", blocks, f.CachedBytes())
		}
	})
}

// A fill takes the place of what was fetched ahead: both windows would share the link.
func TestFillEndsReadAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		data := make([]byte, 32*512<<10)
		w := &watched{up: slowly(data, 100*time.Millisecond)}
		r := newRig(t, 16, func(c *Config) { c.Origin, c.FillChunks, c.FastFillChunks = w, 2, 2 })
		obj, _ := r.put("k", len(data))
		defer r.shut(t)
		f := r.open(t, obj)
		defer f.Close()
		f.Prefetch(0, obj.Size)
		synctest.Wait()
		before, _, _, _ := w.seen()
		f.obj.shared.Store(true)
		if !f.Fill(0) || f.Wanted() {
			t.Errorf("%d fetches ahead, and more are wanted", before)
		}
		time.Sleep(3 * time.Second) // those that were under way are over
		if now, _, _, _ := w.seen(); now > 2 {
			t.Errorf("%d chunks at once", now)
		}
	})
}
