package s3

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/objstore"
)

// granted is the bucket of a [Store] as somebody else may read it: it puts one question,
// that which a presigned URL was made for, and signs nothing itself.
type granted struct {
	s     *Store
	grant chunk.Grant
}

var _ objstore.Store = granted{}

// Granted returns a store that asks with a presigned URL over the connections of s. The URL
// must lead to the endpoint, the bucket and the key of the question, whatever it says: it
// takes a request nowhere else. Errors about the URL itself, one that has expired
// included, are of class objstore.ErrCredentials; no error shows any of it.
func (s *Store) Granted(g chunk.Grant) objstore.Store { return granted{s, g} }

// Get implements objstore.Store.
func (g granted) Get(ctx context.Context, key, etag string, off, n int64) (io.ReadCloser, error) {
	body, err := g.get(ctx, key, etag, off, n)
	if err != nil {
		return nil, g.s.fail(objstore.OpGet, key, err)
	}
	return body, nil
}

func (g granted) get(ctx context.Context, key, etag string, off, n int64) (io.ReadCloser, error) {
	q, err := getQuery(key, etag, off, n)
	if err != nil {
		return nil, err
	}
	x, err := g.ask(ctx, q)
	if err != nil {
		return nil, err
	}
	if err := checkRange(x, etag, off, n); err != nil {
		x.drop()
		return nil, err
	}
	return &exactBody{body: x.body, left: n}, nil
}

// Head implements objstore.Store.
func (g granted) Head(ctx context.Context, key string) (objstore.Info, error) {
	info, err := g.head(ctx, key)
	if err != nil {
		return objstore.Info{}, g.s.fail(objstore.OpHead, key, err)
	}
	return info, nil
}

func (g granted) head(ctx context.Context, key string) (objstore.Info, error) {
	if err := checkKey(key); err != nil {
		return objstore.Info{}, err
	}
	x, err := g.ask(ctx, query{op: objstore.OpHead, method: http.MethodHead, key: key})
	if err != nil {
		return objstore.Info{}, err
	}
	return infoOf(key, x.header)
}

// List implements objstore.Store.
func (g granted) List(ctx context.Context, req objstore.ListRequest) (objstore.Page, error) {
	page, err := g.list(ctx, req)
	if err != nil {
		return objstore.Page{}, g.s.fail(objstore.OpList, req.Prefix, err)
	}
	return page, nil
}

func (g granted) list(ctx context.Context, req objstore.ListRequest) (objstore.Page, error) {
	v1, err := g.s.listVersion(req)
	if err != nil {
		return objstore.Page{}, err
	}
	q := listQuery(req, v1)
	if q.params.Get("list-type") != g.param("list-type") && req.Token == "" { // the giver knows another version
		q = listQuery(req, !v1)
	}
	x, err := g.ask(ctx, q)
	if err != nil {
		return objstore.Page{}, err
	}
	return readPage(x, req)
}

func (g granted) param(name string) string {
	u, err := url.Parse(g.grant.Secret())
	if err != nil {
		return ""
	}
	return u.Query().Get(name)
}

// ask puts the question.
func (g granted) ask(ctx context.Context, q query) (*exchange, error) {
	u, params, err := g.s.checkGrant(g.grant, q)
	if err != nil {
		return nil, err
	}
	x := new(exchange)
	req, err := http.NewRequestWithContext(withExchange(ctx, x), q.method, u.Scheme+"://"+u.Host, nil)
	if err != nil {
		return nil, badGrant("malformed")
	}
	req.URL, req.Host = u, u.Host
	for k, v := range q.header {
		req.Header.Set(k, v)
	}
	if strings.Contains(params.Get("X-Amz-SignedHeaders"), strings.ToLower(payerHeader)) {
		req.Header.Set(payerHeader, "requester")
	}
	req.Header.Set("User-Agent", "shardwell/1")
	res, err := g.s.http.Do(req)
	switch {
	case err != nil && x.err == nil:
		x.err = err
		if wrapped := (*url.Error)(nil); errors.As(err, &wrapped) {
			x.err = wrapped.Err // without the URL
		}
	case err == nil && q.method == http.MethodHead:
		_ = res.Body.Close() // there is none
	}
	if x.err != nil {
		x.err = transient(ctx, x.err)
	}
	if x.failed() {
		return nil, grantFailure(q.op, x, params)
	}
	return x, nil
}

// badGrant is an error about a grant rather than about what its giver may do.
func badGrant(format string, args ...any) error {
	return fmt.Errorf("%w: grant: %w", objstore.ErrCredentials, fmt.Errorf(format, args...))
}

