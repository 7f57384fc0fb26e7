package disk

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shardwell/shardwell/cache/evict"
	"github.com/shardwell/shardwell/internal/chunk"
)

// start runs d.Run until the test ends, or stop is called.
func start(t testing.TB, d *Dir) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// SEMANTICS C6: Bytes that the cache directories hold stay within their budget, and free space and inodes above their floors.
//
// TestBudgetHolds stores from many sides until twice the budget was stored, and looks
// all the while. How many blocks are refused on the way depends on how soon room is
// made.
func TestBudgetHolds(t *testing.T) {
	const budget = 64 * chunk.MinBlockBytes
	cfg := testConfig(t.TempDir())
	cfg.BudgetBytes = budget
	d := openDir(t, cfg)
	stop := start(t, d)
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for i := 0; d.stats.StoredBytes.Load() < 2*budget; i++ {
				c := newContent(fmt.Sprintf("%d/%d", w, i), 3*chunk.MinBlockBytes+i%1000)
				f, err := d.Acquire(c.obj, c.id, w%2 == 0)
				if err != nil {
					t.Error(err)
					return
				}
				for b := range f.Blocks() {
					if err := f.Put(c.block(small, b)); err != nil && !errors.Is(err, ErrNotAdmitted) {
						t.Error(err)
					}
				}
				if used := onDiskRoughly(d); used > budget {
					t.Errorf("%d bytes on the disk, budget %d", used, budget)
				}
				_ = readAndCompare(t, f, c)
				f.Release()
			}
		})
	}
	wg.Wait()
	stop()
	checkLedger(t, d)
	if d.stats.EvictedObjects.Load() == 0 {
		t.Error("no object evicted")
	}
}

// onDiskRoughly is onDisk while files come and go.
func onDiskRoughly(d *Dir) (used int64) {
	names, _ := filepath.Glob(d.path(objectsName, "*", "*"))
	for _, name := range names {
		if info, err := os.Lstat(name); err == nil {
			used += info.Sys().(*syscall.Stat_t).Blocks * 512
		}
	}
	return used
}

// TestEvictionOrder evicts copies before owned objects, each least recently used
// first, and nothing that is in use.
func TestEvictionOrder(t *testing.T) {
	d := openDir(t, testConfig(t.TempDir()))
	type object struct {
		content
		owned bool
	}
	var objects []object
	for i := range 8 {
		o := object{newContent(fmt.Sprint(i), 1000), i%2 == 0}
		f, err := d.Acquire(o.obj, o.id, o.owned)
		if err != nil {
			t.Fatal(err)
		}
		o.putAll(t, f)
		f.Release()
		objects = append(objects, o)
	}
	held := objects[1].acquire(t, d) // turns into an owned one, in use
	defer held.Release()
	first := objects[3].obj // used again: the last of the copies
	f, err := d.Acquire(first, objects[3].id, false)
	if err != nil {
		t.Fatal(err)
	}
	f.Release()

	var order []string
	for range len(objects) - 1 {
		d.victims = [kinds]victims{}
		c, ok := next(d)
		if !ok {
			t.Fatal("nothing to evict")
		}
		for _, o := range objects {
			if o.id == c.ID {
				order = append(order, o.obj.Key)
			}
		}
		if freed, err := d.evict(c); err != nil || freed <= 0 {
			t.Fatalf("evict: %d, %v", freed, err)
		}
	}
	if got, want := fmt.Sprint(order), "[5 7 3 0 2 4 6]"; got != want {
		t.Errorf("evicted in the order %s, want %s", got, want)
	}
	d.victims = [kinds]victims{}
	if _, ok := next(d); ok {
		t.Errorf("an object in use is to go")
	}
	objects[1].check(t, held)
	checkLedger(t, d)
}

// next returns what would go first.
func next(d *Dir) (evict.Candidate, bool) {
	d.findVictims(context.Background(), ofOwned, evict.Idle)
	for _, v := range d.victims {
		if len(v.list) > 0 {
			return v.list[0], true
		}
	}
	return evict.Candidate{}, false
}

