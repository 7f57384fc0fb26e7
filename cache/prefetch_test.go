package cache

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/shardwell/shardwell/objstore/objstoretest"

	"github.com/shardwell/shardwell/objstore"
)

const chunkBytes = 512 << 10

// keysOf returns the keys of GETs in order.
func keysOf(gets []objstoretest.Get) (keys []string) {
	for _, g := range gets {
		keys = append(keys, g.Key)
	}
	return keys
}

// What is asked for ahead is fetched a few chunks at a time, and a reader of some of it, or
// of others, comes before it.
func TestPrefetchYieldsToReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 8, func(c *Config) { c.MaxPrefetches, c.MaxFetches, c.MaxFetchesPerBucket = 3, 1, 1 })
		defer r.shut(t)
		obj, data := r.put("k", 8*chunkBytes)
		f := r.open(t, obj)
		defer f.Close()
		gate := r.origin.Hold(objstore.OpGet)
		f.Prefetch(0, obj.Size)
		synctest.Wait()
		if got := r.Stats().Fetching.Load(); got != 2 || !f.Wanted() {
			t.Errorf("prefetches: got %d, want 2 and more to come", got)
		}
		var wg sync.WaitGroup
		for _, i := range []int{7, 5} {
			wg.Go(func() { wantRead(t, f, data, i*chunkBytes, chunkBytes) })
			synctest.Wait()
		}
		gate.Open()
		wg.Wait()
		synctest.Wait()
		var order []int64
		for _, g := range r.origin.Gets() {
			order = append(order, g.Off/chunkBytes)
		}
		if want := []int64{7, 5}; len(order) != 8 || !slices.Equal(order[1:3], want) {
			t.Errorf("origin was asked for chunks %v, want %v second and third", order, want)
		}
		if got := f.CachedBytes(); got != obj.Size || f.Wanted() || r.origin.Bytes() != obj.Size {
			t.Errorf("cached %d of %d bytes, origin gave %d", got, obj.Size, r.origin.Bytes())
		}
		f.Prefetch(-5, 10)
		f.Prefetch(obj.Size+10, 10)
		f.Prefetch(0, -1)
	})
}

// While memory is short nothing is fetched ahead; it is when there is some again.
func TestPrefetchWaitsForMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 8, nil)
		defer r.shut(t)
		obj, data := r.put("k", 4*chunkBytes)
		f := r.open(t, obj)
		defer f.Close()
		var held [][]byte
		for b := r.arena.TryGetBackground(); b != nil; b = r.arena.TryGetBackground() {
			held = append(held, b)
		}
		f.Prefetch(0, obj.Size)
		synctest.Wait()
		if r.Stats().PrefetchDropped.Load() != 1 || r.Stats().Fetching.Load() != 0 || r.origin.Bytes() != 0 {
			t.Error("prefetched though memory is short")
		}
		for _, b := range held {
			r.arena.Put(b)
		}
		wantRead(t, f, data, 0, 10)
		synctest.Wait()
		if got := f.CachedBytes(); got != obj.Size {
			t.Errorf("cached %d of %d bytes", got, obj.Size)
		}
	})
}

// Whoever is nearest to what he lacks comes first: readers get on side by side, whoever asked
// first and for how much.
func TestPrefetchIsFair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 16, func(c *Config) { c.MaxPrefetches, c.MaxFetches, c.MaxFetchesPerBucket = 1, 1, 1 })
		defer r.shut(t)
		gate := r.origin.Hold(objstore.OpGet)
		for _, key := range []string{"next", "a", "b", "c"} {
			obj, _ := r.put(key, 3*chunkBytes)
			f := r.open(t, obj)
			defer f.Close()
			if key == "next" {
				f.PrefetchLater(0, obj.Size) // the window has one place, and this takes it
			} else {
				f.Prefetch(0, obj.Size)
			}
			synctest.Wait()
		}
		gate.Open()
		synctest.Wait()
		want := []string{"next", "a", "b", "c", "a", "b", "c", "a", "b", "c", "next", "next"}
		if got := keysOf(r.origin.Gets()); !slices.Equal(got, want) {
			t.Errorf("origin was asked in the order\n%v, want\n%v", got, want)
		}
	})
}

