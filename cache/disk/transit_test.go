package disk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/shardwell/shardwell/cache/evict"
	"github.com/shardwell/shardwell/internal/chunk"
)

// testPolicy owns what is named "own…" and, of objects named "mix…", every other chunk.
// Classes are set by the first letter behind a slash.
type testPolicy struct {
	mu      sync.Mutex
	classes map[string]evict.Class // by what is before the slash; Protected where there is none
	quota   int64                  // bytes of all datasets; 0: none
	taken   int64
}

func (p *testPolicy) Owns(obj chunk.Object, _ chunk.ObjectID, block uint32) bool {
	name := obj.Key[strings.IndexByte(obj.Key, '/')+1:]
	return strings.HasPrefix(name, "own") || strings.HasPrefix(name, "mix") && small.ChunkOf(block)%2 == 0
}

func (p *testPolicy) Judge(obj chunk.Object, _ chunk.ObjectID) (evict.Class, int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	dir, _, _ := strings.Cut(obj.Key, "/")
	if c, ok := p.classes[dir]; ok {
		return c, 0
	}
	return evict.Protected, 0
}

func (p *testPolicy) Admits(_ chunk.Object, _ chunk.ObjectID, n int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.quota > 0 && p.taken+n > p.quota {
		return false
	}
	p.taken += n
	return true
}

func (p *testPolicy) Rotates(obj chunk.Object) (evict.Dataset, bool) {
	class, _ := p.Judge(obj, obj.ID())
	dir, _, _ := strings.Cut(obj.Key, "/")
	return evict.Dataset{Origin: obj.Origin, Bucket: obj.Bucket, Prefix: dir + "/"}, class == evict.Recent
}

func (p *testPolicy) Freed(_ evict.Dataset, n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken -= n
}

func (p *testPolicy) set(dir string, c evict.Class) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.classes[dir] = c
}

const testBlock = chunk.MinBlockBytes

// protectedDir returns a directory whose budget but for the transit area is full of what is
// never evicted.
func protectedDir(t *testing.T, blocks, transit int64) (*Dir, *testPolicy) {
	t.Helper()
	p := &testPolicy{classes: map[string]evict.Class{}}
	cfg := testConfig(t.TempDir())
	cfg.Policy, cfg.BudgetBytes, cfg.TransitBytes = p, blocks*testBlock, transit*testBlock
	d := openDir(t, cfg)
	fill(t, d, "a/own")
	return d, p
}

// fill stores objects of two blocks until one is not admitted, or as a guest only, and returns how many were.
func fill(t *testing.T, d *Dir, prefix string) (n int) {
	t.Helper()
	for rejected := 0; rejected < 2; {
		c := newContent(fmt.Sprint(prefix, n), 2*testBlock)
		f := c.acquire(t, d)
		for b := range f.Blocks() {
			if err := f.Put(c.block(small, b)); errors.Is(err, ErrNotAdmitted) {
				rejected++
			} else if err != nil {
				t.Fatal(err)
			}
		}
		if b := f.body.Load(); b != nil && b.guests.count > 0 {
			rejected++
			f.punch(b, b.guests.list())
		}
		f.Release()
		if rejected == 0 {
			n++
		}
	}
	return n
}

// TestProtectedStays fills a directory with an owner's objects of a dataset in use: what comes
// later is not admitted, nothing is evicted, and copies have the transit area for themselves.
func TestProtectedStays(t *testing.T) {
	d, p := protectedDir(t, 128, 16)
	owned, limit := d.Capacity()
	if limit != 112*testBlock || owned > limit || owned < limit-3*testBlock {
		t.Fatalf("%d bytes owned, limit %d", owned, limit)
	}
	for i := range 60 {
		c := newContent(fmt.Sprint("a/copy", i), 2*testBlock)
		f := c.acquire(t, d)
		for b := range f.Blocks() {
			_ = f.Put(c.block(small, b))
		}
		f.Release()
		d.relieve(context.Background())
		if used := onDisk(t, d); used > 128*testBlock {
			t.Fatalf("%d bytes on the disk", used)
		}
	}
	if got, _ := d.Capacity(); got < owned {
		t.Errorf("%d bytes owned, were %d", got, owned)
	}
	if f, err := d.Find(newContent("a/copy59", 2*testBlock).id); err != nil {
		t.Error("the last copy:", err)
	} else {
		f.Release()
	}
	if _, err := d.Find(newContent("a/copy0", 2*testBlock).id); !errors.Is(err, ErrNotPresent) {
		t.Error("the first copy:", err)
	}
	if n := fill(t, d, "a/ownlate"); n != 0 {
		t.Errorf("%d objects admitted beside protected ones", n)
	}
	p.set("a", evict.Idle) // unmounted
	d.Judged()
	_ = fill(t, d, "b/own")
	d.relieve(context.Background())
	if n := fill(t, d, "b/ownmore"); n == 0 {
		t.Error("nothing of another dataset admitted after the first was unmounted")
	}
	checkLedger(t, d)
}

