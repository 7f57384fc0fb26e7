package fuse

import (
	"strconv"
	"strings"
	"syscall"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"github.com/shardwell/shardwell/fuse/snapshot"
	"github.com/shardwell/shardwell/fuse/tree"
)

// Extended attributes of files. Directories have the source only.
const (
	xattrETag        = "user.shardwell.etag"         // of the version, as the origin gives it
	xattrVersion     = "user.shardwell.version"      // its identity in the cluster, 32 hexadecimal digits
	xattrSource      = "user.shardwell.source"       // URI
	xattrCached      = "user.shardwell.cached"       // share of the bytes on this node, 0.0000 to 1.0000
	xattrCachedBytes = "user.shardwell.cached_bytes" // the same in bytes
	xattrPlan        = "user.shardwell.plan"         // of directories, and not listed: how far the plans of the mount are
)

var (
	fileXattrs = []string{xattrETag, xattrVersion, xattrSource, xattrCached, xattrCachedBytes}
	dirXattrs  = []string{xattrSource}

	// Of a member of a tar they are the tar's.
	memberXattrs = []string{xattrETag, xattrVersion, xattrSource}
)

func (f *rawFS) ListXAttr(_ <-chan struct{}, h *gofuse.InHeader, dest []byte) (uint32, gofuse.Status) {
	n, ok := f.s.node(h.NodeId, false)
	if !ok {
		return 0, gofuse.Status(syscall.ESTALE)
	}
	names := fileXattrs
	switch {
	case n.view.Kind == tree.Dir:
		names = dirXattrs
	case n.owner.Aside:
		names = memberXattrs
	}
	return give(dest, strings.Join(names, "\x00")+"\x00")
}

func (f *rawFS) GetXAttr(_ <-chan struct{}, h *gofuse.InHeader, attr string, dest []byte) (uint32, gofuse.Status) {
	n, ok := f.s.node(h.NodeId, true)
	if !ok {
		return 0, gofuse.Status(syscall.ESTALE)
	}
	if n.view.Kind == tree.Dir {
		if attr == xattrPlan {
			return give(dest, f.s.next.describe())
		}
		d, ok, err := f.s.directory(h.NodeId)
		if err != nil || !ok || attr != xattrSource {
			return 0, gofuse.ENODATA
		}
		return give(dest, f.s.sourceOf(d))
	}
	c, err := f.s.extent(n)
	if err != nil {
		return 0, f.s.fail(err, "look at", string(n.view.Name))
	}
	obj := c.obj
	switch attr {
	case xattrETag:
		return give(dest, obj.ETag)
	case xattrVersion:
		return give(dest, obj.ID().String())
	case xattrSource:
		return give(dest, obj.URI())
	case xattrCached, xattrCachedBytes:
		if c.tar != nil {
			return 0, gofuse.ENODATA
		}
		if f.s.proveWithin() > 0 { // how much of it others read is theirs to know
			if _, err := f.s.recheck(f.s.inflight.context(h.Unique), n.owner, n.index, f.s.openAge()); err != nil {
				return 0, f.s.fail(err, "look at the cache of", obj.Key)
			}
		}
		file, err := f.s.cfg.Data.Open(obj)
		if err != nil {
			return 0, f.s.fail(err, "look at the cache of", obj.Key)
		}
		defer file.Close()
		bytes := file.CachedBytes()
		if attr == xattrCachedBytes {
			return give(dest, strconv.FormatInt(bytes, 10))
		}
		share := 1.0
		if obj.Size > 0 {
			share = float64(bytes) / float64(obj.Size)
		}
		return give(dest, strconv.FormatFloat(share, 'f', 4, 64))
	}
	return 0, gofuse.ENODATA
}

// sourceOf returns the URI of what a directory shows.
func (s *Session) sourceOf(d *snapshot.Dir) string {
	if !d.Aside {
		return s.cfg.keyURI(d.Prefix)
	}
	p, err := s.tarPlace(d)
	switch {
	case err != nil:
		return ""
	case p.inside():
		return p.tar.URI()
	}
	return s.cfg.keyURI(p.keys.Prefix)
}

// keyURI returns how a user writes a key or prefix of the bucket.
func (c *Config) keyURI(key string) string {
	if c.Bucket.Name == "" {
		return c.Bucket.Origin + "/" + key
	}
	return "s3://" + c.Bucket.Name + "/" + key
}

// give copies a value to where it is wanted. Without room there it tells the size.
func give(dest []byte, value string) (uint32, gofuse.Status) {
	if len(dest) < len(value) {
		return uint32(len(value)), gofuse.ERANGE
	}
	return uint32(copy(dest, value)), gofuse.OK
}
