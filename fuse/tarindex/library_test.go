package tarindex

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/objstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var discard = slog.New(slog.DiscardHandler)

const testBlock = 4096

// fakeTar is a tar somewhere else, some of whose blocks are here.
type fakeTar struct {
	b []byte

	mu      sync.Mutex
	held    map[int64]bool
	fetched map[int64]bool
	err     error
	hold    chan struct{} // reads wait for it; nil = they do not
	waiting chan struct{} // told of each that waits
	open    int
}

func newFakeTar(b []byte) *fakeTar {
	return &fakeTar{b: b, held: map[int64]bool{}, fetched: map[int64]bool{}, waiting: make(chan struct{}, 100)}
}

func (f *fakeTar) Open(chunk.Object) (Source, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.open++
	return f, nil
}

func (f *fakeTar) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.open--
}

func (f *fakeTar) Prefetch(int64, int64) {}

func (f *fakeTar) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	f.mu.Lock()
	err, hold := f.err, f.hold
	for at := off / testBlock; at*testBlock < off+int64(len(p)); at++ {
		f.fetched[at] = true
	}
	f.mu.Unlock()
	if hold != nil {
		f.waiting <- struct{}{}
		select {
		case <-hold:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	if err != nil {
		return 0, err
	}
	return copy(p, f.b[off:]), nil
}

func (f *fakeTar) ReadHeld(p []byte, off int64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for at := off / testBlock; at*testBlock < off+int64(len(p)); at++ {
		if !f.held[at] {
			return false
		}
	}
	copy(p, f.b[off:])
	return true
}

func (f *fakeTar) object() chunk.Object {
	return chunk.Object{Origin: "https://s3.test", Bucket: "b", Key: "d/x.tar", ETag: fmt.Sprint(len(f.b)), Size: int64(len(f.b))}
}

// arrive tells a library of a block of the tar.
func (f *fakeTar) arrive(l *Library, block int64) {
	off := block * testBlock
	l.Arrived(f.object(), f.object().ID(), off, f.b[off:min(off+testBlock, int64(len(f.b)))])
}

func (f *fakeTar) blocks() (all []int64) {
	for i := range (int64(len(f.b)) + testBlock - 1) / testBlock {
		all = append(all, i)
	}
	return all
}

// library makes one that runs until the test ends.
func library(t *testing.T, f *fakeTar, change func(*Config)) *Library {
	t.Helper()
	cfg := Config{Open: f.Open, BlockBytes: testBlock, DirBytes: 1 << 20}
	if change != nil {
		change(&cfg)
	}
	l := NewLibrary(cfg)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- l.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		l.Close()
		if f.open != 0 {
			t.Errorf("%d sources are open", f.open)
		}
	})
	return l
}

// settle waits until Run has done what it was given.
func settle(t *testing.T, l *Library, ok func() bool) {
	t.Helper()
	for !ok() {
		if t.Context().Err() != nil {
			t.Fatal("the test's time is over")
		}
		runtime.Gosched()
	}
}

func samples(t *testing.T, n int, size int64) []byte {
	var hs []tar.Header
	for i := range n {
		hs = append(hs, tar.Header{Name: fmt.Sprintf("%05d.bin", i), Size: size})
	}
	return made(t, hs...)
}

func wantIndex(t *testing.T, l *Library, f *fakeTar) {
	t.Helper()
	x, err := l.Index(t.Context(), f.object())
	if err != nil {
		t.Fatal(err)
	}
	if want := encode(scan(t, f.b), chunk.ObjectID{}); !bytes.Equal(encode(x, chunk.ObjectID{}), want) {
		t.Error("the index is not that of the tar")
	}
}

