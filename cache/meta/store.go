package meta

import (
	"sync"

	"github.com/dgraph-io/ristretto/v2"
)

// store keeps answers within a number of bytes. It may drop any of them at any
// time, one that was just set included. Ristretto must not be used while or
// after it is closed; here that does nothing.
type store struct {
	mu sync.RWMutex
	r  *ristretto.Cache[string, *answer] // nil when closed
}

func (s *store) open(maxBytes int64) error {
	r, err := ristretto.NewCache(&ristretto.Config[string, *answer]{
		NumCounters: max(10_000, maxBytes/100), // half a byte each, in four rows; several for a small answer
		MaxCost:     maxBytes,
		BufferItems: 64,
	})
	s.r = r
	return err
}

func (s *store) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.r != nil {
		s.r.Close()
		s.r = nil
	}
}

// get returns an answer to a question, or nil.
func (s *store) get(qu question) *answer {
	if a := s.last(qu); a != nil && !a.forgotten {
		return a
	}
	return nil
}

// last is get for an answer that may be forgotten.
func (s *store) last(qu question) *answer {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.r == nil {
		return nil
	}
	a, _ := s.r.Get(qu.key())
	if a == nil || a.question != qu { // keys are told apart by hashes
		return nil
	}
	return a
}

// set keeps an answer, if there is room for it, to be found from its return on:
// whoever finds the query gone finds its answer.
func (s *store) set(a *answer) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.r != nil {
		s.r.Set(a.question.key(), a, a.cost())
		s.r.Wait()
	}
}

// forget marks the answers that match, those that were set before the call
// included, and returns how many there were. One that is set meanwhile may be lost: the origin is asked once more.
func (s *store) forget(match func(*answer) bool) int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.r == nil {
		return 0
	}
	s.r.Wait() // sets take effect a little later
	var found []*answer
	s.r.IterValues(func(a *answer) bool {
		if !a.forgotten && match(a) {
			found = append(found, a)
		}
		return false
	})
	for _, a := range found {
		was := *a // answers do not change
		was.forgotten = true
		s.r.Set(was.question.key(), &was, was.cost())
	}
	s.r.Wait()
	return len(found)
}
