package cache

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/shardwell/shardwell/cache/evict"
	"github.com/shardwell/shardwell/internal/chunk"
)

// memoryPolicy owns what is named "own…" in a directory of a class.
type memoryPolicy struct {
	mu      sync.Mutex
	classes map[string]evict.Class
	left    int64 // bytes that are admitted
}

func (p *memoryPolicy) Owns(obj chunk.Object, _ chunk.ObjectID, _ uint32) bool {
	return strings.Contains(obj.Key, "/own")
}

func (p *memoryPolicy) Judge(obj chunk.Object, _ chunk.ObjectID) (evict.Class, int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	dir, _, _ := strings.Cut(obj.Key, "/")
	return p.classes[dir], 0
}

func (p *memoryPolicy) Admits(_ chunk.Object, _ chunk.ObjectID, n int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n > p.left {
		return false
	}
	p.left -= n
	return true
}

// memoryRig is a cache of 64 pages without a disk, of which 48 keep what is owned.
type memoryRig struct {
	*rig
	p       *memoryPolicy
	objects map[string]chunk.Object
	data    map[string][]byte
}

func newMemoryRig(t *testing.T, buffers int) *memoryRig {
	r := &memoryRig{p: &memoryPolicy{left: 1 << 40, classes: map[string]evict.Class{
		"pin": evict.Pinned, "epoch": evict.Protected, "lru": evict.Recent, "idle": evict.Idle, "none": evict.Unkept}},
		objects: make(map[string]chunk.Object), data: make(map[string][]byte)}
	r.rig = newRig(t, buffers, func(c *Config) { c.Disk, c.Memory = nil, r.p })
	return r
}

// read reads a block-sized object of each name, in steps, and returns how many blocks came from the origin.
func (r *memoryRig) read(t *testing.T, dir string, from, to int) int {
	t.Helper()
	before := r.origin.Bytes()
	for i := from; i < to; i++ {
		key := fmt.Sprintf("%s/own%03d", dir, i)
		if _, ok := r.objects[key]; !ok {
			r.objects[key], r.data[key] = r.put(key, block)
		}
		f := r.open(t, r.objects[key])
		for off := 0; off < block; off += block / 8 {
			wantRead(t, f, r.data[key], off, block/8)
		}
		f.Close()
	}
	return int(r.origin.Bytes()-before) / block
}

// TestMemoryGoesByClasses keeps in the memory of a node without disks what it would keep on disks.
func TestMemoryGoesByClasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newMemoryRig(t, 128)
		defer r.shut(t)
		if got := KeptBlocks(r.arena); got != 48 || r.pages.max != 64 {
			t.Fatalf("%d blocks of %d are kept", got, r.pages.max)
		}
		for _, step := range []struct {
			what     string
			dir      string
			from, to int
			origin   int // blocks that it sends
		}{
			{"an epoch over twice what is kept", "epoch", 0, 96, 96},
			{"in the next, what came first is there, and what passed through last", "epoch", 0, 48, 0},
			{"what is unused does not come in its place", "idle", 0, 60, 60},
			{"nor what is kept by recency", "lru", 0, 60, 60},
			{"nor what is not to be kept", "none", 0, 60, 60},
			{"it is there still", "epoch", 0, 48, 0},
			{"what is pinned comes in its place", "pin", 0, 30, 30},
			{"and stays", "pin", 0, 30, 0},
			{"beside what there is room for", "epoch", 30, 48, 0},
		} {
			if got := r.read(t, step.dir, step.from, step.to); got != step.origin {
				t.Errorf("%s: the origin sent %d blocks, want %d", step.what, got, step.origin)
			}
		}
		if r.MemoryRoom() {
			t.Error("there is room for more")
		}

		r.p.mu.Lock()
		r.p.classes["epoch"], r.p.classes["pin"] = evict.Idle, evict.Idle // unmounted, expired
		r.p.mu.Unlock()
		r.Judged()
		if got := r.read(t, "lru", 100, 200); got != 100 {
			t.Errorf("the origin sent %d blocks of what was never read", got)
		}
		if got := r.read(t, "lru", 152, 200); got != 0 {
			t.Errorf("by recency the last 48 are kept; %d were not", got)
		}
		if got := r.pages.kept; got != 48 {
			t.Errorf("%d blocks are kept", got)
		}

		r.p.mu.Lock()
		r.p.classes["pin"], r.p.left = evict.Pinned, 5*block // a quota
		r.p.mu.Unlock()
		r.read(t, "pin", 100, 150)
		if got := r.read(t, "pin", 100, 105); got != 0 {
			t.Errorf("%d blocks within the quota were not kept", got)
		}
		seen := 0
		stop := errors.New("enough")
		if err := r.EachInMemory(func(m InMemory) error {
			if len(m.Blocks) != 1 || m.ID != m.Object.ID() {
				t.Errorf("%+v", m)
			}
			if seen++; seen == 60 {
				return stop
			}
			return nil
		}); err != stop {
			t.Errorf("%d objects are there: %v", seen, err)
		}
	})
}

// TestSmallestMemoryServes reads in small steps with the fewest buffers, all of them kept for something.
func TestSmallestMemoryServes(t *testing.T) {
	for _, buffers := range []int{2, 4, 8, 16} {
		synctest.Test(t, func(t *testing.T) {
			r := newMemoryRig(t, buffers)
			defer r.shut(t)
			r.read(t, "pin", 0, 20)
			if got, most := r.read(t, "epoch", 0, 20), 20; buffers >= 8 && got != most {
				t.Errorf("%d buffers: the origin sent %d blocks, want each once: %d", buffers, got, most)
			}
		})
	}
}
