package peer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
	"time"

	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/objstore"
	"github.com/shardwell/shardwell/peer/budget"
	"github.com/shardwell/shardwell/peer/peerpb"
)

// Bounds of what members ask each other to do.
const (
	MaxParts      = 4096 // of one Bring
	MaxOutcomes   = 1024 // of one answer to it
	MaxListPart   = 4 << 20
	maxPartChunks = 1 << 20
	maxWarm       = 4096
	maxJobBytes   = 12 << 20
	// bringSilence is how long a member may say nothing while it brings something; it says
	// something every second.
	bringSilence = 30 * time.Second
)

// Prefix is the objects of a bucket whose keys begin with a text.
type Prefix struct {
	Bucket objstore.Bucket
	Prefix string
}

// What is to be done in a [Bring].
const (
	DoFetch = peerpb.BringRequest_FETCH // get them, and hold them
	DoCheck = peerpb.BringRequest_CHECK // say whether they are held
	DoDrop  = peerpb.BringRequest_DROP  // hold them no more
)

// Part is an object, or some chunks of one.
type Part struct {
	Object chunk.Object
	Chunks []uint32 // none: all
}

// Bring is what a member is asked to do.
type Bring struct {
	Do      peerpb.BringRequest_Do
	Parts   []Part
	Fill    bool  // all members are asked for the same
	AtOnce  int   // chunks
	MaxRate int64 // bytes a second; 0: no limit

	Hold    []Prefix      // datasets that the member is to keep as if it owned them,
	HoldFor time.Duration // for so long; 0: no more
}

// Outcome is how one part of a Bring ended.
type Outcome struct {
	Part    int      // its number
	Missing []uint32 // chunks that are not held
	Reason  string   // why; "": nothing is missing
	Detail  string
}

// Brought is what has happened since the last one.
type Brought struct {
	Outcomes                []Outcome
	HeldBytes, FetchedBytes int64
}

// Lessor divides budgets of origins.
type Lessor interface {
	// Lease leases a part of an origin's budget of rate bytes a second to a member.
	Lease(origin, member string, rate, want float64) budget.Lease
}

// Worker is this node's side of what members do for each other.
type Worker interface {
	// Room says how many bytes the caches here may keep, and how many of these are taken by what must
	// not go, without what lies under warm.
	Room(ctx context.Context, warm []Prefix) (limitBytes, takenBytes int64, err error)
	// Bring does what it is asked and calls tell now and then, at least every second, from one
	// goroutine at a time. It ends with an error of tell.
	Bring(ctx context.Context, b Bring, tell func(Brought) error) error
	// KeepJob takes note of a job and returns what is known of it now.
	KeepJob(ctx context.Context, doc []byte) (merged []byte, lacksList, joined bool, err error)
	// KeepList takes a part of a list that jobs refer to.
	KeepList(sum string, size, offset int64, data []byte) error
	// Jobs returns what is known of a job, or of all.
	Jobs(id string) [][]byte
}

func prefixesOut(list []Prefix) (out []*peerpb.Prefix) {
	for _, p := range list[:min(len(list), maxWarm)] {
		out = append(out, &peerpb.Prefix{Origin: p.Bucket.Origin, Bucket: p.Bucket.Name, Prefix: []byte(p.Prefix)})
	}
	return out
}

func prefixesIn(list []*peerpb.Prefix) (in []Prefix) {
	for _, p := range list {
		in = append(in, Prefix{objstore.Bucket{Origin: p.Origin, Name: p.Bucket}, string(p.Prefix)})
	}
	return in
}

// Lease asks the lessor of an origin's budget.
func (p *Peers) Lease(ctx context.Context, lessor, origin string, rate, want float64) (l budget.Lease, err error) {
	err = p.work(ctx, lessor, p.cfg.CallTimeout, func(ctx context.Context, c peerpb.WorkClient) error {
		r, err := c.Lease(ctx, &peerpb.LeaseRequest{Origin: origin, Rate: rate, Want: want})
		if err == nil && (math.IsNaN(r.Rate) || r.Rate < 0 || r.Rate > rate || r.ForNanos <= 0 || r.ForNanos > int64(budget.LeaseTime)) {
			return fmt.Errorf("peer %s: a lease that cannot be one", lessor)
		}
		l = budget.Lease{BytesPerSecond: r.GetRate(), For: time.Duration(r.GetForNanos())}
		return err
	})
	return l, err
}

// Room asks a member how much its caches have for a warm-up.
func (p *Peers) Room(ctx context.Context, member string, warm []Prefix) (limit, taken int64, err error) {
	req := &peerpb.RoomRequest{Warm: prefixesOut(warm)}
	err = p.work(ctx, member, p.cfg.CallTimeout, func(ctx context.Context, c peerpb.WorkClient) error {
		r, err := c.Room(ctx, req)
		limit, taken = r.GetLimitBytes(), r.GetTakenBytes()
		return err
	})
	return limit, taken, err
}

