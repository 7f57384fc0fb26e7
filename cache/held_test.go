package cache

import (
	"bytes"
	"sync"
	"testing"

	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/objstore"
)

// What is held is read without a fetch and without being counted; what is not is not.
func TestReadHeld(t *testing.T) {
	for _, disk := range []bool{true, false} {
		r := newRig(t, 16, func(c *Config) {
			if !disk {
				c.Disk = nil
			}
		})
		obj, data := r.put("k", 3*block+100)
		f := r.open(t, obj)
		p := make([]byte, 200)
		if f.ReadHeld(p, 0) {
			t.Error("bytes were held before they were read")
		}
		wantRead(t, f, data, block, 2*block+100)
		requests, ops := r.origin.Requests(objstore.OpGet), r.Stats().ReadOps[FromDisk].Load()+r.Stats().ReadOps[FromMemory].Load()
		for _, off := range []int{block, 2*block - 100, 3*block - 100} {
			if !f.ReadHeld(p, int64(off)) || !bytes.Equal(p, data[off:off+200]) {
				t.Errorf("disk %v: at %d: not held, or wrong", disk, off)
			}
		}
		for _, off := range []int64{0, block - 100, obj.Size - 100, obj.Size, -1} {
			if f.ReadHeld(p, off) {
				t.Errorf("disk %v: at %d: held", disk, off)
			}
		}
		if now := r.Stats().ReadOps[FromDisk].Load() + r.Stats().ReadOps[FromMemory].Load(); r.origin.Requests(objstore.OpGet) != requests || now != ops {
			t.Errorf("disk %v: fetched, or counted as read", disk)
		}
		f.Close()
		r.shut(t)
	}
}

// A file that is bound to some bytes fetches the blocks that hold them and no more, however
// they are read.
func TestBoundFetchesNothingBeyond(t *testing.T) {
	r := newRig(t, 16, nil)
	defer r.shut(t)
	obj, data := r.put("k", 32*block)
	f := r.open(t, obj)
	defer f.Close()
	const from, to = 2*block + 100, 7*block - 100
	f.Bound(from, to-from)
	for off := from; off < to; off += 10 << 10 {
		wantRead(t, f, data, off, min(10<<10, to-off))
	}
	if got := f.CachedBytes(); got != 5*block {
		t.Errorf("%d bytes came, want 5 blocks", got)
	}
}

// Every block is told of once for each time that it comes, kept or not.
func TestArrivedIsToldOfEachBlock(t *testing.T) {
	for _, full := range []bool{false, true} {
		var mu sync.Mutex
		told := map[uint32]int{}
		var want []byte
		r := newRig(t, 16, func(c *Config) {
			c.Arrived = func(obj chunk.Object, id chunk.ObjectID, b chunk.Block) {
				mu.Lock()
				defer mu.Unlock()
				told[b.Index]++
				if id != obj.ID() || !bytes.Equal(b.Data, want[int(b.Index)*block:][:len(b.Data)]) {
					t.Errorf("block %d of %v is wrong", b.Index, obj)
				}
			}
		})
		r.tier.full = full
		obj, data := r.put("k", 5*block+1)
		want = data
		f := r.open(t, obj)
		wantRead(t, f, data, 0, len(data))
		f.Close()
		r.shut(t)
		if len(told) != 6 {
			t.Errorf("full %v: %d blocks were told of, want 6", full, len(told))
		}
	}
}
