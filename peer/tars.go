package peer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/peer/peerpb"
	"github.com/shardwell/shardwell/peer/transfer"
)

// Bounds of what members tell each other of tars.
const (
	MaxTarIndexBytes = 64 << 20 // encoded
	tarPartBytes     = 1 << 20
	// tarSilence is how long the owner of a tar may say nothing while it reads headers; it says
	// something every tarSignEvery.
	tarSilence   = 20 * time.Second
	tarSignEvery = 4 * time.Second
)

// TarIndexFunc returns the encoded index of a tar, which it makes if need be.
type TarIndexFunc func(ctx context.Context, obj chunk.Object) ([]byte, error)

// TarIndex asks the owner of a tar, or who acts for it, where its members lie. It returns
// chunk.ErrNotHeld when this node is the one to find out.
func (p *Peers) TarIndex(ctx context.Context, obj chunk.Object) ([]byte, error) {
	key := p.cfg.Ring.KeyOfBlocks(obj, obj.ID(), chunk.Span{Count: 1})
	for _, id := range p.cfg.Ring.Owners(key, nil) {
		if id == p.cfg.Self {
			break
		}
		m, ok := p.cfg.Members.Lookup(id)
		if !ok || !p.breakers.allow(id, time.Now()) {
			continue
		}
		b, err := p.tarIndexOf(ctx, m, obj)
		switch {
		case err == nil:
			return b, nil
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case errors.As(err, new(*transfer.RemoteError)):
			return nil, err // it is there, and has none
		}
		p.cfg.Logger.Info("peer could not tell of a tar", "object", obj.URI(), "peer", id, "error", err)
	}
	return nil, chunk.ErrNotHeld
}

// tarIndexOf asks one member.
func (p *Peers) tarIndexOf(ctx context.Context, m Member, obj chunk.Object) (b []byte, err error) {
	err = p.connect(ctx, m, math.MaxInt64, func(ctx context.Context, c *caller) error {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		silent := time.AfterFunc(tarSilence, func() { cancel(fmt.Errorf("peer %s says nothing for %v", m.ID, tarSilence)) })
		defer silent.Stop()
		stream, err := c.tars.TarIndex(ctx, &peerpb.TarIndexRequest{Object: obj.AppendBinary(nil)})
		if err != nil {
			return err
		}
		for {
			r, err := stream.Recv()
			switch {
			case errors.Is(err, io.EOF):
				return nil
			case err != nil && context.Cause(ctx) != nil:
				return context.Cause(ctx)
			case err != nil:
				return err
			case len(b)+len(r.Part) > MaxTarIndexBytes:
				return fmt.Errorf("peer %s: index of a tar of more than %d bytes", m.ID, MaxTarIndexBytes)
			}
			silent.Reset(tarSilence)
			b = append(b, r.Part...)
		}
	})
	return b, err
}

// tarAnswers is this node's side of tars.proto.
type tarAnswers struct {
	peerpb.UnimplementedTarsServer
	cfg ServerConfig
}

func (a *tarAnswers) TarIndex(r *peerpb.TarIndexRequest, out grpc.ServerStreamingServer[peerpb.TarIndexReply]) error {
	a.cfg.Stats.CallsServed.Add(1)
	if a.cfg.TarIndex == nil {
		return status.Error(codes.Unimplemented, "this member has no indexes of tars")
	}
	obj, err := chunk.ParseObject(r.Object)
	if err != nil {
		return errMalformed
	}
	type answer struct {
		b   []byte
		err error
	}
	ctx, cancel := context.WithCancel(out.Context())
	got := make(chan answer, 1)
	go func() {
		b, err := a.cfg.TarIndex(ctx, obj)
		got <- answer{b, err}
	}()
	sign := time.NewTicker(tarSignEvery)
	defer sign.Stop()
	for {
		select {
		case x := <-got:
			cancel()
			if x.err != nil {
				return status.Error(codes.FailedPrecondition, validText(x.err.Error()))
			}
			for b := x.b; len(b) > 0; b = b[min(len(b), tarPartBytes):] {
				if err := out.Send(&peerpb.TarIndexReply{Part: b[:min(len(b), tarPartBytes)]}); err != nil {
					return err
				}
			}
			return nil
		case <-sign.C:
			if err := out.Send(&peerpb.TarIndexReply{}); err != nil {
				cancel()
				<-got
				return err
			}
		}
	}
}
