package disk

import (
	"context"
	"testing"

	"github.com/shardwell/shardwell/cache/evict"
)

// guestsOf returns how many blocks of a File are guests, and how many are present.
func guestsOf(f *File) (guests, present uint32) {
	b := f.body.Load()
	if b == nil {
		return 0, 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.guests.count, b.present.Load()
}

// TestGuests has what is owned pass through a directory full of what may not go, as a sliding window,
// over a restart too, and stay for good when there is room.
func TestGuests(t *testing.T) {
	d, p := protectedDir(t, 128, 16)
	c := newContent("a/ownlate", 40*testBlock)
	f := c.acquire(t, d)
	owned, _ := d.Capacity()
	for b := range f.Blocks() {
		if err := f.Put(c.block(small, b)); err != nil {
			t.Fatalf("block %d: %v", b, err)
		}
		if used := onDisk(t, d); used > 128*testBlock {
			t.Fatalf("%d bytes on the disk", used)
		}
	}
	guests, present := guestsOf(f)
	if guests == 0 || guests != present || f.Has(0) || !f.Has(f.Blocks()-1) {
		t.Errorf("%d guests of %d blocks; the first is there: %t, the last: %t", guests, present, f.Has(0), f.Has(f.Blocks()-1))
	}
	if now, _ := d.Capacity(); now > owned {
		t.Errorf("guests count as owned: %d bytes, were %d", now, owned)
	}
	f.Release()
	checkLedger(t, d)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}

	cfg := d.cfg
	d = openDir(t, cfg)
	f = c.acquire(t, d)
	if g, n := guestsOf(f); g != guests || n != present {
		t.Errorf("after a restart %d guests of %d blocks, were %d of %d", g, n, guests, present)
	}
	f.Release()
	if err := d.walk(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	checkLedger(t, d)

	p.set("a", evict.Idle) // unmounted; what is pinned comes and takes its place
	p.set("z", evict.Pinned)
	d.Judged()
	fill(t, d, "z/own")
	d.relieve(context.Background())
	f = c.acquire(t, d)
	if g, n := guestsOf(f); g != 0 || n != present && n != 0 {
		t.Errorf("with room for what is owned there are %d guests of %d blocks", g, n)
	}
	f.Release()
	checkLedger(t, d)
}

// TestGuestsBesideOwned has the last part of an object come when there is no more room: what was kept
// stays, what passed through is taken away when the object is closed, unless it was complete.
func TestGuestsBesideOwned(t *testing.T) {
	for _, complete := range []bool{false, true} {
		cfg := testConfig(t.TempDir())
		cfg.Policy, cfg.BudgetBytes, cfg.TransitBytes = &testPolicy{}, 64*testBlock, 16*testBlock
		d := openDir(t, cfg)
		c := newContent("a/own", 54*testBlock)
		f := c.acquire(t, d)
		last := f.Blocks()
		if !complete {
			last--
		}
		for b := range last {
			if err := f.Put(c.block(small, b)); err != nil {
				t.Fatalf("block %d: %v", b, err)
			}
		}
		guests, present := guestsOf(f)
		if guests == 0 || guests >= present {
			t.Fatalf("%d guests of %d blocks", guests, present)
		}
		f.Release()
		d.trim(0, 1)
		checkLedger(t, d)
		f = c.acquire(t, d)
		want := present - guests
		if complete {
			want = present
		}
		if g, n := guestsOf(f); g != 0 || n != want {
			t.Errorf("complete %t: %d guests of %d blocks after all, want none of %d", complete, g, n, want)
		}
		_ = readAndCompare(t, f, c)
		f.Release()
	}
}
