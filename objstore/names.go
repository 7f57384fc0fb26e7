package objstore

import (
	"context"
	"time"
)

// Bucket names a bucket of an origin, or the root of a directory origin (then
// Name is "").
type Bucket struct {
	Origin string // canonical endpoint URL, as in chunk.Object
	Name   string
}

// Query asks about names on behalf of a cluster of caches.
type Query struct {
	Bucket Bucket
	// MaxAge bounds the age of the answer: how long ago the origin may have
	// been asked. 0 wants an answer that was asked for after this call began.
	MaxAge time.Duration
	// Hops counts the nodes that passed the query on; see chunk.Request.
	Hops int
}

// Names answers questions about names from a cache, from a peer or from the
// origin. Errors have the classes of [Store]. An answer is shared: do not change it.
type Names interface {
	// Head describes the current version of a key and tells the answer's age.
	// "There is none" ([ErrNotExist]) has an age as well, and is cached alike.
	Head(ctx context.Context, q Query, key string) (Info, time.Duration, error)
	// List returns a page of names and tells its age.
	List(ctx context.Context, q Query, req ListRequest) (Page, time.Duration, error)
}

// Origins opens the buckets that a node is configured to read. It returns an
// error of class [ErrInvalid] that names the origin for one that is not configured.
type Origins interface {
	Open(ctx context.Context, b Bucket) (Store, error)
}
