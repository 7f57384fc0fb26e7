package fuse

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"github.com/shardwell/shardwell/fuse/prefetch"
	"github.com/shardwell/shardwell/fuse/snapshot"
	"github.com/shardwell/shardwell/fuse/tree"
	"golang.org/x/sys/unix"
)

// Limits of what a request may cost that ends its server each time.
const (
	againBeforeDock = 4           // times that a request may come among others after crashes; then it is tried alone,
	killsBeforeDock = 16          // and so often when the server before this one was killed, perhaps from outside
	maxBlame        = 96          // of a request, until it is answered with EIO
	blameOfCrash    = 8           // for a server that crashed while it was tried,
	blameOfKill     = 1           // and for one that was killed, perhaps from outside
	docked          = time.Second // for so long; what takes longer is not what ended them
)

// Leave stops serving and leaves the mount as it is. Run, which has begun, returns nil;
// requests that were not answered stay with the kernel, which gives them to a successor:
// a Session with the same State and listings that goes on by Adopt with the kernel's end of
// the mount, which somebody has beside this Session. Until then the mount's users wait.
func (s *Session) Leave(ctx context.Context) error {
	select {
	case <-s.began:
	default:
		return fmt.Errorf("hand over %s: not serving yet", s.cfg.uri())
	}
	s.leaving.Store(true)
	if err := s.signalStop(); err != nil {
		return fmt.Errorf("hand over %s: %w", s.cfg.uri(), err)
	}
	select {
	case <-s.ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// HandOver is Leave, and returns the kernel's end of the mount. It is called before Close.
func (s *Session) HandOver(ctx context.Context) (*os.File, error) {
	if err := s.Leave(ctx); err != nil {
		return nil, err
	}
	dev := s.kept.Swap(nil)
	if dev == nil {
		return nil, fmt.Errorf("hand over %s: the mount is gone", s.cfg.uri())
	}
	return dev, nil
}

// ListingsFile returns what a successor in another process needs as Config.Listings. It is
// borrowed until Close; nil says that all is in the State.
func (s *Session) ListingsFile() *os.File { return s.store.File() }

// Device returns the kernel's end of the mount as a file of its own, for whoever keeps it.
func (s *Session) Device() (*os.File, error) {
	s.devMu.Lock()
	defer s.devMu.Unlock()
	fd, err := unix.FcntlInt(uintptr(s.dev), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("kernel's end of %s: %w", s.Dir(), err)
	}
	return os.NewFile(uintptr(fd), "/dev/fuse"), nil
}

// DeviceNumber returns the device of the mounted file system, as "major:minor".
func (s *Session) DeviceNumber() string { return s.device }

// Adopt goes on with the mount of a predecessor in dir; dev is what its HandOver
// returned, or its keeper, and device the number of the file system as "major:minor", "" if
// that is not known: another may be mounted on dir by now. The session takes dev over. The
// predecessor must be gone.
func (s *Session) Adopt(dev *os.File, dir, device string) error {
	if request, _ := s.state.Init(); request == nil && !s.cfg.Resume || s.dev >= 0 {
		return fmt.Errorf("adopt %s: no state of a predecessor, or mounted already", dir)
	}
	fd, err := ownDevice(dev)
	if err != nil {
		return fmt.Errorf("adopt %s: %w", dir, err)
	}
	s.attach(fd, Canonical(dir), device)
	s.adopted = true
	return nil
}

// CheckResume reports why a Session made with cfg could not go on with a mount whose
// state and listings are given, which stay as they are and may be in use.
func CheckResume(cfg Config, state SessionState, listings *os.File) error {
	cfg.setDefaults()
	if listings != nil {
		if err := snapshot.Readable(listings, cfg.identity()); err != nil {
			return fmt.Errorf("resume %s: %w", cfg.uri(), err)
		}
	}
	request, reply := state.Init()
	if request == nil {
		return nil
	}
	s := &Session{cfg: cfg}
	s.ps = gofuse.NewProtocolServer(&rawFS{RawFileSystem: gofuse.NewDefaultRawFileSystem(), s: s}, cfg.protocolOptions(cfg.Logger))
	return s.agreesAgain(request, reply)
}

// agreesAgain replays what was agreed with the kernel, which all servers of a mount must mean.
func (s *Session) agreesAgain(request, reply []byte) error {
	again, err := s.initReply(request)
	if err != nil {
		return fmt.Errorf("resume %s: %w", s.cfg.uri(), err)
	}
	// The id of the request is another when it came again.
	if len(again) != len(reply) || !bytes.Equal(again[:8], reply[:8]) || !bytes.Equal(again[replyHeaderBytes:], reply[replyHeaderBytes:]) {
		return fmt.Errorf("resume %s: the mount was made with other options or by another version", s.cfg.uri())
	}
	return nil
}

// resume brings the session to where its predecessor was: the protocol that it agreed
// on, the files that are open, and what will be read.
func (s *Session) resume(request, reply []byte) error {
	if err := s.agreesAgain(request, reply); err != nil {
		return err
	}
	s.agreed(request, reply)
	s.readyOnce.Do(func() { close(s.ready) })
	for _, h := range s.state.Handles() {
		s.restore(h)
	}
	if state, ok := s.state.(PlanState); ok {
		s.next.restore(state.Plans())
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
		var c extent
		if c, err = s.extent(n); err == nil {
			h.size, h.key, h.reads = c.size, c.name, prefetch.New(c.name, c.size)
			h.file, err = s.open(c)
		}
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

// takeUp goes on where a predecessor was stopped: it closes what that left behind and
// has the kernel queue again what it took and did not answer.
func (s *Session) takeUp() error {
	s.sweepBacking()
	if request, _ := s.state.Init(); request == nil || s.resends.Load() {
		if errno := s.notify(gofuse.NOTIFY_RESEND, nil); errno != 0 && request != nil {
			return fmt.Errorf("take over %s: have requests sent again: %w", s.Dir(), errno)
		}
		return nil
	}
	all := s.notes.Unanswered()
	s.log.Warn("file system: the kernel (before 6.9) does not send requests again: those that a predecessor took fail", "requests", len(all))
	for _, unique := range all {
		s.replyError(unique, syscall.EIO)
		s.notes.Answered(unique)
	}
	return nil
}

// maxLeaked bounds how many ids are tried beside one that a predecessor may have left.
const maxLeaked = 64

// sweepBacking unregisters files that a predecessor registered for passthrough, or was
// about to unregister, when it was killed. The kernel gives ids out in a circle: one that
// nobody noted lies between the last that was noted and the next.
func (s *Session) sweepBacking() {
	if !s.passthrough.Load() {
		return
	}
	t := &s.opens
	t.mu.Lock()
	defer t.mu.Unlock()
	used := make(map[int32]bool)
	for _, ino := range t.inodes {
		used[ino.backing] = true
	}
	swept := 0
	sweep := func(id int32) {
		if id > 0 && !used[id] && closeBacking(s.dev, id) == 0 {
			swept++
		}
	}
	sweep(s.notes.BackingClosing())
	s.notes.ClosingBacking(0)
	next, ok := s.nextBacking()
	if !ok {
		return
	}
	last := s.notes.LastBacking()
	for i := int32(1); i <= maxLeaked && (next <= last || next-i >= last); i++ {
		sweep(next - i)
	}
	if next <= last { // once round
		for i := range int32(maxLeaked) {
			sweep(last + i) // negative beyond the highest, which is none
		}
	}
	s.notes.BackingOpened(next)
	if swept > 0 {
		s.log.Info("file system: files that a predecessor left registered are closed", "files", swept)
	}
}

// nextBacking returns the id that the kernel gives out now.
func (s *Session) nextBacking() (int32, bool) {
	f := s.store.File()
	if f == nil {
		return 0, false
	}
	id, errno := openBacking(s.dev, f)
	if errno != 0 {
		return 0, false
	}
	closeBacking(s.dev, id)
	return id, true
}

// again decides about a request that may have been a predecessor's. done says that it is
// answered; alone that it is to be tried alone.
func (s *Session) again(h gofuse.InHeader) (alone, done bool) {
	key := h.Unique &^ uniqueResent
	times, blame := s.notes.Taken(key)
	if blame < maxBlame {
		if s.cfg.Crashed {
			return times > againBeforeDock, false
		}
		return times > killsBeforeDock, false
	}
	s.log.Error("file system: a request that ended its servers again and again fails", "operation", opOf(h.Opcode).String(), "node", h.NodeId, "times", times)
	s.replyError(h.Unique, syscall.EIO)
	return false, true
}

// tryAlone waits until no other request is under suspicion, and puts r there. leave ends
// that; it may be called again. False says that the caller does not wait any more.
func (s *Session) tryAlone(r *request) (leave func(), ok bool) {
	select {
	case s.dock <- struct{}{}:
	case <-r.ctx.Done():
		return nil, false
	}
	s.notes.Dock(headerOf(r.bytes).Unique &^ uniqueResent)
	free := sync.OnceFunc(func() {
		s.notes.Dock(0)
		<-s.dock
	})
	timer := time.AfterFunc(docked, free)
	return func() {
		timer.Stop()
		free()
	}, true
}

// lostFile is an open file that could not be opened again.
type lostFile struct{ err error }

func (f lostFile) ReadAt(context.Context, []byte, int64) (int, error) { return 0, f.err }
func (f lostFile) Prefetch(int64, int64)                              {}
func (f lostFile) Backing() (*os.File, bool)                          { return nil, false }
func (f lostFile) CachedBytes() int64                                 { return 0 }
func (f lostFile) Close()                                             {}
