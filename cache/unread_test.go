package cache

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
)

// However a block is read, no more bytes of it count as its source's than it has,
// and all of them when it is read in order.
func TestUnreadCountsABlockOnce(t *testing.T) {
	const n = 100_000
	for _, step := range []int{1, 999, 10240, n - 1, n} {
		var u unread
		u.add(5, 6, n, FromPeer)
		for off := 0; off < n; off += step {
			if got := u.take(5, min(step, n-off), off+step >= n, FromDisk); got != FromPeer {
				t.Fatalf("steps of %d: at %d: from %v", step, off, got)
			}
		}
		if got := u.take(5, 1, false, FromDisk); got != FromDisk {
			t.Errorf("steps of %d: again: from %v", step, got)
		}
	}

	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	var u unread
	var sum atomic.Int64
	var wg sync.WaitGroup
	u.add(0, 1, n, FromOrigin)
	for worker := range 8 {
		rng := rand.New(rand.NewPCG(seed, uint64(worker)))
		wg.Go(func() {
			for range 200 {
				part := 1 + rng.IntN(n/100)
				if u.take(0, part, false, FromMemory) == FromOrigin {
					sum.Add(int64(part))
				}
			}
		})
	}
	wg.Wait()
	if sum.Load() > n {
		t.Errorf("%d bytes of %d came from the origin", sum.Load(), n)
	}
}

func TestUnreadLastsFromArrivalToTheEnd(t *testing.T) {
	var u unread
	u.add(0, 1, 100, FromPeer)
	u.add(0, 1, 100, FromOrigin) // it was lost and came again, from elsewhere
	if got := u.take(0, 10, true, FromDisk); got != FromOrigin {
		t.Errorf("the last bytes: from %v", got)
	}
	if got := u.take(0, 10, false, FromDisk); got != FromDisk {
		t.Errorf("others, after the last: from %v", got)
	}
}

// held returns how many parts there are.
func (u *unread) held() (n int) {
	parts := *u.parts.Load()
	for i := range parts {
		if parts[i].Load() != nil {
			n++
		}
	}
	return n
}

// What was read goes out of memory when other blocks come; what was not stays.
func TestUnreadKeepsOnlyPartsWithMarks(t *testing.T) {
	const blocks = 5*partBlocks + 3
	var u unread
	u.add(blocks-1, blocks, 7, FromOrigin)
	for b := range uint32(blocks - 1) {
		u.add(b, blocks, 7, FromPeer)
		if got := u.take(b, 7, true, FromDisk); got != FromPeer {
			t.Fatalf("block %d: from %v", b, got)
		}
		if got := u.held(); got > 2 {
			t.Fatalf("at block %d, with one unread elsewhere: %d parts", b, got)
		}
	}
	if got := u.take(blocks-1, 7, true, FromDisk); got != FromOrigin {
		t.Errorf("the one that was not read: from %v", got)
	}
}

func TestUnreadLosesNoMarkOfConcurrentFetches(t *testing.T) {
	const blocks = 5*partBlocks + 3
	const workers = 4
	var u unread
	var wg sync.WaitGroup
	for worker := range uint32(workers) {
		wg.Go(func() {
			for b := worker; b < blocks; b += workers {
				u.add(b, blocks, 7, FromOrigin)
				if got := u.take(b, 7, true, FromDisk); got != FromOrigin {
					t.Errorf("block %d: from %v", b, got)
				}
			}
		})
	}
	wg.Wait()
}
