package disk

import (
	"errors"
	"fmt"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

func TestHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h health
		expect := func(what string, want State) {
			t.Helper()
			if got := h.State(); got != want {
				t.Errorf("%s: %v, want %v", what, got, want)
			}
		}
		expect("at first", Normal)
		h.fail()
		h.fail()
		expect("after two failures", Normal)
		h.fail()
		expect("after three", Unstable)
		time.Sleep(pointsHalfLife)
		expect("after a while", Normal)
		for range 200 { // one failure in ten seconds, for half an hour
			h.fail()
			time.Sleep(10 * time.Second)
		}
		if h.State() == Down {
			t.Error("a slow trickle of failures takes the disk down")
		}
		for range 30 {
			h.fail()
		}
		expect("after many at once", Down)
		time.Sleep(time.Hour)
		expect("an hour later, without a probe", Down)
		h.revive()
		expect("after a probe", Unstable)
		time.Sleep(time.Hour)
		expect("long after", Normal)
	})
}

// TestDiskGoesDownAndComesBack takes the disk away under a cache in use.
func TestDiskGoesDownAndComesBack(t *testing.T) {
	var broken atomic.Bool
	cfg := testConfig(t.TempDir())
	cfg.FS = &faultFS{FS: OS{}, fail: func(_ int, op, _ string) error {
		if broken.Load() {
			return syscall.EIO
		}
		return nil
	}}
	d := openDir(t, cfg)
	old := newContent("old", 1000)
	old.store(t, d)
	broken.Store(true)
	for i := 0; d.State() != Down; i++ {
		if i > 100 {
			t.Fatal("the disk never goes down")
		}
		c := newContent(fmt.Sprint(i), 1000)
		f, err := d.Acquire(c.obj, c.id, true)
		if err != nil {
			continue
		}
		if err := f.Put(c.block(small, 0)); !errors.Is(err, ErrNotAdmitted) {
			t.Fatalf("put on a broken disk: %v", err)
		}
		f.Release()
	}
	if _, err := d.Find(old.id); !errors.Is(err, ErrDown) {
		t.Errorf("Find: %v", err)
	}
	d.probe()
	if d.State() != Down {
		t.Error("a probe that failed revives the disk")
	}
	broken.Store(false)
	d.probe()
	if d.State() != Unstable {
		t.Errorf("after a good probe the disk is %v", d.State())
	}
	f := old.acquire(t, d)
	defer f.Release()
	old.check(t, f)
}
