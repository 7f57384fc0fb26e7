package node

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/internal/config"
	"github.com/shardwell/shardwell/objstore"
	"github.com/shardwell/shardwell/objstore/dir"
	"github.com/shardwell/shardwell/warm"
)

// How names are looked up: a page of a listing tells of a thousand, so a directory of which
// several are wanted is listed as long as that brings more than single questions would.
const (
	headsOnly    = 4  // names of one directory that are asked for one by one
	headsAtOnce  = 16 // likewise, of all directories together
	dirsApart    = 16 // directories that are looked at one by one
	dirsAtOnce   = 16 // likewise
	pagesOnTrial = 8  // of a listing that have brought nothing yet
	maxDirTries  = warm.MaxGlobs
)

// resolver turns what a user wrote into objects.
type resolver struct {
	n        *Node
	began    time.Time // answers are not older
	manifest warm.Manifest
	dirs     []warm.Dataset
	miss     func(warm.Missing)

	exact map[objstore.Bucket]map[string][]string // names by directory
	heads *semaphore.Weighted
	mu    sync.Mutex // of manifest, while names are asked for at once
	tries int        // names that may be directories
}

// resolve looks up all that a spec names. What there is none of is told to miss.
func (n *Node) resolve(ctx context.Context, spec warm.Spec, list []byte, miss func(warm.Missing)) (*resolver, error) {
	r := &resolver{n: n, began: time.Now(), exact: make(map[objstore.Bucket]map[string][]string), heads: semaphore.NewWeighted(headsAtOnce)}
	r.miss = func(m warm.Missing) {
		r.mu.Lock()
		defer r.mu.Unlock()
		miss(m)
	}
	for _, text := range spec.Sources {
		src, err := warm.ParseSource(text)
		if err != nil {
			return nil, &config.Error{What: err.Error()}
		}
		if err := r.source(ctx, src); err != nil {
			return nil, err
		}
	}
	if err := r.lines(ctx, list); err != nil {
		return nil, err
	}
	for bucket, byDir := range r.exact {
		if err := r.bucket(ctx, bucket, byDir); err != nil {
			return nil, err
		}
		delete(r.exact, bucket)
	}
	r.manifest.Seal()
	return r, nil
}

// lines reads a compressed list: a URI a line, taken as it is.
func (r *resolver) lines(ctx context.Context, list []byte) error {
	if len(list) == 0 {
		return nil
	}
	z, err := gzip.NewReader(bytes.NewReader(list))
	if err != nil {
		return fmt.Errorf("list of names: %w", err)
	}
	err = warm.ReadList(z, func(src warm.Source) error { return r.source(ctx, src) })
	if usage := new(warm.UsageError); errors.As(err, &usage) {
		return &config.Error{What: err.Error(), Where: "the list"}
	}
	return err
}

// source takes what one source asks for: listings at once, names are collected.
func (r *resolver) source(ctx context.Context, src warm.Source) error {
	for w := range src.Wants() {
		bucket, key, err := r.locate(src, w)
		if err != nil {
			return err
		}
		switch {
		case w.Glob != "":
			err = r.glob(ctx, bucket, src, w, key)
		case key == "" || strings.HasSuffix(key, "/"):
			_, err = r.dir(ctx, bucket, key, true)
		default:
			if r.exact[bucket] == nil {
				r.exact[bucket] = make(map[string][]string)
			}
			at := parentOf(key)
			r.exact[bucket][at] = append(r.exact[bucket][at], key)
		}
		if err != nil {
			return err
		}
	}
	return ctx.Err()
}

// locate returns where what a source asks for lies: a bucket and, within it, the name or pattern.
func (r *resolver) locate(src warm.Source, w warm.Want) (objstore.Bucket, string, error) {
	rest := w.Name
	if w.Glob != "" {
		rest = w.Glob
	}
	if bucket, ok := strings.CutPrefix(src.Base(), "s3://"); ok {
		b, _, err := bucketOf(r.n.cfg, config.URI{Bucket: strings.TrimSuffix(bucket, "/")})
		return b, rest, err
	}
	for _, root := range r.n.cfg.OriginDirs {
		if inside, ok := within(root, "/"+strings.TrimSuffix(rest, "/")); ok {
			if inside != "" && strings.HasSuffix(rest, "/") {
				inside += "/"
			}
			return objstore.Bucket{Origin: dir.Origin(root)}, inside, nil
		}
	}
	return objstore.Bucket{}, "", told{fmt.Sprintf("%s: not in a directory that this node may read as an origin: start all nodes with --origin-dir", src), objstore.ErrInvalid}
}

