package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path"
	"slices"
	"sync"
	"time"

	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/internal/config"
	"github.com/shardwell/shardwell/internal/control"
	"github.com/shardwell/shardwell/objstore"
	"github.com/shardwell/shardwell/objstore/dir"
	"github.com/shardwell/shardwell/objstore/s3"
)

// Limits of what a node has open, and of its patience.
const (
	maxBuckets   = 1024            // open; a bucket costs some kilobytes and a few idle connections
	askPatience  = 3 * time.Second // of a command with what readers would wait for, before the origin is asked directly
	probeTimeout = 7 * time.Second // for that answer
)

// origins are what a node may read: the S3 endpoint of its configuration, the
// directories it allows, and endpoints that mounts of this node brought with them.
// A request of a peer for anything else is refused: no peer can make this
// node talk to an address of its choice.
type origins struct {
	cfg   config.Config
	log   *slog.Logger
	stats objstore.Stats
	lent  objstore.Stats                    // of these, requests by grants of others
	limit *objstore.Limit                   // of requests; one for all buckets
	pace  func(origin string) objstore.Pace // of bytes; nil: none

	mu        sync.Mutex
	endpoints map[string]*endpoint // that mounts brought, by origin
	open      map[openKey]opened
	closed    bool

	ids     *identities
	routes  *routes
	foreign func(objstore.Bucket) bool // told of buckets that others than the node read; may be nil
}

var _ objstore.Delegate = (*origins)(nil)

// openKey is a bucket as somebody reads it; "" is the node itself.
type openKey struct {
	bucket objstore.Bucket
	who    chunk.Identity
}

// opened is a bucket with its wrappers.
type opened struct {
	store objstore.Store
	raw   objstore.Store // without them
	close func()
}

func newOrigins(cfg config.Config, log *slog.Logger) *origins {
	return &origins{
		cfg: cfg, log: log,
		limit:     objstore.NewLimit(nil, cfg.MaxOriginRequests, 0),
		endpoints: make(map[string]*endpoint), open: make(map[openKey]opened), ids: newIdentities(),
		routes: newRoutes(log),
	}
}

// Open implements objstore.Origins.
func (o *origins) Open(_ context.Context, b objstore.Bucket) (objstore.Store, error) {
	s, err := o.openFor(openKey{bucket: b})
	return s.store, err
}

// OpenAs implements objstore.Delegate.
func (o *origins) OpenAs(ctx context.Context, b objstore.Bucket, a chunk.Access) (objstore.Store, error) {
	if a.Identity == "" || b.Name == "" { // of a directory everybody reads what the node may
		return o.Open(ctx, b)
	}
	if o.foreign != nil {
		o.foreign(b)
	}
	if _, ok := o.ids.credentials(a.Identity); ok {
		s, err := o.openFor(openKey{b, a.Identity})
		return s.store, err
	}
	if a.Grant == (chunk.Grant{}) {
		return nil, fmt.Errorf("open bucket %s: this node has neither credentials nor a grant of the one who asks: %w", b.Name, objstore.ErrCredentials)
	}
	own, err := o.openFor(openKey{bucket: b}) // for its connections: it says where grants may lead
	if err != nil {
		return nil, err
	}
	by, ok := own.raw.(*s3.Store)
	if !ok {
		return nil, fmt.Errorf("open bucket %s: takes no grants: %w", b.Name, objstore.ErrInvalid)
	}
	return o.wrapped(objstore.NewCount(by.Granted(a.Grant), &o.lent), b), nil
}

// presigner returns what signs for an identity that this node has credentials of.
func (o *origins) presigner(_ context.Context, b objstore.Bucket, who chunk.Identity) (objstore.Presigner, bool) {
	if _, ok := o.ids.credentials(who); !ok || b.Name == "" {
		return nil, false
	}
	s, err := o.openFor(openKey{b, who})
	if err != nil {
		return nil, false // whoever asks the origin hears why
	}
	by, ok := s.raw.(objstore.Presigner)
	return by, ok
}

// openFor opens a bucket for one identity, once.
func (o *origins) openFor(k openKey) (opened, error) {
	if s, ok, err := o.find(k); ok || err != nil {
		return s, err
	}
	raw, closeRaw, err := o.raw(k) // not under mu: a directory that hangs holds up nobody else
	if err != nil {
		return opened{}, err
	}
	made := opened{close: closeRaw, raw: raw, store: o.wrapped(raw, k.bucket)}
	o.mu.Lock()
	defer o.mu.Unlock()
	if s, ok := o.open[k]; ok || o.closed { // another was faster
		closeRaw()
		if o.closed {
			return opened{}, ErrStopping
		}
		return s, nil
	}
	o.open[k] = made
	return made, nil
}

// wrapped returns a store that is counted, limited, and asked again.
func (o *origins) wrapped(raw objstore.Store, b objstore.Bucket) objstore.Store {
	counted := watched{objstore.NewCount(raw, &o.stats), o.routes, b}
	return objstore.NewRetry(o.limit.Paced(counted, o.paceOf(b)), objstore.RetryConfig{
		Budget: time.Duration(o.cfg.OriginTimeout),
		GiveUp: func(error) bool { return o.routes.Cut(b.Origin) },
		OnRetry: func(op objstore.Op, key string, attempt int, wait time.Duration, err error) {
			o.log.Warn("origin failed, asking again", "op", op, "bucket", b.Name, "key", key, "attempt", attempt, "wait", wait, "error", err)
		},
	})
}

