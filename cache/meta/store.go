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

// get returns an answer or nil. Keys are told apart by hashes: the caller looks
// whether it is the answer to its question.
func (s *store) get(key string) *answer {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.r == nil {
		return nil
	}
	a, _ := s.r.Get(key)
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

// drop removes the answers that match, those that were set before the call
// included, and returns how many there were.
func (s *store) drop(match func(*answer) bool) int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.r == nil {
		return 0
	}
	s.r.Wait() // sets take effect a little later
	var keys []string
	s.r.IterValues(func(a *answer) bool {
		if match(a) {
			keys = append(keys, a.question.key())
		}
		return false
	})
	for _, key := range keys {
		s.r.Del(key)
	}
	return len(keys)
}
