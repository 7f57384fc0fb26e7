package cache

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/objstore"
)

// flaky is an upstream that fails, stalls, reorders and stops half-way.
type flaky struct {
	chunk.Fetcher
	mu  sync.Mutex
	rng *rand.Rand
}

func (f *flaky) dice(n int) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.rng.IntN(n)
}

func (f *flaky) Fetch(ctx context.Context, req chunk.Request, d chunk.Deliver) error {
	broke := errors.New("broken pipe")
	after := 1 << 30
	switch f.dice(6) {
	case 0:
		return broke
	case 1, 2:
		after = f.dice(int(req.Span.Count) + 1)
	}
	n := 0
	return f.Fetcher.Fetch(ctx, req, func(b chunk.Block) error {
		if n++; n > after {
			if f.dice(3) == 0 {
				<-ctx.Done()
				return ctx.Err()
			}
			return broke
		}
		if ms := f.dice(40); ms > 20 {
			select {
			case <-time.After(time.Duration(ms) * time.Millisecond):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return d(b)
	})
}

// TestRandomOperationsAgainstTheBytes runs readers, peers, prefetch and damage on
// caches of all kinds. The model is the objects' bytes: every read agrees with
// them, or was interrupted.
func TestRandomOperationsAgainstTheBytes(t *testing.T) {
	for _, buffers := range []int{2, 3, 16} {
		for _, disk := range []string{"disk", "half", "full", "none"} {
			t.Run(fmt.Sprintf("%d buffers, disk %s", buffers, disk), func(t *testing.T) {
				seed := rand.Uint64()
				t.Logf("seed %d", seed)
				synctest.Test(t, func(t *testing.T) { randomOperations(t, seed, buffers, disk) })
			})
		}
	}
}

func randomOperations(t *testing.T, seed uint64, buffers int, disk string) {
	rng := rand.New(rand.NewPCG(seed, 1))
	r := newRig(t, buffers, func(c *Config) {
		c.Origin = &flaky{Fetcher: c.Origin, rng: rand.New(rand.NewPCG(seed, 2))}
		c.MaxFetches = 1 + rng.IntN(8)
		c.MaxFetchesPerBucket = c.MaxFetches
		c.ReadBudget, c.OriginStall, c.Linger = time.Hour, time.Second, 100*time.Millisecond
		if disk == "none" {
			c.Disk = nil
		}
	})
	defer r.shut(t)
	r.tier.full = disk == "full"
	if disk == "half" {
		r.tier.refuse = func(b chunk.Block) bool { return b.Index%2 == 1 }
		r.tier.unreadable = func(b uint32) bool { return b%7 == 4 }
	}
	var objs []chunk.Object
	var bytesOf [][]byte
	for i, size := range []int{1, block, 512<<10 + 1, 2*512<<10 - 77} {
		o, d := r.put(fmt.Sprint(i), size)
		objs, bytesOf = append(objs, o), append(bytesOf, d)
	}
	var wg sync.WaitGroup
	for worker := range 8 {
		rng := rand.New(rand.NewPCG(seed, uint64(worker+10)))
		wg.Go(func() {
			for range 30 {
				i := rng.IntN(len(objs))
				operation(t, r, rng, objs[i], bytesOf[i])
			}
		})
	}
	wg.Wait()
	for _, from := range [...]Source{FromOrigin, FromPeer} {
		if read, fetched := r.Stats().ReadBytes[from].Load(), r.Stats().FetchedBytes[from].Load(); read > fetched {
			t.Errorf("readers got %d bytes from %v, from where %d came", read, from, fetched)
		}
	}
}

func operation(t *testing.T, r *rig, rng *rand.Rand, obj chunk.Object, data []byte) {
	ctx := t.Context()
	if rng.IntN(5) == 0 {
		short, cancel := context.WithTimeout(ctx, time.Duration(rng.IntN(50))*time.Millisecond)
		defer cancel()
		ctx = short
	}
	off := rng.Int64N(obj.Size + 5)
	n := rng.IntN(len(data) + 5)
	if rng.IntN(3) == 0 {
		n = rng.IntN(20000)
	}
	switch rng.IntN(10) {
	case 0:
		if r.cfg.Disk != nil {
			r.tier.damage(obj.ID(), uint32(rng.IntN(16)))
		}
		return
	case 1, 2:
		g := r.cfg.Geometry
		span := g.ChunkSpan(obj.Size, uint32(rng.IntN(int(g.Chunks(obj.Size)))))
		skip := uint32(rng.IntN(int(span.Count)))
		span.First, span.Count = span.First+skip, span.Count-skip
		req := chunk.Request{Object: obj, ID: obj.ID(), Span: span, Hops: 1, From: "p", HeldOnly: rng.IntN(3) == 0}
		checkLend(t, r, ctx, req, data)
		return
	}
	f := r.open(t, obj)
	defer f.Close()
	if rng.IntN(4) == 0 {
		f.Prefetch(off, int64(n))
	}
	p := make([]byte, n)
	var got int
	var err error
	if rng.IntN(2) == 0 {
		got, err = f.ReadAt(ctx, p, off)
	} else {
		got, err = f.ReadLate(ctx, off, n, func() ([]byte, error) { return p, nil })
	}
	want := data[min(off, obj.Size):min(off+int64(n), obj.Size)]
	switch {
	case err != nil && ctx.Err() != nil && errors.Is(err, ctx.Err()):
	case err != nil && !(err == io.EOF && off+int64(n) > obj.Size || off >= obj.Size):
		t.Errorf("read %d at %d of %d: %v", n, off, obj.Size, err)
	case got != len(want) || !bytes.Equal(p[:got], want):
		t.Errorf("read %d at %d of %d: %d bytes, not the right ones", n, off, obj.Size, got)
	}
}

func checkLend(t *testing.T, r *rig, ctx context.Context, req chunk.Request, data []byte) {
	got, err := r.collect(ctx, req)
	seen := make(map[uint32]bool)
	for _, b := range got {
		want := blockOf(data, b.Index)
		// A tier lends without a check: the receiver finds the damage.
		if seen[b.Index] || b.CRC != want.CRC || (!bytes.Equal(b.Data, want.Data) && chunk.Checksum(b.Data) == b.CRC) {
			t.Errorf("lent block %d twice or wrongly", b.Index)
		}
		seen[b.Index] = true
	}
	switch {
	case err == nil && len(got) != int(req.Span.Count):
		t.Errorf("lent %d of %v and no error", len(got), req.Span)
	case err != nil && ctx.Err() == nil && !(req.HeldOnly && errors.Is(err, chunk.ErrNotHeld)):
		t.Errorf("lend %v: %v", req.Span, err)
	}
}

func TestChangedObjectIsNeverMixed(t *testing.T) {
	r := newRig(t, 8, nil)
	defer r.shut(t)
	obj, data := r.put("k", 2*512<<10)
	f := r.open(t, obj)
	defer f.Close()
	wantRead(t, f, data, 0, block)
	fresh := bytes.Repeat([]byte{7}, len(data))
	newer := objectOf(r.origin.Put("k", fresh))
	wantRead(t, f, data, 100, 1000) // the old bytes, as long as they are held
	if _, err := f.ReadAt(t.Context(), make([]byte, 10), 512<<10); !errors.Is(err, objstore.ErrChanged) {
		t.Errorf("old version, bytes not held: got %v, want ErrChanged", err)
	}
	g := r.open(t, newer)
	defer g.Close()
	wantRead(t, g, fresh, 0, len(fresh))
}
