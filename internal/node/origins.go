package node

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/internal/config"
	"github.com/shardwell/shardwell/objstore"
	"github.com/shardwell/shardwell/objstore/dir"
	"github.com/shardwell/shardwell/objstore/s3"
)

// maxBuckets bounds the buckets that a node has open.
const maxBuckets = 1024

// origins are what a node may read: the S3 endpoint of its configuration, the
// directories it allows, and endpoints that mounts of this node brought with them.
// A request of a peer for anything else is refused: no peer can make this
// node talk to an address of its choice.
type origins struct {
	cfg   config.Config
	log   *slog.Logger
	stats objstore.Stats
	limit *objstore.Limit // one for all buckets

	mu    sync.Mutex
	s3    map[string]s3.Config // by origin
	open  map[objstore.Bucket]objstore.Store
	close []func()
}

func newOrigins(cfg config.Config, log *slog.Logger) *origins {
	return &origins{
		cfg: cfg, log: log,
		limit: objstore.NewLimit(nil, cfg.MaxOriginRequests, int64(cfg.MaxOriginRate)),
		s3:    make(map[string]s3.Config), open: make(map[objstore.Bucket]objstore.Store),
	}
}

// s3Config returns how cfg reads a bucket of S3.
func s3Config(cfg config.Config, bucket string, log *slog.Logger) s3.Config {
	out := s3.Config{
		Bucket: bucket, Endpoint: cfg.Endpoint, Region: cfg.Region, Addressing: cfg.Addressing, CAFile: cfg.CAFile, Proxy: cfg.Proxy,
		RequesterPays: cfg.RequesterPays, Logger: log,
	}
	switch {
	case cfg.Anonymous:
		out.Credentials.Source = s3.SourceAnonymous
	case cfg.CredentialsFile != "" || cfg.Profile != "":
		out.Credentials.Source = s3.SourceFile
		out.Credentials.File, out.Credentials.Profile = cfg.CredentialsFile, cfg.Profile
	}
	return out
}

// bucketOf returns where a URI points under cfg, and the prefix within.
func bucketOf(cfg config.Config, u config.URI) (b objstore.Bucket, prefix string, err error) {
	if u.Dir == "" {
		origin, err := s3Config(cfg, u.Bucket, nil).Origin()
		return objstore.Bucket{Origin: origin, Name: u.Bucket}, u.Prefix, err
	}
	for _, root := range cfg.OriginDirs {
		if rest, ok := within(root, u.Dir); ok {
			return objstore.Bucket{Origin: dir.Origin(root)}, rest, nil
		}
	}
	return b, "", fmt.Errorf("%s: not a directory that this node may read as an origin: start the node with --origin-dir %s: %w",
		u, u.Dir, objstore.ErrInvalid)
}

// admit makes the endpoint of a mount known, with the options the mount has.
// The first one for an endpoint stays: volumes of one node share its credentials.
func (o *origins) admit(cfg config.Config, bucket string) error {
	c := s3Config(cfg, bucket, o.log)
	origin, err := c.Origin()
	if err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	have, ok := o.s3[origin]
	if !ok {
		own := s3Config(o.cfg, bucket, o.log)
		if at, err := own.Origin(); err == nil && at == origin {
			have, ok = own, true
		}
	}
	if ok && sameRights(have, c) {
		return nil
	}
	if ok {
		return fmt.Errorf("endpoint %s: this node reads it with other options already: use the same ones (credentials, region, addressing, CA file): %w",
			origin, objstore.ErrInvalid)
	}
	o.s3[origin] = c
	return nil
}

// sameRights reports whether two configurations read the same in the same name.
func sameRights(a, b s3.Config) bool {
	a.Logger, b.Logger = nil, nil
	a.Endpoint, b.Endpoint = "", "" // equal by the origin
	a.Bucket, b.Bucket = "", ""
	return a == b
}

// Open implements objstore.Origins.
func (o *origins) Open(_ context.Context, b objstore.Bucket) (objstore.Store, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if s, ok := o.open[b]; ok {
		return s, nil
	}
	if len(o.open) >= maxBuckets {
		return nil, fmt.Errorf("open bucket %s: %d are open already: %w", b.Name, maxBuckets, objstore.ErrInvalid)
	}
	raw, closeRaw, err := o.raw(b)
	if err != nil {
		return nil, err
	}
	s := objstore.NewRetry(o.limit.Share(objstore.NewCount(raw, &o.stats)), objstore.RetryConfig{
		Budget: time.Duration(o.cfg.OriginTimeout),
		OnRetry: func(op objstore.Op, key string, attempt int, wait time.Duration, err error) {
			o.log.Warn("origin failed, asking again", "op", op, "bucket", b.Name, "key", key, "attempt", attempt, "wait", wait, "error", err)
		},
	})
	o.open[b] = s
	o.close = append(o.close, closeRaw)
	return s, nil
}

// raw opens a bucket without wrappers. Caller holds mu.
func (o *origins) raw(b objstore.Bucket) (objstore.Store, func(), error) {
	for _, root := range o.cfg.OriginDirs {
		if dir.Origin(root) == b.Origin && b.Name == "" {
			s, err := dir.New(root)
			if err != nil {
				return nil, nil, err
			}
			return s, func() { _ = s.Close() }, nil
		}
	}
	c, ok := o.s3[b.Origin]
	if !ok {
		c = s3Config(o.cfg, b.Name, o.log)
		if own, err := c.Origin(); err != nil || own != b.Origin {
			return nil, nil, fmt.Errorf("origin %s is not one that this node reads: configure it on every node: %w", b.Origin, objstore.ErrInvalid)
		}
	}
	c.Bucket = b.Name
	s, err := s3.New(c)
	if err != nil {
		return nil, nil, err
	}
	return s, s.Close, nil
}

// probe asks the origin for a name, once, and returns what is wrong.
func (o *origins) probe(ctx context.Context, b objstore.Bucket) error {
	o.mu.Lock()
	raw, closeRaw, err := o.raw(b)
	o.mu.Unlock()
	if err != nil {
		return err
	}
	defer closeRaw()
	_, err = objstore.NewCount(raw, &o.stats).List(ctx, objstore.ListRequest{Delimiter: "/", Limit: 1})
	return err
}

// setMembers gives this node its part of the cluster's rate.
func (o *origins) setMembers(count int) {
	if o.cfg.MaxOriginRate > 0 {
		o.limit.SetRate(max(1, int64(o.cfg.MaxOriginRate)/int64(max(1, count))))
	}
}

// names returns the buckets that are open, sorted.
func (o *origins) names() []objstore.Bucket {
	o.mu.Lock()
	defer o.mu.Unlock()
	var all []objstore.Bucket
	for b := range o.open {
		all = append(all, b)
	}
	slices.SortFunc(all, func(a, b objstore.Bucket) int {
		return slices.Compare([]string{a.Origin, a.Name}, []string{b.Origin, b.Name})
	})
	return all
}

// Close drops connections.
func (o *origins) Close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, f := range o.close {
		f()
	}
	o.close, o.open = nil, make(map[objstore.Bucket]objstore.Store)
}

// objectIn reports whether an object lies in a bucket under a prefix.
func objectIn(o chunk.Object, b objstore.Bucket, prefix string) bool {
	return o.Origin == b.Origin && o.Bucket == b.Name && len(o.Key) >= len(prefix) && o.Key[:len(prefix)] == prefix
}
