package peer

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sync/semaphore"

	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/objstore"
	"github.com/shardwell/shardwell/peer/peerpb"
)

// Protocol versions that this program speaks. Members that have none in common refuse each other by
// their gossip, before either asks the other anything. Raise the number with every change that a member
// of the version before would misunderstand.
//
// 1 knew one right for all; since 2 requests carry on whose behalf they are, a grant, and signs of life.
const (
	ProtocolMin = 2
	ProtocolMax = 2
)

// maxCallsAtOnce bounds the members that a call to all of them asks at once.
const maxCallsAtOnce = 16

// Hello asks a member what it speaks and returns an error that names the
// difference when the two cannot work together.
func (p *Peers) Hello(ctx context.Context, m Member) (*peerpb.HelloReply, error) {
	var reply *peerpb.HelloReply
	err := p.call(ctx, m, p.cfg.CallTimeout, func(ctx context.Context, c peerpb.PeerClient) (*peerpb.Failure, error) {
		var err error
		reply, err = c.Hello(ctx, &peerpb.HelloRequest{Member: p.cfg.Self, ProtocolMin: ProtocolMin, ProtocolMax: ProtocolMax,
			ChunkBytes: p.cfg.Geometry.ChunkBytes, BlockBytes: p.cfg.Geometry.BlockBytes})
		return nil, err
	})
	if err != nil {
		return nil, err
	}
	theirs := chunk.Geometry{ChunkBytes: reply.ChunkBytes, BlockBytes: reply.BlockBytes}
	switch {
	case reply.Member != m.ID:
		return reply, fmt.Errorf("peer %s at %s: member %q answers there", m.ID, m.Addr, reply.Member)
	case reply.ProtocolMin > ProtocolMax || reply.ProtocolMax < ProtocolMin:
		return reply, fmt.Errorf("peer %s: speaks protocol %d to %d, this node %d to %d", m.ID, reply.ProtocolMin, reply.ProtocolMax, ProtocolMin, ProtocolMax)
	case theirs != p.cfg.Geometry:
		return reply, fmt.Errorf("peer %s: chunk and block size %d/%d, this node %d/%d", m.ID, theirs.ChunkBytes, theirs.BlockBytes,
			p.cfg.Geometry.ChunkBytes, p.cfg.Geometry.BlockBytes)
	}
	return reply, nil
}

// Forget makes every other member forget the names under a prefix. It returns how
// many names were dropped, and an error that names each member which could not be told.
func (p *Peers) Forget(ctx context.Context, b objstore.Bucket, prefix string) (int, error) {
	var mu sync.Mutex
	total := 0
	err := p.everyOther(ctx, func(ctx context.Context, m Member) error {
		var reply *peerpb.ForgetReply
		err := p.call(ctx, m, p.cfg.CallTimeout, func(ctx context.Context, c peerpb.PeerClient) (*peerpb.Failure, error) {
			var err error
			reply, err = c.Forget(ctx, &peerpb.ForgetRequest{Bucket: bucketOut(b), Prefix: []byte(prefix)})
			return nil, err
		})
		mu.Lock()
		defer mu.Unlock()
		total += int(reply.GetForgotten())
		return err
	})
	return total, err
}

// Statuses asks every other member for its status document. Members that do not answer
// are in the error and not in the map, which is by ring id.
func (p *Peers) Statuses(ctx context.Context) (map[string][]byte, error) {
	var mu sync.Mutex
	all := make(map[string][]byte)
	err := p.everyOther(ctx, func(ctx context.Context, m Member) error {
		var reply *peerpb.StatusReply
		err := p.call(ctx, m, p.cfg.CallTimeout, func(ctx context.Context, c peerpb.PeerClient) (*peerpb.Failure, error) {
			var err error
			reply, err = c.Status(ctx, &peerpb.StatusRequest{})
			return nil, err
		})
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		all[m.ID] = reply.Json
		return nil
	})
	return all, err
}

// everyOther calls do for each other member, some at once, and joins the errors.
func (p *Peers) everyOther(ctx context.Context, do func(context.Context, Member) error) error {
	var wg sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	slots := semaphore.NewWeighted(maxCallsAtOnce)
	for _, m := range p.cfg.Members.All() {
		if m.ID == p.cfg.Self {
			continue
		}
		if err := slots.Acquire(ctx, 1); err != nil {
			errs = append(errs, err)
			break
		}
		wg.Go(func() {
			defer slots.Release(1)
			if err := do(ctx, m); err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