// TestEvictUsedSince spares an object that was used after it was chosen.
func TestEvictUsedSince(t *testing.T) {
	d := openDir(t, testConfig(t.TempDir()))
	c := newContent("k", 1000)
	c.store(t, d)
	chosen, ok := next(d)
	if !ok {
		t.Fatal("nothing to evict")
	}
	f := c.acquire(t, d)
	if freed, err := d.evict(chosen); freed >= 0 || err != nil {
		t.Fatalf("evicted in use: %d, %v", freed, err)
	}
	f.Release()
	if freed, err := d.evict(chosen); freed >= 0 || err != nil {
		t.Fatalf("evicted although used since: %d, %v", freed, err)
	}
	if freed, err := d.evict(victim(c.id)); freed <= 0 || err != nil {
		t.Fatalf("not evicted: %d, %v", freed, err)
	}
	if _, err := d.Find(c.id); !errors.Is(err, ErrNotPresent) {
		t.Fatalf("found after eviction: %v", err)
	}
	c.store(t, d)
	checkLedger(t, d)
}

func TestFloors(t *testing.T) {
	const block = chunk.MinBlockBytes
	space := Space{TotalBytes: 1000 * block, FreeBytes: 10 * block, Inodes: 100, FreeInodes: 50}
	tests := []struct {
		name   string
		change func(cfg *Config, s *Space)
		want   error
		reason Reject
	}{
		{"room", func(*Config, *Space) {}, nil, 0},
		{"free bytes at the floor", func(cfg *Config, s *Space) { cfg.FloorBytes = 10 * block }, ErrNotAdmitted, RejectFloor},
		{"free bytes just above", func(cfg *Config, s *Space) { cfg.FloorBytes = 8 * block }, nil, 0},
		{"no inodes left", func(cfg *Config, s *Space) { s.FreeInodes = 1 }, ErrNotAdmitted, RejectInodes},
		{"inodes at the floor", func(cfg *Config, s *Space) { cfg.FloorInodes = 49 }, ErrNotAdmitted, RejectInodes},
		{"inodes not counted", func(cfg *Config, s *Space) { cfg.FloorInodes, s.Inodes, s.FreeInodes = 49, 0, 0 }, nil, 0},
		{"budget below a block", func(cfg *Config, s *Space) { cfg.BudgetBytes = block }, ErrNotAdmitted, RejectBudget},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cfg, s := testConfig(t.TempDir()), space
			tt.change(&cfg, &s)
			cfg.FS = &faultFS{FS: OS{}, space: func() (Space, error) { return s, nil }}
			d := openDir(t, cfg)
			c := newContent("k", block)
			f := c.acquire(t, d)
			defer f.Release()
			err := f.Put(c.block(small, 0))
			if !errors.Is(err, tt.want) {
				t.Fatalf("put: %v", err)
			}
			var reject *RejectError
			if errors.As(err, &reject) && reject.Reason != tt.reason {
				t.Errorf("rejected for %v, want %v", reject.Reason, tt.reason)
			}
			if names, _ := filepath.Glob(d.path(objectsName, "*", "*")); err != nil && len(names) > 0 {
				t.Errorf("left behind: %v", names)
			}
		})
	}
}

// TestFloorEvicts frees space for others who fill the file system.
func TestFloorEvicts(t *testing.T) {
	const block = chunk.MinBlockBytes
	var mu sync.Mutex
	others := int64(0)
	cfg := testConfig(t.TempDir())
	cfg.FloorBytes = 100 * block
	var d *Dir
	cfg.FS = &faultFS{FS: OS{}, space: func() (Space, error) {
		mu.Lock()
		defer mu.Unlock()
		used := others
		if d != nil {
			used += onDiskRoughly(d)
		}
		return Space{TotalBytes: 1000 * block, FreeBytes: 1000*block - used, UsedBytes: used}, nil
	}}
	dir := openDir(t, cfg)
	mu.Lock()
	d = dir
	mu.Unlock()
	for i := range 20 {
		newContent(fmt.Sprint(i), 10*block).store(t, d)
	}
	mu.Lock()
	others = 800 * block
	mu.Unlock()
	dir.relieve(context.Background())
	space, _ := cfg.FS.Statfs("")
	if space.FreeBytes < cfg.FloorBytes {
		t.Errorf("%d bytes free, floor %d", space.FreeBytes, cfg.FloorBytes)
	}
	if n := dir.stats.EvictedObjects.Load(); n == 0 || n == 20 {
		t.Errorf("%d objects evicted of 20", n)
	}
	checkLedger(t, dir)
}

