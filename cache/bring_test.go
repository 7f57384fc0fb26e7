package cache

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/shardwell/shardwell/internal/chunk"
)

// What is brought is fetched once and kept by the tier alone, and what the tier did not take at first is
// put there from memory.
func TestBring(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		data := make([]byte, 3*512<<10+77)
		w := &watched{up: slowly(data, 10*time.Millisecond)}
		r := newRig(t, 64, func(c *Config) { c.Origin = w })
		obj, _ := r.put("k", len(data))
		defer r.shut(t)
		f := r.open(t, obj)
		defer f.Close()
		span := func(i uint32) chunk.Span { return small.ChunkSpan(obj.Size, i) }
		for range 2 {
			for i := range uint32(2) {
				if err := f.Bring(t.Context(), i, false); err != nil || !f.Holds(span(i)) {
					t.Fatalf("chunk %d: %v, held %v", i, err, f.Holds(span(i)))
				}
			}
		}
		if kept := r.Stats().MemoryBlocks.Load(); kept != 0 {
			t.Errorf("%d blocks are in memory as well", kept)
		}
		full := func(is bool) {
			r.tier.mu.Lock()
			defer r.tier.mu.Unlock()
			r.tier.full = is
		}
		full(true)
		// A reader has it come, into memory.
		buf := make([]byte, 1000)
		if _, err := f.ReadAt(t.Context(), buf, 2*512<<10); err != nil {
			t.Fatal(err)
		}
		if err := f.Bring(t.Context(), 2, false); err != nil || f.Holds(span(2)) {
			t.Fatalf("%v, held by a tier that is full", err)
		}
		if r.Stats().MemoryBlocks.Load() == 0 {
			t.Fatal("nothing is in memory")
		}
		full(false)
		if err := f.Bring(t.Context(), 2, false); err != nil || !f.Holds(span(2)) {
			t.Errorf("%v, held %v", err, f.Holds(span(2)))
		}
		r.Forget(obj)
		if kept := r.Stats().MemoryBlocks.Load(); kept != 0 {
			t.Errorf("%d blocks are in memory after they were forgotten", kept)
		}
	})
}
