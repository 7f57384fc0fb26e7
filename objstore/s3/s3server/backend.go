package s3server

import (
	"bytes"
	"crypto/md5"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/johannesboyne/gofakes3"
)

// backend keeps objects as files that are never changed: a new version is a new
// file, and the old one goes when its last reader closed it.
type backend struct {
	dir string

	mu      sync.Mutex
	serial  int64
	buckets map[string]*bucket
}

// bucket is an index of keys. Its fields stand under backend.mu.
type bucket struct {
	objects map[string]*object
	keys    []string // sorted; nil when it must be made anew
	created time.Time
}

// object is one version; it is never changed.
type object struct {
	path string
	size int64
	hash []byte // MD5
	time time.Time
	meta map[string]string
}

var _ gofakes3.Backend = (*backend)(nil)

func newBackend(dir string) (*backend, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("s3 server: %w", err)
	}
	return &backend{dir: dir, buckets: make(map[string]*bucket)}, nil
}

// find returns an object. Caller holds mu.
func (b *backend) find(bucketName, key string) (*object, error) {
	bk, ok := b.buckets[bucketName]
	if !ok {
		return nil, gofakes3.BucketNotFound(bucketName)
	}
	o, ok := bk.objects[key]
	if !ok {
		return nil, gofakes3.KeyNotFound(key)
	}
	return o, nil
}

func (b *backend) putBytes(bucketName, key string, data []byte) (string, error) {
	return b.put(bucketName, key, nil, bytes.NewReader(data), nil)
}

// put writes a new version and returns its ETag.
func (b *backend) put(bucketName, key string, meta map[string]string, input io.Reader, cond *gofakes3.PutConditions) (etag string, err error) {
	b.mu.Lock()
	b.serial++
	path := filepath.Join(b.dir, "object-"+strconv.FormatInt(b.serial, 10))
	b.mu.Unlock()
	o, err := writeObject(path, meta, input)
	if err != nil {
		return "", err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	bk, ok := b.buckets[bucketName]
	if !ok {
		return "", errors.Join(gofakes3.BucketNotFound(bucketName), os.Remove(path))
	}
	old := bk.objects[key]
	if cond != nil {
		info := &gofakes3.ConditionalObjectInfo{Exists: old != nil}
		if old != nil {
			info.Hash = old.hash
		}
		if err := gofakes3.CheckPutConditions(cond, info); err != nil {
			_ = os.Remove(path) // the condition is what the caller must hear
			return "", err
		}
	}
	bk.objects[key] = o
	if old == nil {
		bk.keys = nil
	} else {
		_ = os.Remove(old.path) // only disk space is lost if this fails
	}
	return hex.EncodeToString(o.hash), nil
}

func writeObject(path string, meta map[string]string, input io.Reader) (*object, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	hash := md5.New()
	size, err := io.Copy(io.MultiWriter(f, hash), input)
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, errors.Join(err, os.Remove(path))
	}
	return &object{path: path, size: size, hash: hash.Sum(nil), time: time.Now().UTC(), meta: maps.Clone(meta)}, nil
}

// describe fills in what gofakes3 answers with.
func (o *object) describe(key string) *gofakes3.Object {
	meta := maps.Clone(o.meta)
	if meta == nil {
		meta = make(map[string]string)
	}
	meta["Last-Modified"] = o.time.Format(http.TimeFormat)
	return &gofakes3.Object{Name: key, Metadata: meta, Size: o.size, Hash: o.hash, Contents: http.NoBody}
}

func (b *backend) HeadObject(bucketName, key string) (*gofakes3.Object, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	o, err := b.find(bucketName, key)
	if err != nil {
		return nil, err
	}
	return o.describe(key), nil
}

func (b *backend) GetObject(bucketName, key string, want *gofakes3.ObjectRangeRequest) (*gofakes3.Object, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	o, err := b.find(bucketName, key)
	if err != nil {
		return nil, err
	}
	rng, err := want.Range(o.size)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(o.path)
	if err != nil {
		return nil, err
	}
	off, n := int64(0), o.size
	if rng != nil {
		off, n = rng.Start, rng.Length
	}
	if _, err := f.Seek(off, io.SeekStart); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	result := o.describe(key)
	result.Range = rng
	result.Contents = &contents{LimitedReader: io.LimitedReader{R: f, N: n}, file: f}
	return result, nil
}

// contents is the rest of a range. net/http sends it with sendfile, because
// WriteTo shows it the LimitedReader over the file.
type contents struct {
	io.LimitedReader
	file *os.File
}

func (c *contents) WriteTo(w io.Writer) (int64, error) { return io.Copy(w, &c.LimitedReader) }

func (c *contents) Close() error { return c.file.Close() }

func (b *backend) PutObject(bucketName, key string, meta map[string]string, input io.Reader, size int64, cond *gofakes3.PutConditions) (gofakes3.PutObjectResult, error) {
	_, err := b.put(bucketName, key, meta, input, cond)
	return gofakes3.PutObjectResult{}, err
}

func (b *backend) DeleteObject(bucketName, key string) (gofakes3.ObjectDeleteResult, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	bk, ok := b.buckets[bucketName]
	if !ok {
		return gofakes3.ObjectDeleteResult{}, gofakes3.BucketNotFound(bucketName)
	}
	if o, ok := bk.objects[key]; ok {
		delete(bk.objects, key)
		bk.keys = nil
		return gofakes3.ObjectDeleteResult{}, os.Remove(o.path)
	}
	return gofakes3.ObjectDeleteResult{}, nil
}

func (b *backend) DeleteMulti(bucketName string, keys ...string) (gofakes3.MultiDeleteResult, error) {
	var result gofakes3.MultiDeleteResult
	for _, key := range keys {
		if _, err := b.DeleteObject(bucketName, key); err != nil {
			result.Error = append(result.Error, gofakes3.ErrorResultFromError(err))
			continue
		}
		result.Deleted = append(result.Deleted, gofakes3.ObjectID{Key: key})
	}
	return result, nil
}

func (b *backend) CopyObject(srcBucket, srcKey, dstBucket, dstKey string, meta map[string]string) (gofakes3.CopyObjectResult, error) {
	return gofakes3.CopyObject(b, srcBucket, srcKey, dstBucket, dstKey, meta)
}

// sorted returns the keys of a bucket in byte order. Caller holds mu; the slice
// is not changed later.
func (bk *bucket) sorted() []string {
	if bk.keys == nil {
		bk.keys = slices.Sorted(maps.Keys(bk.objects))
	}
	return bk.keys
}
