package fuse

import (
	"os"
	"slices"
	"sync"

	"github.com/shardwell/shardwell/fuse/handover"
	"github.com/shardwell/shardwell/fuse/snapshot"
)

// Handle is an open file as the kernel knows it.
type Handle = handover.Handle

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

// Journal is a SessionState that also survives a process that is killed: what that did
// half-way is seen by its successor. A request is known by its unique id without bit 63.
type Journal interface {
	// LastBacking returns what BackingOpened was told last, 0 at first.
	LastBacking() int32
	// BackingOpened notes the id of a file that was registered for passthrough. It may be
	// killed before that: then a later id is registered that no handle has.
	BackingOpened(id int32)
	// ClosingBacking notes the id of a file that is about to be unregistered, and 0 when
	// that is done; BackingClosing returns it.
	ClosingBacking(id int32)
	BackingClosing() int32

	// Taken notes a request that came again, and returns how often it was taken and what
	// it was blamed for.
	Taken(unique uint64) (times, blame int)
	// Answered notes that a request needs no answer any more.
	Answered(unique uint64)
	// Unanswered returns the requests that were taken and not answered.
	Unanswered() []uint64
	// Dock notes the one request that is under suspicion to end its server; 0 for none. Blame
	// is called by a successor, before anything else: it adds to the blame of who was docked.
	Dock(unique uint64)
	Blame(by int)
}

// PlanState is a SessionState that also keeps the plans of what will be read.
type PlanState interface {
	// Plans returns what SavePlans was given last, empty at first.
	Plans() []byte
	// SavePlans takes at most handover.MaxPlansBytes.
	SavePlans(plans []byte) error
}

// Spiller is a SessionState with room for the listings that a full disk does not take:
// a file of memory, free from an offset on.
type Spiller interface {
	Spill() (*os.File, int64)
}

var _ interface {
	SessionState
	Journal
	PlanState
	Spiller
} = (*handover.Area)(nil)

// spillOf returns the room that a state has for listings.
func spillOf(s SessionState) snapshot.Spill {
	if sp, ok := s.(Spiller); ok {
		f, off := sp.Spill()
		return snapshot.Spill{File: f, Offset: off}
	}
	return snapshot.Spill{}
}

// noJournal is what a SessionState has to say that ends with its process.
type noJournal struct{}

func (noJournal) LastBacking() int32              { return 0 }
func (noJournal) BackingOpened(int32)             {}
func (noJournal) ClosingBacking(int32)            {}
func (noJournal) BackingClosing() int32           { return 0 }
func (noJournal) Taken(uint64) (times, blame int) { return 1, 0 }
func (noJournal) Blame(int)                       {}
func (noJournal) Answered(uint64)                 {}
func (noJournal) Unanswered() []uint64            { return nil }
func (noJournal) Dock(uint64)                     {}

// processState is a SessionState that ends with the process.
type processState struct {
	mu      sync.Mutex
	request []byte
	reply   []byte
	next    uint64
	handles map[uint64]Handle
	plans   []byte
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

func (s *processState) Plans() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.plans
}

func (s *processState) SavePlans(plans []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.plans = slices.Clone(plans)
	return nil
}
