package s3_test

import (
	"bytes"
	"context"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shardwell/shardwell/objstore"
	"github.com/shardwell/shardwell/objstore/objstoretest"
	"github.com/shardwell/shardwell/objstore/s3"
)

// Answers that are not the range that was asked for are found, whatever the server claims.
func TestGetFindsWrongAnswers(t *testing.T) {
	data := objstoretest.Bytes(1, 1000)
	head := func(w http.ResponseWriter, status int, kv ...string) {
		w.Header().Set("ETag", `"e1"`)
		w.Header().Set("Last-Modified", "Thu, 29 Feb 2024 10:11:12 GMT")
		for i := 0; i < len(kv); i += 2 {
			w.Header().Set(kv[i], kv[i+1])
			if kv[i+1] == "" {
				w.Header().Del(kv[i])
			}
		}
		w.WriteHeader(status)
	}
	for name, c := range map[string]struct {
		class  error // nil: transient
		answer func(w http.ResponseWriter)
	}{
		"short body": {nil, func(w http.ResponseWriter) {
			head(w, 206, "Content-Range", "bytes 100-299/1000", "Content-Length", "200")
			_, _ = w.Write(data[100:250])
		}},
		"short body in chunks": {nil, func(w http.ResponseWriter) {
			head(w, 206, "Content-Range", "bytes 100-299/1000")
			_, _ = w.Write(data[100:250])
			w.(http.Flusher).Flush()
		}},
		"long body in chunks": {nil, func(w http.ResponseWriter) {
			head(w, 206, "Content-Range", "bytes 100-299/1000")
			_, _ = w.Write(data[100:300])
			w.(http.Flusher).Flush()
			_, _ = w.Write(data[300:301])
		}},
		"long body with a length": {nil, func(w http.ResponseWriter) {
			head(w, 206, "Content-Range", "bytes 100-299/1000", "Content-Length", "900")
			_, _ = w.Write(data[100:])
		}},
		"another range": {nil, func(w http.ResponseWriter) {
			head(w, 206, "Content-Range", "bytes 0-199/1000", "Content-Length", "200")
			_, _ = w.Write(data[:200])
		}},
		"less than the range": {nil, func(w http.ResponseWriter) {
			head(w, 206, "Content-Range", "bytes 100-198/1000", "Content-Length", "99")
			_, _ = w.Write(data[100:199])
		}},
		"whole object": {nil, func(w http.ResponseWriter) {
			head(w, 200, "Content-Length", "1000")
			_, _ = w.Write(data)
		}},
		"206 without Content-Range": {nil, func(w http.ResponseWriter) {
			head(w, 206, "Content-Length", "200")
			_, _ = w.Write(data[100:300])
		}},
		"malformed Content-Range": {nil, func(w http.ResponseWriter) {
			head(w, 206, "Content-Range", "bytes */1000", "Content-Length", "200")
			_, _ = w.Write(data[100:300])
		}},
		"200 with a refusal": {nil, func(w http.ResponseWriter) {
			head(w, 200, "Content-Length", "62")
			_, _ = w.Write([]byte("<Error><Code>InternalError</Code><Message>try</Message></Error>"[:62]))
		}},
		"204": {nil, func(w http.ResponseWriter) { head(w, 204) }},
		"another version, If-Match ignored": {objstore.ErrChanged, func(w http.ResponseWriter) {
			head(w, 206, "ETag", `"e2"`, "Content-Range", "bytes 100-299/1000", "Content-Length", "200")
			_, _ = w.Write(data[100:300])
		}},
		"no version": {objstore.ErrInvalid, func(w http.ResponseWriter) {
			head(w, 206, "ETag", "", "Content-Range", "bytes 100-299/1000", "Content-Length", "200")
			_, _ = w.Write(data[100:300])
		}},
	} {
		t.Run(name, func(t *testing.T) {
			f := serve(t, func(_ int, w http.ResponseWriter, _ *http.Request) { c.answer(w) })
			s := newStore(t, s3.Config{Endpoint: f.URL})
			body, err := s.Get(t.Context(), "key", "e1", 100, 200)
			if err == nil {
				// Not even a reader that asks for exactly its bytes may be content.
				_, err = io.ReadFull(body, make([]byte, 200))
				_ = body.Close()
			}
			switch {
			case err == nil:
				t.Fatal("a wrong answer was taken for right")
			case c.class == nil && objstore.Final(err):
				t.Errorf("%v would not be tried again", err)
			case c.class != nil && !errors.Is(err, c.class):
				t.Errorf("%v, want %v", err, c.class)
			}
		})
	}
}