// TestUncleanCount counts while the cache serves, and holds the budget before.
func TestUncleanCount(t *testing.T) {
	path := t.TempDir()
	d := openDir(t, testConfig(path))
	for i := range 50 {
		newContent(fmt.Sprint(i), 5000).store(t, d)
	}
	used, _ := d.Usage()
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(path, cleanName)); err != nil {
		t.Fatal(err)
	}

	cfg := testConfig(path)
	cfg.BudgetBytes = used + 20*chunk.MinBlockBytes
	cfg.FS = &faultFS{FS: OS{}, space: func() (Space, error) {
		return Space{TotalBytes: 1 << 40, FreeBytes: 1 << 40, UsedBytes: cfg.BudgetBytes}, nil
	}}
	d = openDir(t, cfg)
	c := newContent("new", 5000)
	f := c.acquire(t, d)
	defer f.Release()
	if err := f.Put(c.block(small, 0)); !errors.Is(err, ErrNotAdmitted) {
		t.Errorf("put before the count: %v", err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		rng := rand.New(rand.NewPCG(7, 7))
		for range 300 {
			c := newContent(fmt.Sprint(rng.IntN(60)), 5000)
			f := c.acquire(t, d)
			_ = f.Put(c.block(small, 0))
			f.Release()
			_, _ = d.evict(victim(newContent(fmt.Sprint(rng.IntN(60)), 5000).id))
		}
	})
	for range 5 {
		if err := d.walk(context.Background(), nil); err != nil {
			t.Fatal(err)
		}
	}
	wg.Wait()
	if !d.ledger.exact() {
		t.Fatal("not counted")
	}
	if err := d.walk(context.Background(), nil); err != nil {
		t.Fatal(err)
	}
	checkLedger(t, d)
	if err := f.Put(c.block(small, 0)); err != nil {
		t.Errorf("put after the count: %v", err)
	}
}

// mountSmall mounts a small file system on a new directory: tmpfs by its options, or
// ext4 in a file of some MiB.
func mountSmall(t *testing.T, tmpfs string, ext4MiB int64) (path string) {
	t.Helper()
	path = t.TempDir()
	run := func(name string, args ...string) {
		t.Helper()
		if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
			t.Fatalf("%s %v: %v: %s", name, args, err, out)
		}
	}
	if ext4MiB == 0 {
		run("mount", "-t", "tmpfs", "-o", tmpfs, "tmpfs", path)
	} else {
		image := filepath.Join(t.TempDir(), "image")
		if err := os.WriteFile(image, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		truncate(t, image, ext4MiB<<20)
		run("mkfs.ext4", "-q", "-F", image)
		run("mount", "-o", "loop", image, path)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(path, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return path
}

// syncDisk has a file system write what it has in memory.
func syncDisk(t *testing.T, path string) {
	t.Helper()
	dir, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	if err := unix.Syncfs(int(dir.Fd())); err != nil {
		t.Fatal(err)
	}
}

// TestSmallFileSystem fills real ones: no space, no inodes. Without a budget or floors
// the kernel's own refusals are what there is to go by.
func TestSmallFileSystem(t *testing.T) {
	if os.Geteuid() != 0 && os.Getenv("CI") != "true" {
		t.Skip("mounting needs root")
	}
	for _, tt := range []struct {
		name, tmpfs string
		ext4MiB     int64
		floor       int64
	}{
		{"tmpfs without space", "size=4m", 0, 0},
		{"tmpfs without inodes", "size=64m,nr_inodes=40", 0, 0},
		{"ext4 without space", "", 16, 0},
		{"ext4 with a floor", "", 16, 4 << 20},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg := testConfig(mountSmall(t, tt.tmpfs, tt.ext4MiB))
			cfg.FloorBytes = tt.floor
			d := openDir(t, cfg)
			admitted := 0
			for i := range 200 {
				c := newContent(fmt.Sprint(i), 2*chunk.MinBlockBytes)
				f := c.acquire(t, d)
				for b := range f.Blocks() {
					switch err := f.Put(c.block(small, b)); {
					case err == nil:
						admitted++
					case !errors.Is(err, ErrNotAdmitted) || f.Has(b):
						t.Fatal(err, f.Has(b))
					}
				}
				_ = readAndCompare(t, f, c)
				f.Release()
				if space, err := (OS{}).Statfs(cfg.Path); err != nil || space.FreeBytes < tt.floor {
					t.Fatalf("%d bytes free, floor %d, %v", space.FreeBytes, tt.floor, err)
				}
				if i%50 == 49 {
					d.relieve(context.Background())
				}
			}
			var rejected int64
			for r := range NumRejects {
				rejected += d.stats.Rejected[r].Load()
			}
			if admitted == 0 || rejected == 0 || d.stats.EvictedObjects.Load() == 0 {
				t.Errorf("%d blocks admitted, %d rejected, %d objects evicted", admitted, rejected, d.stats.EvictedObjects.Load())
			}
			// A full ext4 writes files in pieces, and takes a block for the list of them when it does so. The
			// next walk counts it.
			d.trim(0, admitted)
			syncDisk(t, cfg.Path)
			if err := d.walk(t.Context(), nil); err != nil {
				t.Fatal(err)
			}
			checkLedger(t, d)
		})
	}
}

