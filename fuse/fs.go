package fuse

import (
	"context"
	"fmt"
	"runtime/debug"
	"syscall"
	"time"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"github.com/shardwell/shardwell/fuse/snapshot"
	"github.com/shardwell/shardwell/fuse/tree"
	"github.com/shardwell/shardwell/objstore"
)

// rawFS answers the requests that the loop hands to go-fuse. Reads of data are not
// among them: serveRead answers those.
type rawFS struct {
	gofuse.RawFileSystem // what is not implemented here answers ENOSYS
	s                    *Session
}

const blockBytes = 1 << 20 // st_blksize: readers that honour it read in full replies

func (f *rawFS) String() string { return "shardwell" }

func (f *rawFS) Lookup(_ <-chan struct{}, h *gofuse.InHeader, name string, out *gofuse.EntryOut) gofuse.Status {
	s := f.s
	d, ok, err := s.directory(h.NodeId)
	if err != nil {
		return s.fail(err, "look up", name)
	}
	if !ok {
		return gofuse.ENOENT
	}
	r := s.inflight.get(h.Unique)
	var a found
	if r.answer != nil {
		a = *r.answer
	} else if a, err = s.lookupOnce(r.ctx, d, name, h); err != nil {
		return s.fail(err, "look up", s.dirName(d)+name)
	}
	if a.absent {
		if a.holds <= 0 || !s.epochs.Load() { // which alone make the kernel forget that there is none
			return gofuse.ENOENT
		}
		out.SetEntryTimeout(kernelTime(a.holds)) // node id 0: the kernel remembers
		return gofuse.OK
	}
	s.entryOut(a.dir, a.index, a.holds, out)
	return gofuse.OK
}

// lookupOnce answers a look-up; when the kernel repeats one that waited in vain, in the
// same call of the same thread, at once.
func (s *Session) lookupOnce(ctx context.Context, d *snapshot.Dir, name string, h *gofuse.InHeader) (found, error) {
	this := failedLookup{parent: h.NodeId, name: name, thread: h.Pid}
	if s.failed.take(this) {
		return found{}, fmt.Errorf("look up %q again: %w", name, objstore.ErrUnavailable)
	}
	began := time.Now()
	find := s.lookup
	if s.cfg.Tars != nil || d.Aside {
		find = s.lookupView
	}
	a, err := find(ctx, d, name)
	if isSilence(err) && time.Since(began) >= sameCall {
		s.failed.add(this)
	}
	return a, err
}

// knowsAnswer returns the answer to a LOOKUP when that takes no waiting. A page of the
// listing that cannot be read is found out by whoever answers.
func (s *Session) knowsAnswer(parent uint64, req []byte) (f found, ok bool) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if recover() != nil {
			ok = false
		}
	}()
	d := s.store.Known(parent)
	if d == nil || d.Aside {
		return found{}, false
	}
	name := nameOf(req)
	f, ok = s.known(d, name, time.Now())
	if ok && f.absent && name == tarViewName && s.cfg.Tars != nil {
		return found{}, false // there may be one all the same
	}
	return f, ok
}

// kernelTime bounds how long the kernel keeps an answer.
func kernelTime(d time.Duration) time.Duration { return min(max(d, 0), forever) }

// entryOut describes an entry to the kernel. Its attributes never change, for a new
// version is a new node; the name's meaning holds for a time.
func (s *Session) entryOut(d *snapshot.Dir, index uint32, holds time.Duration, out *gofuse.EntryOut) {
	out.NodeId = d.NodeID(index)
	out.SetEntryTimeout(kernelTime(holds))
	out.SetAttrTimeout(forever)
	s.attr(node{id: out.NodeId, owner: d, index: index, view: d.View(index, false)}, &out.Attr)
}

func (s *Session) attr(n node, out *gofuse.Attr) {
	out.Ino = n.id
	out.Mode = s.cfg.mode(n.view.Kind)
	out.Owner = gofuse.Owner{Uid: s.cfg.UID, Gid: s.cfg.GID}
	out.Nlink = 1
	out.Blksize = blockBytes
	if n.view.Kind == tree.Dir {
		out.Nlink = 2
	} else {
		out.Size = uint64(n.view.Size)
		out.Blocks = (out.Size + 511) / 512
	}
	t := n.view.ModTime
	if t == 0 {
		t = s.store.Created().UnixNano() // the origin knows no time of directories
	}
	at := time.Unix(0, t)
	sec, nsec := uint64(at.Unix()), uint32(at.Nanosecond())
	out.Atime, out.Mtime, out.Ctime = sec, sec, sec
	out.Atimensec, out.Mtimensec, out.Ctimensec = nsec, nsec, nsec
}

func (f *rawFS) GetAttr(_ <-chan struct{}, in *gofuse.GetAttrIn, out *gofuse.AttrOut) gofuse.Status {
	n, ok := f.s.node(in.NodeId, false)
	if !ok || n.view.Gone {
		return gofuse.Status(syscall.ESTALE)
	}
	out.SetTimeout(forever)
	f.s.attr(n, &out.Attr)
	return gofuse.OK
}

func (f *rawFS) StatFs(_ <-chan struct{}, _ *gofuse.InHeader, out *gofuse.StatfsOut) gofuse.Status {
	// What has been seen of the bucket is used, and nothing is free.
	const unit = 4096
	seen := f.s.store.Counts()
	out.Bsize, out.Frsize = blockBytes, unit
	out.Blocks = (uint64(max(0, seen.Bytes)) + unit - 1) / unit
	out.Files = uint64(1 + seen.Files + seen.Dirs)
	out.NameLen = tree.MaxNameBytes
	return gofuse.OK
}

func (f *rawFS) Access(_ <-chan struct{}, in *gofuse.AccessIn) gofuse.Status {
	if in.Mask&gofuse.W_OK != 0 {
		return gofuse.EROFS
	}
	return gofuse.OK // the kernel checks permission bits itself
}

func (f *rawFS) OpenDir(_ <-chan struct{}, _ *gofuse.OpenIn, _ *gofuse.OpenOut) gofuse.Status {
	return gofuse.OK // cookies say it all
}

func (f *rawFS) ReleaseDir(*gofuse.ReleaseIn) {}

func (f *rawFS) FsyncDir(<-chan struct{}, *gofuse.FsyncIn) gofuse.Status { return gofuse.OK }

func (f *rawFS) Fsync(<-chan struct{}, *gofuse.FsyncIn) gofuse.Status { return gofuse.OK }

// fail translates an error for the kernel and logs what is not the caller's doing.
func (s *Session) fail(err error, operation, object string) gofuse.Status {
	errno := toErrno(err, atLookup)
	s.logError(errno, err, operation, object)
	return gofuse.Status(errno)
}

// logError logs an error once, at most some a second: a dead origin fails every read.
func (s *Session) logError(errno syscall.Errno, err error, operation, object string) {
	switch errno {
	case 0, syscall.ENOENT, syscall.EINTR:
		return
	}
	if s.logRate.Allow() {
		s.log.Warn("file system: "+operation+" failed", "object", object, "errno", errno.Error(), "error", err)
	}
}
