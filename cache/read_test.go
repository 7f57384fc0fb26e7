package cache

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/objstore"
)

func TestReadAtEdges(t *testing.T) {
	r := newRig(t, 8, nil)
	defer r.shut(t)
	obj, data := r.put("k", 2*512<<10+100)
	f := r.open(t, obj)
	defer f.Close()
	wantRead(t, f, data, 0, len(data))
	wantRead(t, f, data, 512<<10-1, 2)
	wantRead(t, f, data, len(data)-1, 1)

	p := make([]byte, 200)
	if n, err := f.ReadAt(t.Context(), p, obj.Size-50); n != 50 || err != io.EOF {
		t.Errorf("over the end: got %d, %v; want 50, EOF", n, err)
	}
	if !bytes.Equal(p[:50], data[len(data)-50:]) {
		t.Error("over the end: not the right bytes")
	}
	for _, off := range []int64{obj.Size, obj.Size + 1} {
		if n, err := f.ReadAt(t.Context(), p, off); n != 0 || err != io.EOF {
			t.Errorf("at %d: got %d, %v; want 0, EOF", off, n, err)
		}
	}
	if n, err := f.ReadAt(t.Context(), nil, 0); n != 0 || err != nil {
		t.Errorf("no bytes: got %d, %v", n, err)
	}
	if _, err := f.ReadAt(t.Context(), p, -1); err == nil || err == io.EOF {
		t.Errorf("at -1: got %v", err)
	}
	if got := f.CachedBytes(); got != obj.Size {
		t.Errorf("cached bytes: got %d, want %d", got, obj.Size)
	}

	empty, _ := r.put("empty", 0)
	e := r.open(t, empty)
	defer e.Close()
	if n, err := e.ReadAt(t.Context(), p, 0); n != 0 || err != io.EOF {
		t.Errorf("empty object: got %d, %v", n, err)
	}
}

func TestEveryBlockIsFetchedOnceHoweverManyAsk(t *testing.T) {
	for _, mode := range []string{"disk", "full disk", "no disk"} {
		t.Run(mode, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, 64, func(c *Config) {
					if mode == "no disk" {
						c.Disk = nil
					}
				})
				defer r.shut(t)
				r.tier.full = mode == "full disk"
				obj, data := r.put("k", 3*512<<10)
				gate := r.origin.Hold(objstore.OpGet)
				var wg sync.WaitGroup
				for i := range 30 {
					wg.Go(func() {
						f := r.open(t, obj)
						defer f.Close()
						wantRead(t, f, data, i%7*1000, 512<<10)
					})
				}
				for i := range 10 {
					wg.Go(func() {
						req := chunk.Request{Object: obj, ID: obj.ID(), Span: chunk.Span{First: 0, Count: 8}, Hops: 1, From: string(rune('a' + i))}
						got, err := r.collect(t.Context(), req)
						if err != nil || len(got) != 8 {
							t.Errorf("lend: %d blocks, %v", len(got), err)
						}
					})
				}
				synctest.Wait()
				gate.Open()
				wg.Wait()
				if got, want := r.origin.Bytes(), int64(9*block); got != want {
					t.Errorf("origin bytes: got %d, want %d, each block once", got, want)
				}
			})
		})
	}
}

func TestReadsOfSequentialReadersGrowToWholeChunks(t *testing.T) {
	r := newRig(t, 8, nil)
	defer r.shut(t)
	obj, data := r.put("k", 4*512<<10)
	f := r.open(t, obj)
	defer f.Close()
	for off := 0; off < len(data); off += block {
		wantRead(t, f, data, off, block)
	}
	var sizes []int64
	for _, g := range r.origin.Gets() {
		sizes = append(sizes, g.N/block)
	}
	want := []int64{1, 2, 4, 1, 8, 8, 8}
	if len(sizes) != len(want) {
		t.Fatalf("blocks a GET: got %v, want %v", sizes, want)
	}
	for i := range want {
		if sizes[i] != want[i] {
			t.Fatalf("blocks a GET: got %v, want %v", sizes, want)
		}
	}

	r2 := newRig(t, 8, nil)
	defer r2.shut(t)
	obj, data = r2.put("k", 64*512<<10)
	f2 := r2.open(t, obj)
	defer f2.Close()
	for _, chunkIndex := range []int{50, 3, 40, 11, 60} {
		wantRead(t, f2, data, chunkIndex*512<<10+5000, 4096)
	}
	if got := r2.origin.Bytes(); got != 5*block {
		t.Errorf("five random reads: origin bytes %d, want one block each", got)
	}
}