// Right answers in unusual dress are accepted.
func TestGetAcceptsOddAnswers(t *testing.T) {
	data := objstoretest.Bytes(1, 200)
	for name, answer := range map[string]func(w http.ResponseWriter){
		"in chunks, unknown size": func(w http.ResponseWriter) {
			w.Header().Set("ETag", "e1") // OBS and old RGW leave the quotes out in places
			w.Header().Set("Content-Range", "bytes 0-199/*")
			w.WriteHeader(206)
			w.(http.Flusher).Flush()
			_, _ = w.Write(data)
		},
		"weak version": func(w http.ResponseWriter) {
			w.Header().Set("ETag", `W/"e1"`)
			w.Header().Set("Content-Range", "bytes 0-199/1000")
			w.WriteHeader(206)
			_, _ = w.Write(data)
		},
		"200 for all there is": func(w http.ResponseWriter) {
			w.Header().Set("ETag", `"e1"`)
			w.Header().Set("Content-Length", "200")
			_, _ = w.Write(data)
		},
		"headers that minio-go refuses": func(w http.ResponseWriter) {
			w.Header().Set("ETag", `"e1"`)
			w.Header().Set("Last-Modified", "2024-02-29T10:11:12Z")
			w.Header().Set("Expires", "0")
			w.Header().Set("X-Amz-Tagging-Count", "many")
			w.Header().Set("Content-Range", "bytes 0-199/1000")
			w.WriteHeader(206)
			_, _ = w.Write(data)
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := serve(t, func(_ int, w http.ResponseWriter, _ *http.Request) { answer(w) })
			got, err := get(t, newStore(t, s3.Config{Endpoint: f.URL}), 0, 200)
			if err != nil || !bytes.Equal(got, data) {
				t.Errorf("%d bytes, %v", len(got), err)
			}
		})
	}
}

func TestGetSaysWhatItWants(t *testing.T) {
	f := serve(t, func(_ int, w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Set-Cookie", "session=1; Path=/")
		object(w, r, "e1", make([]byte, 100))
	})
	s := newStore(t, s3.Config{Endpoint: f.URL, RequesterPays: true})
	for range 2 {
		if _, err := get(t, s, 10, 20); err != nil {
			t.Fatal(err)
		}
	}
	for _, r := range f.requests() {
		h := r.Header
		if h.Get("Range") != "bytes=10-29" || h.Get("If-Match") != `"e1"` || h.Get("X-Amz-Request-Payer") != "requester" {
			t.Errorf("headers %v", h)
		}
		if h.Get("Cookie") != "" {
			t.Error("a cookie of the server is sent back")
		}
		if h.Get("Accept-Encoding") == "gzip" {
			t.Error("asks for a compressed body")
		}
		if auth := h.Get("Authorization"); !strings.Contains(auth, "x-amz-request-payer") || !strings.Contains(auth, "if-match") {
			t.Errorf("signed headers of %q", auth)
		}
	}
}

// minio-go must not repeat requests: our wrapper does, and knows why.
func TestRequestsAreMadeOnce(t *testing.T) {
	for _, status := range []int{500, 502, 503, 429, 408} {
		f := serve(t, func(_ int, w http.ResponseWriter, _ *http.Request) { refuse(w, status, "InternalError", "") })
		s := newStore(t, s3.Config{Endpoint: f.URL})
		_, err := get(t, s, 0, 1)
		_, err2 := s.Head(t.Context(), "key")
		_, err3 := s.List(t.Context(), objstore.ListRequest{})
		if err == nil || err2 == nil || err3 == nil {
			t.Errorf("status %d: no error", status)
		}
		if n := len(f.requests()); n != 3 {
			t.Errorf("status %d: %d requests for 3 calls", status, n)
		}
	}
}

