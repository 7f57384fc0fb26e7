// Package evict decides what a full cache keeps: what an object is worth
// ([Table.Judge]), what may make room for it ([Displaces]), and which of those go
// first ([Selection]).
//
// It is pure: state in, decision out, no I/O and no clock. It promises that an
// object in use is never chosen, that memory stays bounded however many
// objects are offered, and that what is kept under [Epoch] stays kept, which no policy can
// better: when everything is read once in each round, the hits of a round are at most
// what was held at its beginning, and never evicting attains that. Measuring, unlinking and
// the question whether anything must go at all are left to the tiers; which
// datasets are in use to the node.
//
// The package is a part of package cache.
package evict

import (
	"slices"

	"github.com/shardwell/shardwell/internal/chunk"
)

// Candidate is one object on a disk or in memory.
type Candidate struct {
	ID      chunk.ObjectID
	Class   Class
	Rank    int64 // within the class, lowest first: what [Table.Judge] says
	LastUse int64 // nanoseconds since 1970
	Bytes   int64 // that go free
	InUse   bool
}

// before reports whether a goes before b. Equal age falls back to the id, so
// that the order is total and tests can repeat it.
func (a Candidate) before(b Candidate) bool {
	if a.Class != b.Class {
		return a.Class < b.Class
	}
	if a.Rank != b.Rank {
		return a.Rank < b.Rank
	}
	if a.LastUse != b.LastUse {
		return a.LastUse < b.LastUse
	}
	return string(a.ID[:]) < string(b.ID[:])
}

// Selection picks the objects to drop from a stream of candidates. The zero
// value holds none; use [NewSelection]. It is not safe for concurrent use.
type Selection struct {
	limit int
	heap  []Candidate // the last to go on top
}

// NewSelection returns a Selection that holds at most limit candidates, the first to go.
func NewSelection(limit int) *Selection {
	return &Selection{limit: max(1, limit)}
}

// Offer considers one candidate.
func (s *Selection) Offer(c Candidate) {
	switch {
	case c.InUse || c.Bytes < 0:
	case len(s.heap) < s.limit:
		s.heap = append(s.heap, c)
		s.up(len(s.heap) - 1)
	case c.before(s.heap[0]):
		s.heap[0] = c
		s.down(0)
	}
}

// Victims returns the candidates in the order in which they are to go and
// empties the selection.
func (s *Selection) Victims() []Candidate {
	victims := s.heap
	s.heap = nil
	slices.SortFunc(victims, func(a, b Candidate) int {
		switch {
		case a.before(b):
			return -1
		case b.before(a):
			return 1
		}
		return 0
	})
	return victims
}

func (s *Selection) up(i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if !s.heap[parent].before(s.heap[i]) {
			return
		}
		s.heap[parent], s.heap[i] = s.heap[i], s.heap[parent]
		i = parent
	}
}

func (s *Selection) down(i int) {
	for {
		child := 2*i + 1
		if child >= len(s.heap) {
			return
		}
		if r := child + 1; r < len(s.heap) && s.heap[child].before(s.heap[r]) {
			child = r
		}
		if !s.heap[i].before(s.heap[child]) {
			return
		}
		s.heap[i], s.heap[child] = s.heap[child], s.heap[i]
		i = child
	}
}
