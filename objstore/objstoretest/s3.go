package objstoretest

import (
	"context"
	"testing"

	"github.com/shardwell/shardwell/objstore/s3/s3server"
)

// Counter counts requests and bytes at an S3 server.
type Counter = s3server.Counter

// S3Server runs an S3 server on loopback until the test ends. Its buckets are
// those named, or one called "data". It accepts any credentials.
func S3Server(t testing.TB, buckets ...string) *s3server.Server {
	t.Helper()
	if len(buckets) == 0 {
		buckets = []string{"data"}
	}
	s, err := s3server.New(s3server.Config{Dir: t.TempDir(), Buckets: buckets})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("s3 server: %v", err)
		}
	})
	return s
}
