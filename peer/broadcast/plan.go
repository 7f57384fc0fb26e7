// Package broadcast decides whom the owner of a chunk sends it to itself, and
// to whom it names another member that has or is receiving it. It is a part of
// package peer, and pure: state and request in, decision out, no I/O, no clock but
// an argument, no chance.
//
// It promises that at most [Config].MaxSends sends of a chunk are under way at once
// as long as somebody else can serve; that nobody is sent to itself, to a member
// that failed lately, or to one that waits, however indirectly, for the asker; and
// that its memory is bounded, which is also how far it remembers who failed. It does not know who is a member: the caller tells it
// who left, and checks a decision against the membership of now.
package broadcast

import (
	"container/list"
	"time"

	"github.com/shardwell/shardwell/internal/chunk"
)

// Config bounds a [Plan]. Zero values mean the defaults.
type Config struct {
	// MaxSends is how many sends of one chunk, from this node or from a member that
	// it names, are under way at once, default 3.
	MaxSends int
	// Hot is how long a chunk is remembered after it was last asked for, default 2 min.
	Hot time.Duration
	// FailedFor is how long a member that failed for a chunk is not named for it,
	// default 30 s.
	FailedFor time.Duration
	// Settle is how long after it was named a source a member counts as receiving;
	// afterwards it counts as having the chunk. It is longer than any transfer may
	// stall. Default 1 min.
	Settle time.Duration
	// MaxChunks and MaxMembers bound the chunks remembered and the members of each,
	// default 4096 and 1024. Those asked for longest ago are forgotten first.
	MaxChunks, MaxMembers int
}

func (c *Config) setDefaults() {
	for _, d := range [...]struct {
		to  *time.Duration
		def time.Duration
	}{{&c.Hot, 2 * time.Minute}, {&c.FailedFor, 30 * time.Second}, {&c.Settle, time.Minute}} {
		if *d.to <= 0 {
			*d.to = d.def
		}
	}
	for _, n := range [...]struct {
		to  *int
		def int
	}{{&c.MaxSends, 3}, {&c.MaxChunks, 4096}, {&c.MaxMembers, 1024}} {
		if *n.to <= 0 {
			*n.to = n.def
		}
	}
}

// Chunk names a chunk of an object.
type Chunk struct {
	Object chunk.ObjectID
	Index  uint32
}

// Request asks where a member is to get blocks of a chunk from.
type Request struct {
	Chunk  Chunk
	Span   chunk.Span // what is asked for
	Member string     // ring id of the asker
	Zone   string
	Rack   string
	Failed []string // members that the asker could not get it from
	// ServeOnly wants no other member named.
	ServeOnly bool
}

// Decision is where the asker gets its blocks from.
type Decision struct {
	// Redirect is the ring id of the member to ask, or "": this node serves it, and
	// the caller reports the end with Done or Failed.
	Redirect string
}

// Plan is who has, and who is receiving, each hot chunk of which this node is the
// owner. It is not safe for concurrent use: its caller has one lock.
type Plan struct {
	cfg    Config
	chunks map[Chunk]*list.Element // values are *state
	order  list.List               // by time of the last request, oldest first
}

// state is what is known of one chunk.
type state struct {
	chunk   Chunk
	last    time.Time // it was last asked for
	members map[string]*holder
}

// holder is a member that has the chunk or is receiving it.
type holder struct {
	id, zone, rack string
	span           chunk.Span // of what it has or is receiving
	since          time.Time  // it began to receive
	source         string     // whom it receives from; "" means this node, or that it is done
	direct         int        // sends from this node to it that are under way
	done           bool
	stranger       bool      // never asked since it was forgotten: its source is not known
	failed         time.Time // an asker last could not get the chunk from it
	named          int       // how often it was named to others
}

// New returns an empty Plan.
func New(cfg Config) *Plan {
	cfg.setDefaults()
	return &Plan{cfg: cfg, chunks: make(map[Chunk]*list.Element)}
}
