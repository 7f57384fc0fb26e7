package cache

import (
	"math/bits"

	"github.com/shardwell/shardwell/internal/chunk"
)

// blockSet is a set of blocks of one chunk, numbered from the chunk's first.
type blockSet [chunk.MaxChunkBytes / chunk.MinBlockBytes / 64]uint64

func (s *blockSet) add(i uint32)      { s[i/64] |= 1 << (i % 64) }
func (s *blockSet) remove(i uint32)   { s[i/64] &^= 1 << (i % 64) }
func (s *blockSet) has(i uint32) bool { return s[i/64]&(1<<(i%64)) != 0 }

func (s *blockSet) empty() bool { return *s == blockSet{} }

// count returns how many members there are.
func (s *blockSet) count() (n int) {
	for _, w := range s {
		n += bits.OnesCount64(w)
	}
	return n
}

// union adds all of t.
func (s *blockSet) union(t *blockSet) {
	for i := range s {
		s[i] |= t[i]
	}
}

// minus returns s without t.
func (s *blockSet) minus(t *blockSet) blockSet {
	var r blockSet
	for i := range s {
		r[i] = s[i] &^ t[i]
	}
	return r
}

// meets reports whether s and t have a block in common.
func (s *blockSet) meets(t *blockSet) bool {
	for i := range s {
		if s[i]&t[i] != 0 {
			return true
		}
	}
	return false
}

// next returns the first member from i on.
func (s *blockSet) next(i uint32) (uint32, bool) {
	for w := i / 64; w < uint32(len(s)); w++ {
		word := s[w]
		if w == i/64 {
			word &= ^uint64(0) << (i % 64)
		}
		if word != 0 {
			return w*64 + uint32(bits.TrailingZeros64(word)), true
		}
	}
	return 0, false
}

// run returns the first run of consecutive members from i on.
func (s *blockSet) run(i uint32) (first, end uint32, ok bool) {
	first, ok = s.next(i)
	if !ok {
		return 0, 0, false
	}
	for end = first + 1; end < uint32(len(s)*64) && s.has(end); end++ {
	}
	return first, end, true
}
