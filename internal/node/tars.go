package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/shardwell/shardwell/cache"
	"github.com/shardwell/shardwell/fuse/tarindex"
	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/internal/config"
	"github.com/shardwell/shardwell/internal/control"
	"github.com/shardwell/shardwell/objstore"
)

// tarsName is the directory in the first cache directory that holds indexes of tars.
const tarsName = "tars"

// What indexes of tars may take of the first cache directory: far more than those of all
// the tars that fit it, which take some ten bytes for each of their members.
const (
	tarsShare    = 256
	minTarsBytes = 4 << 20
	maxTarsBytes = 4 << 30
)

// newTars makes the library of what this node knows of tars.
func (n *Node) newTars() *tarindex.Library {
	cfg := tarindex.Config{
		Open: (&tarReader{c: func() *cache.Cache { return n.cache }}).open, Ask: n.cluster.peers.TarIndex,
		Give: n.cluster.peers.GiveTarIndex, WholeBytes: int64(n.cfg.PlaceWhole),
		BlockBytes: n.geometry.BlockBytes, DiskTimeout: time.Duration(n.cfg.DiskTimeout), Logger: n.log,
	}
	cfg.MemoryBytes = min(tarindex.DefaultMemoryBytes, int64(n.arena.Buffers())*n.geometry.BlockBytes/4)
	cfg.ScanBytes = 4 * cfg.MemoryBytes
	if len(n.disks.dirs) > 0 {
		cfg.Dir = filepath.Join(n.disks.dirs[0].Path(), tarsName)
		_, budget := n.disks.dirs[0].Usage()
		cfg.DirBytes = max(minTarsBytes, min(maxTarsBytes, budget/tarsShare))
		cfg.Room = n.disks.dirs[0].Beside
	}
	return tarindex.NewLibrary(cfg)
}

// tarArrived lets the index of a tar grow with each of its blocks that comes.
func (n *Node) tarArrived(obj chunk.Object, id chunk.ObjectID, b chunk.Block) {
	n.tars.Arrived(obj, id, int64(b.Index)*n.geometry.BlockBytes, b.Data)
}

// tarReader reads tars on behalf of a principal, nil being the node.
type tarReader struct {
	c   func() *cache.Cache
	who *principal
}

func (r *tarReader) open(obj chunk.Object) (tarindex.Source, error) {
	f, err := r.c().OpenAs(obj, r.who.identity)
	if err != nil {
		return nil, err
	}
	return &tarSource{File: f, r: r, obj: obj}, nil
}

// tarSource is a tar in the cache. Where reads are not one after the other it is opened anew:
// what was read elsewhere says nothing about what is read next.
type tarSource struct {
	*cache.File
	r    *tarReader
	obj  chunk.Object
	next int64
}

// ReadAt implements tarindex.Source, for one reader at a time.
func (s *tarSource) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	if off != s.next {
		f, err := s.r.c().OpenAs(s.obj, s.r.who.identity)
		if err != nil {
			return 0, err
		}
		s.File.Close()
		s.File = f
	}
	s.next = off + int64(len(p))
	return s.File.ReadAt(ctx, p, off)
}

// tarView is what a mount knows of tars: what the node does, which reads them on the mount's
// behalf where it must.
type tarView struct {
	n   *Node
	who *principal
}

// Index implements fuse.Tars.
func (v tarView) Index(ctx context.Context, obj chunk.Object) (*tarindex.Index, error) {
	r := &tarReader{c: func() *cache.Cache { return v.n.cache }, who: v.who}
	return v.n.tars.IndexAs(ctx, obj, string(v.who.identity()), r.open)
}

// tarAccess is how a tar is found and read for a listing.
type tarAccess struct {
	head  func(context.Context) (objstore.Info, error)
	index func(context.Context, chunk.Object) (*tarindex.Index, error)
}

// isTar reports whether a key is named like a tar, compressed or not.
func isTar(key string) bool {
	_, compressed := tarindex.CompressedName(path.Base(key))
	return !strings.HasSuffix(key, "/") && (compressed || tarindex.TarName(path.Base(key)))
}

// listTar yields the members of a tar. It reports false when there is no such object.
func listTar(ctx context.Context, u config.URI, b objstore.Bucket, key string, yield func(control.Entry) error, a tarAccess) (done bool, err error) {
	info, err := a.head(ctx)
	if errors.Is(err, objstore.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return true, about(u, err)
	}
	if how, ok := tarindex.CompressedName(path.Base(key)); ok {
		return true, fmt.Errorf("members of %s: %s: %w", u, how, tarindex.ErrCompressed)
	}
	x, err := a.index(ctx, chunk.Object{Origin: b.Origin, Bucket: b.Name, Key: key, ETag: info.ETag, Size: info.Size})
	if err != nil {
		return true, about(u, err)
	}
	for name, e := range x.All() {
		if e.Dir {
			name += "/"
		}
		if err := yield(control.Entry{Name: name, Size: e.Size, ModTime: e.ModTime}); err != nil {
			return true, err
		}
	}
	count, left := x.LeftOut()
	for _, l := range left {
		if err := yield(control.Entry{Name: l.Name, LeftOut: l.Reason}); err != nil {
			return true, err
		}
	}
	if more := count - int64(len(left)); more > 0 {
		if err := yield(control.Entry{Name: fmt.Sprintf("%d more", more), LeftOut: "for reasons like these"}); err != nil {
			return true, err
		}
	}
	if x.Damage() != "" {
		return true, fmt.Errorf("%s: damaged, not all members can be listed: %s", u, x.Damage())
	}
	return true, nil
}

// originTar reads tars of a store, where there is no node.
type originTar struct{ store objstore.Store }

// originBlockBytes is how much of a tar is read at a time there.
const originBlockBytes = 1 << 20

// Index makes the index of a tar.
func (o originTar) Index(ctx context.Context, obj chunk.Object) (*tarindex.Index, error) {
	x, err := tarindex.Scan(obj.Size, originBlockBytes, func(p []byte, off int64) error {
		body, err := o.store.Get(ctx, obj.Key, obj.ETag, off, int64(len(p)))
		if err != nil {
			return err
		}
		defer body.Close()
		_, err = io.ReadFull(body, p)
		return err
	})
	if err == nil {
		err = x.Err()
	}
	if err != nil {
		return nil, fmt.Errorf("index %s: %w", obj.URI(), err)
	}
	return x, nil
}
