// Package peer finds the other nodes and gets blocks and names from them: the
// cluster as one chunk.Fetcher and one objstore.Names ([Peers]), and this node's
// answer to the same questions ([Server]).
//
// It promises that a request passes at most two nodes, that every block was
// checked on arrival, that only current members are asked and believed, and that a
// member which is dead, slow or damaged costs a retry elsewhere, never an error:
// when nobody is left it says chunk.ErrNotHeld, and the caller asks the origin.
//
// It leaves to others: who owns what ([Ring], implemented by peer/ring), who is a
// member ([Members], by peer/member), bytes of one chunk between two nodes
// (peer/transfer), whom an owner names to those it does not serve itself
// (peer/broadcast), and the cache in front of it. These four are parts of this
// package, as is the wire form of its control calls, peer/peerpb.
package peer

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/objstore"
	"github.com/shardwell/shardwell/peer/transfer"
)

// Key is a place on the ring, as peer/ring computes it.
type Key = uint64

// Ring says who owns what by the present table, and who did by earlier ones.
// Methods are safe for concurrent use, do not block, and append to buf.
type Ring interface {
	// KeyOfBlocks returns the key of the chunk in which span lies, or of the whole
	// object when that has one owner.
	KeyOfBlocks(obj chunk.Object, id chunk.ObjectID, span chunk.Span) Key
	// KeyOfName returns the key of a directory of a bucket.
	KeyOfName(name string) Key
	// Owners appends the ring ids of the owner and its successors, in the order in
	// which they are to be asked; members that are restarting are left out.
	Owners(key Key, buf []string) []string
	// EarlierOwners appends the ring ids of owners by earlier tables, newest first,
	// without the present owner.
	EarlierOwners(key Key, buf []string) []string
}

// Member is another node as membership knows it.
type Member struct {
	ID   string // ring id
	Name string // for people
	Addr string // host:port of its peer port
	Zone string
	Rack string
}

// Members knows who belongs to the cluster now. Safe for concurrent use.
type Members interface {
	// Lookup returns a current member by its ring id.
	Lookup(id string) (Member, bool)
	// All returns every current member, this node included.
	All() []Member
}

// Racks is Members that knows who stands together.
type Racks interface {
	// Rack returns the ring ids of the members in the rack of m, m included, or none
	// when racks are not known. The slice is shared: do not change it.
	Rack(m Member) []string
}

// Routes knows this node's own ways to origins. A node whose way is cut is no owner of what lies there:
// members that ask it are told so ([chunk.ErrNoRoute]) and ask its successors, and so does it for its own
// readers. Safe for concurrent use.
type Routes interface {
	// Cut reports whether an origin does not answer this node, while other members are there.
	Cut(origin string) bool
	// Shaky reports whether that is so or was a moment ago: then whoever does not answer others may be about
	// to, and this node does not act in their place, lest all do when an origin comes back.
	Shaky(origin string) bool
}

// Config is what [New] needs. Zero durations and counts mean the defaults.
type Config struct {
	Self     string // ring id of this node
	Version  string // of the program, for people
	Geometry chunk.Geometry
	Ring     Ring
	Members  Members
	Transfer *transfer.Client
	Signer   *transfer.Signer // signs control calls; nil in a cluster without a secret
	Logger   *slog.Logger     // nil discards

	// Dial opens the connection of control calls; nil dials TCP.
	Dial transfer.DialFunc

	// CallTimeout bounds one control call to one member, default 20 s; a question that is
	// passed on for a peer has half of it.
	CallTimeout time.Duration
	// MaxRedirects is how many members an owner may name for one request before it
	// has to serve it itself, default 3.
	MaxRedirects int
	// MaxEarlierOwners is how many owners by earlier tables are asked, default 3.
	MaxEarlierOwners int
	// MaxBusyRetries is how often a member that has too many streams is asked
	// again before the next one is, default 4.
	MaxBusyRetries int

	// Presigner, unless nil, returns what signs requests to a bucket on behalf of an identity,
	// where this node has its credentials: an owner that lacks them asks the origin with
	// what was signed.
	Presigner func(ctx context.Context, b objstore.Bucket, who chunk.Identity) (objstore.Presigner, bool)

	// Routes knows which origins this node cannot reach by itself; nil: none.
	Routes Routes

	// OnLag, unless nil, is told when an owner says that this node is far behind others who
	// fill an object.
	OnLag func(chunk.ObjectID)
	// Elsewhere, unless nil, names a member that has what this node is to fetch from the origin as
	// the owner, or that is to fetch it on its behalf, which is a delegate; "" for none.
	Elsewhere func(req chunk.Request, failed []string) (member string, delegate bool)

	// Pace, unless nil, returns how many bytes a second have come to this node of late, 0 when that is not known, and
	// whether its link was found slow. Owners are told when it fills an object.
	Pace func() (bytesPerSecond int64, slow bool)

	Breaker BreakerConfig
	// Rand gives the jitter; nil means a source of its own.
	Rand *rand.Rand
}

func (c *Config) setDefaults() {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.CallTimeout == 0 {
		c.CallTimeout = 20 * time.Second
	}
	if c.MaxRedirects == 0 {
		c.MaxRedirects = 3
	}
	if c.MaxEarlierOwners == 0 {
		c.MaxEarlierOwners = 3
	}
	if c.MaxBusyRetries == 0 {
		c.MaxBusyRetries = 4
	}
}

// Validate reports what is missing.
func (c Config) Validate() error {
	switch {
	case c.Self == "":
		return errors.New("peer: no ring id for this node")
	case c.Ring == nil || c.Members == nil:
		return errors.New("peer: no ring or no members")
	case c.Transfer == nil:
		return errors.New("peer: no transfer client")
	}
	if err := c.Geometry.Validate(); err != nil {
		return err
	}
	return nil
}
