package s3

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"time"
)

// newTransport returns the connections to one endpoint. HTTP/1.1 only: each
// range has a connection of its own, where HTTP/2 would share one window.
func newTransport(cfg Config) (*http.Transport, error) {
	tlsConfig := &tls.Config{MinVersion: tls.VersionTLS12}
	if cfg.CAFile != "" {
		pool, err := certPool(cfg.CAFile)
		if err != nil {
			return nil, err
		}
		tlsConfig.RootCAs = pool
	}
	proxy := http.ProxyFromEnvironment
	switch cfg.Proxy {
	case "":
	case "none":
		proxy = nil
	default:
		u, err := url.Parse(cfg.Proxy)
		if err != nil || u.Host == "" {
			return nil, invalid("proxy: must be a URL such as http://proxy.example.com:3128")
		}
		proxy = http.ProxyURL(u)
	}
	dialer := &net.Dialer{Timeout: cfg.DialTimeout, KeepAlive: 15 * time.Second}
	if cfg.RefuseLocal {
		dialer.Control = refuseLocal
	}
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	return &http.Transport{
		Proxy:                  proxy,
		DialContext:            dialer.DialContext,
		TLSClientConfig:        tlsConfig,
		TLSHandshakeTimeout:    cfg.DialTimeout,
		ResponseHeaderTimeout:  cfg.StallTimeout,
		ExpectContinueTimeout:  time.Second,
		IdleConnTimeout:        55 * time.Second, // most servers and balancers drop after 60 s
		MaxIdleConns:           cfg.MaxIdleConns,
		MaxIdleConnsPerHost:    cfg.MaxIdleConns,
		ReadBufferSize:         128 << 10, // bytes; fewer system calls on bodies of 8 MiB
		MaxResponseHeaderBytes: 1 << 20,
		DisableCompression:     true, // a range of a compressed body is not a range of the object
		Protocols:              &protocols,
	}, nil
}

// certPool returns the system's certificates and those of a file.
func certPool(file string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, invalid("CA file: %w", err)
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool()
	}
	if !pool.AppendCertsFromPEM(pem) {
		return nil, invalid("CA file %q: holds no PEM certificate", file)
	}
	return pool, nil
}

// maxErrorBytes bounds what is read of the body of a refusal.
const maxErrorBytes = 64 << 10

// exchange is one request and what came of it.
type exchange struct {
	status  int // 0 when there was no answer
	header  http.Header
	body    io.ReadCloser // of a good answer
	refusal []byte        // body of another answer, at most maxErrorBytes
	err     error         // why there was no answer
}

// failed reports whether there is no good answer.
func (x *exchange) failed() bool { return x.err != nil || x.status < 200 || x.status > 299 }

// drop closes the body of a good answer that nobody wants.
func (x *exchange) drop() {
	if x.body != nil {
		_ = x.body.Close() // nothing was written
	}
}

type exchangeKey struct{}

// withExchange makes the tap fill in x for the request that carries the context.
func withExchange(ctx context.Context, x *exchange) context.Context {
	return context.WithValue(ctx, exchangeKey{}, x)
}

// errStalled says that a server stopped sending. It is transient.
var errStalled = errors.New("the server sent nothing for too long")

// tap is the transport below minio-go and below our own requests: it notes what
// the server said, reads refusals whole, watches bodies, and drops cookies.
type tap struct {
	base  *http.Transport
	stall time.Duration
}

// RoundTrip implements http.RoundTripper.
func (t *tap) RoundTrip(req *http.Request) (*http.Response, error) {
	x, _ := req.Context().Value(exchangeKey{}).(*exchange)
	if x == nil {
		x = new(exchange)
	}
	ctx, cancel := context.WithCancelCause(req.Context())
	res, err := t.base.RoundTrip(req.WithContext(ctx))
	if err != nil {
		cancel(nil)
		x.err = err
		return nil, err
	}
	res.Header.Del("Set-Cookie")
	body := &watchedBody{body: res.Body, stall: t.stall, ctx: req.Context(), cancel: cancel}
	x.status, x.header = res.StatusCode, res.Header
	if !x.failed() {
		x.body, res.Body = body, body
		return res, nil
	}
	refusal, err := io.ReadAll(io.LimitReader(body, maxErrorBytes))
	_ = body.Close() // the answer is a refusal, whole or not
	if err != nil && len(refusal) == 0 {
		x.err = fmt.Errorf("status %d: %w", res.StatusCode, err)
		return nil, x.err
	}
	x.refusal = refusal
	res.Body = io.NopCloser(bytes.NewReader(refusal))
	return res, nil
}

// watchedBody ends a body that yields nothing for stall. The time runs only
// while somebody reads.
type watchedBody struct {
	body   io.ReadCloser
	stall  time.Duration
	ctx    context.Context // of the caller
	cancel context.CancelCauseFunc
	timer  *time.Timer
}

func (b *watchedBody) Read(p []byte) (int, error) {
	if b.timer == nil {
		b.timer = time.AfterFunc(b.stall, func() { b.cancel(errStalled) })
	} else {
		b.timer.Reset(b.stall)
	}
	n, err := b.body.Read(p)
	stalled := !b.timer.Stop()
	if err == nil || err == io.EOF {
		return n, err
	}
	if stalled && b.ctx.Err() == nil {
		return n, fmt.Errorf("%w (%v)", errStalled, b.stall)
	}
	return n, transient(b.ctx, err)
}

func (b *watchedBody) Close() error {
	if b.timer != nil {
		b.timer.Stop()
	}
	err := b.body.Close()
	b.cancel(nil)
	return err
}

// transient hides from errors.Is that err is about some deadline or
// cancellation when it is not the caller's: net and net/http call their own
// timeouts context.DeadlineExceeded, and those may be tried again.
func transient(ctx context.Context, err error) error {
	if cause := ctx.Err(); cause != nil {
		return cause
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return errors.New(err.Error())
	}
	return err
}
