package s3

import (
	"context"
	"net/http"
	"net/url"
	"unicode/utf8"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/minio/minio-go/v7/pkg/s3utils"
	"github.com/minio/minio-go/v7/pkg/signer"

	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/objstore"
)

// query is a request to be made, before it is known where the bucket lives.
type query struct {
	op     objstore.Op
	method string
	key    string // "" for the bucket itself
	params url.Values
	header map[string]string
}

// payerHeader accepts the cost of a request.
const payerHeader = "X-Amz-Request-Payer"

// maxRounds bounds how often one request is changed and made again: once for
// the region, once for the addressing, once for credentials, and a spare.
const maxRounds = 4

// ask makes a request, and makes it again where the answer says how it must differ.
func (s *Store) ask(ctx context.Context, q query) *exchange {
	if s.cfg.RequesterPays {
		header := map[string]string{payerHeader: "requester"}
		for k, v := range q.header {
			header[k] = v
		}
		q.header = header
	}
	for round := 1; ; round++ {
		r := s.route.Load()
		used, err := s.id.get(ctx)
		if err != nil {
			return &exchange{err: err}
		}
		x := s.send(ctx, r, q, used)
		if !x.failed() || round == maxRounds || ctx.Err() != nil || !s.adapt(ctx, r, x, used) {
			return x
		}
	}
}

// send makes a request once.
func (s *Store) send(ctx context.Context, r *route, q query, id credentials.Value) *exchange {
	if r.core == nil || q.key == "" || s3utils.CheckValidObjectName(q.key) != nil {
		return s.direct(ctx, r, q, id)
	}
	x := new(exchange)
	var opts minio.GetObjectOptions
	for k, v := range q.header {
		opts.Set(k, v)
	}
	var err error
	if q.method == http.MethodHead {
		_, err = r.core.StatObject(withExchange(ctx, x), s.cfg.Bucket, q.key, opts)
	} else {
		_, _, _, err = r.core.GetObject(withExchange(ctx, x), s.cfg.Bucket, q.key, opts)
	}
	switch {
	case err == nil || x.status > 299:
	case x.status != 0 && x.err == nil:
		// A good answer with a header that minio-go does not accept, such as a
		// date in another format. We can do without that header.
		x.drop()
		return s.direct(ctx, r, q, id)
	case x.err == nil:
		x.err = err // there was no request: credentials, for one
	}
	if x.err != nil {
		x.err = transient(ctx, x.err)
	}
	return x
}

// direct makes a request without minio-go, but for the signature.
func (s *Store) direct(ctx context.Context, r *route, q query, id credentials.Value) *exchange {
	x := new(exchange)
	req, err := http.NewRequestWithContext(withExchange(ctx, x), q.method, r.scheme+"://"+r.host, nil)
	if err != nil {
		return &exchange{err: invalid("%w", err)}
	}
	req.URL = r.url(s.cfg.Bucket, q.key, q.params)
	req.Host = req.URL.Host
	for k, v := range q.header {
		req.Header.Set(k, v)
	}
	req.Header.Set("User-Agent", "shardwell/1")
	if !id.SignerType.IsAnonymous() {
		req.Header.Set("X-Amz-Content-Sha256", emptySHA256)
		req = signer.SignV4(*req, id.AccessKeyID, id.SecretAccessKey, id.SessionToken, r.region)
	}
	res, err := s.http.Do(req)
	if err != nil {
		if x.err == nil {
			x.err = err
		}
		x.err = transient(ctx, x.err)
		return x
	}
	if q.method == http.MethodHead {
		_ = res.Body.Close() // there is none
	}
	return x
}

// emptySHA256 is the hash of an empty body.
const emptySHA256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

// checkKey refuses keys that cannot be asked for: signatures and XML are defined
// over UTF-8, and minio-go's signer would sign another key.
func checkKey(key string) error {
	switch {
	case key == "":
		return invalid("the key is empty")
	case len(key) > chunk.MaxKeyBytes:
		return invalid("the key has %d bytes, more than %d", len(key), chunk.MaxKeyBytes)
	case !utf8.ValidString(key):
		return invalid("the key is not UTF-8")
	}
	return nil
}

// adapt changes what an answer shows to be wrong about the request, and reports
// whether there is something to try again. r and used are what the request was
// made with; when they were replaced meanwhile, that alone is worth a try.
func (s *Store) adapt(ctx context.Context, r *route, x *exchange, used credentials.Value) bool {
	if x.err != nil {
		return false
	}
	if s.route.Load() != r {
		return true
	}
	ref := parseRefusal(x)
	switch {
	case ref.wantsVirtual() && s.cfg.Addressing == AddressAuto && !r.virtual:
		return s.reroute(r, r.region, true)
	case ref.region != "" && ref.region != r.region && ref.wantsRegion() && regionName.MatchString(ref.region):
		return s.reroute(r, ref.region, r.virtual)
	case ref.class() == objstore.ErrCredentials:
		return s.id.renew(ctx, used)
	}
	return false
}
