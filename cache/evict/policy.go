package evict

import (
	"fmt"
	"slices"
	"strings"

	"github.com/shardwell/shardwell/internal/chunk"
)

// Class ranks what is cached: all of a lower class go before any of a higher one.
type Class uint8

// The classes, in the order in which they go.
const (
	Unkept    Class = iota // its dataset is not to be kept at all
	Stale                  // a version that was overwritten: nobody opens it any more
	Copy                   // this node does not own it: its owner has it as well
	Idle                   // owned, and nobody mounts its dataset: the one unused for longest first
	Recent                 // owned, of a mounted dataset whose policy is [LRU]
	Protected              // owned, of a mounted dataset whose policy is [Epoch]
	Pinned                 // owned, of a dataset that somebody pinned
)

func (c Class) String() string {
	return [...]string{"unkept", "stale", "copy", "idle", "recent", "protected", "pinned"}[c]
}

// Displaces reports whether what comes may take the place of what is there. A higher
// class displaces a lower one. Among equals the newer displaces the older only where
// recency is worth something: not among what is protected, for whatever came there first is
// as good as what comes now, and dropping it would be for nothing.
func Displaces(comes, there Class) bool {
	switch {
	case comes == Unkept:
		return false
	case comes != there:
		return comes > there
	}
	return there < Protected
}

// Policy is how a dataset is kept.
type Policy uint8

// The policies.
const (
	Epoch Policy = iota // what is there stays while the dataset is in use
	LRU                 // the least recently used goes first
	None                // nothing is kept: it streams through
)

var policyNames = [...]string{"epoch", "lru", "none"}

func (p Policy) String() string { return policyNames[p] }

// ParsePolicy is the inverse of [Policy.String].
func ParsePolicy(s string) (Policy, error) {
	if i := slices.Index(policyNames[:], s); i >= 0 {
		return Policy(i), nil
	}
	return 0, fmt.Errorf("policy %q: must be one of %s", s, strings.Join(policyNames[:], ", "))
}

// Dataset names the objects of a bucket whose keys begin with a prefix, which is "" or
// ends with a slash.
type Dataset struct {
	Origin, Bucket, Prefix string
}

// Covers reports whether an object is of the dataset.
func (d Dataset) Covers(o chunk.Object) bool {
	return strings.HasPrefix(o.Key, d.Prefix) && o.Bucket == d.Bucket && o.Origin == d.Origin
}

// Use is what is known of one dataset. Times are nanoseconds since 1970.
type Use struct {
	Dataset
	Policy      Policy
	QuotaBytes  int64 // of the whole cluster, 0: none
	UsedUntil   int64 // somebody mounts it until then, as far as is known
	PinnedUntil int64 // 0: not pinned
	PinBytes    int64 // what the pin was admitted for
}

// Active reports whether the dataset is mounted or pinned at a time.
func (u Use) Active(now int64) bool { return u.UsedUntil > now || u.PinnedUntil > now }

// Table is what is known of all datasets at one time. It does not change.
type Table struct{ uses []Use }

// NewTable returns a table of uses. Of several for one dataset each counts: the strongest
// decides what an object is worth, the longest for how long.
func NewTable(uses []Use) *Table { return &Table{slices.Clone(uses)} }

// Uses returns what the table holds; it is not to be changed.
func (t *Table) Uses() []Use {
	if t == nil {
		return nil
	}
	return t.uses
}

// Judge returns what an object that this node owns is worth at a time, and its rank
// within the class: datasets that nobody uses go whole, the one unused for longest
// first, and what no dataset covers before all of them. An object of several
// datasets is worth what it is to the most demanding.
func (t *Table) Judge(o chunk.Object, now int64) (Class, int64) {
	class, rank := Idle, int64(0)
	unkept, kept := false, false
	for i := range t.Uses() {
		u := &t.uses[i]
		if !u.Covers(o) {
			continue
		}
		c := Idle
		switch {
		case u.PinnedUntil > now:
			c = Pinned
		case u.UsedUntil > now && u.Policy == Epoch:
			c = Protected
		case u.UsedUntil > now && u.Policy == LRU:
			c = Recent
		case u.Policy == None:
			unkept = true
			continue
		}
		kept = true
		switch {
		case c > class:
			class, rank = c, 0
		case c == Idle && class == Idle:
			rank = max(rank, u.UsedUntil, u.PinnedUntil)
		}
	}
	if unkept && !kept {
		return Unkept, 0
	}
	return class, rank
}

// Quota returns the smallest quota of an object's datasets and whose it is; ok is false
// when it has none.
func (t *Table) Quota(o chunk.Object) (u Use, ok bool) {
	for _, x := range t.Uses() {
		if x.QuotaBytes > 0 && x.Covers(o) && (!ok || x.QuotaBytes < u.QuotaBytes) {
			u, ok = x, true
		}
	}
	return u, ok
}

// PinError is why a pin is refused.
type PinError struct {
	NeedBytes, FreeBytes int64 // what the pin needs, what can still be pinned
}

func (e *PinError) Error() string {
	return fmt.Sprintf("cannot pin %d bytes: %d bytes of the cluster's cache can still be pinned", e.NeedBytes, e.FreeBytes)
}

// Pin returns a table in which a dataset of so many bytes is pinned until a time, or a
// *[PinError] when with those that are pinned already it does not fit capacityBytes.
// A pin that is there is replaced; until 0 ends it.
func (t *Table) Pin(d Dataset, bytes, capacityBytes, until, now int64) (*Table, error) {
	next := make([]Use, 0, len(t.Uses())+1)
	at, free := -1, capacityBytes
	for _, u := range t.Uses() {
		switch {
		case u.Dataset == d && at < 0:
			at = len(next)
		case u.PinnedUntil > now && u.Dataset != d:
			free -= u.PinBytes
		}
		next = append(next, u)
	}
	if until > now && bytes > free {
		return nil, &PinError{bytes, max(0, free)}
	}
	if at < 0 {
		at, next = len(next), append(next, Use{Dataset: d})
	}
	next[at].PinnedUntil, next[at].PinBytes = until, bytes
	if until <= now {
		next[at].PinnedUntil, next[at].PinBytes = 0, 0
	}
	return &Table{next}, nil
}