// Bring has a member do something and calls tell with what it says, from one goroutine. When the
// member is lost, what tell did not hear of is not done.
func (p *Peers) Bring(ctx context.Context, member string, b Bring, tell func(Brought) error) error {
	req := &peerpb.BringRequest{Do: b.Do, Fill: b.Fill, AtOnce: uint32(max(0, b.AtOnce)), MaxRate: b.MaxRate,
		Hold: prefixesOut(b.Hold), HoldNanos: int64(b.HoldFor)}
	for _, part := range b.Parts {
		req.Parts = append(req.Parts, &peerpb.Part{Object: part.Object.AppendBinary(nil), Chunks: part.Chunks})
	}
	return p.work(ctx, member, math.MaxInt64, func(ctx context.Context, c peerpb.WorkClient) error {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		silent := time.AfterFunc(bringSilence, func() { cancel(fmt.Errorf("peer %s says nothing for %v", member, bringSilence)) })
		defer silent.Stop()
		stream, err := c.Bring(ctx, req)
		if err != nil {
			return err
		}
		for {
			r, err := stream.Recv()
			switch {
			case errors.Is(err, io.EOF):
				return nil
			case err != nil && ctx.Err() != nil:
				return context.Cause(ctx)
			case err != nil:
				return err
			}
			silent.Reset(bringSilence)
			if err := tell(broughtIn(r, len(b.Parts))); err != nil {
				return err
			}
		}
	})
}

// broughtIn leaves out what nobody asked for.
func broughtIn(r *peerpb.BringReply, parts int) Brought {
	n := Brought{HeldBytes: max(0, r.HeldBytes), FetchedBytes: max(0, r.FetchedBytes)}
	for _, o := range r.Outcomes {
		if int(o.Part) < parts {
			n.Outcomes = append(n.Outcomes, Outcome{Part: int(o.Part), Missing: o.Missing, Reason: o.Reason, Detail: o.Detail})
		}
	}
	return n
}

// KeepJob gives a member what is known here of a job.
func (p *Peers) KeepJob(ctx context.Context, member string, doc []byte) (merged []byte, lacksList, joined bool, err error) {
	err = p.work(ctx, member, p.cfg.CallTimeout, func(ctx context.Context, c peerpb.WorkClient) error {
		r, err := c.KeepJob(ctx, &peerpb.KeepJobRequest{Json: doc})
		merged, lacksList, joined = r.GetJson(), r.GetLacksList(), r.GetJoined()
		return err
	})
	return merged, lacksList, joined, err
}

// KeepList gives a member a list of names, in parts.
func (p *Peers) KeepList(ctx context.Context, member, sum string, list []byte) error {
	for off := 0; off < len(list); off += MaxListPart {
		part := &peerpb.KeepListRequest{Sum: sum, Size: int64(len(list)), Offset: int64(off), Data: list[off:min(len(list), off+MaxListPart)]}
		err := p.work(ctx, member, p.cfg.CallTimeout, func(ctx context.Context, c peerpb.WorkClient) error {
			_, err := c.KeepList(ctx, part)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// JobOf asks a member for what it knows of a job: nil if nothing.
func (p *Peers) JobOf(ctx context.Context, member, id string) (doc []byte, err error) {
	err = p.work(ctx, member, p.cfg.CallTimeout, func(ctx context.Context, c peerpb.WorkClient) error {
		r, err := c.Jobs(ctx, &peerpb.JobsRequest{Id: id})
		if len(r.GetJobs()) > 0 {
			doc = r.GetJobs()[0]
		}
		return err
	})
	return doc, err
}

// Jobs asks every other member for what it knows of jobs. Members that do not answer are in
// the error.
func (p *Peers) Jobs(ctx context.Context) (docs [][]byte, err error) {
	var mu sync.Mutex
	err = p.everyOther(ctx, func(ctx context.Context, m Member) error {
		return p.connect(ctx, m, p.cfg.CallTimeout, func(ctx context.Context, c *caller) error {
			r, err := c.work.Jobs(ctx, &peerpb.JobsRequest{})
			mu.Lock()
			defer mu.Unlock()
			docs = append(docs, r.GetJobs()...)
			return err
		})
	})
	return docs, err
}

// work makes one call to a member.
func (p *Peers) work(ctx context.Context, member string, timeout time.Duration, do func(context.Context, peerpb.WorkClient) error) error {
	m, ok := p.cfg.Members.Lookup(member)
	if !ok {
		return fmt.Errorf("peer %s: is no member", member)
	}
	return p.connect(ctx, m, timeout, func(ctx context.Context, c *caller) error { return do(ctx, c.work) })
}