func TestStalledServersAreCut(t *testing.T) {
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	f := serve(t, func(_ int, w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/data/key" {
			w.Header().Set("ETag", `"e1"`)
			w.Header().Set("Content-Range", "bytes 0-99/100")
			w.Header().Set("Content-Length", "100")
			w.WriteHeader(206)
			_, _ = w.Write(make([]byte, 50))
			w.(http.Flusher).Flush()
		}
		select {
		case <-release:
		case <-r.Context().Done():
		}
	})
	s := newStore(t, s3.Config{Endpoint: f.URL, StallTimeout: 50 * time.Millisecond})
	got, err := get(t, s, 0, 100)
	if err == nil || objstore.Final(err) || len(got) != 50 {
		t.Errorf("a body that stalls: %d bytes, %v", len(got), err)
	}
	if _, err := s.Head(t.Context(), "silent"); err == nil || objstore.Final(err) {
		t.Errorf("an answer that does not begin: %v", err)
	}
	// The caller's own deadline stays what it is.
	slow := newStore(t, s3.Config{Endpoint: f.URL, StallTimeout: time.Minute})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := slow.Head(ctx, "silent"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("after the caller's deadline: %v", err)
	}
	body, err := slow.Get(ctx, "key", "e1", 0, 100)
	if err == nil {
		_, err = io.ReadAll(body)
		_ = body.Close()
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("body after the caller's deadline: %v", err)
	}
}

func TestNobodyListens(t *testing.T) {
	f := serve(t, func(int, http.ResponseWriter, *http.Request) {})
	f.Close()
	_, err := newStore(t, s3.Config{Endpoint: f.URL}).Head(t.Context(), "key")
	if err == nil || objstore.Final(err) || !strings.Contains(err.Error(), "refused") {
		t.Errorf("%v", err)
	}
}

func TestRedirectsAreNotFollowed(t *testing.T) {
	var reached bool
	other := serve(t, func(int, http.ResponseWriter, *http.Request) { reached = true })
	f := serve(t, func(_ int, w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, other.URL+"/x", http.StatusFound)
	})
	s := newStore(t, s3.Config{Endpoint: f.URL})
	if _, err := get(t, s, 0, 1); !errors.Is(err, objstore.ErrInvalid) {
		t.Errorf("get: %v", err)
	}
	if _, err := s.List(t.Context(), objstore.ListRequest{}); !errors.Is(err, objstore.ErrInvalid) {
		t.Errorf("list: %v", err)
	}
	if reached {
		t.Error("a signed request followed a redirect to another server")
	}
}

func TestCertificates(t *testing.T) {
	var f fake
	f.Server = httptest.NewTLSServer(f.handler(func(_ int, w http.ResponseWriter, r *http.Request) { object(w, r, "e1", []byte("x")) }))
	f.Config.ErrorLog = log.New(io.Discard, "", 0) // of handshakes that are meant to fail
	t.Cleanup(f.Close)
	if _, err := newStore(t, s3.Config{Endpoint: f.URL}).Head(t.Context(), "key"); !errors.Is(err, objstore.ErrInvalid) {
		t.Errorf("unknown authority: %v", err)
	}
	file := filepath.Join(t.TempDir(), "ca.pem")
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: f.Certificate().Raw})
	if err := os.WriteFile(file, cert, 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := get(t, newStore(t, s3.Config{Endpoint: f.URL, CAFile: file}), 0, 1); err != nil || string(got) != "x" {
		t.Errorf("%q, %v", got, err)
	}
	plain := strings.Replace(f.URL, "https://", "http://", 1)
	if _, err := newStore(t, s3.Config{Endpoint: plain}).Head(t.Context(), "key"); err == nil {
		t.Error("http to a TLS port works")
	}
	h := serve(t, func(int, http.ResponseWriter, *http.Request) {})
	tls := strings.Replace(h.URL, "http://", "https://", 1)
	if _, err := newStore(t, s3.Config{Endpoint: tls}).Head(t.Context(), "key"); !errors.Is(err, objstore.ErrInvalid) {
		t.Errorf("https to a plain port: %v", err)
	}
}

