package origin_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/shardwell/shardwell/e2e/cage"
	"github.com/shardwell/shardwell/e2e/origin"
)

func start(t *testing.T, opts origin.Options) (*origin.Origin, *minio.Core) {
	t.Helper()
	c, err := cage.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	if opts.Store == nil {
		opts.Bin = filepath.Join("..", "..", ".cache", "bin", "versitygw")
		if _, err := os.Stat(opts.Bin); err != nil {
			t.Fatalf("%v (run e2e/setup)", err)
		}
		opts.Bin, _ = filepath.Abs(opts.Bin)
	}
	o, err := origin.Start(c, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := o.Close(); err != nil {
			t.Error(err)
		}
	})
	client, err := c.Host("client")
	if err != nil {
		t.Fatal(err)
	}
	core, err := minio.NewCore(strings.TrimPrefix(o.Endpoint(), "http://"), &minio.Options{
		Creds: credentials.NewStaticV4(o.AccessKey, o.SecretKey, ""), Region: origin.Region,
		BucketLookup: minio.BucketLookupPath, MaxRetries: 1,
		Transport: &http.Transport{DialContext: client.Dial, DisableCompression: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	return o, core
}

// get reads a range under a version.
func get(core *minio.Core, key, etag string, off, n int64) ([]byte, error) {
	var opts minio.GetObjectOptions
	if err := opts.SetRange(off, off+n-1); err != nil {
		return nil, err
	}
	if etag != "" {
		if err := opts.SetMatchETag(etag); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	body, _, _, err := core.GetObject(ctx, "data", key, opts)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	return io.ReadAll(body)
}

func statusOf(err error) int {
	var e minio.ErrorResponse
	if errors.As(err, &e) {
		return e.StatusCode
	}
	return 0
}

func randomBytes(seed uint64, n int) []byte {
	var key [32]byte
	key[0] = byte(seed)
	b := make([]byte, n)
	_, _ = rand.NewChaCha8(key).Read(b)
	return b
}

func TestGatewayIsCountedExactly(t *testing.T) {
	o, core := start(t, origin.Options{})
	ctx := t.Context()
	if err := o.MakeBucket(ctx, "data"); err != nil {
		t.Fatal(err)
	}
	data := randomBytes(1, 9<<20)
	etag, err := o.PutBytes(ctx, "data", "dir/a ü+b.tar", data)
	if err != nil {
		t.Fatal(err)
	}
	if len(o.Requests()) != 0 {
		t.Errorf("the test's own writing was counted: %v", o.Requests())
	}
	info, err := core.StatObject(ctx, "data", "dir/a ü+b.tar", minio.StatObjectOptions{})
	if err != nil || info.ETag != etag || info.Size != int64(len(data)) {
		t.Fatalf("stat: %+v, %v; want etag %s, size %d", info, err, etag, len(data))
	}
	got, err := get(core, "dir/a ü+b.tar", etag, 1000, 8<<20)
	if err != nil || !bytes.Equal(got, data[1000:1000+8<<20]) {
		t.Fatalf("read %d bytes, %v; want the %d written", len(got), err, 8<<20)
	}
	if _, err := core.ListObjectsV2("data", "dir/", "", "", "/", 1000); err != nil {
		t.Fatal(err)
	}
	rs := o.Requests()
	if len(rs) != 3 || rs[0].Op != origin.OpHead || rs[1].Op != origin.OpGet || rs[2].Op != origin.OpList {
		t.Fatalf("counted %+v, want one HEAD, GET, LIST each", rs)
	}
	if g := rs[1]; g.Bytes != 8<<20 || g.Key != "dir/a ü+b.tar" || g.Offset != 1000 || g.Length != 8<<20 || g.IfMatch != etag {
		t.Errorf("counted %+v", g)
	}
}

func TestGatewayRefusesAnotherVersion(t *testing.T) {
	o, core := start(t, origin.Options{})
	ctx := t.Context()
	if err := o.MakeBucket(ctx, "data"); err != nil {
		t.Fatal(err)
	}
	old, err := o.PutBytes(ctx, "data", "k", []byte("old bytes"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := o.PutBytes(ctx, "data", "k", []byte("new bytes")); err != nil {
		t.Fatal(err)
	}
	if got, err := get(core, "k", old, 0, 9); statusOf(err) != http.StatusPreconditionFailed {
		t.Errorf("read of the old version after an overwrite: %q, %v; want status 412", got, err)
	}
}

func TestFaults(t *testing.T) {
	m := origin.NewMemory()
	data := randomBytes(2, 1<<20)
	etag := m.Put("k", data)
	o, core := start(t, origin.Options{Store: m})
	one := func(f *origin.Fault) { o.SetFault(func(origin.Request) *origin.Fault { return f }) }
	read := func() ([]byte, error) { return get(core, "k", etag, 100, 1000) }

	if got, err := read(); err != nil || !bytes.Equal(got, data[100:1100]) {
		t.Fatalf("without a fault: %d bytes, %v", len(got), err)
	}
	for _, status := range []int{429, 500, 503, 403, 404} {
		one(&origin.Fault{Status: status, RetryAfter: 1})
		if _, err := read(); statusOf(err) != status {
			t.Errorf("status %d: client got %v", status, err)
		}
	}
	for _, reset := range []bool{false, true} {
		one(&origin.Fault{CutAfter: 300, Reset: reset})
		if got, err := read(); err == nil || len(got) > 300 {
			t.Errorf("cut after 300 bytes (reset %v): client got %d bytes, error %v", reset, len(got), err)
		}
	}
	release := make(chan struct{})
	one(&origin.Fault{StallAfter: 300, Release: release})
	time.AfterFunc(100*time.Millisecond, func() { close(release) })
	begin := time.Now()
	if got, err := read(); err != nil || !bytes.Equal(got, data[100:1100]) || time.Since(begin) < 100*time.Millisecond {
		t.Errorf("stall of 100 ms: %d bytes after %v, %v", len(got), time.Since(begin), err)
	}
	for lie, want := range map[origin.Lie]string{
		origin.LieShort: "500", origin.LieLong: "2000", origin.LieRange: "other", origin.LieWhole: "1048576",
	} {
		one(&origin.Fault{Lie: lie})
		got, err := read()
		is := fmt.Sprint(len(got))
		if len(got) == 1000 && !bytes.Equal(got, data[100:1100]) {
			is = "other"
		}
		if err != nil || is != want {
			t.Errorf("lie %q: client got %s bytes, %v; want %s", lie, is, err, want)
		}
	}
	o.SetFault(nil)
	if err := o.Vanish(); err != nil {
		t.Fatal(err)
	}
	if _, err := read(); err == nil {
		t.Error("read from an origin that is gone succeeded")
	}
	if err := o.Resume(); err != nil {
		t.Fatal(err)
	}
	if _, err := read(); err != nil {
		t.Errorf("after the origin came back: %v", err)
	}
}

func TestMemoryLists(t *testing.T) {
	m := origin.NewMemory()
	want := map[string]bool{}
	for i := range 2500 {
		key := fmt.Sprintf("p/%05d", i)
		m.Put(key, nil)
		want[key] = true
	}
	for i := range 10 {
		m.Put(fmt.Sprintf("p/00100/%d", i), nil) // below a name that is an object as well
	}
	m.Put("q", nil)
	m.Put("\xff odd \x01\n", nil)
	o, core := start(t, origin.Options{Store: m})
	token, pages := "", 0
	var prefixes []string
	for {
		page, err := core.ListObjectsV2("data", "p/", "", token, "/", 1000)
		if err != nil {
			t.Fatal(err)
		}
		pages++
		for _, c := range page.Contents {
			if !want[c.Key] {
				t.Errorf("listed %q, which was not written or listed before", c.Key)
			}
			delete(want, c.Key)
		}
		for _, p := range page.CommonPrefixes {
			prefixes = append(prefixes, p.Prefix)
		}
		if !page.IsTruncated {
			break
		}
		token = page.NextContinuationToken
	}
	if len(want) != 0 || pages != 3 || len(prefixes) != 1 || prefixes[0] != "p/00100/" {
		t.Errorf("%d names missing, %d pages (want 3), prefixes %q", len(want), pages, prefixes)
	}
	if n := len(o.Requests().Of(origin.OpList)); n != pages {
		t.Errorf("counted %d LISTs, want %d", n, pages)
	}
	page, err := core.ListObjectsV2("data", "", "q", "", "/", 1000)
	if err != nil || len(page.Contents) != 1 || page.Contents[0].Key != "\xff odd \x01\n" {
		t.Errorf("odd key: %+v, %v", page.Contents, err)
	}
}
