package fuse

import (
	"context"
	"encoding/binary"
	"errors"
	"strings"
	"syscall"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"github.com/shardwell/shardwell/fuse/snapshot"
)

// maxNotices is how many calls of Forget may wait for the kernel to be told.
const maxNotices = 64

// notice asks for the kernel's entries under a key prefix to be dropped.
type notice struct {
	prefix string
	done   chan struct{}
}

// Forget drops what is known of the names under a key prefix of the bucket, in this
// session and in the kernel: the next look-up or open asks anew. It waits until the
// kernel was told, or the session or ctx ends. Open files go on.
func (s *Session) Forget(ctx context.Context, prefix string) error {
	var errs []error
	s.store.Dirs(func(d *snapshot.Dir) bool {
		if strings.HasPrefix(d.Prefix, prefix) {
			errs = append(errs, s.dirs.of(d).forget(""))
		} else if rest, ok := strings.CutPrefix(prefix, d.Prefix); ok {
			name, _, _ := strings.Cut(rest, "/") // the one on the way down, or the beginning of some
			errs = append(errs, s.dirs.of(d).forget(name))
		}
		return true
	})
	s.absent.forget()
	return errors.Join(append(errs, s.tellKernel(ctx, prefix))...)
}

// tellKernel has the kernel drop what it knows under a key prefix.
func (s *Session) tellKernel(ctx context.Context, prefix string) error {
	n := notice{prefix: prefix, done: make(chan struct{})}
	select {
	case <-s.ready:
	default:
		return nil // the kernel knows nothing yet
	}
	select {
	case s.notices <- n:
	case <-s.ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case <-n.done:
	case <-s.ended:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// sendNotices tells the kernel to drop entries, from a goroutine of its own: the
// kernel may hold locks that a request being served needs.
func (s *Session) sendNotices(ctx context.Context) {
	for {
		select {
		case n := <-s.notices:
			if !s.epochs.Load() || s.notify(gofuse.NOTIFY_INC_EPOCH, nil) != 0 {
				s.dropEntries(ctx, n.prefix)
			}
			close(n.done)
		case <-ctx.Done():
			return
		}
	}
}

// dropEntries has each entry under a prefix dropped that the kernel may know.
func (s *Session) dropEntries(ctx context.Context, prefix string) {
	s.store.Dirs(func(d *snapshot.Dir) bool {
		if !strings.HasPrefix(d.Prefix, prefix) && !strings.HasPrefix(prefix, d.Prefix) {
			return true
		}
		for i := uint32(0); i < d.Len() && ctx.Err() == nil; i++ {
			v := d.View(i, false)
			if key := d.Prefix + string(v.Name); v.Replaces || !strings.HasPrefix(key, prefix) && !strings.HasPrefix(prefix, key) {
				continue
			}
			s.notify(gofuse.NOTIFY_INVAL_ENTRY, inval(d.ID, v.Name))
		}
		s.dropTars(ctx, d)
		return ctx.Err() == nil
	})
}

// inval is the body of a notice about one entry: parent, length of the name, flags,
// name, NUL.
func inval(parent uint64, name []byte) []byte {
	b := make([]byte, 16, 16+len(name)+1)
	binary.NativeEndian.PutUint64(b[0:], parent)
	binary.NativeEndian.PutUint32(b[8:], uint32(len(name)))
	b = append(b, name...)
	return append(b, 0)
}

// notify sends the kernel what it did not ask for. ENOENT, from an entry that it
// does not know, is no error.
func (s *Session) notify(code int32, body []byte) syscall.Errno {
	b := make([]byte, replyHeaderBytes, replyHeaderBytes+len(body))
	b = append(b, body...)
	putHeader(b, len(b), 0, 0)
	binary.NativeEndian.PutUint32(b[4:], uint32(-code))
	for {
		_, err := syscall.Write(s.dev, b)
		switch err {
		case nil, syscall.ENOENT:
			return 0
		case syscall.EINTR:
			continue
		}
		errno, _ := err.(syscall.Errno)
		return errno
	}
}
