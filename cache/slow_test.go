package cache_test

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"testing"
	"time"

	"github.com/shardwell/shardwell/cache"
	"github.com/shardwell/shardwell/cache/disk"
	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/objstore/objstoretest"
)

// TestSlowReceiverOverEvictions has a peer that takes a block of a chunk now and the next when everything that may go has gone
// from a small cache: what it gets is right, to the last byte, whether the object is owned or passes through, is larger
// than the transit area or not; and its space goes free once it has been sent.
func TestSlowReceiverOverEvictions(t *testing.T) {
	for _, owned := range []bool{true, false} {
		for _, chunks := range []int{1, 6, 40} { // the last are more than the cache
			t.Run(fmt.Sprintf("owned=%t chunks=%d", owned, chunks), func(t *testing.T) { slowReceiver(t, owned, chunks) })
		}
	}
}

func slowReceiver(t *testing.T, owned bool, chunks int) {
	g := chunk.Geometry{ChunkBytes: 512 << 10, BlockBytes: 64 << 10}
	const budget = 16 << 20
	origin := objstoretest.NewMem()
	c, dir := overDisk(t, origin, disk.Config{Path: t.TempDir(), Geometry: g, BudgetBytes: budget, TransitBytes: 1 << 20, CallTimeout: time.Minute},
		cache.Config{Keeps: func(chunk.Object, chunk.ObjectID) bool { return owned }})
	read := func(key string, bytes int) chunk.Object {
		data := make([]byte, bytes)
		rand.Read(data)
		obj := object(origin, key, data)
		f, err := c.Open(obj)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		readAll(t, f, data, int(g.BlockBytes))
		return obj
	}
	crowd := func(prefix string) {
		for i := range 2 * budget >> 20 {
			read(fmt.Sprint(prefix, i), 1<<20)
		}
	}
	data := make([]byte, chunks*int(g.ChunkBytes))
	rand.Read(data)
	obj := object(origin, "k", data)
	first := g.ChunkSpan(obj.Size, 0)
	next := uint32(0)
	err := c.Lend(t.Context(), chunk.Request{Object: obj, ID: obj.ID(), Span: first, From: "slow"}, func(p chunk.Piece) error {
		got := make([]byte, p.Len)
		half := p.Len / 2
		send := func(from, to int) {
			if p.File == nil {
				copy(got[from:to], p.Data[from:to])
			} else if _, err := p.File.ReadAt(got[from:to], p.Offset+int64(from)); err != nil {
				t.Error(err)
			}
		}
		send(0, half)
		if p.Index == 0 {
			if chunks > 1 { // the rest comes, and slides through
				f, err := c.Open(obj)
				if err != nil {
					return err
				}
				readAll(t, f, data, int(g.BlockBytes))
				f.Close()
			}
			crowd("during")
		}
		send(half, p.Len)
		if off := int(p.Index) * int(g.BlockBytes); p.Index != next || chunk.Checksum(got) != p.CRC || !bytes.Equal(got, data[off:off+p.Len]) {
			t.Errorf("block %d, want %d, is not sent rightly", p.Index, next)
		}
		next++
		return nil
	})
	if err != nil || next != first.Count {
		t.Fatalf("%d blocks of %d were sent: %v", next, first.Count, err)
	}
	if used, _ := dir.Usage(); used > budget {
		t.Errorf("%d bytes are taken of %d", used, budget)
	}
	end := time.Now().Add(30 * time.Second)
	for i := 0; ; i++ {
		crowd(fmt.Sprint("after", i, "-"))
		f, err := dir.Find(obj.ID())
		if err != nil {
			break // it has gone
		}
		f.Release()
		if time.Now().After(end) {
			t.Fatal("what was sent is never evicted")
		}
	}
}
