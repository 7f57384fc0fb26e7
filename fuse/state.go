package fuse

import (
	"slices"
	"sync"
)

// Handle is an open file as the kernel knows it.
type Handle struct {
	FH      uint64
	NodeID  uint64
	Unique  uint64 // of the OPEN request, bit 63 cleared: the same OPEN may come again
	Backing int32  // id of the file registered for passthrough, 0 for none
}

// SessionState is what a successor of this process must know to go on serving the
// same mount, beside the listings in the state directory. Everything is recorded
// before the reply that depends on it. Methods are safe for concurrent use.
type SessionState interface {
	// Init returns the recorded INIT request and reply; nil before the first.
	Init() (request, reply []byte)
	SaveInit(request, reply []byte) error
	// NextHandle returns a handle number that was never returned before.
	NextHandle() uint64
	Put(h Handle) error
	Drop(fh uint64)
	// Handles returns the open handles in no particular order.
	Handles() []Handle
}

// processState is a SessionState that ends with the process.
type processState struct {
	mu      sync.Mutex
	request []byte
	reply   []byte
	next    uint64
	handles map[uint64]Handle
}

func newProcessState() *processState { return &processState{handles: make(map[uint64]Handle)} }

func (s *processState) Init() (request, reply []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.request, s.reply
}

func (s *processState) SaveInit(request, reply []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.request, s.reply = slices.Clone(request), slices.Clone(reply)
	return nil
}

func (s *processState) NextHandle() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next++
	return s.next
}

func (s *processState) Put(h Handle) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.handles[h.FH] = h
	return nil
}

func (s *processState) Drop(fh uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.handles, fh)
}

func (s *processState) Handles() []Handle {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]Handle, 0, len(s.handles))
	for _, h := range s.handles {
		all = append(all, h)
	}
	return all
}
