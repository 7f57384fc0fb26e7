package fuse

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"github.com/shardwell/shardwell/fuse/prefetch"
	"github.com/shardwell/shardwell/fuse/tree"
	"golang.org/x/sys/unix"
)

// HandOver stops serving and leaves the mount as it is. Run returns nil; requests
// that were not answered stay with the kernel, which gives them to the successor. It
// returns the kernel's end of the mount: a Session made with the same State and
// StateDir goes on with it by Adopt. Until then the mount's users wait.
func (s *Session) HandOver(ctx context.Context) (*os.File, error) {
	select {
	case <-s.ready:
	default:
		return nil, fmt.Errorf("hand over %s: not serving yet", s.cfg.uri())
	}
	s.leaving.Store(true)
	if err := s.signalStop(); err != nil {
		return nil, fmt.Errorf("hand over %s: %w", s.cfg.uri(), err)
	}
	select {
	case <-s.ended:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	dev := s.kept.Swap(nil)
	if dev == nil {
		return nil, fmt.Errorf("hand over %s: the mount is gone", s.cfg.uri())
	}
	return dev, nil
}

// Adopt goes on with the mount of a predecessor in dir; dev is what its HandOver
// returned. The session takes dev over.
func (s *Session) Adopt(dev *os.File, dir string) error {
	if request, _ := s.state.Init(); request == nil || s.dev >= 0 {
		return fmt.Errorf("adopt %s: no state of a predecessor, or mounted already", dir)
	}
	fd, err := unix.FcntlInt(dev.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err == nil {
		err = errors.Join(unix.SetNonblock(fd, true), dev.Close())
	}
	if err != nil {
		return fmt.Errorf("adopt %s: %w", dir, err)
	}
	s.attach(fd, Canonical(dir))
	s.adopted = true
	return nil
}

// resume brings the session to where its predecessor was: the protocol that it agreed
// on, and the files that are open.
func (s *Session) resume(request, reply []byte) error {
	again, err := s.initReply(request)
	if err != nil {
		return fmt.Errorf("resume %s: %w", s.cfg.uri(), err)
	}
	if !bytes.Equal(again, reply) {
		return fmt.Errorf("resume %s: the mount was made with other options or by another version", s.cfg.uri())
	}
	s.agreed(request, reply)
	close(s.ready)
	for _, h := range s.state.Handles() {
		s.restore(h)
	}
	return nil
}

// restore opens again what the kernel has open. A file that cannot be opened any
// more fails its reads.
func (s *Session) restore(rec Handle) {
	h := &handle{Handle: rec}
	n, ok := s.node(rec.NodeID, true)
	var err error
	if !ok || n.owner == nil || n.view.Kind != tree.File {
		err = syscall.ESTALE
	} else {
		obj := s.object(n)
		h.size, h.key, h.reads = obj.Size, obj.Key, prefetch.New(obj.Key, obj.Size)
		h.file, err = s.cfg.Data.Open(obj)
	}
	if err != nil {
		s.log.Error("file system: open file is lost", "object", h.key, "error", err)
		h.file = lostFile{err}
	}
	t := &s.opens
	t.mu.Lock()
	defer t.mu.Unlock()
	ino := t.inodes[rec.NodeID]
	if ino == nil {
		ino = &inode{}
		t.inodes[rec.NodeID] = ino
	}
	if rec.Backing == 0 {
		ino.buffered++
	} else {
		if ino.passing == 0 {
			s.stats.OpenBacking.Add(1)
		}
		ino.passing++
		ino.backing = rec.Backing
	}
	t.handles[rec.FH], t.replies[opened{rec.Unique, rec.NodeID}] = h, h
	s.stats.OpenFiles.Add(1)
}

// resend has the kernel queue again what a predecessor took and did not answer.
func (s *Session) resend() error {
	if errno := s.notify(gofuse.NOTIFY_RESEND, nil); errno != 0 {
		return fmt.Errorf("take over %s: the kernel does not send requests again: %w", s.Dir(), errno)
	}
	return nil
}

// lostFile is an open file that could not be opened again.
type lostFile struct{ err error }

func (f lostFile) ReadAt(context.Context, []byte, int64) (int, error) { return 0, f.err }
func (f lostFile) Prefetch(int64, int64)                              {}
func (f lostFile) Backing() (*os.File, bool)                          { return nil, false }
func (f lostFile) CachedBytes() int64                                 { return 0 }
func (f lostFile) Close()                                             {}
