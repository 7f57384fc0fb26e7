package control

import (
	"cmp"
	"slices"
	"time"
)

// Status is the document of `shardwell status --json`. The names of its fields
// are a promise to those who read it: they are added to, never changed. Lists are
// empty rather than null.
type Status struct {
	Node       string      `json:"node"`       // name of the node that answers
	ID         string      `json:"id"`         // its ring id
	Version    string      `json:"version"`    // of the program
	Members    []Member    `json:"members"`    // of the cluster, as this node sees it
	Seeds      Seeds       `json:"seeds"`      // that this node was told to join
	Refused    []Refusal   `json:"refused"`    // members that were turned away, newest first
	Mounts     []Mount     `json:"mounts"`     // of this node
	Keeper     string      `json:"keeper"`     // that holds them: connected or absent; "" for none configured
	TakingOver int         `json:"takingOver"` // mounts of a predecessor that are not served yet
	Datasets   []Dataset   `json:"datasets"`   // that are mounted in this node
	Pins       []Pin       `json:"pins"`       // that this node knows of
	Broadcasts []Broadcast `json:"broadcasts"` // that this node takes part in
	Bytes      Bytes       `json:"bytes"`      // since this node started
	Disks      []Disk      `json:"disks"`      // of this node
	// SkippedKeys are keys that cannot be paths, at most 100; SkippedTotal is
	// how many there are.
	SkippedKeys  []SkippedKey `json:"skippedKeys"`
	SkippedTotal int64        `json:"skippedTotal"`
}

// Member is a node of the cluster.
type Member struct {
	ID         string  `json:"id"`
	Name       string  `json:"name"`
	Address    string  `json:"address"` // of its peer port
	Zone       string  `json:"zone"`
	Rack       string  `json:"rack"`
	State      string  `json:"state"`      // alive, suspect, restarting or dead
	OwnedShare float64 `json:"ownedShare"` // of the ring, 0 to 1
}

// Seeds tells whether anybody is behind the names of --join.
type Seeds struct {
	Asked    int `json:"asked"`    // addresses other than this node's; a name that has none counts as one
	Answered int `json:"answered"` // of these, those that are members or answered lately
}

// Alone reports whether there are seeds and none answers: they cannot be reached, or have another secret.
func (s Seeds) Alone() bool { return s.Asked > 0 && s.Answered == 0 }

// Refusal is a member that was turned away.
type Refusal struct {
	Name    string    `json:"name"`
	Address string    `json:"address"`
	Reason  string    `json:"reason"`
	At      time.Time `json:"at"`
}

// Mount is a directory on which a dataset is mounted.
type Mount struct {
	URI string `json:"uri"`
	Dir string `json:"dir"`
	// Identity names the credentials of the mount and tells nothing of them; "" are the node's own.
	Identity string `json:"identity,omitempty"`
}

// Dataset is what a URI stands for, as far as it was listed.
type Dataset struct {
	URI         string     `json:"uri"`
	Objects     int64      `json:"objects"`
	Bytes       int64      `json:"bytes"`
	CachedBytes int64      `json:"cachedBytes"` // in the cluster
	LocalBytes  int64      `json:"localBytes"`  // in this node
	PinnedUntil *time.Time `json:"pinnedUntil"` // null: not pinned
}

// Pin protects what lies under a URI in all caches.
type Pin struct {
	URI   string    `json:"uri"`
	Until time.Time `json:"until"`
	Bytes int64     `json:"bytes"` // that it was admitted for
}

// Broadcast is an object that several nodes receive at once.
type Broadcast struct {
	Object          string  `json:"object"`
	NodesDone       int     `json:"nodesDone"`
	NodesReceiving  int     `json:"nodesReceiving"`
	BytesPerSecond  float64 `json:"bytesPerSecond"`
	OriginCopies    float64 `json:"originCopies"`
	MaxOverMeanSent float64 `json:"maxOverMeanSent"`
}

// Bytes counts what the node gave to its readers, by where it came from, and
// what it exchanged. A block's first reader has it from the origin or a peer, also when
// prefetch saw to it that it was on disk by then, later ones from disk or memory. What was
// fetched for peers and before any reader opened the object is from disk for all.
// What the kernel reads by passthrough is not seen by the node; the opens are counted.
type Bytes struct {
	Origin           int64 `json:"origin"`
	Peer             int64 `json:"peer"`
	Disk             int64 `json:"disk"`
	Memory           int64 `json:"memory"`
	PassthroughOpens int64 `json:"passthroughOpens"`
	SentToPeers      int64 `json:"sentToPeers"`

	FetchedFromOrigin int64 `json:"fetchedFromOrigin"`
	FetchedFromPeers  int64 `json:"fetchedFromPeers"`
}

// Disk is a cache directory.
type Disk struct {
	Path        string `json:"path"`
	State       string `json:"state"` // normal, unstable or down
	UsedBytes   int64  `json:"usedBytes"`
	BudgetBytes int64  `json:"budgetBytes"`
}

// SkippedKey is a key that cannot be a path.
type SkippedKey struct {
	Key    string `json:"key"` // bytes that are not UTF-8 are replaced
	Reason string `json:"reason"`
}

// normal returns s with empty lists instead of null ones, and members by name.
func (s Status) normal() Status {
	s.Members = slices.SortedFunc(slices.Values(s.Members), func(a, b Member) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.ID, b.ID))
	})
	s.Members = orEmpty(s.Members)
	s.Refused = orEmpty(s.Refused)
	s.Mounts = orEmpty(s.Mounts)
	s.Datasets = orEmpty(s.Datasets)
	s.Pins = orEmpty(s.Pins)
	s.Broadcasts = orEmpty(s.Broadcasts)
	s.Disks = orEmpty(s.Disks)
	s.SkippedKeys = orEmpty(s.SkippedKeys)
	return s
}

func orEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}
