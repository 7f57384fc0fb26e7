package objstore

import (
	"context"
	"time"
)

// Presigner is a further ability of some stores: to write down the permission for one
// request, for a node that has no permission of its own.
//
// What its methods return is a URL with which anybody can make that request for ttl (at
// most 7 days; whole seconds). It is a secret. Errors are of class [ErrCredentials] for an
// anonymous store. No method asks the origin.
type Presigner interface {
	// Presign allows to GET key, ranges included. The URL does not pin the version: whoever
	// uses it sends If-Match with etag, which the signature demands when etag is not "".
	Presign(ctx context.Context, key, etag string, ttl time.Duration) (string, error)
	// PresignHead allows to HEAD key.
	PresignHead(ctx context.Context, key string, ttl time.Duration) (string, error)
	// PresignList allows to ask for one page of a listing.
	PresignList(ctx context.Context, req ListRequest, ttl time.Duration) (string, error)
}
