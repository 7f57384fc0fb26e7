package evict

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

func compare(a, b Candidate) int {
	switch {
	case a.before(b):
		return -1
	case b.before(a):
		return 1
	}
	return 0
}

// TestAgainstSorting compares random streams with sorting them whole.
func TestAgainstSorting(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 200 {
		limit := 1 + rng.IntN(20)
		s := NewSelection(limit)
		var want []Candidate
		for range rng.IntN(60) {
			c := Candidate{
				Class:   []Class{Copy, Idle, Recent}[rng.IntN(3)],
				Rank:    int64(rng.IntN(3)),
				LastUse: int64(rng.IntN(10)),
				Bytes:   int64(rng.IntN(100)),
				InUse:   rng.IntN(4) == 0,
			}
			c.ID[0], c.ID[15] = byte(rng.Uint32()), byte(rng.Uint32())
			s.Offer(c)
			if !c.InUse {
				want = append(want, c)
			}
		}
		slices.SortStableFunc(want, compare)
		want = want[:min(limit, len(want))]
		got := s.Victims()
		if len(got) != len(want) {
			t.Fatalf("%d victims, want %d", len(got), len(want))
		}
		for i := range got {
			if compare(got[i], want[i]) != 0 {
				t.Fatalf("victim %d is %+v, want %+v", i, got[i], want[i])
			}
		}
		if len(s.Victims()) != 0 {
			t.Fatal("the selection is not empty afterwards")
		}
	}
}

func TestOrder(t *testing.T) {
	s := NewSelection(10)
	for _, c := range []Candidate{
		{Class: Idle, Rank: 2, LastUse: 1, Bytes: 1},
		{Class: Copy, LastUse: 9, Bytes: 2},
		{Class: Copy, LastUse: 5, Bytes: 3},
		{Class: Copy, LastUse: 0, Bytes: 4, InUse: true},
		{Class: Recent, LastUse: 0, Bytes: 5},
		{Class: Idle, Rank: 1, LastUse: 7, Bytes: 6},
		{Class: Stale, LastUse: 99, Bytes: 7},
	} {
		s.Offer(c)
	}
	var order []int64
	for _, c := range s.Victims() {
		order = append(order, c.Bytes)
	}
	if !slices.Equal(order, []int64{7, 3, 2, 6, 1, 5}) {
		t.Errorf("order %v", order)
	}
}
