package mem

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newArena(t testing.TB, bufBytes int, totalBytes int64) *Arena {
	t.Helper()
	a, err := New(bufBytes, totalBytes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	return a
}

func TestSizes(t *testing.T) {
	for _, tt := range []struct {
		buf, want int
		total     int64
		buffers   int
	}{
		{4096, 4096, 10 * 4096, 10},
		{4096, 4096, 10*4096 + 4095, 10},
		{5000, 8192, 10 * 8192, 10},
		{1 << 20, 1 << 20, 0, MinBuffers},
	} {
		a := newArena(t, tt.buf, tt.total)
		if a.BufBytes() != tt.want || a.Buffers() != tt.buffers {
			t.Errorf("New(%d, %d): %d buffers of %d", tt.buf, tt.total, a.Buffers(), a.BufBytes())
		}
	}
	for _, bad := range [][2]int64{{0, 100}, {-1, 100}, {4096, -1}} {
		if a, err := New(int(bad[0]), bad[1]); err == nil {
			a.Close()
			t.Errorf("New(%d, %d) works", bad[0], bad[1])
		}
	}
}

func TestBuffersDoNotOverlap(t *testing.T) {
	a := newArena(t, 4096, 8*4096)
	var all [][]byte
	for i := range 8 {
		b := a.TryGet()
		if len(b) != 4096 || cap(b) != 4096 {
			t.Fatalf("buffer of %d, capacity %d", len(b), cap(b))
		}
		for j := range b {
			b[j] = byte(i)
		}
		all = append(all, b)
	}
	if a.TryGet() != nil || a.InUse() != 8 {
		t.Fatalf("%d buffers in use of 8, and one more", a.InUse())
	}
	for i, b := range all {
		if b[0] != byte(i) || b[4095] != byte(i) {
			t.Fatalf("buffer %d was overwritten", i)
		}
		a.Put(b[:10]) // any slice that begins there
	}
	if a.InUse() != 0 {
		t.Fatalf("%d buffers in use", a.InUse())
	}
}

func TestBackgroundIsRefusedFirst(t *testing.T) {
	a := newArena(t, 4096, 8*4096)
	var got [][]byte
	for b := a.TryGetBackground(); b != nil; b = a.TryGetBackground() {
		got = append(got, b)
	}
	if len(got) != 6 {
		t.Errorf("background got %d buffers of 8", len(got))
	}
	for range 2 {
		b := a.TryGet()
		if b == nil {
			t.Fatal("a reader was refused")
		}
		got = append(got, b)
	}
	for _, b := range got {
		a.Put(b)
	}
}

func TestSmallestArenaServesReaders(t *testing.T) {
	a := newArena(t, 4096, 0)
	b := a.TryGetBackground()
	if b == nil {
		t.Fatal("background never gets on")
	}
	r := a.TryGet()
	if r == nil || a.TryGetBackground() != nil {
		t.Fatal("a reader was refused, or background was not")
	}
	a.Put(b)
	a.Put(r)
}

func TestGetWaitsInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newArena(t, 4096, 2*4096)
		first, second := a.TryGet(), a.TryGet()
		var mu sync.Mutex
		var order []int
		var wg sync.WaitGroup
		for i := range 5 {
			wg.Go(func() {
				b, err := a.Get(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				order = append(order, i)
				mu.Unlock()
				a.Put(b)
			})
			synctest.Wait()
		}
		a.Put(first)
		wg.Wait()
		for i, got := range order {
			if i != got {
				t.Fatalf("served in the order %v", order)
			}
		}
		a.Put(second)
	})
}

func TestGetGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newArena(t, 4096, 2*4096)
		first, second := a.TryGet(), a.TryGet()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := a.Get(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Get: %v", err)
		}
		if len(a.waiters) != 0 {
			t.Error("still in the queue")
		}
		a.Put(first)
		a.Put(second)
	})
}

func TestPutPanics(t *testing.T) {
	a := newArena(t, 4096, 4*4096)
	b := a.TryGet()
	a.Put(b)
	for name, buf := range map[string][]byte{
		"twice": b, "foreign": make([]byte, 4096), "within": b[1:], "nil": nil,
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("no panic: %s", name)
				}
			}()
			a.Put(buf)
		}()
	}
}

func TestCloseWaitsForNobody(t *testing.T) {
	a, err := New(4096, 0)
	if err != nil {
		t.Fatal(err)
	}
	b := a.TryGet()
	if err := a.Close(); !errors.Is(err, ErrInUse) {
		t.Fatalf("Close: %v", err)
	}
	b[0] = 1
	a.Put(b)
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Get(t.Context()); !errors.Is(err, ErrClosed) || a.TryGet() != nil {
		t.Fatalf("Get after Close: %v", err)
	}
}

// TestManyUsers hands buffers round and checks that each has one owner.
func TestManyUsers(t *testing.T) {
	a := newArena(t, 4096, 4*4096)
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(1, uint64(w)))
			for range 500 {
				var b []byte
				switch rng.IntN(4) {
				case 0:
					b = a.TryGetBackground()
				case 1:
					b = a.TryGet()
				case 2:
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rng.IntN(50))*time.Microsecond)
					b, _ = a.Get(ctx)
					cancel()
				default:
					b, _ = a.Get(t.Context())
				}
				if b == nil {
					continue
				}
				b[0], b[4095] = byte(w), byte(w)
				if b[0] != byte(w) || b[4095] != byte(w) {
					t.Error("two owners")
				}
				a.Put(b)
			}
		})
	}
	wg.Wait()
	if a.InUse() != 0 || len(a.waiters) != 0 {
		t.Errorf("%d in use, %d waiting", a.InUse(), len(a.waiters))
	}
}

func TestGetAllocatesNothing(t *testing.T) {
	a := newArena(t, 4096, 0)
	if n := testing.AllocsPerRun(100, func() {
		b, _ := a.Get(context.Background())
		a.Put(b)
	}); n != 0 {
		t.Errorf("Get and Put allocate %v times", n)
	}
}
