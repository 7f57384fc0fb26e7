package disk

import (
	"context"
	"testing"
	"time"
)

// TestScrub finds a byte that was flipped under a file that the kernel reads by itself, drops
// that block, and leaves everything else and the order of eviction as they were.
func TestScrub(t *testing.T) {
	d := openDir(t, testConfig(t.TempDir()))
	good, bad := newContent("good", 5*testBlock+100), newContent("bad", 3*testBlock+5)
	good.store(t, d)
	bad.store(t, d)
	f := bad.acquire(t, d)
	defer f.Release()
	if _, ok := f.Backing(); !ok {
		t.Fatal("not for the kernel")
	}
	flipByte(t, d.dataPath(bad.id), testBlock+7)
	used := (&scrubber{d: d}).lastUse(good.id)

	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- d.Scrub(ctx, 1<<30) }()
	eventually(t, "a round ends", func() bool { return d.stats.ScrubRounds.Load() == 1 })
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if n := d.stats.ScrubbedBytes.Load(); n != int64(len(good.data)+len(bad.data)) {
		t.Errorf("%d bytes scrubbed of %d", n, len(good.data)+len(bad.data))
	}
	if n := d.stats.ScrubDamaged.Load(); n != 1 || f.Has(1) || f.PresentBlocks() != 3 {
		t.Errorf("%d blocks found damaged, %d left", n, f.PresentBlocks())
	}
	if _, ok := f.Backing(); ok {
		t.Error("still for the kernel")
	}
	if again := (&scrubber{d: d}).lastUse(good.id); again != used {
		t.Error("looking counts as a use")
	}
	if err := f.Put(bad.block(small, 1)); err != nil {
		t.Error(err)
	}
	bad.check(t, f)
	checkLedger(t, d)
}

// TestScrubRate reads no faster than it may, and rests while the disk is busy or fails.
func TestScrubRate(t *testing.T) {
	d := openDir(t, testConfig(t.TempDir()))
	c := newContent("k", 8*testBlock)
	c.store(t, d)
	s := scrubber{d: d, rate: 16 * testBlock}
	began := time.Now()
	if err := s.round(t.Context()); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < 400*time.Millisecond {
		t.Errorf("8 blocks at 16 a second took %v", took)
	}
	d.stats.ReadBytes.Add(scrubBusyBytes + 1)
	s.looked, s.due = time.Time{}, time.Time{}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if s.quiet(ctx) || d.stats.ScrubPauses.Load() != 1 {
		t.Errorf("did not rest: %d pauses", d.stats.ScrubPauses.Load())
	}
}
