package peer

import (
	"context"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/objstore"
	"github.com/shardwell/shardwell/peer/peerpb"
	"github.com/shardwell/shardwell/peer/transfer"
)

// maxFailureBytes bounds the text of an error that is sent to a peer.
const maxFailureBytes = 512

// answers is this node's side of the control calls.
type answers struct {
	peerpb.UnimplementedPeerServer
	cfg ServerConfig
}

func (a *answers) Hello(_ context.Context, r *peerpb.HelloRequest) (*peerpb.HelloReply, error) {
	a.cfg.Stats.CallsServed.Add(1)
	if g := a.cfg.Geometry; r.ChunkBytes != g.ChunkBytes || r.BlockBytes != g.BlockBytes {
		a.cfg.Logger.Warn("peer has other sizes", "peer", r.Member, "chunk bytes", r.ChunkBytes, "block bytes", r.BlockBytes,
			"our chunk bytes", g.ChunkBytes, "our block bytes", g.BlockBytes)
	}
	reply := &peerpb.HelloReply{Member: a.cfg.Self, ProtocolMin: ProtocolMin, ProtocolMax: ProtocolMax,
		ChunkBytes: a.cfg.Geometry.ChunkBytes, BlockBytes: a.cfg.Geometry.BlockBytes, Version: a.cfg.Version}
	if a.cfg.RingHash != nil {
		reply.RingHash = a.cfg.RingHash()
	}
	return reply, nil
}

// query checks what all questions about names have in common.
func query(b *peerpb.Bucket, maxAge int64, hops uint32, who, grant string) (objstore.Query, error) {
	as := chunk.Access{Identity: chunk.Identity(who), Grant: chunk.NewGrant(grant)}
	if !as.Identity.Valid() || len(grant) > chunk.MaxGrantBytes || grant != "" && who == "" {
		return objstore.Query{}, status.Error(codes.InvalidArgument, "malformed identity")
	}
	if hops < 1 || hops > chunk.MaxHops || maxAge < 0 || len(b.GetOrigin()) > chunk.MaxOriginBytes || len(b.GetName()) > chunk.MaxBucketBytes {
		return objstore.Query{}, status.Error(codes.InvalidArgument, "malformed question")
	}
	return objstore.Query{Bucket: bucketIn(b), Access: as, MaxAge: time.Duration(maxAge), Hops: int(hops)}, nil
}

// cut reports whether a question had better go to another member.
func (a *answers) cut(q objstore.Query) bool {
	return a.cfg.Routes != nil && a.cfg.Routes.Cut(q.Bucket.Origin)
}

// failure makes the origin's error data. The asker's own end is an error of the call.
func failure(ctx context.Context, err error) (*peerpb.Failure, error) {
	if err == nil {
		return nil, nil
	}
	if ctx.Err() != nil {
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	class, _ := transfer.ClassOf(err)
	return &peerpb.Failure{Class: class, Message: validText(err.Error())}, nil
}

// validText shortens a text for the wire. Keys in it need not be UTF-8, and the cut may part a letter.
func validText(text string) string {
	return strings.ToValidUTF8(text[:min(len(text), maxFailureBytes)], "?")
}

// maxAnswerTime is the part of the asker's time that is kept for the answer's way back.
const maxAnswerTime = 500 * time.Millisecond

// inTime ends before ctx does, so that the asker hears why there is no answer.
func inTime(ctx context.Context) (context.Context, context.CancelFunc) {
	end, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithDeadline(ctx, end.Add(-min(maxAnswerTime, time.Until(end)/10)))
}

func (a *answers) Head(ctx context.Context, r *peerpb.HeadRequest) (*peerpb.HeadReply, error) {
	a.cfg.Stats.CallsServed.Add(1)
	q, err := query(r.Bucket, r.MaxAgeNanos, r.Hops, r.Identity, r.Grant)
	if err != nil || len(r.Key) > chunk.MaxKeyBytes {
		return nil, status.Error(codes.InvalidArgument, "malformed question")
	}
	if a.cut(q) {
		f, err := failure(ctx, chunk.ErrNoRoute)
		return &peerpb.HeadReply{Failure: f}, err
	}
	soon, cancel := inTime(ctx)
	defer cancel()
	info, age, err := a.cfg.Names.Head(soon, q, string(r.Key))
	f, err := failure(ctx, err)
	if err != nil {
		return nil, err
	}
	if f != nil {
		return &peerpb.HeadReply{AgeNanos: int64(age), Failure: f}, nil
	}
	return &peerpb.HeadReply{Info: infoOut(info), AgeNanos: int64(age)}, nil
}

func (a *answers) ListPage(ctx context.Context, r *peerpb.ListPageRequest) (*peerpb.ListPageReply, error) {
	a.cfg.Stats.CallsServed.Add(1)
	q, err := query(r.Bucket, r.MaxAgeNanos, r.Hops, r.Identity, r.Grant)
	if err != nil || len(r.Prefix) > chunk.MaxKeyBytes || r.Limit > 1<<20 {
		return nil, status.Error(codes.InvalidArgument, "malformed question")
	}
	if a.cut(q) {
		f, err := failure(ctx, chunk.ErrNoRoute)
		return &peerpb.ListPageReply{Failure: f}, err
	}
	soon, cancel := inTime(ctx)
	defer cancel()
	page, age, err := a.cfg.Names.List(soon, q, objstore.ListRequest{
		Prefix: string(r.Prefix), Delimiter: r.Delimiter, Token: string(r.Token), Limit: int(r.Limit)})
	f, err := failure(ctx, err)
	if err != nil {
		return nil, err
	}
	if f != nil {
		return &peerpb.ListPageReply{AgeNanos: int64(age), Failure: f}, nil
	}
	reply := pageOut(page)
	reply.AgeNanos = int64(age)
	return reply, nil
}

func (a *answers) Forget(ctx context.Context, r *peerpb.ForgetRequest) (*peerpb.ForgetReply, error) {
	a.cfg.Stats.CallsServed.Add(1)
	if a.cfg.Forget == nil {
		return &peerpb.ForgetReply{}, nil
	}
	n, err := a.cfg.Forget(ctx, bucketIn(r.Bucket), string(r.Prefix))
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &peerpb.ForgetReply{Forgotten: uint64(max(0, n))}, nil
}

func (a *answers) Status(ctx context.Context, _ *peerpb.StatusRequest) (*peerpb.StatusReply, error) {
	a.cfg.Stats.CallsServed.Add(1)
	if a.cfg.Status == nil {
		return &peerpb.StatusReply{Json: []byte("{}")}, nil
	}
	b, err := a.cfg.Status(ctx)
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &peerpb.StatusReply{Json: b}, nil
}