// TestPinsOutrank evicts what is protected for what is pinned, and not the other way.
func TestPinsOutrank(t *testing.T) {
	d, p := protectedDir(t, 128, 16)
	p.set("p", evict.Pinned)
	total := 0
	for range 30 {
		total += fill(t, d, fmt.Sprint("p/own", total, "-"))
		d.relieve(context.Background())
	}
	if total < 45 {
		t.Errorf("%d pinned objects of 2 blocks in 112 blocks", total)
	}
	if n := fill(t, d, "a/ownlate"); n != 0 {
		d.relieve(context.Background())
	}
	for range 3 {
		_ = fill(t, d, "a/ownlater")
		d.relieve(context.Background())
	}
	have := 0
	_ = d.Each(context.Background(), func(e Entry) error {
		if e.Object.Key[0] == 'p' {
			have++
		}
		return nil
	})
	if have < total {
		t.Errorf("%d pinned objects of %d are left", have, total)
	}
	checkLedger(t, d)
}

// TestWindow streams an object that is larger than the transit area through it, and looks that
// what is being sent stays.
func TestWindow(t *testing.T) {
	d, _ := protectedDir(t, 128, 16)
	c := newContent("a/copy", 200*testBlock)
	f := c.acquire(t, d)
	defer f.Release()
	var held uint32
	for b := range f.Blocks() {
		if err := f.Put(c.block(small, b)); err != nil {
			t.Fatalf("block %d: %v", b, err)
		}
		if b == 2 {
			if _, ok := f.Lend(b); !ok {
				t.Fatal("not lent")
			}
			held = b
		}
		if !f.Has(b) || !f.Has(held) {
			t.Fatalf("block %d: present %v, the one that is being sent %v", b, f.Has(b), f.Has(held))
		}
		if used := onDisk(t, d); used > 128*testBlock {
			t.Fatalf("%d bytes on the disk", used)
		}
	}
	f.Return(held)
	last := f.Blocks() - 1
	p := make([]byte, testBlock)
	if _, err := f.ReadAt(p, int64(last)*testBlock); err != nil || string(p) != string(c.data[int64(last)*testBlock:]) {
		t.Errorf("last block: %v", err)
	}
	if _, err := f.ReadAt(p, 0); !errors.Is(err, ErrNotPresent) {
		t.Errorf("first block: %v", err)
	}
	if n := f.PresentBlocks(); n < 8 || n > 16 {
		t.Errorf("%d blocks in a window of 16", n)
	}
	checkLedger(t, d)
}

// TestReadersOfAWindow reads an object while it slides: right bytes or none.
func TestReadersOfAWindow(t *testing.T) {
	d, _ := protectedDir(t, 64, 16)
	c := newContent("a/copy", 100*testBlock)
	f := c.acquire(t, d)
	defer f.Release()
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			p := make([]byte, testBlock)
			for b := uint32(0); ctx.Err() == nil; b = (b + 1) % f.Blocks() {
				off := int64(b) * testBlock
				if _, err := f.ReadAt(p, off); err == nil && string(p) != string(c.data[off:off+testBlock]) {
					t.Errorf("block %d: other bytes", b)
				} else if err != nil && !errors.Is(err, ErrNotPresent) {
					t.Errorf("block %d: %v", b, err)
				}
			}
		})
	}
	for range 3 {
		for b := range f.Blocks() {
			_ = f.Put(c.block(small, b))
		}
	}
	stop()
	wg.Wait()
	if n := d.stats.Lost[LossChecksum].Load(); n > 0 {
		t.Errorf("%d blocks taken for damaged", n)
	}
	checkLedger(t, d)
}