func TestSmallReadsAreOneCheckABlock(t *testing.T) {
	r := newRig(t, 8, nil)
	defer r.shut(t)
	obj, data := r.put("k", 512<<10)
	f := r.open(t, obj)
	defer f.Close()
	wantRead(t, f, data, 0, len(data))
	file := r.tier.files[obj.ID()]
	file.reads = 0
	for off := 0; off+10240 <= len(data); off += 10240 {
		wantRead(t, f, data, off, 10240)
	}
	if file.reads > 8 {
		t.Errorf("reads of the tier: got %d, want one for each of 8 blocks", file.reads)
	}
}

func TestLocalReadsDoNotAllocate(t *testing.T) {
	r := newRig(t, 8, nil)
	defer r.shut(t)
	obj, data := r.put("k", 512<<10)
	f := r.open(t, obj)
	defer f.Close()
	wantRead(t, f, data, 0, len(data))
	ctx := context.Background()
	step, whole := make([]byte, 10240), make([]byte, 4*block)
	wantRead(t, f, data, 10240, 10240)
	for name, p := range map[string][]byte{"step": step, "whole": whole} {
		off := int64(0)
		if name == "step" {
			off = 10240
		}
		if n := testing.AllocsPerRun(100, func() {
			if _, err := f.ReadAt(ctx, p, off); err != nil {
				t.Error(err)
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations a read", name, n)
		}
	}
}

func TestDamagedAndUnreadableBlocksAreFetchedAgain(t *testing.T) {
	r := newRig(t, 8, nil)
	defer r.shut(t)
	obj, data := r.put("k", 512<<10)
	f := r.open(t, obj)
	defer f.Close()
	wantRead(t, f, data, 0, len(data))
	r.tier.damage(obj.ID(), 3)
	r.origin.ResetCounts()
	wantRead(t, f, data, 0, len(data))
	if got := r.origin.Bytes(); got != block {
		t.Errorf("after damage of one block: origin bytes %d, want %d", got, block)
	}
	if got := r.Stats().CorruptBlocks.Load(); got != 1 {
		t.Errorf("corrupt blocks: got %d, want 1", got)
	}

	r.tier.unreadable = func(b uint32) bool { return b == 5 }
	r.origin.ResetCounts()
	wantRead(t, f, data, 0, len(data))
	wantRead(t, f, data, 5*block, 100)
	if got := r.origin.Bytes(); got != block {
		t.Errorf("with one block unreadable: origin bytes %d, want %d", got, block)
	}
	if got := r.Stats().DiskErrors.Load(); got != 1 {
		t.Errorf("disk errors: got %d, want 1", got)
	}

	r.tier.damage(obj.ID(), 6)
	r.Suspect(obj.ID(), 6)
	if r.tier.files[obj.ID()].Has(6) {
		t.Error("a damaged block that a peer suspects is still there")
	}
	r.Suspect(chunk.ObjectID{1}, 0) // not held: nothing happens
}

func TestTierThatFailsIsDoneWithout(t *testing.T) {
	r := newRig(t, 8, nil)
	defer r.shut(t)
	r.tier.noAcquire = true
	obj, data := r.put("k", 512<<10)
	f := r.open(t, obj)
	defer f.Close()
	wantRead(t, f, data, 100, 300000)
	if _, ok := f.Backing(); ok || f.CachedBytes() != 0 {
		t.Error("a file without a tier has a backing file or cached bytes")
	}
}

func TestReadLate(t *testing.T) {
	for _, mode := range []string{"disk", "full disk", "streaming"} {
		t.Run(mode, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, 8, func(c *Config) {
					if mode == "streaming" {
						c.MemoryBlocks = -1
					}
				})
				defer r.shut(t)
				r.tier.full = mode != "disk"
				obj, data := r.put("k", 2*512<<10)
				f := r.open(t, obj)
				defer f.Close()
				gate := r.origin.Hold(objstore.OpGet)
				taken := make(chan struct{})
				buf := make([]byte, len(data))
				done := make(chan error)
				go func() {
					n, err := f.ReadLate(t.Context(), 1000, len(data), func() ([]byte, error) {
						close(taken)
						return buf, nil
					})
					if n != len(data)-1000 {
						t.Errorf("got %d bytes", n)
					}
					done <- err
				}()
				synctest.Wait()
				select {
				case <-taken:
					t.Error("took the buffer before there was a byte")
				default:
				}
				gate.Open()
				if err := <-done; err != io.EOF {
					t.Errorf("got %v, want EOF", err)
				}
				if !bytes.Equal(buf[:len(data)-1000], data[1000:]) {
					t.Error("not the right bytes")
				}

				// What was waited for came from the origin, though it lay in a tier
				// when there was a buffer; the second chunk may have come meanwhile.
				if got := r.Stats().ReadBytes[FromOrigin].Load(); got < 512<<10-1000 {
					t.Errorf("bytes counted as from the origin: got %d", got)
				}

				no := errors.New("no buffer")
				if _, err := f.ReadLate(t.Context(), 0, 10, func() ([]byte, error) { return nil, no }); !errors.Is(err, no) {
					t.Errorf("take failed: got %v", err)
				}
			})
		})
	}
}

