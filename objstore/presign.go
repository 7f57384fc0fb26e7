package objstore

import (
	"context"
	"time"
)

// Presigner is a further ability of some stores: to write down the permission to
// read one object, for a node that has no permission of its own.
type Presigner interface {
	// Presign returns a URL with which anybody can GET key for ttl (at most 7
	// days; whole seconds), ranges included. The URL is a secret. It does not pin
	// the version: whoever uses it sends If-Match with etag, which the signature
	// demands when etag is not "". It returns an error of class [ErrCredentials]
	// for an anonymous store.
	Presign(ctx context.Context, key, etag string, ttl time.Duration) (string, error)
}
