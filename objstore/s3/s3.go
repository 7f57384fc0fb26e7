// Package s3 reads a bucket of S3 or of a store that speaks its protocol. It is
// an implementation of objstore.Store.
//
// It promises that a range is checked against what was asked for (status,
// Content-Range, ETag, length) before and while it is handed out, that a server
// which stops sending is cut after StallTimeout, and that everything a server can
// answer becomes a class of objstore in one place (errors.go). It finds out the
// region and the addressing of a bucket by itself. It leaves repetition to
// objstore.Retry, except where the request itself must change: another region,
// another addressing, fresh credentials.
//
// The requests are minio-go's where it can make them: Core.GetObject and
// StatObject, over a transport of ours ([tap]) that keeps what the server said,
// because minio-go drops Retry-After and turns transport errors into text.
// Requests of our own (request.go) are listings, because Core's take no context
// and decode names too early, keys that minio-go refuses, and regions of AWS
// that it does not know. What we know
// of minio-go 7.4: with MaxRetries 1 it still sleeps up to 200 ms after a
// failure that it would repeat; without a region it asks for the bucket's
// location; its credential chain turns every failure into anonymous access and
// its instance provider can wait for ever; it keeps cookies. Region, credentials
// and cookies are therefore ours.
package s3

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/minio/minio-go/v7/pkg/s3utils"

	"github.com/shardwell/shardwell/objstore"
)

// Values of [Config.Addressing].
const (
	AddressAuto    = "auto"    // by the endpoint, and by what the server says
	AddressPath    = "path"    // https://endpoint/bucket/key
	AddressVirtual = "virtual" // https://bucket.endpoint/key
)

// Config says which bucket is read and how. The zero value, but for Bucket,
// means AWS with the standard credential chain.
type Config struct {
	// Endpoint is a URL without a path, as "https://minio.example.com:9000";
	// "" means AWS in Region.
	Endpoint string
	// Region signs requests; "" means what the endpoint's name, AWS_REGION or the
	// server's answers say.
	Region string
	// Bucket is the bucket's name.
	Bucket string
	// Addressing is how the bucket is named in URLs; "" means [AddressAuto].
	Addressing string
	// CAFile holds PEM certificates that are trusted besides the system's.
	CAFile string
	// Proxy is the URL of an HTTP proxy, "" means HTTPS_PROXY and its siblings,
	// "none" means none.
	Proxy string
	// Credentials says whose requests they are.
	Credentials Credentials
	// RefuseLocal refuses connections to addresses of [LocalAddr], whatever name stands for them. It
	// does not look behind a proxy.
	RefuseLocal bool
	// RequesterPays accepts the cost of requests to a bucket that demands it.
	RequesterPays bool
	// StallTimeout cuts an answer that does not begin, or a body that yields
	// nothing, for this long. 0 means 12 s.
	StallTimeout time.Duration
	// DialTimeout bounds a connection's making, TLS included. 0 means 10 s.
	DialTimeout time.Duration
	// MaxIdleConns bounds idle connections that are kept. 0 means 128.
	MaxIdleConns int
	// Logger is told what was found out about the server; nil means nobody.
	Logger *slog.Logger
}

// Defaults of a [Config].
const (
	DefaultStallTimeout = 12 * time.Second // less than a peer waits for an owner (20 s), which is to have asked again by then
	DefaultDialTimeout  = 10 * time.Second
	DefaultMaxIdleConns = 128
	defaultRegion       = "us-east-1"
)

// Store reads one bucket. It is safe for concurrent use.
type Store struct {
	cfg  Config
	base *url.URL // of the endpoint; nil for AWS by region
	tap  *tap
	http *http.Client
	id   *identity
	log  *slog.Logger

	route atomic.Pointer[route] // how the bucket is reached, as far as known
	v1    atomic.Bool           // the server knows only the first version of listings
}

var (
	_ objstore.Store     = (*Store)(nil)
	_ objstore.Presigner = (*Store)(nil)
)

// New returns a store for cfg.Bucket. It sends no request. Errors are of class
// objstore.ErrInvalid and say which field is wrong.
func New(cfg Config) (*Store, error) {
	cfg, base, err := cfg.complete()
	if err != nil {
		return nil, err
	}
	tr, err := newTransport(cfg)
	if err != nil {
		return nil, err
	}
	s := &Store{cfg: cfg, base: base, tap: &tap{base: tr, stall: cfg.StallTimeout}, log: cfg.Logger}
	s.http = &http.Client{Transport: s.tap, CheckRedirect: noRedirect}
	if s.id, err = newIdentity(cfg.Credentials, tr, cfg.Logger); err != nil {
		return nil, err
	}
	return s.start()
}

