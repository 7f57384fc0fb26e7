// Package broadcast decides whom the owner of a chunk sends it to itself, and
// to whom it names another member that has or is receiving it. It is a part of
// package peer, and pure: state and request in, decision out, no I/O, no clock but
// an argument, no chance.
//
// Those who want a chunk become a narrow tree: each is sent to whoever has the fewest
// receivers, this node among them, which makes a chain, until the chain is
// [Config].MaxChain long and another one begins beside it. So a chunk costs every node that
// passes it on about one copy, the owner too; who asks late, because its link is slow, is at
// an end and holds nobody up.
//
// It promises that at most [Config].MaxSends sends of a chunk are under way at once
// as long as somebody else can serve; that nobody is sent to itself, to a member
// that failed lately, or to one that waits, however indirectly, for the asker; and
// that its memory is bounded, which is also how far it remembers who failed. It does not know who is a member: the caller tells it
// who left, and checks a decision against the membership of now.
package broadcast

import (
	"container/list"
	"slices"
	"sort"
	"time"

	"github.com/shardwell/shardwell/internal/chunk"
)

// Config bounds a [Plan]. Zero values mean the defaults.
type Config struct {
	// Self is the ring id of this node; Zone and Rack are where it is.
	Self, Zone, Rack string
	// Gather is how long the first who fill an object wait for each other, so that
	// they can be put in order, default 50 ms.
	Gather time.Duration
	// FillFor is how long after its last request a member counts as filling an object, default 1 min.
	FillFor time.Duration
	// MaxSends is how many sends of one chunk, from this node or from a member that
	// it names, are under way at once, default 3.
	MaxSends int
	// MaxChain is how many members receive one after the other before a member that is
	// nearer to the start is given a second receiver, default 32, which is a rack: each hop costs the
	// time of one block, but two receivers of one member halve what each gets of its link.
	MaxChain int
	// Hot is how long a chunk is remembered after it was last asked for, default 2 min.
	Hot time.Duration
	// FailedFor is how long a member that failed for a chunk is not named for it,
	// default 30 s.
	FailedFor time.Duration
	// Settle is how long after it was named a source a member counts as receiving;
	// afterwards it counts as having the chunk. It is longer than any transfer may
	// stall. Default 1 min.
	Settle time.Duration
	// MaxLag is how many chunks of an object a member may have asked for less than the one that stands before it in the
	// circle, until it is named after others, default 4. One whose link is slow gets there
	// soon, and those who are to receive from it wait for it.
	MaxLag int
	// SlowFor is how long after a member last said so its link counts as slow, default 1 min.
	SlowFor time.Duration
	// ProbeEvery is how many chunks of an object, but the first, this node is left with until a member that fills it is to
	// fetch one from the origin, default 128: it tells this node how fast others' links are. Negative: none is.
	ProbeEvery int
	// MaxChunks, MaxMembers and MaxHolders bound the chunks remembered, the members of each and of all
	// together, default 4096, 16384 and 262144, which take some 100 MiB. Chunks asked for longest ago,
	// and of a chunk who has been receiving for longest, are forgotten first.
	MaxChunks, MaxMembers, MaxHolders int
}