// grantFailure returns the error of a question that was refused. A refusal may be about
// the grant: it has expired, or was signed for another region or by a wrong clock. Whoever
// gave it can find out more with credentials of its own.
func grantFailure(op objstore.Op, x *exchange, params url.Values) error {
	err := failure(op, x)
	if x.err != nil {
		return err
	}
	signature := params.Get("X-Amz-Signature")
	if text := err.Error(); signature != "" && strings.Contains(text, signature) {
		err = badGrant("refused in words that quote it (status %d)", x.status)
	}
	r := parseRefusal(x)
	switch {
	case x.status == http.StatusForbidden && expired(x, params):
		return badGrant("has expired, or the clock of who gave it is wrong (status 403)")
	case errors.Is(err, objstore.ErrClockSkew), r.wantsRegion(), r.wantsVirtual(),
		x.status == http.StatusBadRequest && errors.Is(err, objstore.ErrInvalid):
		return badGrant("cannot be used as it is: %w", r)
	}
	return err
}

// amzDate is how a presigned URL spells time.
const amzDate = "20060102T150405Z"

// grantEdge is how near to its end a grant may have been refused for that: the server's
// clock counts, and its Date tells whole seconds.
const grantEdge = 2 * time.Second

// expired reports whether the server's clock was outside of the time for which a URL was signed.
func expired(x *exchange, params url.Values) bool {
	from, err := time.Parse(amzDate, params.Get("X-Amz-Date"))
	if err != nil {
		return true
	}
	ttl, err := time.ParseDuration(params.Get("X-Amz-Expires") + "s")
	if err != nil {
		return true
	}
	now, err := http.ParseTime(x.header.Get("Date"))
	if err != nil {
		now = time.Now()
	}
	return now.After(from.Add(ttl-grantEdge)) || now.Before(from.Add(-maxClockSkew))
}

// signatureParams are those of a presigned URL that are about the signature.
var signatureParams = []string{"X-Amz-Algorithm", "X-Amz-Credential", "X-Amz-Date", "X-Amz-Expires", "X-Amz-SignedHeaders",
	"X-Amz-Signature", "X-Amz-Security-Token"}

// signableHeaders are those that a question has or that ask adds.
var signableHeaders = []string{"host", "if-match", strings.ToLower(payerHeader)}

// checkGrant returns the URL of a grant if it is for the question, at the endpoint and for
// the bucket of s.
func (s *Store) checkGrant(g chunk.Grant, q query) (*url.URL, url.Values, error) {
	u, err := url.Parse(g.Secret())
	if err != nil || g.Secret() == "" {
		return nil, nil, badGrant("malformed")
	}
	params, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, nil, badGrant("malformed query")
	}
	own := make(url.Values)
	rest := maps.Clone(params)
	for _, name := range signatureParams {
		if len(params[name]) > 1 {
			return nil, nil, badGrant("%s comes twice", name)
		}
		own[name] = params[name]
		delete(rest, name)
	}
	if len(rest) != len(q.params) || len(rest) > 0 && rest.Encode() != q.params.Encode() {
		return nil, nil, badGrant("is for another question")
	}
	for h := range strings.SplitSeq(own.Get("X-Amz-SignedHeaders"), ";") {
		if !slices.Contains(signableHeaders, h) {
			return nil, nil, badGrant("demands a header that is never sent")
		}
	}
	for _, virtual := range [...]bool{false, true} {
		want := s.grantRoute(own, virtual).url(s.cfg.Bucket, q.key, nil)
		if u.Scheme == want.Scheme && u.Host == want.Host && u.EscapedPath() == want.EscapedPath() && u.User == nil && u.Fragment == "" {
			return u, own, nil
		}
	}
	return nil, nil, badGrant("leads elsewhere")
}

// grantRoute returns the route that a grant may take: that of the endpoint. For AWS the
// region that it is signed for chooses the host.
func (s *Store) grantRoute(params url.Values, virtual bool) *route {
	r := &route{virtual: virtual}
	if s.base != nil && !isPlainAWS(s.base.Hostname()) {
		r.scheme, r.host = s.base.Scheme, s.base.Host
		return r
	}
	scope := strings.Split(params.Get("X-Amz-Credential"), "/") // key/date/region/s3/aws4_request
	if len(scope) < 5 || !regionName.MatchString(scope[len(scope)-3]) {
		return r
	}
	r.scheme, r.host = "https", awsHost(scope[len(scope)-3])
	return r
}
