package disk

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/shardwell/shardwell/internal/chunk"
)

// TestRandomAgainstModel runs random operations and compares with a map of what has to
// be there.
func TestRandomAgainstModel(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	path := t.TempDir()
	boots := 1
	open := func() *Dir {
		cfg := testConfig(path)
		cfg.BootID = fmt.Sprint("boot", boots)
		cfg.MaxOpen = 3
		d, err := Open(cfg)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	d := open()
	var objects []content
	model := make([]map[uint32]bool, 6) // blocks that are present and good
	damaged := make([]map[uint32]bool, len(model))
	for i := range model {
		objects = append(objects, newContent(fmt.Sprint(i), rng.IntN(4*chunk.MinBlockBytes)+1))
		model[i], damaged[i] = make(map[uint32]bool), make(map[uint32]bool)
	}
	for step := range 3000 {
		i := rng.IntN(len(objects))
		c := objects[i]
		b := uint32(rng.IntN(int(small.Blocks(c.obj.Size))))
		switch n := rng.IntN(100); {
		case n < 40:
			f := c.acquire(t, d)
			if err := f.Put(c.block(small, b)); err != nil {
				t.Fatalf("step %d: %v", step, err)
			}
			if !damaged[i][b] {
				model[i][b] = true
			}
			f.Release()
		case n < 85:
			f := c.acquire(t, d)
			checkModel(t, rng, f, c, model[i], damaged[i])
			f.Release()
		case n < 90 && model[i][b]:
			flipByte(t, d.dataPath(c.id), int64(b)*small.BlockBytes)
			delete(model[i], b)
			damaged[i][b] = true
		case n < 93:
			if freed, err := d.evict(victim(c.id)); err != nil {
				t.Fatalf("step %d: %v", step, err)
			} else if freed >= 0 {
				clear(model[i])
				clear(damaged[i])
			}
		case n < 95:
			if err := d.walk(context.Background(), nil); err != nil {
				t.Fatal(err)
			}
			checkLedger(t, d)
		case n < 98:
			if err := d.Close(); err != nil {
				t.Fatal(err)
			}
			boots += rng.IntN(2)
			d = open()
		}
		if t.Failed() {
			t.Fatalf("step %d", step)
		}
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
}

// checkModel reads a random range. Damage that it meets is gone afterwards.
func checkModel(t *testing.T, rng *rand.Rand, f *File, c content, good, damaged map[uint32]bool) {
	for b := range f.Blocks() {
		if f.Has(b) != (good[b] || damaged[b]) {
			t.Errorf("block %d: present %v, stored %v, damaged %v", b, f.Has(b), good[b], damaged[b])
		}
	}
	off := rng.IntN(len(c.data))
	p := make([]byte, rng.IntN(len(c.data)-off)+1)
	n, err := f.ReadAt(p, int64(off))
	if !bytes.Equal(p[:n], c.data[off:off+n]) {
		t.Errorf("wrong bytes at %d+%d", off, n)
	}
	span := small.SpanOf(c.obj.Size, int64(off), int64(len(p)))
	all := true
	for b := span.First; b != span.End(); b++ {
		all = all && good[b]
		if !f.Has(b) {
			delete(damaged, b)
		}
	}
	if all != (err == nil) {
		t.Errorf("read of %v: %v, all good %v", span, err, all)
	}
	if err != nil && !errors.Is(err, chunk.ErrCorrupt) && !errors.Is(err, ErrNotPresent) {
		t.Errorf("read of %v: %v", span, err)
	}
	if len(damaged) > 0 {
		return // passthrough does not see damage of this boot
	}
	if backing, ok := f.Backing(); ok {
		got, err := io.ReadAll(io.NewSectionReader(backing, 0, int64(len(c.data))+1))
		if err != nil || !bytes.Equal(got, c.data) {
			t.Errorf("backing file: %d bytes, %v", len(got), err)
		}
	}
}

// TestManyAtOnce has readers, writers, damagers and evictors on the same objects.
func TestManyAtOnce(t *testing.T) {
	cfg := testConfig(t.TempDir())
	cfg.MaxOpen = 12
	cfg.BudgetBytes = 60 * chunk.MinBlockBytes
	d := openDir(t, cfg)
	stop := start(t, d)
	var objects []content
	for i := range 8 {
		objects = append(objects, newContent(fmt.Sprint(i), 3*chunk.MinBlockBytes+i))
	}
	var wg sync.WaitGroup
	for w := range 6 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(11, uint64(w)))
			for range 150 {
				c := objects[rng.IntN(len(objects))]
				f, err := d.Acquire(c.obj, c.id, rng.IntN(2) == 0)
				if err != nil {
					t.Error(err)
					return
				}
				b := uint32(rng.IntN(int(f.Blocks())))
				switch rng.IntN(6) {
				case 0, 1:
					if err := f.Put(c.block(small, b)); err != nil && !errors.Is(err, ErrNotAdmitted) {
						t.Error(err)
					}
				case 2:
					if f.Has(b) {
						flipByte(t, d.dataPath(c.id), int64(b)*small.BlockBytes+3)
					}
					f.Suspect(b)
				case 3:
					if piece, ok := f.Lend(b); ok && piece.CRC != c.block(small, b).CRC {
						t.Error("lent with another checksum")
					}
				default:
					p := make([]byte, rng.IntN(len(c.data))+1)
					off := rng.IntN(len(c.data))
					n, _ := f.ReadAt(p, int64(off))
					if !bytes.Equal(p[:n], c.data[off:off+n]) {
						t.Error("wrong bytes")
					}
				}
				f.Release()
				if rng.IntN(20) == 0 {
					_, _ = d.evict(victim(c.id))
				}
			}
		})
	}
	wg.Wait()
	stop()
	if err := d.walk(context.Background(), nil); err != nil {
		t.Fatal(err)
	}
	checkLedger(t, d)
}

// TestSameBlockFromMany puts one block from many sides at once.
func TestSameBlockFromMany(t *testing.T) {
	d := openDir(t, testConfig(t.TempDir()))
	c := newContent("k", 2*chunk.MinBlockBytes)
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			f := c.acquire(t, d)
			defer f.Release()
			c.putAll(t, f)
			c.check(t, f)
		})
	}
	wg.Wait()
	if n := d.stats.StoredBlocks.Load(); n != 2 {
		t.Errorf("%d blocks were written", n)
	}
	checkLedger(t, d)
}