// A tar that comes by needs no read of its own, in whichever order its blocks come.
func TestIndexGrowsWhileTheTarStreams(t *testing.T) {
	for _, c := range []struct {
		name  string
		order func([]int64)
		held  bool // blocks stay here
	}{
		{"in order, and nothing is kept", func([]int64) {}, false},
		{"chunks overtake each other", func(b []int64) {
			for i := 0; i+8 <= len(b); i += 8 {
				slices.Reverse(b[i : i+8])
			}
		}, true},
		{"backwards", slices.Reverse[[]int64], true},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFakeTar(samples(t, 400, 900))
			l := library(t, f, nil)
			order := f.blocks()
			c.order(order)
			for _, b := range order {
				f.mu.Lock()
				f.held[b] = c.held
				f.mu.Unlock()
				f.arrive(l, b)
			}
			settle(t, l, func() bool { return l.stats.Streamed.Load() == 1 })
			wantIndex(t, l, f)
			if n := l.stats.Scanned.Load(); n != 0 || len(f.fetched) != 0 {
				t.Errorf("%d scans, %d blocks were fetched", n, len(f.fetched))
			}
			for _, b := range order { // the next epoch
				f.arrive(l, b)
			}
			if n := l.stats.Streamed.Load(); n != 1 {
				t.Errorf("the index was made %d times", n)
			}
		})
	}
}

// Headers alone are read of a tar that nobody has read, and what was read before by a stream that
// ended early is not read again.
func TestScanReadsHeadersOnly(t *testing.T) {
	f := newFakeTar(samples(t, 50, 10*testBlock))
	l := library(t, f, nil)
	for b := range int64(200) {
		f.arrive(l, b)
	}
	wantIndex(t, l, f)
	if n := len(f.fetched); n == 0 || n > 35 { // each header in its own block, those behind the 200th
		t.Errorf("%d of %d blocks were fetched", n, len(f.blocks()))
	}
	for b := range f.fetched {
		if b < 199 {
			t.Errorf("block %d was fetched, which had come by", b)
		}
	}
}

