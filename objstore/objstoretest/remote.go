package objstoretest

import (
	"bytes"
	"context"
	"net/http"
	"net/url"
	"testing"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/shardwell/shardwell/objstore"
)

// Remote is an S3 server that somebody else runs. The suite empties Bucket.
type Remote struct {
	Endpoint  string // URL
	Bucket    string // is made when it is missing
	AccessKey string
	SecretKey string
	// Holds tells which keys the server can hold; nil means all.
	Holds func(key string) bool
}

// Target returns the server as a target of the suite, with an empty bucket. store
// reads the bucket.
func (r Remote) Target(t *testing.T, store objstore.Store) Target {
	t.Helper()
	u, err := url.Parse(r.Endpoint)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{}
	client, err := minio.New(u.Host, &minio.Options{
		Transport:    transport,
		Creds:        credentials.NewStaticV4(r.AccessKey, r.SecretKey, ""),
		Secure:       u.Scheme == "https",
		Region:       "us-east-1",
		BucketLookup: minio.BucketLookupPath,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background() // also used when the test ends
	if ok, err := client.BucketExists(ctx, r.Bucket); err != nil {
		t.Fatal(err)
	} else if !ok {
		if err := client.MakeBucket(ctx, r.Bucket, minio.MakeBucketOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	empty := func() {
		for o := range client.ListObjectsIter(ctx, r.Bucket, minio.ListObjectsOptions{Recursive: true}) {
			if o.Err != nil {
				t.Fatal(o.Err)
			}
			if err := client.RemoveObject(ctx, r.Bucket, o.Key, minio.RemoveObjectOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	empty()
	t.Cleanup(func() {
		empty()
		transport.CloseIdleConnections()
	})
	return Target{
		Store: store,
		Put: func(key string, data []byte) error {
			_, err := client.PutObject(ctx, r.Bucket, key, bytes.NewReader(data), int64(len(data)), minio.PutObjectOptions{})
			return err
		},
		Delete: func(key string) error { return client.RemoveObject(ctx, r.Bucket, key, minio.RemoveObjectOptions{}) },
		Holds:  r.Holds,
	}
}
