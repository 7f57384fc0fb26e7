package peer

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/objstore"
	"github.com/shardwell/shardwell/peer/peerpb"
)

// Bounds of what a member tells in one message.
const (
	maxUses        = 4096
	maxTakenChunks = 4096
	maxFreed       = 4096
	maxUseTTL      = 24 * time.Hour
	maxTakeTime    = 2 * time.Minute
)

// DatasetUse is what one member knows of a dataset: the objects of a bucket whose keys
// begin with a prefix.
type DatasetUse struct {
	Bucket     objstore.Bucket
	Prefix     string // "" or with a slash at its end
	Policy     string
	QuotaBytes int64 // of the cluster, 0: none
	Used       bool  // mounted at the member

	PinnedFor  time.Duration // yet; 0: not, or not any more
	PinBytes   int64
	PinVersion int64 // of several for one dataset the highest counts; 0: it was never pinned

	// Fill says that each member may fetch its share of the dataset before anybody reads it.
	Fill bool

	// Foreign says that others than the members read the bucket, with credentials of their
	// own, or have read it. It says nothing of the dataset. No bucket stands for all.
	Foreign bool
}

// Keeper is this node's side of what members tell each other of what they keep.
type Keeper interface {
	// Use replaces what a member said of its datasets; it holds for ttl.
	Use(member string, uses []DatasetUse, ttl time.Duration)
	// Take gets chunks of an object that this node owns now from a member that did before,
	// and returns which of them are here.
	Take(ctx context.Context, obj chunk.Object, chunks []uint32) ([]uint32, error)
	// Free drops versions that were overwritten, when their last readers have gone.
	Free(objs []chunk.Object)
}

// Use tells every other member which datasets this node uses and which pins it
// knows. The error names each member that could not be told.
func (p *Peers) Use(ctx context.Context, uses []DatasetUse, ttl time.Duration) error {
	req := &peerpb.UseRequest{Member: p.cfg.Self, TtlNanos: int64(ttl)}
	for _, u := range uses[:min(len(uses), maxUses)] {
		req.Uses = append(req.Uses, &peerpb.DatasetUse{Bucket: bucketOut(u.Bucket), Prefix: []byte(u.Prefix), Policy: u.Policy,
			QuotaBytes: u.QuotaBytes, Used: u.Used, PinnedNanos: int64(u.PinnedFor), PinBytes: u.PinBytes, PinVersion: u.PinVersion, Fill: u.Fill, Foreign: u.Foreign})
	}
	return p.everyOther(ctx, func(ctx context.Context, m Member) error {
		return p.call(ctx, m, p.cfg.CallTimeout, func(ctx context.Context, c peerpb.PeerClient) (*peerpb.Failure, error) {
			_, err := c.Use(ctx, req)
			return nil, err
		})
	})
}

// Take asks a member to get chunks of an object which this node holds, and returns those
// which that member has now.
func (p *Peers) Take(ctx context.Context, member string, obj chunk.Object, chunks []uint32) (taken []uint32, err error) {
	m, ok := p.cfg.Members.Lookup(member)
	if !ok {
		return nil, fmt.Errorf("peer %s: is no member", member)
	}
	err = p.call(ctx, m, maxTakeTime, func(ctx context.Context, c peerpb.PeerClient) (*peerpb.Failure, error) {
		reply, err := c.Take(ctx, &peerpb.TakeRequest{Object: obj.AppendBinary(nil), Chunks: chunks})
		taken = reply.GetTaken()
		return nil, err
	})
	return taken, err
}

// Free tells every other member that versions were overwritten.
func (p *Peers) Free(ctx context.Context, objs []chunk.Object) error {
	req := &peerpb.FreeRequest{}
	for _, o := range objs[:min(len(objs), maxFreed)] {
		req.Objects = append(req.Objects, o.AppendBinary(nil))
	}
	return p.everyOther(ctx, func(ctx context.Context, m Member) error {
		return p.call(ctx, m, p.cfg.CallTimeout, func(ctx context.Context, c peerpb.PeerClient) (*peerpb.Failure, error) {
			_, err := c.Free(ctx, req)
			return nil, err
		})
	})
}

var errMalformed = status.Error(codes.InvalidArgument, "malformed message")

func (a *answers) Use(_ context.Context, r *peerpb.UseRequest) (*peerpb.UseReply, error) {
	a.cfg.Stats.CallsServed.Add(1)
	if len(r.Uses) > maxUses || r.TtlNanos < 0 {
		return nil, errMalformed
	}
	if _, ok := a.cfg.Members.Lookup(r.Member); !ok || a.cfg.Keeper == nil {
		return &peerpb.UseReply{}, nil
	}
	uses := make([]DatasetUse, 0, len(r.Uses))
	for _, u := range r.Uses {
		if len(u.Prefix) > chunk.MaxKeyBytes || len(u.GetBucket().GetOrigin()) > chunk.MaxOriginBytes ||
			len(u.GetBucket().GetName()) > chunk.MaxBucketBytes || u.QuotaBytes < 0 || u.PinBytes < 0 || u.PinnedNanos < 0 {
			return nil, errMalformed
		}
		uses = append(uses, DatasetUse{Bucket: bucketIn(u.Bucket), Prefix: string(u.Prefix), Policy: u.Policy, QuotaBytes: u.QuotaBytes,
			Used: u.Used, PinnedFor: time.Duration(u.PinnedNanos), PinBytes: u.PinBytes, PinVersion: u.PinVersion, Fill: u.Fill, Foreign: u.Foreign})
	}
	a.cfg.Keeper.Use(r.Member, uses, min(time.Duration(r.TtlNanos), maxUseTTL))
	return &peerpb.UseReply{}, nil
}

func (a *answers) Take(ctx context.Context, r *peerpb.TakeRequest) (*peerpb.TakeReply, error) {
	a.cfg.Stats.CallsServed.Add(1)
	obj, err := chunk.ParseObject(r.Object)
	if err != nil || len(r.Chunks) > maxTakenChunks {
		return nil, errMalformed
	}
	for _, index := range r.Chunks {
		if index >= a.cfg.Geometry.Chunks(obj.Size) {
			return nil, errMalformed
		}
	}
	if a.cfg.Keeper == nil {
		return &peerpb.TakeReply{}, nil
	}
	taken, err := a.cfg.Keeper.Take(ctx, obj, r.Chunks)
	if err != nil && len(taken) == 0 {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &peerpb.TakeReply{Taken: taken}, nil
}

func (a *answers) Free(_ context.Context, r *peerpb.FreeRequest) (*peerpb.FreeReply, error) {
	a.cfg.Stats.CallsServed.Add(1)
	if len(r.Objects) > maxFreed {
		return nil, errMalformed
	}
	objs := make([]chunk.Object, 0, len(r.Objects))
	for _, b := range r.Objects {
		obj, err := chunk.ParseObject(b)
		if err != nil {
			return nil, errMalformed
		}
		objs = append(objs, obj)
	}
	if a.cfg.Keeper != nil {
		a.cfg.Keeper.Free(objs)
	}
	return &peerpb.FreeReply{}, nil
}