// paceOf returns what bounds the bytes from a bucket, nil for nothing.
func (o *origins) paceOf(b objstore.Bucket) objstore.Pace {
	if o.pace == nil {
		return nil
	}
	return o.pace(b.Origin)
}

// find returns a bucket that is open.
func (o *origins) find(k openKey) (opened, bool, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if s, ok := o.open[k]; ok {
		return s, true, nil
	}
	switch {
	case o.closed:
		return opened{}, false, ErrStopping
	case len(o.open) >= maxBuckets:
		return opened{}, false, fmt.Errorf("open bucket %s: %d are open already: %w", k.bucket.Name, maxBuckets, objstore.ErrInvalid)
	}
	return opened{}, false, nil
}

// raw opens a bucket without wrappers.
func (o *origins) raw(k openKey) (objstore.Store, func(), error) {
	b := k.bucket
	for _, root := range o.cfg.OriginDirs {
		if dir.Origin(root) == b.Origin && b.Name == "" {
			s, err := dir.New(root)
			if err != nil {
				return nil, nil, err
			}
			return s, func() { _ = s.Close() }, nil
		}
	}
	c, ok := o.s3Of(b)
	if !ok {
		return nil, nil, fmt.Errorf("origin %s is not one that this node reads: configure it on every node: %w", b.Origin, objstore.ErrInvalid)
	}
	if k.who != "" {
		if c.Credentials, ok = o.ids.credentials(k.who); !ok {
			return nil, nil, fmt.Errorf("open bucket %s: the credentials are gone: %w", b.Name, objstore.ErrCredentials)
		}
	}
	s, err := s3.New(c)
	if err != nil {
		return nil, nil, err
	}
	return s, s.Close, nil
}

// forgetIdentities closes what was open for identities whose credentials were dropped.
func (o *origins) forgetIdentities(gone []chunk.Identity) {
	if len(gone) == 0 {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for k, s := range o.open {
		if slices.Contains(gone, k.who) {
			s.close()
			delete(o.open, k)
		}
	}
}

// promptly runs ask on behalf of a user who waits at a prompt. Readers wait for an
// origin that fails as long as --origin-timeout says; here it is asked once,
// directly, after askPatience, to hear what is wrong.
func (o *origins) promptly(ctx context.Context, k openKey, ask func(context.Context) error) error {
	soon, cancel := context.WithTimeout(ctx, min(askPatience, time.Duration(o.cfg.OriginTimeout)))
	defer cancel()
	err := ask(soon)
	if err == nil || ctx.Err() != nil || verdict(soon, err) {
		return err
	}
	late, cancelLate := context.WithTimeout(ctx, probeTimeout)
	defer cancelLate()
	b := k.bucket
	if err := o.probe(late, k); err != nil {
		if late.Err() != nil && ctx.Err() == nil {
			return told{fmt.Sprintf("%s gave no answer within %v", b.Origin, probeTimeout), control.ErrUnreachable}
		}
		return err
	}
	if err = ask(late); err == nil || ctx.Err() != nil || verdict(late, err) {
		return err
	}
	return told{fmt.Sprintf("%s answers this node, but not the member that asks it for the cluster: see the logs of the others", b.Origin), objstore.ErrUnavailable}
}

// verdict reports whether an error says what is wrong, rather than that time was short.
func verdict(ctx context.Context, err error) bool {
	return ctx.Err() == nil && objstore.Final(err) && !errors.Is(err, objstore.ErrUnavailable) && !errors.Is(err, context.DeadlineExceeded)
}

// probe asks the origin for a name, once, and returns what is wrong.
func (o *origins) probe(ctx context.Context, k openKey) error {
	raw, closeRaw, err := o.raw(k)
	if err != nil {
		return err
	}
	defer closeRaw()
	_, err = objstore.NewCount(raw, &o.stats).List(ctx, objstore.ListRequest{Delimiter: "/", Limit: 1})
	return err
}

// called returns b, and the buckets of that name at other endpoints that are known.
func (o *origins) called(b objstore.Bucket) []objstore.Bucket {
	all := []objstore.Bucket{b}
	if b.Name == "" {
		return all
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for origin := range o.endpoints {
		if origin != b.Origin {
			all = append(all, objstore.Bucket{Origin: origin, Name: b.Name})
		}
	}
	return all
}

// Close drops connections. What reads goes on to its end.
func (o *origins) Close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, s := range o.open {
		s.close()
	}
	o.closed = true
	clear(o.open)
}

// objectIn reports whether an object lies in a bucket under a prefix.
func objectIn(o chunk.Object, b objstore.Bucket, prefix string) bool {
	return o.Origin == b.Origin && o.Bucket == b.Name && len(o.Key) >= len(prefix) && o.Key[:len(prefix)] == prefix
}

// within returns the path of dir relative to root, with "" for root itself.
func within(root, dir string) (string, bool) {
	root = path.Clean(root)
	if dir == root {
		return "", true
	}
	if root != "/" {
		root += "/"
	}
	if len(dir) > len(root) && dir[:len(root)] == root {
		return dir[len(root):], true
	}
	return "", false
}