// The index survives a restart; a damaged one is made again.
func TestIndexSurvivesARestart(t *testing.T) {
	f := newFakeTar(samples(t, 20, 5000))
	dir := filepath.Join(t.TempDir(), "tars")
	var booked int64
	var mu sync.Mutex
	keep := func(c *Config) {
		c.Dir, c.Room = dir, func(n int64) bool {
			mu.Lock()
			defer mu.Unlock()
			booked += n
			return true
		}
	}
	file := filepath.Join(dir, f.object().ID().String()+suffix)
	var whole []byte
	t.Run("made", func(t *testing.T) {
		l := library(t, f, keep)
		wantIndex(t, l, f)
		if l.stats.Scanned.Load() != 1 || booked != fileUnit {
			t.Errorf("%d scans, %d bytes booked", l.stats.Scanned.Load(), booked)
		}
		var err error
		if whole, err = os.ReadFile(file); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("loaded", func(t *testing.T) {
		f.fetched = map[int64]bool{}
		l := library(t, f, keep)
		wantIndex(t, l, f)
		if l.stats.Loaded.Load() != 1 || len(f.fetched) != 0 {
			t.Errorf("%d loaded, %d blocks fetched", l.stats.Loaded.Load(), len(f.fetched))
		}
	})
	for name, damage := range map[string]func() []byte{
		"flipped": func() []byte { return flip(whole, len(whole)/2) }, "cut": func() []byte { return whole[:len(whole)-7] },
		"empty": func() []byte { return nil }, "another's": func() []byte { return flip(whole, len(magic)) },
	} {
		t.Run(name, func(t *testing.T) {
			if err := os.WriteFile(file, damage(), 0o600); err != nil {
				t.Fatal(err)
			}
			l := library(t, f, keep)
			wantIndex(t, l, f)
			if l.stats.Damaged.Load() != 1 || l.stats.Scanned.Load() != 1 {
				t.Errorf("%d damaged, %d scans", l.stats.Damaged.Load(), l.stats.Scanned.Load())
			}
			if now, err := os.ReadFile(file); err != nil || !bytes.Equal(now, whole) {
				t.Errorf("the file was not mended: %v", err)
			}
		})
	}
}

func flip(b []byte, at int) []byte {
	b = slices.Clone(b)
	b[at] ^= 4
	return b
}

// Indexes on disk stay within their bytes, and none is kept where there is no room.
func TestShelfIsBounded(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tars")
	s := newShelf(Config{Dir: dir, DirBytes: 10 * fileUnit, DiskTimeout: DefaultDiskTimeout, Logger: discard}, new(Stats))
	for i := range 100 {
		s.keep(chunk.ObjectID{byte(i)}, make([]byte, 100))
		files, err := os.ReadDir(dir)
		if err != nil || len(files) > 10 || len(files) != len(s.files) || s.sum != int64(len(files))*fileUnit {
			t.Fatalf("%d files, %d counted, %d bytes, %v", len(files), len(s.files), s.sum, err)
		}
	}
	again := newShelf(Config{Dir: dir, DirBytes: 3 * fileUnit, DiskTimeout: DefaultDiskTimeout, Logger: discard}, new(Stats))
	again.count()
	if files, _ := os.ReadDir(dir); len(files) > 3 || again.sum != int64(len(files))*fileUnit {
		t.Errorf("%d files after the limit fell, %d bytes", len(files), again.sum)
	}
	full := newShelf(Config{Dir: t.TempDir(), DirBytes: 1 << 20, DiskTimeout: DefaultDiskTimeout, Logger: discard, Room: func(int64) bool { return false }}, new(Stats))
	full.keep(chunk.ObjectID{1}, make([]byte, 100))
	if files, _ := os.ReadDir(full.dir); len(files) != 0 {
		t.Errorf("%d files where there is no room", len(files))
	}
}

// A disk that hangs costs time once, and then nothing.
func TestDiskThatHangs(t *testing.T) {
	s := newShelf(Config{Dir: t.TempDir(), DirBytes: 1 << 20, DiskTimeout: 1, Logger: discard}, new(Stats))
	release, back := make(chan struct{}), make(chan struct{})
	if s.try(func() error { defer close(back); <-release; return nil }) {
		t.Fatal("what hangs is done")
	}
	if s.load(chunk.ObjectID{1}, 1) != nil || s.try(func() error { t.Error("tried while it hangs"); return nil }) {
		t.Error("the disk counts as well")
	}
	close(release)
	<-back
	s.timeout = DefaultDiskTimeout
	for !s.try(func() error { return nil }) { // until it is noticed
	}
}

// Others are asked first; one that has nothing sensible is done without.
func TestAsksTheNodeThatKeepsIt(t *testing.T) {
	f := newFakeTar(samples(t, 20, 5000))
	for _, c := range []struct {
		name   string
		answer func() ([]byte, error)
		asked  int64
	}{
		{"has it", func() ([]byte, error) { return encode(scan(t, f.b), f.object().ID()), nil }, 1},
		{"this node keeps it", func() ([]byte, error) { return nil, chunk.ErrNotHeld }, 0},
		{"nonsense", func() ([]byte, error) { return []byte("nonsense"), nil }, 0},
		{"another's", func() ([]byte, error) { return encode(scan(t, f.b), chunk.ObjectID{9}), nil }, 0},
		{"fails", func() ([]byte, error) { return nil, errors.New("no connection") }, 0},
	} {
		l := library(t, f, func(cfg *Config) {
			cfg.Ask = func(context.Context, chunk.Object) ([]byte, error) { return c.answer() }
		})
		wantIndex(t, l, f)
		if got := l.stats.Asked.Load(); got != c.asked || l.stats.Scanned.Load() != 1-c.asked {
			t.Errorf("%s: %d from others, %d scans", c.name, got, l.stats.Scanned.Load())
		}
		b, err := l.Encoded(t.Context(), f.object())
		if err != nil || !bytes.Equal(b, encode(scan(t, f.b), f.object().ID())) {
			t.Errorf("%s: encoded: %v", c.name, err)
		}
	}
}

// The node that keeps an index gets it from whoever made it, where it does not make it itself.
func TestIndexIsGivenToTheNodeThatKeepsIt(t *testing.T) {
	f := newFakeTar(samples(t, 400, 900))
	size := int64(len(f.b))
	for _, c := range []struct {
		name  string
		whole int64 // tars up to it come whole to who keeps the index
		scans bool
		given bool
	}{
		{"large, streamed", size - 1, false, true},
		{"small, streamed", size, false, false},
		{"scanned", size, true, true},
	} {
		keeper := library(t, f, nil)
		gave := make(chan error, 1)
		l := library(t, f, func(cfg *Config) {
			cfg.WholeBytes = c.whole
			cfg.Give = func(_ context.Context, obj chunk.Object, encoded []byte) error {
				if !keeper.Lacks(obj) {
					t.Errorf("%s: the keeper has it", c.name)
				}
				gave <- keeper.Keep(obj, encoded)
				return nil
			}
		})
		if c.scans {
			wantIndex(t, l, f)
		} else {
			for _, b := range f.blocks() {
				f.arrive(l, b)
			}
			settle(t, l, func() bool { return l.stats.Streamed.Load() == 1 })
		}
		if c.given {
			if err := <-gave; err != nil {
				t.Error(err)
			}
			wantIndex(t, keeper, f)
		}
		if n := keeper.stats.Given.Load(); (n == 1) != c.given || keeper.stats.Scanned.Load() != 0 || keeper.Lacks(f.object()) == c.given {
			t.Errorf("%s: %d given, %d scans, lacks it: %v", c.name, n, keeper.stats.Scanned.Load(), keeper.Lacks(f.object()))
		}
	}
	l := library(t, f, nil)
	if err := l.Keep(f.object(), []byte("nonsense")); err == nil || !l.Lacks(f.object()) || l.stats.Damaged.Load() != 1 {
		t.Errorf("nonsense is kept: %v", err)
	}
}

// Many share one scan; it ends with the last who waits, and the next goes on from there.
func TestScanIsShared(t *testing.T) {
	f := newFakeTar(samples(t, 50, 10*testBlock))
	f.hold = make(chan struct{})
	l := library(t, f, nil)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			if _, err := l.Index(ctx, f.object()); !errors.Is(err, context.Canceled) {
				t.Errorf("got %v", err)
			}
		})
	}
	<-f.waiting
	settle(t, l, func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, fl := range l.flights {
			return fl.waiters == 10
		}
		return false
	})
	cancel()
	wg.Wait()
	close(f.hold)
	wantIndex(t, l, f)
	if len(f.waiting) > len(f.blocks()) {
		t.Errorf("%d reads", len(f.waiting))
	}
}

