package s3

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/minio/minio-go/v7/pkg/signer"

	"github.com/shardwell/shardwell/objstore"
)

// maxPresignTTL is the most that a signature of version 4 may last.
const maxPresignTTL = 7 * 24 * time.Hour

// Presign implements objstore.Presigner.
func (s *Store) Presign(ctx context.Context, key, etag string, ttl time.Duration) (string, error) {
	header := make(http.Header)
	if etag != "" {
		header.Set("If-Match", `"`+etag+`"`)
	}
	return s.presign(ctx, http.MethodGet, key, nil, header, ttl)
}

// PresignHead implements objstore.Presigner.
func (s *Store) PresignHead(ctx context.Context, key string, ttl time.Duration) (string, error) {
	return s.presign(ctx, http.MethodHead, key, nil, make(http.Header), ttl)
}

// PresignList implements objstore.Presigner.
func (s *Store) PresignList(ctx context.Context, req objstore.ListRequest, ttl time.Duration) (string, error) {
	v1, err := s.listVersion(req)
	if err != nil {
		return "", fmt.Errorf("presign a listing of s3://%s/%s: %w", s.cfg.Bucket, req.Prefix, err)
	}
	return s.presign(ctx, http.MethodGet, "", listQuery(req, v1).params, make(http.Header), ttl)
}

// presign signs one request; key "" is the bucket.
func (s *Store) presign(ctx context.Context, method, key string, params url.Values, header http.Header, ttl time.Duration) (string, error) {
	wrap := func(err error) error { return fmt.Errorf("presign s3://%s/%s: %w", s.cfg.Bucket, key, err) }
	if params == nil {
		if err := checkKey(key); err != nil {
			return "", wrap(err)
		}
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
	if s.cfg.RequesterPays {
		header.Set(payerHeader, "requester")
	}
	r := s.route.Load()
	req := &http.Request{Method: method, Header: header, URL: r.url(s.cfg.Bucket, key, params)}
	req.Host = req.URL.Host
	req = signer.PreSignV4(*req, id.AccessKeyID, id.SecretAccessKey, id.SessionToken, r.region, int64(ttl/time.Second))
	req.URL.RawQuery = strings.ReplaceAll(req.URL.RawQuery, "+", "%20") // as it was signed
	return req.URL.String(), nil
}
