package s3_test

import (
	"errors"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/shardwell/shardwell/objstore"
	"github.com/shardwell/shardwell/objstore/objstoretest"
	"github.com/shardwell/shardwell/objstore/s3"
)

func newStore(t *testing.T, cfg s3.Config) *s3.Store {
	t.Helper()
	if cfg.Credentials == (s3.Credentials{}) {
		cfg.Credentials = s3.Credentials{Source: s3.SourceStatic, AccessKey: "AKIDEXAMPLE", SecretKey: "secret"}
	}
	if cfg.Bucket == "" {
		cfg.Bucket = "data"
	}
	if cfg.Proxy == "" {
		cfg.Proxy = "none"
	}
	if cfg.StallTimeout == 0 {
		cfg.StallTimeout = 5 * time.Second
	}
	s, err := s3.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func TestConformance(t *testing.T) {
	objstoretest.TestStore(t, func(t *testing.T) objstoretest.Target {
		server := objstoretest.S3Server(t)
		return objstoretest.Target{
			Store: newStore(t, s3.Config{Endpoint: server.URL()}),
			Put: func(key string, data []byte) error {
				_, err := server.PutBytes("data", key, data)
				return err
			},
			Delete: func(key string) error { return server.Delete("data", key) },
			// gofakes3 does not know encoding-type=url, and its XML cannot hold these.
			Holds: func(key string) bool { return !strings.ContainsAny(key, "\x07") },
		}
	})
}

// TestConformanceOfEndpoint runs the suite against the server that the
// environment names, one with directories below (versitygw): keys that cannot be
// paths are left out. Without the variables there is nothing to run against.
func TestConformanceOfEndpoint(t *testing.T) {
	r := objstoretest.Remote{
		Endpoint:  os.Getenv("SHARDWELL_TEST_S3_ENDPOINT"),
		Bucket:    os.Getenv("SHARDWELL_TEST_S3_BUCKET"),
		AccessKey: os.Getenv("SHARDWELL_TEST_S3_KEY"),
		SecretKey: os.Getenv("SHARDWELL_TEST_S3_SECRET"),
		Holds: func(key string) bool {
			for part := range strings.SplitSeq(key, "/") {
				if part == "" || part == "." || part == ".." {
					return false
				}
			}
			// The bell comes back from listings as U+FFFD: no encoding-type there.
			return len(key) < 1000 && !strings.Contains(key, "\x07") && key != "a" && key != "z"
		},
	}
	if r.Endpoint == "" {
		t.Log("SHARDWELL_TEST_S3_ENDPOINT names no server")
		return
	}
	cfg := s3.Config{Endpoint: r.Endpoint, Bucket: r.Bucket, Credentials: s3.Credentials{
		Source: s3.SourceStatic, AccessKey: r.AccessKey, SecretKey: r.SecretKey}}
	objstoretest.TestStore(t, func(t *testing.T) objstoretest.Target { return r.Target(t, newStore(t, cfg)) })
	t.Run("Presign", func(t *testing.T) {
		s := newStore(t, cfg)
		target := r.Target(t, s)
		for _, key := range []string{"pre sign+ü", "x"} {
			if err := target.Put(key, []byte("0123456789")); err != nil {
				t.Fatal(err)
			}
			info, err := s.Head(t.Context(), key)
			if err != nil {
				t.Fatal(err)
			}
			for etag, want := range map[string]int{info.ETag: 206, "another": 412} {
				url, err := s.Presign(t.Context(), key, etag, time.Minute)
				if err != nil {
					t.Fatal(err)
				}
				if status := fetch(t, url, etag); status != want {
					t.Errorf("%q, version %q: status %d, want %d", key, etag, status, want)
				}
			}
		}
	})
	t.Run("Wrong", func(t *testing.T) {
		wrong := cfg
		wrong.Credentials.SecretKey = "not-the-secret"
		for _, c := range []struct {
			cfg   s3.Config
			class error
		}{{wrong, objstore.ErrCredentials}, {s3.Config{Endpoint: cfg.Endpoint, Bucket: "no-such-bucket", Credentials: cfg.Credentials}, objstore.ErrNoBucket}} {
			s := newStore(t, c.cfg)
			if _, err := s.List(t.Context(), objstore.ListRequest{}); !errors.Is(err, c.class) {
				t.Errorf("list: %v, want %v", err, c.class)
			}
			if _, err := s.Head(t.Context(), "k"); !errors.Is(err, c.class) && !errors.Is(err, objstore.ErrNotExist) {
				t.Errorf("head: %v, want %v", err, c.class)
			}
		}
	})
}

// fetch reads a range of a presigned URL and returns the status.
func fetch(t *testing.T, url, etag string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Range", "bytes=2-4")
	req.Header.Set("If-Match", `"`+etag+`"`)
	req.Close = true
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close() // only the status counts
	return res.StatusCode
}