// Bucket returns a store for another bucket of the same endpoint, which shares
// connections and credentials with s.
func (s *Store) Bucket(name string) (*Store, error) {
	o := &Store{cfg: s.cfg, base: s.base, tap: s.tap, http: s.http, id: s.id, log: s.log}
	o.cfg.Bucket = name
	if err := checkBucket(name); err != nil {
		return nil, err
	}
	return o.start()
}

// Close drops idle connections. Requests under way go on.
func (s *Store) Close() { s.tap.base.CloseIdleConnections() }

// Origin returns the canonical endpoint URL of cfg, as chunk.Object has it: in
// lower case, without the default port, without a slash at the end. Only the
// endpoint matters: an origin has many buckets.
func (cfg Config) Origin() (string, error) {
	if cfg.Endpoint == "" {
		return "https://s3.amazonaws.com", nil
	}
	base, err := parseEndpoint(cfg.Endpoint)
	if err != nil {
		return "", err
	}
	return base.Scheme + "://" + base.Host, nil
}

// Validate reports what New would not accept, without reading files.
func (cfg Config) Validate() error {
	cfg, _, err := cfg.complete()
	if err != nil {
		return err
	}
	return cfg.Credentials.validate()
}

// complete checks cfg and fills in defaults.
func (cfg Config) complete() (Config, *url.URL, error) {
	if err := checkBucket(cfg.Bucket); err != nil {
		return cfg, nil, err
	}
	switch cfg.Addressing {
	case "":
		cfg.Addressing = AddressAuto
	case AddressAuto, AddressPath, AddressVirtual:
	default:
		return cfg, nil, invalid("addressing %q: must be auto, path or virtual", cfg.Addressing)
	}
	if cfg.StallTimeout <= 0 {
		cfg.StallTimeout = DefaultStallTimeout
	}
	if cfg.DialTimeout <= 0 {
		cfg.DialTimeout = DefaultDialTimeout
	}
	if cfg.MaxIdleConns <= 0 {
		cfg.MaxIdleConns = DefaultMaxIdleConns
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Endpoint == "" {
		return cfg, nil, nil
	}
	base, err := parseEndpoint(cfg.Endpoint)
	return cfg, base, err
}

// parseEndpoint returns the canonical form of an endpoint.
func parseEndpoint(endpoint string) (*url.URL, error) {
	u, err := url.Parse(endpoint)
	if err != nil {
		return nil, invalid("endpoint %q: must be a URL such as https://s3.example.com", endpoint)
	}
	host := strings.ToLower(u.Hostname())
	switch {
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, invalid("endpoint %q: must begin with http:// or https://", endpoint)
	case host == "":
		return nil, invalid("endpoint %q: has no host", endpoint)
	case u.User != nil:
		return nil, invalid("endpoint of host %q: must not hold a user; use the credential settings", host)
	case strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "":
		return nil, invalid("endpoint %q: must not have a path", endpoint)
	}
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	if port := u.Port(); port != "" && (u.Scheme != "http" || port != "80") && (u.Scheme != "https" || port != "443") {
		host += ":" + port
	}
	return &url.URL{Scheme: u.Scheme, Host: host}, nil
}

// checkBucket refuses what cannot be part of a URL as it is.
func checkBucket(name string) error {
	if err := s3utils.CheckValidBucketName(name); err != nil {
		return invalid("bucket %q: %v", name, err)
	}
	if strings.HasSuffix(name, "--x-s3") {
		return invalid("bucket %q: directory buckets (S3 Express) are not supported", name)
	}
	return nil
}

// invalid returns an error about the configuration or a request of ours.
func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %w", objstore.ErrInvalid, fmt.Errorf(format, args...))
}

func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// Head implements objstore.Store.
func (s *Store) Head(ctx context.Context, key string) (objstore.Info, error) {
	if err := checkKey(key); err != nil {
		return objstore.Info{}, s.fail(objstore.OpHead, key, err)
	}
	q := query{op: objstore.OpHead, method: http.MethodHead, key: key}
	x := s.ask(ctx, q)
	if x.failed() {
		y := s.explain(ctx, key, x)
		if !y.failed() || y.status == http.StatusRequestedRangeNotSatisfiable { // an empty object has no first byte
			// The question why found a remedy: another region, fresh credentials.
			y.drop()
			y = s.ask(ctx, q)
		}
		if x = y; x.failed() {
			return objstore.Info{}, s.fail(objstore.OpHead, key, failure(objstore.OpHead, x))
		}
	}
	info, err := infoOf(key, x.header)
	if err != nil {
		return objstore.Info{}, s.fail(objstore.OpHead, key, err)
	}
	return info, nil
}