func (c *Config) setDefaults() {
	for _, d := range [...]struct {
		to  *time.Duration
		def time.Duration
	}{{&c.Hot, 2 * time.Minute}, {&c.FailedFor, 30 * time.Second}, {&c.Settle, time.Minute},
		{&c.Gather, 50 * time.Millisecond}, {&c.FillFor, time.Minute}, {&c.SlowFor, time.Minute}} {
		if *d.to <= 0 {
			*d.to = d.def
		}
	}
	for _, n := range [...]struct {
		to  *int
		def int
	}{{&c.MaxSends, 3}, {&c.MaxChain, 32}, {&c.MaxLag, 4}, {&c.MaxChunks, 4096},
		{&c.MaxMembers, 16384}, {&c.MaxHolders, 262144}} {
		if *n.to <= 0 {
			*n.to = n.def
		}
	}
	if c.ProbeEvery == 0 {
		c.ProbeEvery = 128
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
	// Fill says that the asker is bringing the whole object to itself: it will ask for
	// the chunks behind this one too.
	Fill bool
	// Near is a member that fills the object as well, as far as the asker knows, with its
	// zone and rack; "" for none.
	Near, NearZone, NearRack string
	// Blameless says that those who failed did so for want of blocks that this node
	// lacks as well.
	Blameless bool
	// ServeOnly wants no other member named.
	ServeOnly bool
	// Delegate says that this node would rather not fetch the chunk from the origin itself: it is
	// slow. When nobody else has it or is receiving it, the asker is to do it.
	Delegate bool
	// Slow says that the asker's link is slow: it stands in nobody's way, and nobody but those who find nobody else
	// is sent to it.
	Slow bool
	// Fresh says that this node wants the chunk, and has next to nothing of it, so that the asker may fetch it for both.
	Fresh bool
}

// Decision is where the asker gets its blocks from.
type Decision struct {
	// Redirect is the ring id of the member to ask, or "": this node serves it, and
	// the caller reports the end with Done or Failed. It is the asker's own when that is to fetch
	// the chunk from the origin, for others too.
	Redirect string
	// Lags says that the asker is so far behind others who fill the object that nobody
	// should wait for it.
	Lags bool
	// Probe says that the asker is to fetch the chunk for the sake of a comparison with this node, which
	// was left with the one numbered Against before.
	Probe   bool
	Against uint32
}

// Plan is who has, and who is receiving, each hot chunk of which this node is the
// owner. It is not safe for concurrent use: its caller has one lock.
type Plan struct {
	cfg     Config
	chunks  map[Chunk]*list.Element // values are *state
	order   list.List               // by time of the last request, oldest first
	casts   map[chunk.ObjectID]*cast
	place   uint64               // of this node in the circle
	holders int                  // in all chunks together
	blamed  map[string]time.Time // members that askers could not get a chunk from lately, whichever; at most MaxMembers
}

// state is what is known of one chunk.
type state struct {
	chunk   Chunk
	last    time.Time // it was last asked for
	members map[string]*holder
	from    *holder // whom this node has it from, if that is a member
	viced   bool    // who asks first is sent up the circle, to the vice
	direct  int     // sends from this node that are under way
	given   int     // members that receive, or had it, from this node, but for those whose links are slow
	// The members, as choose looks for them.
	ages
	all          group
	zones, racks map[string]*group // by name
	// present has a bit for each who fills the object, by its number, and was found to be a member.
	present []uint64
}

// includes reports whether one who fills the object is a member of the chunk.
func (s *state) includes(f *filler) bool {
	word, bit := f.number/64, uint64(1)<<(f.number%64)
	if word < len(s.present) && s.present[word]&bit != 0 {
		return true
	}
	if s.members[f.id] == nil {
		return false
	}
	for len(s.present) <= word {
		s.present = append(s.present, 0)
	}
	s.present[word] |= bit
	return true
}

// lost notes that one who fills the object is no member of the chunk any more.
func (s *state) lost(f *filler) {
	if f != nil && f.number/64 < len(s.present) {
		s.present[f.number/64] &^= 1 << (f.number % 64)
	}
}

// cast is who fills an object now: at most MaxMembers. It lives as long as a chunk of the object is hot.
type cast struct {
	chunks  int // of the object that are remembered
	begun   time.Time
	most    int    // of filler.asked
	fetched int    // chunks that nobody had when they were asked for
	probeAt int    // fetched when the next one is to tell how fast others' links are
	left    uint32 // the last that was left to this node
	slow    int    // members that last said that their links are
	members map[string]*filler
	numbers int       // given to members so far
	circle  []*filler // by place
	// The same by zone and by rack, where these have names.
	zones, racks map[string][]*filler
}

// filler is a member that fills an object.
type filler struct {
	id, zone, rack string
	last           time.Time // it asked for a chunk of the object
	asked          int       // chunks
	slow           time.Time // it last said that its link is; counted in cast.slow
	place          uint64
	number         int // of those who ever filled the object
}

// rank is how many of those who fill the object stand between a place in the circle and one behind it.
func (k *cast) rank(from, to uint64) int {
	i, j := seat(k.circle, from), seat(k.circle, to)
	if from <= to {
		return j - i
	}
	return len(k.circle) - i + j
}

// seat returns the first of those in the circle that is at a place or behind it.
func seat(circle []*filler, place uint64) int {
	return sort.Search(len(circle), func(i int) bool { return circle[i].place >= place })
}

// lags reports whether a member that fills the object is far behind the one that stands before it in the circle, or the first
// behind any. Who stands behind one that lags is as far behind the others, and not to blame.
func (p *Plan) lags(k *cast, member string, now time.Time) bool {
	f := k.members[member]
	if f == nil || k.most-f.asked < p.cfg.MaxLag {
		return false
	}
	i := seat(k.circle, f.place)
	for range len(k.circle) {
		i = (i + len(k.circle) - 1) % len(k.circle)
		before := k.circle[i]
		if p.place-before.place <= p.place-f.place { // it is the first behind this node
			return true
		}
		if !p.isSlow(k, before.id, now) {
			return before.asked-f.asked >= p.cfg.MaxLag
		}
	}
	return true
}

func (k *cast) add(f *filler) {
	if !f.slow.IsZero() {
		k.slow++
	}
	f.number = k.numbers
	k.numbers++
	k.members[f.id] = f
	k.circle = slices.Insert(k.circle, seat(k.circle, f.place), f)
	if f.zone != "" {
		k.zones[f.zone] = slices.Insert(k.zones[f.zone], seat(k.zones[f.zone], f.place), f)
	}
	if f.rack != "" {
		k.racks[f.rack] = slices.Insert(k.racks[f.rack], seat(k.racks[f.rack], f.place), f)
	}
}

func (k *cast) remove(member string) {
	f := k.members[member]
	if f == nil {
		return
	}
	delete(k.members, member)
	if !f.slow.IsZero() {
		k.slow--
	}
	k.circle = without(k.circle, f)
	if k.zones[f.zone] = without(k.zones[f.zone], f); len(k.zones[f.zone]) == 0 {
		delete(k.zones, f.zone)
	}
	if k.racks[f.rack] = without(k.racks[f.rack], f); len(k.racks[f.rack]) == 0 {
		delete(k.racks, f.rack)
	}
}

// move notes that a member is elsewhere than it was.
func (k *cast) move(f *filler, zone, rack string) {
	k.remove(f.id)
	f.zone, f.rack = zone, rack
	k.add(f)
}

// without takes one out of those at its place, if it is there.
func without(circle []*filler, f *filler) []*filler {
	for i := seat(circle, f.place); i < len(circle) && circle[i].place == f.place; i++ {
		if circle[i] == f {
			return slices.Delete(circle, i, i+1)
		}
	}
	return circle
}

// holder is a member that has the chunk or is receiving it.
type holder struct {
	id, zone, rack string
	span           chunk.Span // of what it has or is receiving
	since          time.Time  // it began to receive
	source         *holder    // whom it receives from; nil means this node
	delegate       bool       // source is nil, and it receives from the origin
	direct         int        // sends from this node to it that are under way
	done           bool
	gone           bool      // forgotten, and still the source of others
	expected       bool      // has not asked, and will: it fills the object
	fills          bool      // asked as one who fills the object
	place          uint64    // in the circle of all members
	stranger       bool      // never asked since it was forgotten: its source is not known
	failed         time.Time // an asker last could not get the chunk from it
	children       int       // members that receive, or had it, from this one
	slowChildren   int       // more of them, whose links are slow: they take little of this one's
	slow           bool      // it is one of them
	detached       bool      // it counts for nothing at its source any more
	depth          int       // members between this node and it, and it, when it began

	older, newer *holder // in state.ages
	settled      bool    // counts as having the chunk by its age
	// Where it is in the state's groups.
	sorted, full           bool
	cost                   int
	sortedZone, sortedRack string
}

// New returns an empty Plan.
func New(cfg Config) *Plan {
	cfg.setDefaults()
	return &Plan{cfg: cfg, chunks: make(map[Chunk]*list.Element), blamed: make(map[string]time.Time),
		casts: make(map[chunk.ObjectID]*cast), place: placeOf(cfg.Self)}
}

// placeOf is where a member stands in the circle of all members. All nodes agree about it
// (FNV-1a, and a finish that spreads similar ids).
func placeOf(id string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(id) {
		h = (h ^ uint64(id[i])) * 1099511628211
	}
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	return h ^ h>>33
}

// Distance is how far a member stands behind another in the circle of all members.
func Distance(from, to string) uint64 { return placeOf(to) - placeOf(from) }
