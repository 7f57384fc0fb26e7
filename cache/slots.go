package cache

import (
	"context"
	"sync"
	"time"
)

// bucketKey tells apart the upstreams that may be slow one without the other.
type bucketKey struct{ origin, bucket string }

// ticket is one call's place in [slots]. Its fields are under slots.mu.
type ticket struct {
	key        bucketKey
	background bool // as it is queued now
	running    bool
	reserved   bool // one of slots.prefetches is its own
	admitted   chan struct{}
	use        *bucketUse // from acquire on
}

// bucketUse is what the calls to one bucket do.
type bucketUse struct {
	running, queued int
	moved           time.Time // when one of them last brought a block
}

func newTicket(key bucketKey, background, reserved bool) *ticket {
	return &ticket{key: key, background: background, reserved: reserved, admitted: make(chan struct{})}
}

// slots bounds the calls that ask upstreams at once: in all, for one bucket, and
// in the background. Those who wait are served in order, background last.
type slots struct {
	max, maxBucket, maxPrefetches int

	mu         sync.Mutex
	running    int
	perBucket  map[bucketKey]*bucketUse // those with calls
	prefetches int                      // reserved: running, queued or about to be
	queue      []*ticket                // bounded by the readers and peers that wait, and maxPrefetches
}

func newSlots(max, maxBucket, maxPrefetches int) *slots {
	return &slots{max: max, maxBucket: maxBucket, maxPrefetches: maxPrefetches, perBucket: make(map[bucketKey]*bucketUse)}
}

// reserve makes room for one prefetch, unless there are too many already. Its
// ticket, or unreserve, gives the room back.
func (s *slots) reserve() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.prefetches >= s.maxPrefetches {
		return false
	}
	s.prefetches++
	return true
}

func (s *slots) unreserve() {
	s.mu.Lock()
	s.prefetches--
	s.mu.Unlock()
}

// acquire waits for t's turn. After nil the caller calls release.
func (s *slots) acquire(ctx context.Context, t *ticket) error {
	s.mu.Lock()
	if t.use = s.perBucket[t.key]; t.use == nil {
		t.use = new(bucketUse)
		s.perBucket[t.key] = t.use
	}
	t.use.queued++
	s.queue = append(s.queue, t)
	s.dispatch()
	s.mu.Unlock()

	select {
	case <-t.admitted:
		return nil
	default:
	}
	select {
	case <-t.admitted:
		return nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.running {
		s.end(t)
	} else {
		s.unqueue(t)
		s.uncount(t)
	}
	return context.Cause(ctx)
}

func (s *slots) release(t *ticket) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end(t)
}

// promote puts a background ticket among the readers' ones.
func (s *slots) promote(t *ticket) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.background {
		t.background = false
		s.dispatch()
	}
}

func (s *slots) end(t *ticket) {
	s.running--
	t.use.running--
	s.drop(t)
	s.uncount(t)
	s.dispatch()
}

// drop forgets a bucket without calls. Callers hold mu.
func (s *slots) drop(t *ticket) {
	if t.use.running == 0 && t.use.queued == 0 {
		delete(s.perBucket, t.key)
	}
}

// progress notes that a call brought a block.
func (s *slots) progress(t *ticket) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.use != nil {
		t.use.moved = time.Now()
	}
}

// look tells whether a call is in the queue, and when one to its bucket last brought a block.
func (s *slots) look(t *ticket) (queued bool, moved time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.use == nil { // about to be queued
		return true, moved
	}
	return !t.running, t.use.moved
}

func (s *slots) uncount(t *ticket) {
	if t.reserved {
		t.reserved = false
		s.prefetches--
	}
}

func (s *slots) unqueue(t *ticket) {
	for i, other := range s.queue {
		if other == t {
			s.queue = append(s.queue[:i], s.queue[i+1:]...)
			t.use.queued--
			s.drop(t)
			break
		}
	}
}

// dispatch admits whoever may go, readers first.
func (s *slots) dispatch() {
	for _, background := range [...]bool{false, true} {
		for i := 0; i < len(s.queue) && s.running < s.max; {
			t := s.queue[i]
			if t.background != background || t.use.running >= s.maxBucket {
				i++
				continue
			}
			s.queue = append(s.queue[:i], s.queue[i+1:]...)
			t.running = true
			s.running++
			t.use.queued--
			t.use.running++
			close(t.admitted)
		}
	}
}