// A reader who moves on takes his window along, and several who share a file have one each.
func TestPrefetchFollowsItsReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 16, func(c *Config) { c.MaxPrefetches = 1 })
		defer r.shut(t)
		obj, _ := r.put("k", 100*chunkBytes)
		f := r.open(t, obj)
		defer f.Close()
		gate := r.origin.Hold(objstore.OpGet)
		f.Prefetch(0, 10*chunkBytes)
		f.Prefetch(8*chunkBytes, 4*chunkBytes) // the same reader, farther
		for i := range int64(20) {
			f.Prefetch((20+3*i)*chunkBytes, chunkBytes)
		}
		if got := len(r.ahead.wants); got != maxWants {
			t.Errorf("%d wants are kept, want %d", got, maxWants)
		}
		gate.Open()
		synctest.Wait()
		var chunks []int64
		for _, g := range r.origin.Gets() {
			chunks = append(chunks, g.Off/chunkBytes)
		}
		slices.Sort(chunks)
		want := []int64{0}
		for i := range int64(maxWants) {
			want = append(want, 20+3*(20-maxWants+i))
		}
		if !slices.Equal(chunks, want) {
			t.Errorf("fetched chunks %v, want %v", chunks, want)
		}
	})
}

// What is fetched ahead ends when the last file is closed: what was queued at once, and what
// is under way too.
func TestPrefetchEndsWithTheLastFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 16, func(c *Config) { c.MaxPrefetches = 2 })
		defer r.shut(t)
		obj, _ := r.put("k", 20*chunkBytes)
		f, other := r.open(t, obj), r.open(t, obj)
		r.origin.Hold(objstore.OpGet)
		f.Prefetch(0, obj.Size)
		synctest.Wait()
		f.Close()
		synctest.Wait()
		if got := r.Stats().Fetching.Load(); got == 0 {
			t.Error("ended though another has the file open")
		}
		other.Close()
		synctest.Wait()
		if got := r.Stats().Fetching.Load(); got != 0 || r.Stats().Failures.Load() != 0 {
			t.Errorf("%d fetches go on, %d failed", got, r.Stats().Failures.Load())
		}
		if got := len(r.origin.Gets()); got > 2 {
			t.Errorf("origin was asked %d times", got)
		}
	})
}

// A peer that waits for what is fetched ahead gets it, whoever closes the file.
func TestPrefetchGoesOnForPeers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 16, nil)
		defer r.shut(t)
		obj, _ := r.put("k", chunkBytes)
		f := r.open(t, obj)
		gate := r.origin.Hold(objstore.OpGet)
		f.Prefetch(0, obj.Size)
		var wg sync.WaitGroup
		wg.Go(func() {
			got, err := r.collect(t.Context(), ask(obj, "p"))
			if err != nil || len(got) != 8 {
				t.Errorf("peer got %d blocks, %v", len(got), err)
			}
		})
		synctest.Wait()
		f.Close()
		synctest.Wait()
		gate.Open()
		wg.Wait()
		if got := len(r.origin.Gets()); got != 1 {
			t.Errorf("origin was asked %d times, want once", got)
		}
	})
}

// A reader who is interrupted returns at once, and what he caused to be fetched ahead goes on.
func TestPrefetchIsDetachedFromTheRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 16, nil)
		defer r.shut(t)
		obj, _ := r.put("k", 4*chunkBytes)
		f := r.open(t, obj)
		defer f.Close()
		gate := r.origin.Hold(objstore.OpGet)
		ctx, interrupt := context.WithCancel(t.Context())
		done := make(chan error)
		go func() {
			f.Prefetch(0, obj.Size)
			_, err := f.ReadAt(ctx, make([]byte, 100), 0)
			done <- err
		}()
		synctest.Wait()
		interrupt()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("interrupted read: %v", err)
		}
		gate.Open()
		synctest.Wait()
		if got := f.CachedBytes(); got != obj.Size {
			t.Errorf("cached %d bytes of %d", got, obj.Size)
		}
	})
}

