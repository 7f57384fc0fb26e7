package s3server

import (
	"slices"
	"strings"
	"time"

	"github.com/johannesboyne/gofakes3"
)

// maxKeys is the most entries of one page, as on S3.
const maxKeys = 1000

// ListBucket implements gofakes3.Backend. Its marker is the last name of the
// page before, a key or a prefix, so that no prefix shows up on two pages.
func (b *backend) ListBucket(name string, prefix *gofakes3.Prefix, page gofakes3.ListBucketPage) (*gofakes3.ObjectList, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	bk, ok := b.buckets[name]
	if !ok {
		return nil, gofakes3.BucketNotFound(name)
	}
	var pre, delim string
	if prefix != nil {
		if prefix.HasPrefix {
			pre = prefix.Prefix
		}
		if prefix.HasDelimiter {
			delim = prefix.Delimiter
		}
	}
	limit := int(page.MaxKeys)
	if limit <= 0 || limit > maxKeys {
		limit = maxKeys
	}
	return bk.list(pre, delim, page.Marker, limit), nil
}

// list makes one page of the names behind marker. Caller holds backend.mu.
func (bk *bucket) list(pre, delim, marker string, limit int) *gofakes3.ObjectList {
	result := gofakes3.NewObjectList()
	keys := bk.sorted()
	last, n := "", 0
	i, _ := slices.BinarySearch(keys, max(pre, marker))
	for i < len(keys) && strings.HasPrefix(keys[i], pre) {
		key := keys[i]
		entry, isPrefix, next := key, false, i+1
		if delim != "" {
			if cut := strings.Index(key[len(pre):], delim); cut >= 0 {
				entry, isPrefix = key[:len(pre)+cut+len(delim)], true
				next = skip(keys, i, entry)
			}
		}
		if marker != "" && entry <= marker {
			i = next
			continue
		}
		if n == limit {
			result.IsTruncated, result.NextMarker = true, last
			return result
		}
		if isPrefix {
			result.AddPrefix(entry)
		} else {
			o := bk.objects[key]
			result.Add(&gofakes3.Content{
				Key:          key,
				LastModified: gofakes3.NewContentTime(o.time),
				ETag:         gofakes3.FormatETag(o.hash),
				Size:         o.size,
				StorageClass: gofakes3.StorageStandard,
			})
		}
		last, i = entry, next
		n++
	}
	return result
}

// skip returns the index of the first key at or behind i that does not begin with prefix.
func skip(keys []string, i int, prefix string) int {
	for i < len(keys) && strings.HasPrefix(keys[i], prefix) {
		i++
	}
	return i
}

// ListBuckets implements gofakes3.Backend.
func (b *backend) ListBuckets() ([]gofakes3.BucketInfo, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var infos []gofakes3.BucketInfo
	for name, bk := range b.buckets {
		infos = append(infos, gofakes3.BucketInfo{Name: name, CreationDate: gofakes3.NewContentTime(bk.created)})
	}
	slices.SortFunc(infos, func(x, y gofakes3.BucketInfo) int { return strings.Compare(x.Name, y.Name) })
	return infos, nil
}

// CreateBucket implements gofakes3.Backend.
func (b *backend) CreateBucket(name string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, ok := b.buckets[name]; ok {
		return gofakes3.ResourceError(gofakes3.ErrBucketAlreadyExists, name)
	}
	b.buckets[name] = &bucket{objects: make(map[string]*object), created: time.Now().UTC()}
	return nil
}

// BucketExists implements gofakes3.Backend.
func (b *backend) BucketExists(name string) (bool, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, ok := b.buckets[name]
	return ok, nil
}

// DeleteBucket implements gofakes3.Backend.
func (b *backend) DeleteBucket(name string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	bk, ok := b.buckets[name]
	if !ok {
		return gofakes3.BucketNotFound(name)
	}
	if len(bk.objects) > 0 {
		return gofakes3.ResourceError(gofakes3.ErrBucketNotEmpty, name)
	}
	delete(b.buckets, name)
	return nil
}

// ForceDeleteBucket implements gofakes3.Backend.
func (b *backend) ForceDeleteBucket(name string) error {
	b.mu.Lock()
	bk, ok := b.buckets[name]
	if !ok {
		b.mu.Unlock()
		return gofakes3.BucketNotFound(name)
	}
	keys := slices.Clone(bk.sorted())
	b.mu.Unlock()
	for _, key := range keys {
		if _, err := b.DeleteObject(name, key); err != nil {
			return err
		}
	}
	return b.DeleteBucket(name)
}
