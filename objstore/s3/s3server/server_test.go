package s3server_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"go.uber.org/goleak"

	"github.com/shardwell/shardwell/objstore/s3/s3server"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func start(t *testing.T) *s3server.Server {
	t.Helper()
	s, err := s3server.New(s3server.Config{Dir: t.TempDir(), Buckets: []string{"data"}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return s
}

// do makes a request and returns status, headers and body.
func do(t *testing.T, method, url string, kv ...string) (int, http.Header, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(kv); i += 2 {
		req.Header.Set(kv[i], kv[i+1])
	}
	req.Close = true
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, res.Header, string(body)
}

func TestRangesUnderIfMatch(t *testing.T) {
	s := start(t)
	etag, err := s.PutBytes("data", "k", []byte("0123456789"))
	if err != nil {
		t.Fatal(err)
	}
	url := s.URL() + "/data/k"
	status, h, body := do(t, "GET", url, "Range", "bytes=2-5", "If-Match", `"`+etag+`"`)
	if status != 206 || body != "2345" || h.Get("Content-Range") != "bytes 2-5/10" || h.Get("Content-Length") != "4" || h.Get("ETag") != `"`+etag+`"` {
		t.Errorf("%d %q %v", status, body, h)
	}
	for _, method := range []string{"GET", "HEAD"} {
		status, h, body = do(t, method, url, "Range", "bytes=2-5", "If-Match", `"other"`)
		if status != 412 || h.Get("Content-Range") != "" || (method == "GET") != strings.Contains(body, "PreconditionFailed") {
			t.Errorf("%s of another version: %d %q %v", method, status, body, h)
		}
	}
	if status, _, body := do(t, "GET", url, "If-Match", "*"); status != 200 || body != "0123456789" {
		t.Errorf("%d %q", status, body)
	}
	if status, _, body := do(t, "GET", url, "Range", "bytes=10-11"); status != 416 || !strings.Contains(body, "InvalidRange") {
		t.Errorf("%d %q", status, body)
	}
	if status, _, body := do(t, "GET", s.URL()+"/data/none", "If-Match", `"x"`); status != 404 || !strings.Contains(body, "NoSuchKey") {
		t.Errorf("%d %q", status, body)
	}
	if status, _, body := do(t, "GET", s.URL()+"/none/k"); status != 404 || !strings.Contains(body, "NoSuchBucket") {
		t.Errorf("%d %q", status, body)
	}
}

func TestCounter(t *testing.T) {
	s := start(t)
	if _, err := s.PutBytes("data", "k", make([]byte, 100<<10)); err != nil {
		t.Fatal(err)
	}
	url := s.URL() + "/data/k"
	for range 3 {
		do(t, "GET", url, "Range", "bytes=0-65535")
	}
	do(t, "GET", url, "Range", "bytes=65536-102399")
	do(t, "GET", url, "If-Match", `"other"`)
	do(t, "HEAD", url)
	do(t, "GET", s.URL()+"/data?list-type=2")
	do(t, "GET", s.URL()+"/data/")
	do(t, "DELETE", s.URL()+"/data/none")
	c := s.Counter
	got := fmt.Sprint(c.Gets.Load(), c.Heads.Load(), c.Lists.Load(), c.Other.Load(), c.Refused.Load(), c.Bytes.Load())
	if want := "5 1 2 1 1 233472"; got != want {
		t.Errorf("counted %s, want %s", got, want)
	}
	if r := c.Ranges(); r["/data/k bytes=0-65535"] != 3 || r["/data/k bytes=65536-102399"] != 1 {
		t.Errorf("%v", r)
	}
	c.Reset()
	if c.Gets.Load() != 0 || c.Bytes.Load() != 0 || len(c.Ranges()) != 0 {
		t.Error("not reset")
	}
}

// The server is one to which ordinary clients can write, in parts as well.
func TestOrdinaryClient(t *testing.T) {
	s := start(t)
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	client, err := minio.New(strings.TrimPrefix(s.URL(), "http://"), &minio.Options{
		Creds: credentials.NewStaticV4("k", "s", ""), Transport: transport, Region: "us-east-1"})
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	data := bytes.Repeat([]byte("0123456789abcdef"), 12<<20/16)
	if err := client.MakeBucket(ctx, "mine", minio.MakeBucketOptions{}); err != nil {
		t.Fatal(err)
	}
	for key, opts := range map[string]minio.PutObjectOptions{"one": {}, "in parts": {PartSize: 5 << 20}} {
		if _, err := client.PutObject(ctx, "mine", key, bytes.NewReader(data), int64(len(data)), opts); err != nil {
			t.Fatal(err)
		}
		o, err := client.GetObject(ctx, "mine", key, minio.GetObjectOptions{})
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(o)
		if err != nil || !bytes.Equal(got, data) {
			t.Errorf("%s: %d bytes, %v", key, len(got), err)
		}
		if err := o.Close(); err != nil {
			t.Error(err)
		}
	}
	for _, key := range []string{"one", "in parts"} {
		if err := client.RemoveObject(ctx, "mine", key, minio.RemoveObjectOptions{}); err != nil {
			t.Error(err)
		}
	}
	if err := client.RemoveBucket(ctx, "mine"); err != nil {
		t.Error(err)
	}
}

// Versions that nobody can read any more take no space, and one that is being
// read stays whole.
func TestVersionsAreFiles(t *testing.T) {
	dir := t.TempDir()
	s, err := s3server.New(s3server.Config{Dir: dir, Buckets: []string{"data"}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- s.Run(ctx) }()
	src := filepath.Join(t.TempDir(), "src")
	if err := os.WriteFile(src, bytes.Repeat([]byte{1}, 16<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Put("data", "k", src); err != nil {
		t.Fatal(err)
	}
	res, err := http.Get(s.URL() + "/data/k")
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, err := s.PutBytes("data", "k", []byte{2}); err != nil {
			t.Fatal(err)
		}
	}
	body, err := io.ReadAll(res.Body)
	if err != nil || len(body) != 16<<20 || bytes.IndexByte(body, 2) >= 0 {
		t.Errorf("%d bytes, %v", len(body), err)
	}
	_ = res.Body.Close() // read to its end
	if files, err := os.ReadDir(dir); err != nil || len(files) != 1 {
		t.Errorf("%d files for one object, %v", len(files), err)
	}
	if err := s.Delete("data", "k"); err != nil {
		t.Error(err)
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != 0 {
		t.Errorf("%d files for no object, %v", len(files), err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	http.DefaultClient.CloseIdleConnections()
}
