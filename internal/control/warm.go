package control

import (
	"context"

	"github.com/shardwell/shardwell/warm"
)

// Warmer is a [Node] that warms caches up. Methods are as those of Node.
type Warmer interface {
	// StartWarm has the cluster bring objects to its caches and returns the job that does it; joined
	// says that it was under way already.
	StartWarm(ctx context.Context, req WarmRequest) (rec warm.Record, joined bool, err error)
	// FollowWarm calls tell with what is known of a job, each time that has changed, until it has
	// ended. An error of tell ends it and is returned.
	FollowWarm(ctx context.Context, id string, tell func(warm.Record) error) error
	// WarmJobs returns the jobs that the cluster knows of, the latest first, without what is missing in each.
	WarmJobs(ctx context.Context) ([]warm.Record, error)
	// CancelWarm ends a job. What it has brought stays. One that has ended stays as it is.
	CancelWarm(ctx context.Context, id string) error
	// LookWarm does what needs no job, for as long as the caller waits, and calls tell with what it
	// finds, last with the sum. An error of tell ends it and is returned.
	LookWarm(ctx context.Context, req WarmRequest, do WarmLook, tell func(WarmFound) error) error
}

// WarmRequest says which objects a command is about, and how they are to be held.
type WarmRequest struct {
	Spec   warm.Spec
	List   []byte // compressed names, one URI a line, for Spec.ListSum; may be empty
	Caller Caller // who asks; filled in by the server

	// Options are those of origins that the caller has set, by their names in YAML. Warm-ups read with the nodes' own
	// options, so what differs from them is refused.
	Options map[string]string
}

// WarmLook is what a look at objects is for.
type WarmLook string

// The looks.
const (
	WarmPlan  WarmLook = "plan"  // where they would go, and whether they fit
	WarmCheck WarmLook = "check" // whether they are there
	WarmEvict WarmLook = "evict" // have them gone, and take pins back
	WarmUnpin WarmLook = "unpin" // take pins back
)

// WarmFound is one finding of a look: something that is missing, or at the end the sum.
type WarmFound struct {
	Missing *warm.Missing `json:"missing,omitempty"`
	Sum     *WarmSum      `json:"sum,omitempty"`
}

// WarmSum adds up what a look has found.
type WarmSum struct {
	Objects   int64                 `json:"objects"`
	Bytes     int64                 `json:"bytes"`     // of the objects, once
	HeldBytes int64                 `json:"heldBytes"` // check: that are where they should be; evict: that were held, all copies
	Missing   int64                 `json:"missing"`   // objects and parts of which that was told
	Counts    map[warm.Reason]int64 `json:"counts"`
	Nodes     []WarmNode            `json:"nodes"`
	Short     []warm.Short          `json:"short"` // plan: nodes that have no room for their part
}

// WarmNode is one node's part.
type WarmNode struct {
	Node      string `json:"node"`
	Parts     int64  `json:"parts"` // objects, and chunks of objects that have several owners
	Bytes     int64  `json:"bytes"`
	HeldBytes int64  `json:"heldBytes"`
}