// Readers who wait for the same bytes make the origin send them once, and only one of
// them is counted as having them from there.
func TestBytesFromTheOriginAreReadOnce(t *testing.T) {
	for _, late := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, 8, nil)
			defer r.shut(t)
			obj, data := r.put("k", 512<<10)
			gate := r.origin.Hold(objstore.OpGet)
			var wg sync.WaitGroup
			const readers = 5
			for range readers {
				wg.Go(func() {
					f := r.open(t, obj)
					defer f.Close()
					if !late {
						wantRead(t, f, data, 0, len(data))
						return
					}
					buf := make([]byte, len(data))
					if _, err := f.ReadLate(t.Context(), 0, len(buf), func() ([]byte, error) { return buf, nil }); err != nil || !bytes.Equal(buf, data) {
						t.Errorf("read late: %v, or not the right bytes", err)
					}
				})
			}
			synctest.Wait()
			gate.Open()
			wg.Wait()
			var all int64
			for _, from := range Sources() {
				all += r.Stats().ReadBytes[from].Load()
			}
			if got := r.Stats().ReadBytes[FromOrigin].Load(); got != obj.Size || all != readers*obj.Size {
				t.Errorf("late %v: readers got %d bytes from the origin and %d in all; want %d and %d", late, got, all, obj.Size, readers*obj.Size)
			}
		})
	}
}

// An object of which this node owns only a later chunk is one of its own for the tier.
func TestTierKeepsWhatIsOwnedInPart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		keeps := true
		r := newRig(t, 8, func(c *Config) {
			c.Owned = func(req chunk.Request) bool { return req.Span.First > 0 }
			c.Keeps = func(chunk.Object, chunk.ObjectID) bool { return keeps }
		})
		defer r.shut(t)
		obj, data := r.put("k", 3*512<<10)
		for _, keeps = range []bool{true, false, true} { // the ring may change between two opens
			f := r.open(t, obj)
			wantRead(t, f, data, 0, len(data))
			f.Close()
			synctest.Wait() // until the last fetch has let go of the object
			if got := r.tier.owned[obj.ID()]; got != keeps {
				t.Errorf("the tier was told owned %v, want %v", got, keeps)
			}
		}
	})
}
