package ring

import (
	"encoding/binary"
	"hash/fnv"
	"math"
	"testing"
)

// The entries are the same on all processors, and whoever places by them agrees.
func TestWaitIsExponentialAndTheSameEverywhere(t *testing.T) {
	h := fnv.New64a()
	for _, w := range waits {
		_ = binary.Write(h, binary.LittleEndian, w)
	}
	if got := h.Sum64(); got != 0x3c7eab4930ecbc65 {
		t.Errorf("the entries are others: %#x", got)
	}
	const unit = 1 << 58
	last, sum, n := uint64(0), 0.0, 1<<16
	for i := range n {
		hash := uint64(i) << 48
		got := wait(hash)
		if got < last || got > 1<<62 {
			t.Fatalf("wait(%#x) is %d after %d", hash, got, last)
		}
		last, sum = got, sum+float64(got)/unit
		if want := -math.Log1p(-float64(i) / float64(n)); i < n-n/64 && math.Abs(float64(got)/unit-want) > 1e-3 {
			t.Errorf("wait(%#x) is %v, want %v", hash, float64(got)/unit, want)
		}
	}
	if mean := sum / float64(n); math.Abs(mean-1) > 1e-3 {
		t.Errorf("mean %v", mean)
	}
}
