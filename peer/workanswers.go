package peer

import (
	"context"
	"math"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/peer/peerpb"
	"github.com/shardwell/shardwell/peer/transfer"
)

// workAnswers is this node's side of the calls of work.proto.
type workAnswers struct {
	peerpb.UnimplementedWorkServer
	cfg ServerConfig
}

var errNoWork = status.Error(codes.Unimplemented, "this member does no work for others")

func (a *workAnswers) Lease(ctx context.Context, r *peerpb.LeaseRequest) (*peerpb.LeaseReply, error) {
	a.cfg.Stats.CallsServed.Add(1)
	sane := func(f float64) bool { return f >= 0 && f <= math.MaxInt64 } // false for what is no number
	if a.cfg.Lessor == nil {
		return nil, errNoWork
	}
	if len(r.Origin) > chunk.MaxOriginBytes || !sane(r.Rate) || !sane(r.Want) {
		return nil, errMalformed
	}
	l := a.cfg.Lessor.Lease(r.Origin, transfer.CallerOf(ctx), r.Rate, r.Want)
	return &peerpb.LeaseReply{Rate: l.BytesPerSecond, ForNanos: int64(l.For)}, nil
}

func (a *workAnswers) Room(ctx context.Context, r *peerpb.RoomRequest) (*peerpb.RoomReply, error) {
	a.cfg.Stats.CallsServed.Add(1)
	if a.cfg.Worker == nil {
		return nil, errNoWork
	}
	if len(r.Warm) > maxWarm {
		return nil, errMalformed
	}
	limit, taken, err := a.cfg.Worker.Room(ctx, prefixesIn(r.Warm))
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &peerpb.RoomReply{LimitBytes: limit, TakenBytes: taken}, nil
}

func (a *workAnswers) Bring(r *peerpb.BringRequest, out grpc.ServerStreamingServer[peerpb.BringReply]) error {
	a.cfg.Stats.CallsServed.Add(1)
	if a.cfg.Worker == nil {
		return errNoWork
	}
	b := Bring{Do: r.Do, Fill: r.Fill, AtOnce: int(r.AtOnce), MaxRate: r.MaxRate, Hold: prefixesIn(r.Hold), HoldFor: time.Duration(r.HoldNanos)}
	if len(r.Parts) > MaxParts || len(r.Hold) > maxWarm || r.HoldNanos < 0 || r.MaxRate < 0 || r.AtOnce > maxTakenChunks {
		return errMalformed
	}
	for _, p := range r.Parts {
		obj, err := chunk.ParseObject(p.Object)
		if err != nil || len(p.Chunks) > maxPartChunks {
			return errMalformed
		}
		for _, c := range p.Chunks {
			if c >= a.cfg.Geometry.Chunks(obj.Size) {
				return errMalformed
			}
		}
		b.Parts = append(b.Parts, Part{obj, p.Chunks})
	}
	err := a.cfg.Worker.Bring(out.Context(), b, func(n Brought) error {
		reply := &peerpb.BringReply{HeldBytes: n.HeldBytes, FetchedBytes: n.FetchedBytes}
		for _, o := range n.Outcomes {
			reply.Outcomes = append(reply.Outcomes, &peerpb.Outcome{Part: uint32(o.Part), Missing: o.Missing, Reason: o.Reason, Detail: validText(o.Detail)})
		}
		return out.Send(reply)
	})
	if err != nil && status.Code(err) == codes.Unknown {
		err = status.Error(codes.Internal, validText(err.Error()))
	}
	return err
}

func (a *workAnswers) KeepJob(ctx context.Context, r *peerpb.KeepJobRequest) (*peerpb.KeepJobReply, error) {
	a.cfg.Stats.CallsServed.Add(1)
	if a.cfg.Worker == nil {
		return nil, errNoWork
	}
	if len(r.Json) > maxJobBytes {
		return nil, errMalformed
	}
	merged, lacks, joined, err := a.cfg.Worker.KeepJob(ctx, r.Json)
	if err != nil {
		return nil, status.Error(codes.FailedPrecondition, validText(err.Error()))
	}
	return &peerpb.KeepJobReply{Json: merged, LacksList: lacks, Joined: joined}, nil
}

func (a *workAnswers) KeepList(_ context.Context, r *peerpb.KeepListRequest) (*peerpb.KeepListReply, error) {
	a.cfg.Stats.CallsServed.Add(1)
	if a.cfg.Worker == nil {
		return nil, errNoWork
	}
	if len(r.Data) > MaxListPart || r.Offset < 0 || r.Size < 0 {
		return nil, errMalformed
	}
	if err := a.cfg.Worker.KeepList(r.Sum, r.Size, r.Offset, r.Data); err != nil {
		return nil, status.Error(codes.FailedPrecondition, validText(err.Error()))
	}
	return &peerpb.KeepListReply{}, nil
}

func (a *workAnswers) Jobs(_ context.Context, r *peerpb.JobsRequest) (*peerpb.JobsReply, error) {
	a.cfg.Stats.CallsServed.Add(1)
	if a.cfg.Worker == nil {
		return nil, errNoWork
	}
	return &peerpb.JobsReply{Jobs: a.cfg.Worker.Jobs(r.Id)}, nil
}