// TestMixed evicts the copies from an object of which this node owns every other chunk: by
// holes while it was never complete, by a new file once it was, so that whoever has the
// old one mapped keeps its bytes.
func TestMixed(t *testing.T) {
	for _, complete := range []bool{false, true} {
		t.Run(fmt.Sprint("complete ", complete), func(t *testing.T) {
			cfg := testConfig(t.TempDir())
			cfg.Policy = &testPolicy{classes: map[string]evict.Class{}}
			d := openDir(t, cfg)
			c := newContent("a/mix", 16*testBlock)
			f := c.acquire(t, d)
			for b := range f.Blocks() - 1 {
				if err := f.Put(c.block(small, b)); err != nil {
					t.Fatal(err)
				}
			}
			if complete {
				if err := f.Put(c.block(small, f.Blocks()-1)); err != nil {
					t.Fatal(err)
				}
			}
			f.Release()
			mapped, err := os.Open(d.dataPath(c.id))
			if err != nil {
				t.Fatal(err)
			}
			defer mapped.Close()
			before := onDisk(t, d)
			victim, ok := next(d)
			if !ok || victim.Class != evict.Copy {
				t.Fatalf("victim %+v, %v", victim, ok)
			}
			freed, err := d.evict(victim)
			if err != nil || freed < 6*testBlock || onDisk(t, d) != before-freed {
				t.Fatalf("freed %d of %d: %v", freed, before, err)
			}
			f = c.acquire(t, d)
			defer f.Release()
			for b := range f.Blocks() {
				if f.Has(b) != (small.ChunkOf(b)%2 == 0) {
					t.Errorf("block %d: present %v", b, f.Has(b))
				}
			}
			_ = readAndCompare(t, f, c)
			if complete {
				p := make([]byte, len(c.data))
				if _, err := mapped.ReadAt(p, 0); err != nil || string(p) != string(c.data) {
					t.Errorf("who had the old file sees other bytes: %v", err)
				}
			}
			checkLedger(t, d)
		})
	}
}

// TestCopiesAfterRestart counts copies alike before and after a restart, by the mark and by a walk.
func TestCopiesAfterRestart(t *testing.T) {
	cfg := testConfig(t.TempDir())
	cfg.Policy = &testPolicy{classes: map[string]evict.Class{}}
	d := openDir(t, cfg)
	for _, name := range []string{"a/own", "a/copy", "a/mix"} {
		newContent(name, 16*testBlock).store(t, d)
	}
	want := d.ledger.sum
	if want.copies < 24*testBlock || want.copies > 25*testBlock {
		t.Fatalf("%+v", want)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	d = openDir(t, cfg)
	if d.ledger.sum != want {
		t.Errorf("by the mark %+v, want %+v", d.ledger.sum, want)
	}
	if err := d.walk(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if d.ledger.sum != want {
		t.Errorf("by a walk %+v, want %+v", d.ledger.sum, want)
	}
}

func TestUnkept(t *testing.T) {
	cfg := testConfig(t.TempDir())
	cfg.Policy = &testPolicy{classes: map[string]evict.Class{"n": evict.Unkept}}
	d := openDir(t, cfg)
	c := newContent("n/own", testBlock)
	f := c.acquire(t, d)
	defer f.Release()
	var r *RejectError
	if err := f.Put(c.block(small, 0)); !errors.As(err, &r) || r.Reason != RejectPolicy {
		t.Errorf("put: %v", err)
	}
}

func TestTransitBytes(t *testing.T) {
	const gib = 1 << 30
	for room, want := range map[int64]int64{
		0: 0, 64 << 20: 1 << 20, 16 * gib: gib / 4, 72 * gib: 8 * gib, 128 * gib: 16 * gib, 320 * gib: 16 * gib, 2000 * gib: 100 * gib,
	} {
		if got := TransitBytes(room); got != want {
			t.Errorf("%d GiB: %d, want %d", room/gib, got, want)
		}
	}
	last := int64(0)
	for room := int64(0); room < 1000*gib; room += gib / 4 {
		owned := room - TransitBytes(room)
		if owned < last || owned < room*7/8 {
			t.Fatalf("%d MiB keep %d of what is owned, %d less kept %d", room>>20, owned, gib/4, last)
		}
		last = owned
	}
}
