package disk

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// eventually waits until a condition holds that something else brings about.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within 20 s: %s", what)
		}
	}
}

// SEMANTICS K6: A cache disk that fails, is full, or does not answer, also when the node starts, costs a read through the daemon time and hits, never an error.
//
// TestHangingDisk reads and stores while the disk answers nothing: every call comes back with an
// error in time, the disk goes down, no more than a few goroutines and buffers are left behind, and
// when it answers again all of them come back and the disk is used again.
func TestHangingDisk(t *testing.T) {
	var hanging atomic.Bool
	free := make(chan struct{})
	cfg := testConfig(t.TempDir())
	cfg.CallTimeout = 100 * time.Millisecond
	cfg.FS = &faultFS{FS: OS{}, hang: func(int, string) {
		if hanging.Load() {
			<-free
		}
	}}
	d := openDir(t, cfg)
	c, fresh := newContent("k", 8*testBlock), newContent("fresh", testBlock)
	c.store(t, d)
	f := c.acquire(t, d)
	defer f.Release()
	g := fresh.acquire(t, d)
	defer g.Release()

	hanging.Store(true)
	began := time.Now()
	var wg sync.WaitGroup
	for range 32 {
		wg.Go(func() {
			p := make([]byte, len(c.data))
			for range 10 {
				if _, err := f.ReadAt(p, 0); err == nil {
					t.Error("read from a disk that hangs")
				}
				if err := g.Put(fresh.block(small, 0)); !errors.Is(err, ErrNotAdmitted) {
					t.Errorf("put: %v", err)
				}
			}
		})
	}
	wg.Wait()
	// The first calls wait, and those behind them for a buffer; later ones do not.
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("640 calls took %v", took)
	}
	began = time.Now()
	p := make([]byte, len(c.data))
	for range 100 {
		_, _ = f.ReadAt(p, 0)
		_, _ = f.ReadAt(p[:10], 5)
	}
	if took := time.Since(began); took > time.Second {
		t.Errorf("200 reads of a disk that is known to hang took %v", took)
	}
	if d.State() != Down {
		t.Errorf("the disk is %v", d.State())
	}
	if n := d.guard.hung.Load(); n == 0 || n > maxCalls {
		t.Errorf("%d calls are left behind", n)
	}
	other, err := d.fs.OpenFile(d.path(lockName), 0, 0)
	if err == nil {
		t.Error("opened on a disk that hangs")
		other.Close()
	}
	var closed atomic.Bool
	if err := (guardedFile{d.guard, &closeNoter{closed: &closed}}).Close(); !errors.Is(err, ErrHung) {
		t.Errorf("close: %v", err)
	}
	eventually(t, "a file is closed though nothing is tried", closed.Load)
	if !f.Complete() {
		t.Error("blocks of a disk that hangs were taken for damaged")
	}

	hanging.Store(false)
	close(free)
	eventually(t, "all calls come back", func() bool { return d.guard.hung.Load() == 0 && d.guard.buffers.InUse() == 0 })
	eventually(t, "a probe succeeds", func() bool { d.probe(); return d.State() != Down })
	if _, err := f.ReadAt(p, 0); err != nil || !bytes.Equal(p, c.data) {
		t.Errorf("read afterwards: %v", err)
	}
	if err := g.Put(fresh.block(small, 0)); err != nil {
		t.Errorf("put afterwards: %v", err)
	}
}

// closeNoter is a file that notes its end.
type closeNoter struct {
	FSFile
	closed *atomic.Bool
}

func (c *closeNoter) Close() error { c.closed.Store(true); return nil }

// TestEveryCallHangs makes the k-th call hang, for every k, alone and with all that follow, until
// the work is done. What is on the disk then is right or absent.
func TestEveryCallHangs(t *testing.T) {
	objects := threeContents()
	count := &faultFS{FS: OS{}}
	cfg := testConfig(t.TempDir())
	cfg.FS = count
	if n := workload(t, cfg, objects); n != 1 { // the byte that was flipped
		t.Fatalf("%d failures without a fault", n)
	}
	for _, forever := range []bool{false, true} {
		t.Run(fmt.Sprint("forever=", forever), func(t *testing.T) {
			t.Parallel()
			for k := 1; k <= count.calls; k += 3 {
				free := make(chan struct{})
				var hung atomic.Int32
				cfg := testConfig(memoryDir(t))
				cfg.CallTimeout = 20 * time.Millisecond
				cfg.FS = &faultFS{FS: OS{}, hang: func(call int, _ string) {
					if call == k || forever && call > k {
						hung.Add(1)
						defer hung.Add(-1)
						<-free
					}
				}}
				hangingWorkload(t, cfg, objects)
				close(free)
				eventually(t, "all calls come back", func() bool { return hung.Load() == 0 })
				if t.Failed() {
					t.Fatalf("call %d", k)
				}
			}
		})
	}
}

// hangingWorkload stores and reads; what comes back is right or an error.
func hangingWorkload(t *testing.T, cfg Config, objects []content) {
	t.Helper()
	d, err := Open(cfg)
	if err != nil {
		return
	}
	for range 2 {
		for _, c := range objects {
			f, err := d.Acquire(c.obj, c.id, true)
			if err != nil {
				continue
			}
			for b := range f.Blocks() {
				want := c.block(small, b)
				_ = f.Put(want)
				p := make([]byte, len(want.Data))
				if n, err := f.ReadAt(p, int64(b)*small.BlockBytes); err == nil && !bytes.Equal(p[:n], want.Data) {
					t.Errorf("block %d of %s: other bytes", b, c.obj.Key)
				}
			}
			f.Release()
		}
	}
	_, _ = d.evict(victim(objects[1].id))
	_ = d.Close()
}

func BenchmarkReadBlock(b *testing.B) {
	for _, guarded := range []bool{false, true} {
		b.Run(fmt.Sprint("guarded=", guarded), func(b *testing.B) {
			cfg := testConfig(b.TempDir())
			if guarded {
				cfg.CallTimeout = time.Minute
			}
			d := openDir(b, cfg)
			c := newContent("k", 64*testBlock)
			c.store(b, d)
			f := c.acquire(b, d)
			defer f.Release()
			p := make([]byte, 4*testBlock)
			b.SetBytes(int64(len(p)))
			for i := 0; b.Loop(); i++ {
				if _, err := f.ReadAt(p, int64(i%16)*int64(len(p))); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
