package peer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/objstore"
	"github.com/shardwell/shardwell/peer/peerpb"
	"github.com/shardwell/shardwell/peer/transfer"
)

// Head implements objstore.Names: the owner of the key's directory answers. It
// returns chunk.ErrNotHeld when this node is the one to ask the origin.
func (p *Peers) Head(ctx context.Context, q objstore.Query, key string) (objstore.Info, time.Duration, error) {
	var reply *peerpb.HeadReply
	as := p.grant(ctx, q.Bucket, q.Access, func(by objstore.Presigner) (string, error) { return by.PresignHead(ctx, key, grantTTL) })
	err := p.askNames(ctx, q, directory(key), func(ctx context.Context, c peerpb.PeerClient) (*peerpb.Failure, error) {
		var err error
		reply, err = c.Head(ctx, &peerpb.HeadRequest{
			Bucket: bucketOut(q.Bucket), Key: []byte(key), MaxAgeNanos: int64(q.MaxAge), Hops: uint32(q.Hops + 1),
			Identity: string(as.Identity), Grant: as.Grant.Secret(),
		})
		return reply.GetFailure(), err
	})
	age := time.Duration(max(0, reply.GetAgeNanos()))
	if err != nil {
		return objstore.Info{}, age, err
	}
	info, err := infoIn(reply.GetInfo())
	return info, age, err
}

// List implements objstore.Names: every page of a directory has one owner. It
// returns chunk.ErrNotHeld when this node is the one to ask the origin.
func (p *Peers) List(ctx context.Context, q objstore.Query, req objstore.ListRequest) (objstore.Page, time.Duration, error) {
	var reply *peerpb.ListPageReply
	as := p.grant(ctx, q.Bucket, q.Access, func(by objstore.Presigner) (string, error) { return by.PresignList(ctx, req, grantTTL) })
	err := p.askNames(ctx, q, directory(req.Prefix), func(ctx context.Context, c peerpb.PeerClient) (*peerpb.Failure, error) {
		var err error
		reply, err = c.ListPage(ctx, &peerpb.ListPageRequest{
			Bucket: bucketOut(q.Bucket), Prefix: []byte(req.Prefix), Delimiter: req.Delimiter, Token: []byte(req.Token),
			Limit: uint32(req.Limit), MaxAgeNanos: int64(q.MaxAge), Hops: uint32(q.Hops + 1),
			Identity: string(as.Identity), Grant: as.Grant.Secret(),
		})
		return reply.GetFailure(), err
	})
	age := time.Duration(max(0, reply.GetAgeNanos()))
	if err != nil {
		return objstore.Page{}, age, err
	}
	page, err := pageIn(reply)
	return page, age, err
}

// directory returns the part of a key up to its last slash: what a listing of its
// neighbours has as a prefix.
func directory(key string) string { return key[:strings.LastIndexByte(key, '/')+1] }

// nameKey is what is put on the ring for a directory of a bucket.
func nameKey(b objstore.Bucket, dir string) string { return b.Origin + "\x00" + b.Name + "\x00" + dir }

// call is one control call; a failure is the origin's, an error the peer's.
type call func(context.Context, peerpb.PeerClient) (*peerpb.Failure, error)

// askNames walks from the owner of a directory through its successors, like Fetch.
func (p *Peers) askNames(ctx context.Context, q objstore.Query, dir string, do call) error {
	if q.Hops >= chunk.MaxHops {
		return chunk.ErrNotHeld
	}
	noRoute := false
	for i, id := range p.cfg.Ring.Owners(p.cfg.Ring.KeyOfName(nameKey(q.Bucket, dir)), nil) {
		if id == p.cfg.Self {
			if p.cut(q.Bucket.Origin) {
				continue
			}
			break
		}
		m, ok := p.cfg.Members.Lookup(id)
		if !ok || !p.breakers.allow(id, time.Now()) {
			continue
		}
		if i > 0 {
			p.stats.NextCandidate.Add(1)
		}
		timeout := p.cfg.CallTimeout
		if q.Hops > 0 {
			timeout /= 2 // so that the peer which asked us is still there
		}
		err := p.call(ctx, m, timeout, do)
		p.report(ctx, id, err)
		if err == nil || ends(ctx, err) {
			return err
		}
		noRoute = noRoute || errors.Is(err, chunk.ErrNoRoute)
		p.cfg.Logger.Info("peer could not answer", "bucket", q.Bucket.Name, "directory", dir, "peer", id, "error", err)
	}
	if noRoute && p.shaky(q.Bucket.Origin) {
		return errNobody
	}
	p.stats.ActedAsOwner.Add(1)
	return chunk.ErrNotHeld
}

