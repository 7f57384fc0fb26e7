package fuse

import (
	"context"
	"syscall"
	"time"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"github.com/shardwell/shardwell/fuse/snapshot"
	"github.com/shardwell/shardwell/fuse/tree"
)

// Cookies. An entry's is its index plus one; the two entries that every directory
// has lie behind all indices, though they come first.
const (
	cookieDot    = 1 << 62
	cookieDotDot = cookieDot + 1
)

// firstIndex is the index at which a read of a directory from a cookie goes on.
func firstIndex(cookie uint64) uint32 {
	if cookie >= cookieDot {
		return 0
	}
	return uint32(cookie)
}

// serveReaddir waits for the names first and takes a reply buffer when they are there.
func (s *Session) serveReaddir(r *request) syscall.Errno {
	in := readInOf(r.bytes)
	if in == nil {
		s.replyError(headerOf(r.bytes).Unique, syscall.EIO)
		return syscall.EIO
	}
	d, ok, err := s.directory(in.NodeId)
	switch {
	case err != nil:
	case !ok:
		err = syscall.ENOTDIR
	default:
		err = s.awaitAny(r.ctx, d, in.Offset)
	}
	if err != nil {
		errno := toErrno(err, atLookup)
		prefix := ""
		if d != nil {
			prefix = s.dirName(d)
		}
		s.logError(errno, err, "list", prefix)
		s.replyError(in.Unique, errno)
		return errno
	}
	return s.serveSized(r, in.InHeader, int(in.Size))
}

func (f *rawFS) ReadDir(_ <-chan struct{}, in *gofuse.ReadIn, out *gofuse.DirEntryList) gofuse.Status {
	return f.s.fill(in, out, func(e gofuse.DirEntry, _ *snapshot.Dir, _ uint32, _ time.Duration) bool {
		return out.AddDirEntry(e)
	})
}

func (f *rawFS) ReadDirPlus(_ <-chan struct{}, in *gofuse.ReadIn, out *gofuse.DirEntryList) gofuse.Status {
	return f.s.fill(in, out, func(e gofuse.DirEntry, d *snapshot.Dir, index uint32, holds time.Duration) bool {
		entry := out.AddDirLookupEntry(e)
		if entry == nil {
			return false
		}
		if d != nil {
			f.s.entryOut(d, index, holds, entry)
		} else {
			entry.Attr.Mode = e.Mode // "." and "..": node id 0, nothing to remember
		}
		return true
	})
}

// adder appends an entry to a reply; false when it does not fit.
type adder func(e gofuse.DirEntry, d *snapshot.Dir, index uint32, holds time.Duration) bool

// fill writes entries from the cookie in.Offset on. An empty reply means the end of
// the directory to the kernel, so it waits again rather than give one too early.
func (s *Session) fill(in *gofuse.ReadIn, out *gofuse.DirEntryList, add adder) gofuse.Status {
	d, ok, err := s.directory(in.NodeId)
	if err != nil || !ok {
		return s.fail(err, "list", "")
	}
	dots := [...]gofuse.DirEntry{
		{Name: ".", Mode: syscall.S_IFDIR, Ino: in.NodeId, Off: cookieDot},
		{Name: "..", Mode: syscall.S_IFDIR, Ino: s.parent(in.NodeId), Off: cookieDotDot},
	}
	added := 0
	for i, e := range dots {
		if in.Offset == 0 || in.Offset == cookieDot && i == 1 {
			if !add(e, nil, 0, 0) {
				return fits(added)
			}
			added++
		}
	}
	index := firstIndex(in.Offset)
	ctx := s.inflight.context(in.Unique)
	for {
		full, end, err := s.fillAny(ctx, d, &index, &added, add)
		if err != nil {
			return s.fail(err, "list", s.dirName(d))
		}
		if full {
			return fits(added)
		}
		if end || added > 0 {
			return gofuse.OK
		}
		if err := s.awaitAny(ctx, d, uint64(index)); err != nil {
			return s.fail(err, "list", s.dirName(d))
		}
	}
}

// awaitAny is await for a directory of whatever kind.
func (s *Session) awaitAny(ctx context.Context, d *snapshot.Dir, cookie uint64) error {
	if d.Aside {
		return s.awaitAside(ctx, d, cookie)
	}
	return s.await(ctx, s.dirs.of(d), firstIndex(cookie))
}

// fillAny is fillFrom for a directory of whatever kind.
func (s *Session) fillAny(ctx context.Context, d *snapshot.Dir, index *uint32, added *int, add adder) (full, end bool, err error) {
	if d.Aside {
		return s.fillAside(ctx, d, index, added, add)
	}
	full, end = s.fillFrom(s.dirs.of(d), index, added, add)
	return full, end, nil
}

// dirName is how a person would name a directory, with a slash at the end but for the root.
func (s *Session) dirName(d *snapshot.Dir) string {
	if d.Aside {
		if p, err := s.tarPlace(d); err == nil {
			return p.name(d)
		}
	}
	return d.Prefix
}

// entryOf describes an entry for a listing in which it has a place.
func entryOf(d *snapshot.Dir, index, place uint32) gofuse.DirEntry {
	view := d.View(index, false)
	return gofuse.DirEntry{Name: string(view.Name), Mode: typeOf(view.Kind), Ino: d.NodeID(index), Off: uint64(place) + 1}
}

// fits is the answer when the buffer is full: fine unless nothing went in, which
// the kernel would take for the end.
func fits(added int) gofuse.Status {
	if added == 0 {
		return gofuse.EINVAL
	}
	return gofuse.OK
}

// fillFrom adds what can be shown from *index on. end says that there is no more.
func (s *Session) fillFrom(dir *directory, index *uint32, added *int, add adder) (full, end bool) {
	dir.mu.Lock()
	defer dir.mu.Unlock()
	d := dir.snap
	now, maxAge := time.Now(), s.maxAge()
	for ; *index < d.Len(); *index++ {
		current, v := dir.judge(*index)
		if v == unsure {
			return false, false
		}
		if v == hide {
			continue
		}
		if !add(entryOf(d, current, *index), d, current, left(d.Verified(current), maxAge, now)) {
			return true, false
		}
		*added++
	}
	return false, dir.listing == nil || dir.listing.passed
}

func typeOf(kind tree.Kind) uint32 {
	if kind == tree.Dir {
		return syscall.S_IFDIR
	}
	return syscall.S_IFREG
}

// parent returns the node id of the directory in which a directory lies.
func (s *Session) parent(id uint64) uint64 {
	n, ok := s.node(id, false)
	switch {
	case !ok || n.owner == nil:
		return snapshot.RootID
	case n.owner.Aside && n.view.Kind == tree.Dir:
		if d, _, err := s.directory(id); err == nil && d != nil {
			if p, err := s.tarPlace(d); err == nil && !p.inside() {
				return p.keys.ID
			}
		}
	}
	return n.owner.ID
}
