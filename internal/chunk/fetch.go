package chunk

import (
	"context"
	"errors"
	"sync/atomic"
	"time"
)

// Block is one checked block on its way through the node.
type Block struct {
	Index uint32 // within the object
	CRC   uint32 // CRC32C of Data, computed once by whoever read the origin
	Data  []byte // BlockLen bytes; lent: valid only until the call that hands it over returns
}

// Request asks for blocks of one object.
type Request struct {
	Object Object
	ID     ObjectID // Object.ID(), so that nobody hashes twice
	Span   Span     // lies within one chunk, not empty

	// Hops counts the nodes that passed the request on: 0 for a reader of this
	// node, 1 for a request that came from a peer. At [MaxHops] a node acts as
	// the owner whatever its ring table says, so that two tables that disagree
	// cannot send a request round in circles.
	Hops int

	// HeldOnly asks for blocks that the node holds or is receiving, never for a
	// fetch: the question that a new owner puts to the owners of earlier tables.
	HeldOnly bool

	// Settled narrows a HeldOnly question to blocks that are here or on their way
	// from the origin. It is how an owner asks: blocks on their way from
	// another member may in the end be those that the owner itself is to send, and then
	// all would wait for one another.
	Settled bool

	// From is the ring id of the member that asked, "" for a reader of this
	// node. A node that is itself receiving a chunk from a member is no source of it
	// for that member.
	From string

	// Patience is how long the asker waits for the next block from when it asks: what
	// is left of the time of a reader, whichever nodes the request goes through. 0 says
	// nothing: then who is asked takes its own time.
	Patience time.Duration

	// Background marks prefetch, which yields to readers.
	Background bool
	// Fill marks a Background request of a node that is bringing the whole object to
	// itself, chunk by chunk in their order: it will ask for the chunks behind this one too.
	Fill bool
	// Idle marks a Background request that is made only because there is nothing else to do. It means
	// something to the node that makes it alone.
	Idle bool

	// Access is on whose behalf the origin is asked, if it must be. It says nothing about blocks
	// that are here: whoever asks for them has seen to it that they may be had.
	Access Access

	// Source, unless nil, is where a Fetcher that asks members notes which one it
	// asks at the moment: [Source.Set] before the question goes out.
	Source *Source
}

// Source is the ring id of the member from which a node is receiving blocks
// right now. With it the node knows for whom it is no source (see
// [Request.From]), from before the first block on. A nil Source takes notes and
// forgets them. It is safe for concurrent use.
type Source struct {
	member atomic.Pointer[string]
	// Shared, unless nil, becomes true when it turns out that others receive the same
	// object now.
	Shared *atomic.Bool
}

// Share notes that others receive the same object now.
func (s *Source) Share() {
	if s != nil && s.Shared != nil {
		s.Shared.Store(true)
	}
}

// Set notes that member is asked from now on, or nobody if it is "".
func (s *Source) Set(member string) {
	if s != nil {
		s.member.Store(&member)
	}
}

// Member returns what was noted last, "" at first.
func (s *Source) Member() string {
	if s == nil {
		return ""
	}
	if m := s.member.Load(); m != nil {
		return *m
	}
	return ""
}

// MaxHops is how often a request may be passed on: reader's node to owner, and
// from an owner that was one by an older table to the owner by the newer.
const MaxHops = 2

// Deliver takes over one block. It is called from one goroutine at a time for
// one Fetch, in any order of blocks, each at most once. An error ends the Fetch,
// which returns it.
type Deliver func(Block) error

// Fetcher gets blocks from somewhere else: from peers, or from the origin.
//
// Fetch returns nil after every block of the span was delivered, and an error
// otherwise; blocks delivered before the error stay good, so a caller asks again
// only for the rest. It has checked each block it delivers. It returns
// promptly when ctx ends.
type Fetcher interface {
	Fetch(ctx context.Context, req Request, deliver Deliver) error
}

// Errors that cross packages, to be found with errors.Is.
var (
	// ErrNotHeld says that no other node has the blocks or is to fetch them: the
	// caller is the one who asks the origin.
	ErrNotHeld = errors.New("no peer holds the blocks")
	// ErrNoRoute says that a member lacks blocks, and that its own way to their origin is
	// broken: another one is to fetch them.
	ErrNoRoute = errors.New("the origin does not answer this member")
	// ErrStarved says that a stream was ended because it stood still while others got
	// on. That need not be the fault of whoever sends it: in a full link one
	// connection may lose every packet for seconds. Another one will do.
	ErrStarved = errors.New("stream stands still while others get on")

	// ErrAnew says that a fetch was ended to be asked for again at once: this node has something to tell
	// those whom it asks. Nobody is to blame.
	ErrAnew = errors.New("asked for again")
	// ErrCorrupt says that bytes do not fit their checksum.
	ErrCorrupt = errors.New("checksum mismatch")
)