// Many shards at once: all get on, nothing comes twice.
func TestManyShardsShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 32, func(c *Config) { c.MaxPrefetches = 4 })
		defer r.shut(t)
		var wg sync.WaitGroup
		var total int64
		for i := range 64 {
			obj, data := r.put(fmt.Sprint(i), 6*chunkBytes)
			total += obj.Size
			wg.Go(func() {
				f := r.open(t, obj)
				defer f.Close()
				for off := 0; off < len(data); off += block {
					f.Prefetch(int64(off+block), int64(len(data)))
					wantRead(t, f, data, off, block)
				}
			})
		}
		wg.Wait()
		if got := r.origin.Bytes(); got != total {
			t.Errorf("origin bytes: got %d, want %d", got, total)
		}
	})
}

// A shard that was read to its end is the first copy to go; one that was left in the middle, or is looked up
// again and again, is not.
func TestShardsThatWereReadAreSpent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 16, nil)
		defer r.shut(t)
		for name, c := range map[string]struct {
			size, from, to int
			want           int
		}{
			"whole":             {3 * chunkBytes, 0, 3 * chunkBytes, 1},
			"but its beginning": {3 * chunkBytes, block, 3 * chunkBytes, 1},
			"a half":            {3 * chunkBytes, 0, 3 * chunkBytes / 2, 0},
			"its end":           {3 * chunkBytes, 2 * chunkBytes, 3 * chunkBytes, 0},
			"small":             {chunkBytes / 2, 0, chunkBytes / 2, 0},
		} {
			obj, data := r.put(name, c.size)
			f := r.open(t, obj)
			for off := c.from; off < c.to; off += block {
				wantRead(t, f, data, off, min(block, c.to-off))
			}
			f.Close()
			synctest.Wait()
			if got := r.tier.files[obj.ID()].spent; got != c.want {
				t.Errorf("%s: spent %d times, want %d", name, got, c.want)
			}
		}
	})
}

// The end of a file that is on its way when its reader closes it comes all the same.
func TestPrefetchOfAnEndIsFinished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 16, nil)
		defer r.shut(t)
		obj, data := r.put("k", chunkBytes+100)
		f := r.open(t, obj)
		wantRead(t, f, data, 0, chunkBytes)
		gate := r.origin.Hold(objstore.OpGet)
		f.Prefetch(chunkBytes, 100)
		synctest.Wait()
		f.Close()
		synctest.Wait()
		gate.Open()
		synctest.Wait()
		f = r.open(t, obj)
		defer f.Close()
		if got := f.CachedBytes(); got != obj.Size {
			t.Errorf("cached %d of %d bytes", got, obj.Size)
		}
	})
}

// What nobody reads yet is not fetched into memory: that is for those who read now.
func TestPrefetchLaterNeedsTheDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 16, nil)
		defer r.shut(t)
		obj, data := r.put("now", 2*chunkBytes)
		next, _ := r.put("next", 2*chunkBytes)
		f, later := r.open(t, obj), r.open(t, next)
		defer f.Close()
		r.tier.full = true
		wantRead(t, f, data, 0, block) // which is not taken
		later.Close()
		later = r.open(t, next)
		defer later.Close()
		later.PrefetchLater(0, next.Size)
		synctest.Wait()
		if got := keysOf(r.origin.Gets()); slices.Contains(got, "next") || later.Wanted() {
			t.Errorf("fetched %v, and more is wanted: %v", got, later.Wanted())
		}
	})
}
