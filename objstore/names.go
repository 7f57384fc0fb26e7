package objstore

import (
	"context"
	"fmt"
	"time"

	"github.com/shardwell/shardwell/internal/chunk"
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
	// Access is on whose behalf the origin is asked. Those who have one identity share
	// answers; others never see them.
	Access chunk.Access
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

// OpenAs opens a bucket on behalf of somebody: with [Origins.Open] for the node itself, with
// [Delegate.OpenAs] for others. Origins without that ability refuse others with
// [ErrPermission].
func OpenAs(ctx context.Context, o Origins, b Bucket, a chunk.Access) (Store, error) {
	if a.Identity == "" {
		return o.Open(ctx, b)
	}
	if d, ok := o.(Delegate); ok {
		return d.OpenAs(ctx, b, a)
	}
	return nil, fmt.Errorf("open bucket %s: only on behalf of the node itself: %w", b.Name, ErrPermission)
}

// Delegate is a further ability of [Origins]: to ask on behalf of others than the node.
type Delegate interface {
	// OpenAs opens a bucket with the credentials of a.Identity where this node has them,
	// and else with a.Grant, which is good for the one question that it was made for. Errors
	// that say that the grant is no good, and nothing of what its giver may do, are of class
	// [ErrCredentials].
	OpenAs(ctx context.Context, b Bucket, a chunk.Access) (Store, error)
}

// Origins opens the buckets that a node is configured to read. It returns an
// error of class [ErrInvalid] that names the origin for one that is not configured.
type Origins interface {
	Open(ctx context.Context, b Bucket) (Store, error)
}
