package cache_test

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"testing"
	"time"

	"github.com/shardwell/shardwell/cache"
	"github.com/shardwell/shardwell/cache/disk"
	"github.com/shardwell/shardwell/cache/evict"
	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/objstore/objstoretest"
)

// protecting owns all and protects it.
type protecting struct{}

func (protecting) Owns(chunk.Object, chunk.ObjectID, uint32) bool { return true }
func (protecting) Judge(chunk.Object, chunk.ObjectID) (evict.Class, int64) {
	return evict.Protected, 0
}
func (protecting) Admits(chunk.Object, chunk.ObjectID, int64) bool  { return true }
func (protecting) Rotates(chunk.Object) (ds evict.Dataset, ok bool) { return ds, false }
func (protecting) Freed(evict.Dataset, int64)                       {}

// TestPassingBlocksWaitForTheirPeer has a peer that is slower than the origin ask an owner without room: what passes through
// the transit area, smaller than a chunk, stays until the peer has had it, and the origin sends it once.
func TestPassingBlocksWaitForTheirPeer(t *testing.T) {
	g := chunk.Geometry{ChunkBytes: 512 << 10, BlockBytes: 64 << 10}
	origin := objstoretest.NewMem()
	c, dir := overDisk(t, origin, disk.Config{Path: t.TempDir(), Geometry: g, BudgetBytes: 2 << 20, TransitBytes: 4 * (g.BlockBytes + 8<<10), Policy: protecting{}},
		cache.Config{MemoryBlocks: -1})
	lend := func(key string, slow bool) {
		data := make([]byte, g.ChunkBytes)
		rand.Read(data)
		obj := object(origin, key, data)
		origin.ResetCounts()
		span := g.ChunkSpan(obj.Size, 0)
		sent := make(map[uint32]bool)
		err := c.Lend(t.Context(), chunk.Request{Object: obj, ID: obj.ID(), Span: span, From: "peer"}, func(p chunk.Piece) error {
			for end := time.Now().Add(200 * time.Millisecond); slow && len(sent) == 0 && origin.Bytes() < obj.Size && time.Now().Before(end); {
				time.Sleep(time.Millisecond) // the origin goes on, as far as it can
			}
			got := make([]byte, p.Len)
			if copy(got, p.Data); p.File != nil {
				if _, err := p.File.ReadAt(got, p.Offset); err != nil {
					return err
				}
			}
			if off := int(p.Index) * int(g.BlockBytes); !bytes.Equal(got, data[off:off+p.Len]) {
				t.Errorf("block %d of %s: other bytes", p.Index, key)
			}
			sent[p.Index] = true
			return nil
		})
		if err != nil || len(sent) != int(span.Count) {
			t.Errorf("%s: %d blocks were sent, %v", key, len(sent), err)
		}
		if got := origin.Bytes(); slow && got != obj.Size {
			t.Errorf("%s: the origin sent %d bytes of an object of %d", key, got, obj.Size)
		}
	}
	for i := range 6 { // more than the directory holds
		lend(fmt.Sprint("fill", i), false)
	}
	if owned, limit := dir.Capacity(); owned < limit/2 {
		t.Fatalf("%d bytes of %d are owned", owned, limit)
	}
	stored := dir.Stats().StoredBlocks.Load
	before, end := stored(), time.Now().Add(60*time.Second)
	for i := 0; stored() < before+24; i++ { // what passed earlier goes meanwhile
		if lend(fmt.Sprint("passes", i), true); t.Failed() || time.Now().After(end) {
			t.Fatalf("%d blocks passed through the disk", stored()-before)
		}
	}
}