// Who brings a block does not wait for a scan, which may wait for that block.
func TestBlocksDoNotWaitForScans(t *testing.T) {
	f := newFakeTar(samples(t, 50, 10*testBlock))
	f.hold = make(chan struct{})
	l := library(t, f, nil)
	done := make(chan struct{})
	go func() {
		defer close(done)
		wantIndex(t, l, f)
	}()
	<-f.waiting // the scan is at it
	for _, b := range f.blocks() {
		f.arrive(l, b)
	}
	close(f.hold)
	<-done
}

func TestErrorsKeepTheirClass(t *testing.T) {
	f := newFakeTar(samples(t, 20, 5000))
	f.err = objstore.ErrPermission
	l := library(t, f, nil)
	if _, err := l.Index(t.Context(), f.object()); !errors.Is(err, objstore.ErrPermission) {
		t.Errorf("got %v", err)
	}
	f.err = nil
	wantIndex(t, l, f)
	g := newFakeTar(bytes.Repeat([]byte("no tar "), 1000))
	l = library(t, g, nil)
	for range 2 {
		if _, err := l.Index(t.Context(), g.object()); !errors.Is(err, ErrNotTar) {
			t.Errorf("got %v", err)
		}
	}
	if n := l.stats.Scanned.Load(); n != 1 {
		t.Errorf("%d scans of what is no tar", n)
	}
}

// Memory is bounded, whatever comes by.
func TestMemoryIsBounded(t *testing.T) {
	f := newFakeTar(samples(t, 200, 100))
	l := library(t, f, func(c *Config) { c.MemoryBytes = 3 * scan(t, f.b).Bytes() })
	for i := range 3 * maxGrowing {
		obj := f.object()
		obj.ETag = fmt.Sprint(i)
		l.Arrived(obj, obj.ID(), 0, f.b[:testBlock])
		if n := len(l.growing.all); n > maxGrowing+1 {
			t.Fatalf("%d tars grow", n)
		}
		if i < 10 {
			if _, err := l.Index(t.Context(), obj); err != nil {
				t.Fatal(err)
			}
		}
	}
	if l.bytes > l.cfg.MemoryBytes || l.memory.Len() != len(l.byID) || l.memory.Len() == 0 {
		t.Errorf("%d bytes in %d indexes", l.bytes, l.memory.Len())
	}
	if l.growing.bytes < 0 || l.growing.bytes > maxGrowingBytes {
		t.Errorf("%d bytes grow", l.growing.bytes)
	}
}
