package peer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
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
	maxGivenBytes    = 8 << 20  // of an index that is given to the owner: some 800,000 members
	tarPartBytes     = 1 << 20
	// tarSilence is how long the owner of a tar may say nothing while it reads headers; it says
	// something every tarSignEvery.
	tarSilence   = 20 * time.Second
	tarSignEvery = 4 * time.Second
)

// Tars is what this node knows of tars.
type Tars interface {
	// Encoded returns the encoded index of a tar, which it makes if need be.
	Encoded(ctx context.Context, obj chunk.Object) ([]byte, error)
	// Lacks reports whether the index of a tar would have to be made.
	Lacks(obj chunk.Object) bool
	// Keep takes an encoded index that another member has made.
	Keep(obj chunk.Object, encoded []byte) error
}

// TarIndex asks the owner of a tar, or who acts for it, where its members lie. It returns
// chunk.ErrNotHeld when this node is the one to find out.
func (p *Peers) TarIndex(ctx context.Context, obj chunk.Object) ([]byte, error) {
	for m := range p.ownersOfTar(obj) {
		b, err := p.tarIndexOf(ctx, m, obj)
		switch {
		case err == nil:
			return b, nil
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case errors.As(err, new(*transfer.RemoteError)):
			return nil, err // it is there, and has none
		}
		p.cfg.Logger.Info("peer could not tell of a tar", "object", obj.URI(), "peer", m.ID, "error", err)
	}
	return nil, chunk.ErrNotHeld
}

// ownersOfTar yields the members that keep the index of a tar, the owner first, up to this node.
func (p *Peers) ownersOfTar(obj chunk.Object) iter.Seq[Member] {
	return func(yield func(Member) bool) {
		key := p.cfg.Ring.KeyOfBlocks(obj, obj.ID(), chunk.Span{Count: 1})
		for _, id := range p.cfg.Ring.Owners(key, nil) {
			if id == p.cfg.Self {
				return
			}
			if m, ok := p.cfg.Members.Lookup(id); ok && p.breakers.allow(id, time.Now()) && !yield(m) {
				return
			}
		}
	}
}

// GiveTarIndex gives an index that this node has made to the owner of the tar, or who acts for it, if that
// lacks it. An index that is too long for one call is given to nobody.
func (p *Peers) GiveTarIndex(ctx context.Context, obj chunk.Object, encoded []byte) error {
	if len(encoded) > maxGivenBytes {
		return nil
	}
	give := func(m Member, index []byte) (lacks bool, err error) {
		err = p.connect(ctx, m, p.cfg.CallTimeout, func(ctx context.Context, c *caller) error {
			r, err := c.tars.KeepTarIndex(ctx, &peerpb.KeepTarIndexRequest{Object: obj.AppendBinary(nil), Index: index})
			lacks = r.GetLacks()
			return err
		})
		return lacks, err
	}
	var errs []error
	for m := range p.ownersOfTar(obj) {
		lacks, err := give(m, nil)
		if lacks && err == nil {
			_, err = give(m, encoded)
		}
		if err == nil {
			return nil
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
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

var errNoTars = status.Error(codes.Unimplemented, "this member has no indexes of tars")

func (a *tarAnswers) KeepTarIndex(_ context.Context, r *peerpb.KeepTarIndexRequest) (*peerpb.KeepTarIndexReply, error) {
	a.cfg.Stats.CallsServed.Add(1)
	if a.cfg.Tars == nil {
		return nil, errNoTars
	}
	obj, err := chunk.ParseObject(r.Object)
	if err != nil {
		return nil, errMalformed
	}
	lacks := a.cfg.Tars.Lacks(obj)
	if lacks && len(r.Index) > 0 {
		if err := a.cfg.Tars.Keep(obj, r.Index); err != nil {
			return nil, status.Error(codes.InvalidArgument, validText(err.Error()))
		}
	}
	return &peerpb.KeepTarIndexReply{Lacks: lacks}, nil
}

func (a *tarAnswers) TarIndex(r *peerpb.TarIndexRequest, out grpc.ServerStreamingServer[peerpb.TarIndexReply]) error {
	a.cfg.Stats.CallsServed.Add(1)
	if a.cfg.Tars == nil {
		return errNoTars
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
		b, err := a.cfg.Tars.Encoded(ctx, obj)
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