// call makes one control call to one member within its time.
func (p *Peers) call(parent context.Context, m Member, timeout time.Duration, do call) error {
	return p.connect(parent, m, timeout, func(ctx context.Context, c *caller) error {
		failure, err := do(ctx, c.client)
		if err == nil && failure != nil {
			return &transfer.RemoteError{Peer: m.ID, Class: transfer.ErrorOfClass(failure.GetClass()), Message: failure.GetMessage()}
		}
		return err
	})
}

// connect calls do with the connection to a member, and translates what gRPC says.
func (p *Peers) connect(parent context.Context, m Member, timeout time.Duration, do func(context.Context, *caller) error) error {
	ctx, cancel := context.WithTimeout(parent, timeout)
	defer cancel()
	c, err := p.calls.to(m)
	if err != nil {
		return fmt.Errorf("call peer %s: %w: %w", m.ID, transfer.ErrUnreachable, err)
	}
	p.stats.CallsMade.Add(1)
	err = do(ctx, c)
	var remote *transfer.RemoteError
	switch {
	case parent.Err() != nil:
		return fmt.Errorf("call peer %s: %w", m.ID, context.Cause(parent))
	case err == nil || errors.As(err, &remote):
		return err
	}
	switch status.Code(err) {
	case codes.Unauthenticated:
		return &transfer.RemoteError{Peer: m.ID, Class: transfer.ErrUnauthorized, Message: status.Convert(err).Message()}
	case codes.DeadlineExceeded: // the origin may be what is slow
		return fmt.Errorf("call peer %s: %w", m.ID, transfer.ErrWaited)
	case codes.Unavailable:
		return fmt.Errorf("call peer %s: %w: %w", m.ID, transfer.ErrUnreachable, err)
	}
	return &transfer.RemoteError{Peer: m.ID, Class: transfer.ErrRemote, Message: status.Convert(err).Message()}
}

func bucketOut(b objstore.Bucket) *peerpb.Bucket {
	return &peerpb.Bucket{Origin: b.Origin, Name: b.Name}
}

func bucketIn(b *peerpb.Bucket) objstore.Bucket {
	return objstore.Bucket{Origin: b.GetOrigin(), Name: b.GetName()}
}

func infoOut(i objstore.Info) *peerpb.Info {
	out := &peerpb.Info{Key: []byte(i.Key), Size: i.Size, Etag: []byte(i.ETag)}
	if !i.ModTime.IsZero() {
		out.ModTimeUnixNano = i.ModTime.UnixNano()
	}
	return out
}

// infoIn refuses what no origin says.
func infoIn(i *peerpb.Info) (objstore.Info, error) {
	if i == nil || i.Size < 0 || i.Size > chunk.MaxObjectBytes || len(i.Key) > chunk.MaxKeyBytes || len(i.Etag) > chunk.MaxETagBytes {
		return objstore.Info{}, fmt.Errorf("%w: description of an object", transfer.ErrMalformed)
	}
	out := objstore.Info{Key: string(i.Key), Size: i.Size, ETag: string(i.Etag)}
	if i.ModTimeUnixNano != 0 {
		out.ModTime = time.Unix(0, i.ModTimeUnixNano)
	}
	return out, nil
}

func pageIn(r *peerpb.ListPageReply) (objstore.Page, error) {
	page := objstore.Page{Next: string(r.Next)}
	for _, o := range r.Objects {
		info, err := infoIn(o)
		if err != nil {
			return objstore.Page{}, err
		}
		page.Objects = append(page.Objects, info)
	}
	for _, pre := range r.Prefixes {
		page.Prefixes = append(page.Prefixes, string(pre))
	}
	return page, nil
}

func pageOut(p objstore.Page) *peerpb.ListPageReply {
	r := &peerpb.ListPageReply{Next: []byte(p.Next)}
	for _, o := range p.Objects {
		r.Objects = append(r.Objects, infoOut(o))
	}
	for _, pre := range p.Prefixes {
		r.Prefixes = append(r.Prefixes, []byte(pre))
	}
	return r
}
