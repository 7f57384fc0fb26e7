package s3

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/minio/minio-go/v7/pkg/signer"

	"github.com/shardwell/shardwell/objstore"
)

// maxPresignTTL is the most that a signature of version 4 may last.
const maxPresignTTL = 7 * 24 * time.Hour

// Presign implements objstore.Presigner.
func (s *Store) Presign(ctx context.Context, key, etag string, ttl time.Duration) (string, error) {
	wrap := func(err error) error { return fmt.Errorf("presign s3://%s/%s: %w", s.cfg.Bucket, key, err) }
	if err := checkKey(key); err != nil {
		return "", wrap(err)
	}
	if ttl < time.Second || ttl > maxPresignTTL {
		return "", wrap(invalid("must last between 1 s and %v, not %v", maxPresignTTL, ttl))
	}
	id, err := s.id.get(ctx)
	if err != nil {
		return "", wrap(err)
	}
	if id.SignerType.IsAnonymous() || id.AccessKeyID == "" {
		return "", wrap(fmt.Errorf("%w: %w", objstore.ErrCredentials, errors.New("the store is read anonymously")))
	}
	r := s.route.Load()
	req := &http.Request{Method: http.MethodGet, Header: make(http.Header), URL: r.url(s.cfg.Bucket, key, nil)}
	req.Host = req.URL.Host
	if etag != "" {
		req.Header.Set("If-Match", `"`+etag+`"`)
	}
	req = signer.PreSignV4(*req, id.AccessKeyID, id.SecretAccessKey, id.SessionToken, r.region, int64(ttl/time.Second))
	return req.URL.String(), nil
}
