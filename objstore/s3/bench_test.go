package s3_test

import (
	"fmt"
	"io"
	"sync/atomic"
	"testing"

	"github.com/shardwell/shardwell/objstore/objstoretest"
	"github.com/shardwell/shardwell/objstore/s3"
)

// BenchmarkGet reads chunks of 8 MiB from a server on loopback, several at once.
func BenchmarkGet(b *testing.B) {
	const size, n = 64 << 20, 8 << 20
	server := objstoretest.S3Server(b)
	etag, err := server.PutBytes("data", "k", objstoretest.Bytes(1, size))
	if err != nil {
		b.Fatal(err)
	}
	s, err := s3.New(s3.Config{Endpoint: server.URL(), Bucket: "data",
		Credentials: s3.Credentials{Source: s3.SourceStatic, AccessKey: "k", SecretKey: "s"}})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(s.Close)
	for _, streams := range []int{1, 8} {
		b.Run(fmt.Sprintf("streams=%d", streams), func(b *testing.B) {
			b.SetBytes(n)
			b.SetParallelism(streams)
			var next atomic.Int64
			b.RunParallel(func(pb *testing.PB) {
				buf := make([]byte, 256<<10)
				for pb.Next() {
					body, err := s.Get(b.Context(), "k", etag, next.Add(1)%(size/n)*n, n)
					if err != nil {
						b.Error(err)
						return
					}
					got, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, body, buf)
					if err != nil || got != n {
						b.Errorf("%d bytes, %v", got, err)
					}
					_ = body.Close() // read to its end
				}
			})
		})
	}
}