// TestWalkPastBadObjects goes on where one object or one folder cannot be read.
func TestWalkPastBadObjects(t *testing.T) {
	var bad string
	cfg := testConfig(t.TempDir())
	cfg.FS = &faultFS{FS: OS{}, fail: func(_ int, op, name string) error {
		if op == "readdir" && name == bad {
			return syscall.EIO
		}
		return nil
	}}
	d := openDir(t, cfg)
	for i := range 10 {
		newContent(fmt.Sprint(i), 1000).store(t, d)
	}
	bad = d.path(folder(newContent("3", 1000).id))
	d.ledger = ledger{fs: d.fs, path: d.cfg.Path, block: testBlock, walking: -1, foreign: 1 << 30} // an unclean stop
	if !d.count(context.Background()) || !d.ledger.exact() {
		t.Error("one folder that cannot be read keeps the others from being counted")
	}
	if got, least := d.ledger.sum.used, onDisk(t, d); got < least {
		t.Errorf("a folder that cannot be read counts too little: %d bytes of %d", got, least)
	}
	if _, ok := next(d); !ok || len(d.victims[ofOwned].list) < 8 {
		t.Errorf("%d victims", len(d.victims[ofOwned].list))
	}
	seen := 0
	if err := d.Each(t.Context(), func(Entry) error { seen++; return nil }); !errors.Is(err, syscall.EIO) || seen != 9 {
		t.Errorf("%d objects listed, %v", seen, err)
	}
	s := scrubber{d: d, rate: 1 << 30}
	if err := s.round(t.Context()); !errors.Is(err, syscall.EIO) || d.stats.ScrubbedBytes.Load() != 9*1000 {
		t.Errorf("%d bytes scrubbed, %v", d.stats.ScrubbedBytes.Load(), err)
	}
	if d.State() == Down {
		t.Error("one folder takes the disk down")
	}
	bad = ""
	if !d.count(context.Background()) {
		t.Error("not counted afterwards")
	}
	checkLedger(t, d)
}

// TestCountOnADeadDisk does not walk again and again where no folder can be read.
func TestCountOnADeadDisk(t *testing.T) {
	dead := false
	cfg := testConfig(t.TempDir())
	cfg.FS = &faultFS{FS: OS{}, fail: func(_ int, op, name string) error {
		if dead && op == "readdir" {
			return syscall.EIO
		}
		return nil
	}}
	d := openDir(t, cfg)
	for i := range 300 { // in most folders
		newContent(fmt.Sprint(i), 100).store(t, d)
	}
	d.ledger.counted, dead = false, true
	for range 3 {
		if d.count(t.Context()) || d.ledger.exact() {
			t.Fatal("counted what cannot be read")
		}
	}
	if n := d.stats.Walks.Load(); n != 1 {
		t.Errorf("%d walks at once", n)
	}
	dead, d.countAfter = false, time.Time{}
	if !d.count(t.Context()) {
		t.Error("not counted afterwards")
	}
	checkLedger(t, d)
}
