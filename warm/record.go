package warm

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"time"
)

// Spec is what a user asks for.
type Spec struct {
	Sources   []string `json:"sources"`             // as written
	ListSum   string   `json:"listSum,omitempty"`   // SHA-256 of the compressed list of names, hexadecimal; "" for none
	ListBytes int64    `json:"listBytes,omitempty"` // its length
	EveryNode bool     `json:"everyNode,omitempty"` // a copy on each node
	Nodes     []string `json:"nodes,omitempty"`     // only on these, by name or ring id; empty: all

	Pin        time.Duration `json:"pin,omitempty"`   // for how long after the end; 0: not
	Force      bool          `json:"force,omitempty"` // although it does not fit
	Parallel   int           `json:"parallel,omitempty"`
	OriginRate int64         `json:"originRate,omitempty"` // bytes a second of the whole job; 0: no limit of its own
}

// ID names the job: two warm-ups of the same objects to the same places are one.
func (s Spec) ID() string {
	sources, nodes := slices.Clone(s.Sources), slices.Clone(s.Nodes)
	slices.Sort(sources)
	slices.Sort(nodes)
	text, err := json.Marshal([]any{slices.Compact(sources), s.ListSum, s.EveryNode, slices.Compact(nodes)})
	if err != nil {
		panic(err) // strings and a bool
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}

// ValidID reports whether a text can be the ID of a job.
func ValidID(s string) bool {
	_, err := hex.DecodeString(s)
	return err == nil && len(s) == 16
}

// State is how far a job is.
type State string

// The states. A job that has ended does so for good; the same warm-up again is a new one.
const (
	Running  State = "running"
	Done     State = "done"     // everything is where it should be
	Partly   State = "partly"   // some is missing
	Failed   State = "failed"   // it could not be done at all
	Canceled State = "canceled" // by a user
)

// Ended reports whether nothing comes any more.
func (s State) Ended() bool { return s != Running }

// Progress counts what a job has done.
type Progress struct {
	Objects      int64 `json:"objects"`      // in all; 0 while names are looked up
	Bytes        int64 `json:"bytes"`        // to be held in all: with copies on each node, all copies
	DoneObjects  int64 `json:"doneObjects"`  // or parts of objects that are owned by chunks
	Parts        int64 `json:"parts"`        // how many of these there are
	DoneBytes    int64 `json:"doneBytes"`    // held, those from before included
	FetchedBytes int64 `json:"fetchedBytes"` // of these, what the job has brought
	FailedParts  int64 `json:"failedParts"`
	Checking     bool  `json:"checking"` // at the end: whether everything is there

	Nodes []NodeProgress `json:"nodes"`
}

// NodeProgress is Progress of one node.
type NodeProgress struct {
	Node      string `json:"node"` // name
	Bytes     int64  `json:"bytes"`
	DoneBytes int64  `json:"doneBytes"`
	Failed    int64  `json:"failed"`
}

// Record is what the cluster knows of a job. Whoever runs it writes it, several nodes keep it.
type Record struct {
	ID      string `json:"id"`
	Spec    Spec   `json:"spec"`
	Started int64  `json:"started"` // nanoseconds since 1970: of two jobs with one ID, the later one counts
	Ended   int64  `json:"ended,omitempty"`
	State   State  `json:"state"`
	Why     string `json:"why,omitempty"` // it failed
	Runner  string `json:"runner"`        // name of the node that runs it
	Seq     int64  `json:"seq"`           // grows with each writing

	Progress Progress `json:"progress"`
	// PinnedUntil is until when what was warmed up is pinned, by this or another's wish, in nanoseconds since 1970; 0: some of
	// it is not. It is told when the job has ended.
	PinnedUntil int64 `json:"pinnedUntil,omitempty"`

	Counts  map[Reason]int64 `json:"counts,omitempty"`  // of what is missing, parts by reason
	Missing []Missing        `json:"missing,omitempty"` // the first of these; all, unless Cut
	Cut     bool             `json:"cut,omitempty"`
}

// Reason is why something is missing.
type Reason string

// The reasons.
const (
	Forbidden   Reason = "forbidden"          // the origin does not give it
	NotFound    Reason = "not-found"          // there is no such object
	Changed     Reason = "changed"            // it was overwritten or deleted meanwhile
	NoRoom      Reason = "no-room"            // the cache does not take it
	DiskFailed  Reason = "disk-failed"        // of the cache
	Unavailable Reason = "origin-unavailable" // within the time of a read
	NodeLost    Reason = "node-lost"          // it does not answer
	NotCached   Reason = "not-cached"         // only checked, and not there
	Other       Reason = "failed"
)

// Missing is an object, or a part of one, that is not where it should be.
type Missing struct {
	URI    string  `json:"uri"`
	Chunk  *uint32 `json:"chunk,omitempty"` // null: all of it
	Node   string  `json:"node,omitempty"`  // where it should be
	Reason Reason  `json:"reason"`
	Detail string  `json:"detail,omitempty"`
}

// Compare puts what is missing in the order of URIs, chunks and nodes.
func (m Missing) Compare(other Missing) int {
	chunk := func(m Missing) int64 {
		if m.Chunk == nil {
			return -1
		}
		return int64(*m.Chunk)
	}
	return cmp.Or(cmp.Compare(m.URI, other.URI), cmp.Compare(chunk(m), chunk(other)), cmp.Compare(m.Node, other.Node))
}

// maxMissingBytes bounds the list of what is missing in a record.
const maxMissingBytes = 6 << 20

// Miss adds something to what is missing.
func (r *Record) Miss(m Missing) {
	if r.Counts == nil {
		r.Counts = make(map[Reason]int64)
	}
	r.Counts[m.Reason]++
	size := 0
	for _, have := range r.Missing[max(0, len(r.Missing)-1):] {
		size = len(r.Missing) * (96 + len(have.URI) + len(have.Detail)) // about
	}
	if r.Cut = r.Cut || size > maxMissingBytes; !r.Cut {
		r.Missing = append(r.Missing, m)
	}
}

// Lost returns how many parts are missing.
func (r *Record) Lost() (n int64) {
	for _, c := range r.Counts {
		n += c
	}
	return n
}

// newer reports whether a tells more than b of the same job: a later start, then that it has
// ended, then that a user has canceled it, then the later writing. It is a strict order, so that all
// who keep the job agree.
func newer(a, b Record) bool {
	return cmp.Or(
		cmp.Compare(a.Started, b.Started),
		cmp.Compare(rank(a.State), rank(b.State)),
		cmp.Compare(a.Seq, b.Seq),
		cmp.Compare(a.Runner, b.Runner),
	) > 0
}

func rank(s State) int {
	switch s {
	case Running:
		return 0
	case Canceled:
		return 2
	}
	return 1
}

// Merge returns what two records of one job say together. It does not matter which is the
// first. What only one of them was asked for holds for both: the longer pin, and that
// it need not fit.
func Merge(a, b Record) Record {
	out := a
	if newer(b, a) {
		out = b
	}
	if a.Started == b.Started {
		out.Spec.Pin = max(a.Spec.Pin, b.Spec.Pin)
		out.Spec.Force = a.Spec.Force || b.Spec.Force
	}
	return out
}

// Join returns the record of the job that a new request stands for, given what is known of one
// with its ID: the running one, with what the new request asks for beyond, or the new one.
func Join(known, asked Record) (r Record, joined bool) {
	if known.ID != asked.ID || known.State.Ended() {
		asked.Started = max(asked.Started, known.Started+1)
		return asked, false
	}
	asked.Started, asked.Seq, asked.State, asked.Runner = known.Started, known.Seq, known.State, known.Runner
	return Merge(known, asked), true
}