// A key of spaces alone is one that minio-go refuses.
func TestKeysThatMinioRefuses(t *testing.T) {
	server := objstoretest.S3Server(t)
	s := newStore(t, s3.Config{Endpoint: server.URL()})
	for _, key := range []string{" ", "\t\n", strings.Repeat("k", 1023) + "é"} {
		if _, err := server.PutBytes("data", key, []byte(key)); err != nil {
			t.Fatal(err)
		}
		info, err := s.Head(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		body, err := s.Get(t.Context(), key, info.ETag, 0, info.Size)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(body)
		if err = errors.Join(err, body.Close()); err != nil || string(got) != key {
			t.Errorf("%q: %q, %v", key, got, err)
		}
	}
	for _, key := range []string{"", "\xff\xfe", strings.Repeat("k", 5000)} {
		if _, err := s.Head(t.Context(), key); !errors.Is(err, objstore.ErrInvalid) {
			t.Errorf("%.10q: %v", key, err)
		}
	}
}

func TestPresign(t *testing.T) {
	server := objstoretest.S3Server(t)
	if _, err := server.PutBytes("data", "a b/c", []byte("0123456789")); err != nil {
		t.Fatal(err)
	}
	s := newStore(t, s3.Config{Endpoint: server.URL()})
	info, err := s.Head(t.Context(), "a b/c")
	if err != nil {
		t.Fatal(err)
	}
	url, err := s.Presign(t.Context(), info.Key, info.ETag, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Range", "bytes=2-4")
	req.Header.Set("If-Match", `"`+info.ETag+`"`)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(res.Body)
	if err = errors.Join(err, res.Body.Close()); err != nil || res.StatusCode != 206 || string(got) != "234" {
		t.Errorf("status %d: %q, %v", res.StatusCode, got, err)
	}
	if q := req.URL.Query(); q.Get("X-Amz-Expires") != "60" || q.Get("X-Amz-SignedHeaders") != "host;if-match" {
		t.Errorf("%v", q)
	}
	anonymous := newStore(t, s3.Config{Endpoint: server.URL(), Credentials: s3.Credentials{Source: s3.SourceAnonymous}})
	if _, err := anonymous.Presign(t.Context(), "k", "", time.Minute); !errors.Is(err, objstore.ErrCredentials) {
		t.Errorf("anonymous: %v", err)
	}
	for _, ttl := range []time.Duration{0, 8 * 24 * time.Hour} {
		if _, err := s.Presign(t.Context(), "k", "", ttl); !errors.Is(err, objstore.ErrInvalid) {
			t.Errorf("%v: %v", ttl, err)
		}
	}
	http.DefaultClient.CloseIdleConnections()
}

// The wrapper and the store together: an origin that fails in a third of its
// requests serves right bytes, and each range is asked for again under If-Match.
func TestRetriesOverFaultyServer(t *testing.T) {
	data := objstoretest.Bytes(3, 64<<10)
	f := serve(t, func(n int, w http.ResponseWriter, r *http.Request) {
		switch n % 6 {
		case 1:
			refuse(w, 503, "SlowDown", "")
		case 3:
			w.Header().Set("ETag", `"e1"`)
			w.Header().Set("Content-Range", strings.Replace(r.Header.Get("Range"), "=", " ", 1)+"/65536")
			w.WriteHeader(206)
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		default:
			object(w, r, "e1", data)
		}
	})
	r := objstore.NewRetry(newStore(t, s3.Config{Endpoint: f.URL}), objstore.RetryConfig{MinWait: time.Millisecond, MaxWait: 5 * time.Millisecond})
	for off := int64(0); off < int64(len(data)); off += 8 << 10 {
		body, err := r.Get(t.Context(), "key", "e1", off, 8<<10)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(body)
		if err = errors.Join(err, body.Close()); err != nil || !bytes.Equal(got, data[off:off+8<<10]) {
			t.Fatalf("range at %d: %d bytes, %v", off, len(got), err)
		}
	}
	for _, r := range f.requests() {
		if r.Header.Get("If-Match") == "" {
			t.Error("a request without If-Match")
		}
	}
}