// uri is how a user writes a key.
func uriOf(b objstore.Bucket, key string) string {
	return chunk.Object{Origin: b.Origin, Bucket: b.Name, Key: key}.URI()
}

// list yields the pages of a listing, until yield is false.
func (r *resolver) list(ctx context.Context, b objstore.Bucket, prefix, delimiter string, yield func(objstore.Page) bool) error {
	for req := (objstore.ListRequest{Prefix: prefix, Delimiter: delimiter}); ; {
		page, _, err := r.n.names.List(ctx, objstore.Query{Bucket: b, MaxAge: time.Since(r.began)}, req)
		if err != nil {
			return err
		}
		if !yield(page) || page.Next == "" {
			return nil
		}
		req.Token = page.Next
	}
}

// add takes an object. What has no version in a listing is asked for by itself.
func (r *resolver) add(ctx context.Context, b objstore.Bucket, i objstore.Info) error {
	if i.ETag == "" {
		var err error
		key := i.Key
		if i, _, err = r.n.names.Head(ctx, objstore.Query{Bucket: b, MaxAge: time.Since(r.began)}, key); err != nil {
			return r.lost(b, key, err)
		}
		if i.ETag == "" {
			r.miss(warm.Missing{URI: uriOf(b, key), Reason: warm.Other, Detail: "the origin tells no version of it"})
			return nil
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.manifest.Len() >= warm.MaxObjects {
		return fmt.Errorf("there are more than %d objects: warm them up in several parts", warm.MaxObjects)
	}
	r.manifest.Add(chunk.Object{Origin: b.Origin, Bucket: b.Name, Key: i.Key, ETag: i.ETag, Size: i.Size})
	return nil
}

// lost notes a name of which the origin says that it cannot be had, and returns other errors.
func (r *resolver) lost(b objstore.Bucket, key string, err error) error {
	reason := reasonOf(err)
	switch {
	case errors.Is(err, objstore.ErrNoBucket):
		return told{fmt.Sprintf("%s: %v", uriOf(b, ""), objstore.ErrNoBucket), err}
	case reason == warm.Forbidden || reason == warm.NotFound:
		r.miss(warm.Missing{URI: uriOf(b, key), Reason: reason})
		return nil
	}
	return fmt.Errorf("look up %s: %w", uriOf(b, key), err)
}

// dir takes all objects below a directory, and reports whether there are any; when there must be and
// there are none it is missing.
func (r *resolver) dir(ctx context.Context, b objstore.Bucket, prefix string, must bool) (found bool, err error) {
	found, err = r.matching(ctx, b, prefix, func(string) bool { return true })
	switch {
	case err != nil:
		return found, err
	case found:
		r.mu.Lock()
		defer r.mu.Unlock()
		r.dirs = append(r.dirs, warm.Dataset{Origin: b.Origin, Bucket: b.Name, Prefix: prefix})
	case must:
		r.miss(warm.Missing{URI: uriOf(b, prefix), Reason: warm.NotFound, Detail: "nothing lies there"})
	}
	return found, nil
}

// glob takes all objects that match a pattern, which is missing when there are none.
func (r *resolver) glob(ctx context.Context, b objstore.Bucket, src warm.Source, w warm.Want, pattern string) error {
	match, prefix := warm.Matcher(pattern)
	found, err := r.matching(ctx, b, prefix, match)
	if err == nil && !found {
		r.miss(warm.Missing{URI: src.Base() + w.Glob, Reason: warm.NotFound, Detail: "nothing matches"})
	}
	return err
}

// matching takes the objects under a prefix whose keys match, markers of directories left out, and
// reports whether there are any.
func (r *resolver) matching(ctx context.Context, b objstore.Bucket, prefix string, match func(key string) bool) (found bool, err error) {
	var failed error
	err = r.list(ctx, b, prefix, "", func(p objstore.Page) bool {
		for _, o := range p.Objects {
			if strings.HasSuffix(o.Key, "/") || !match(o.Key) {
				continue
			}
			found = true
			if failed = r.add(ctx, b, o); failed != nil {
				return false
			}
		}
		return true
	})
	if err != nil {
		failed = r.lost(b, prefix, err)
		found = found || failed == nil // told to be missing
	}
	return found, failed
}

// parentOf returns the directory of a key.
func parentOf(key string) string { return key[:strings.LastIndexByte(key, '/')+1] }

// bucket takes objects of one bucket by their names. When these are in many directories, one listing of all
// may tell of most.
func (r *resolver) bucket(ctx context.Context, b objstore.Bucket, byDir map[string][]string) error {
	if len(byDir) > dirsApart {
		var all []string
		for _, names := range byDir {
			all = append(all, names...)
		}
		slices.Sort(all)
		left, err := r.byListing(ctx, b, "", "", slices.Compact(all))
		if err != nil {
			return err
		}
		clear(byDir)
		for _, name := range left {
			byDir[parentOf(name)] = append(byDir[parentOf(name)], name)
		}
	}
	group, inner := errgroup.WithContext(ctx)
	group.SetLimit(dirsAtOnce)
	for _, at := range slices.Sorted(maps.Keys(byDir)) {
		group.Go(func() error {
			names := byDir[at]
			slices.Sort(names)
			return r.names(inner, b, at, slices.Compact(names))
		})
	}
	return group.Wait()
}

// names takes objects of one directory by their names, which are sorted.
func (r *resolver) names(ctx context.Context, b objstore.Bucket, at string, names []string) error {
	left := names
	if len(names) > headsOnly {
		var err error
		if left, err = r.byListing(ctx, b, at, "/", names); err != nil {
			return err
		}
	}
	group, inner := errgroup.WithContext(ctx)
	group.SetLimit(headsAtOnce)
	for _, name := range left {
		group.Go(func() error {
			if err := r.heads.Acquire(inner, 1); err != nil {
				return err
			}
			defer r.heads.Release(1)
			return r.byName(inner, b, name)
		})
	}
	return group.Wait()
}

// byListing takes what a listing below at tells of some names, and returns those of which it told nothing.
func (r *resolver) byListing(ctx context.Context, b objstore.Bucket, at, delimiter string, names []string) (left []string, err error) {
	prefix := names[0]
	for last := names[len(names)-1]; !strings.HasPrefix(last, prefix); {
		prefix = prefix[:len(prefix)-1]
	}
	if len(prefix) < len(at) {
		prefix = at
	}
	found := make([]bool, len(names))
	count, pages := 0, 0
	var failed error
	err = r.list(ctx, b, prefix, delimiter, func(p objstore.Page) bool {
		for _, o := range p.Objects {
			i, ok := slices.BinarySearch(names, o.Key)
			if !ok || found[i] {
				continue
			}
			found[i] = true
			count++
			if failed = r.add(ctx, b, o); failed != nil {
				return false
			}
		}
		pages++
		return count < len(names) && pages <= count+pagesOnTrial
	})
	switch {
	case failed != nil:
		return nil, failed
	case err != nil && !objstore.Final(err), ctx.Err() != nil:
		return nil, fmt.Errorf("list %s: %w", uriOf(b, prefix), err)
	case errors.Is(err, objstore.ErrNoBucket):
		return nil, r.lost(b, prefix, err)
	}
	for i, name := range names {
		if !found[i] {
			left = append(left, name)
		}
	}
	if err != nil || pages > count+pagesOnTrial || len(left) <= maxDirTries {
		return left, nil // by name: it may not be listed, or be a directory
	}
	for _, name := range left { // of a complete listing
		r.miss(warm.Missing{URI: uriOf(b, name), Reason: warm.NotFound})
	}
	return nil, nil
}

// byName takes one object, or all below a directory of that name.
func (r *resolver) byName(ctx context.Context, b objstore.Bucket, name string) error {
	info, _, err := r.n.names.Head(ctx, objstore.Query{Bucket: b, MaxAge: time.Since(r.began)}, name)
	if err == nil {
		return r.add(ctx, b, info)
	}
	if !errors.Is(err, objstore.ErrNotExist) || !r.mayTry() {
		return r.lost(b, name, err)
	}
	if found, dirErr := r.dir(ctx, b, name+"/", false); dirErr != nil || found {
		return dirErr
	}
	return r.lost(b, name, err)
}

// mayTry counts the names that are looked at as directories.
func (r *resolver) mayTry() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tries++
	return r.tries <= maxDirTries
}
