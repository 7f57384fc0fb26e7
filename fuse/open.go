package fuse

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"
	"unsafe"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"github.com/shardwell/shardwell/fuse/prefetch"
	"github.com/shardwell/shardwell/fuse/tree"
	"golang.org/x/sys/unix"

	"github.com/shardwell/shardwell/objstore"
)

// handle is one open file.
type handle struct {
	Handle
	file File
	size int64
	key  string

	thread uint32 // that opened it, if the next files are known by what it reads; 0 else

	mu     sync.Mutex // guards reads
	reads  prefetch.Detector
	walked bool // they were told so; under mu
	marked bool // counted among the streams of the session; under mu
}

// inode counts the opens of one node. The kernel wants all opens of an inode alike:
// all through the daemon, or all through one backing file. Only direct I/O, which uses no pages of the inode,
// may be asked for beside a backing file, and overrides it.
type inode struct {
	buffered int
	passing  int
	backing  int32 // registered while passing > 0
}

// openTable holds the open files of a session.
type openTable struct {
	mu      sync.Mutex
	handles map[uint64]*handle // by FH
	inodes  map[uint64]*inode  // by node id
	replies map[opened]*handle // by OPEN request, so that one which comes again finds its handle
	streams int                // handles that are read in sequence
}

type opened struct{ unique, node uint64 }

func (t *openTable) init() {
	t.handles = make(map[uint64]*handle)
	t.inodes = make(map[uint64]*inode)
	t.replies = make(map[opened]*handle)
}

func (t *openTable) get(fh uint64) *handle {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.handles[fh]
}

func (t *openTable) closeAll() {
	t.mu.Lock()
	all := t.handles
	t.init()
	t.mu.Unlock()
	for _, h := range all {
		h.file.Close()
	}
}

func (f *rawFS) Open(_ <-chan struct{}, in *gofuse.OpenIn, out *gofuse.OpenOut) gofuse.Status {
	s := f.s
	if in.Flags&unix.O_ACCMODE != unix.O_RDONLY {
		return gofuse.EROFS
	}
	n, ok := s.node(in.NodeId, true)
	switch {
	case !ok || n.view.Gone:
		return gofuse.Status(syscall.ESTALE)
	case n.view.Kind == tree.Dir:
		return gofuse.EISDIR
	}
	request := opened{in.Unique &^ uniqueResent, in.NodeId}
	if in.Unique&uniqueResent != 0 {
		if h := s.opens.answered(request); h != nil {
			h.reply(out)
			return gofuse.OK
		}
	}
	c, err := s.extent(n)
	if err != nil {
		return s.fail(err, "open", string(n.view.Name))
	}
	switch err := s.check(s.inflight.context(in.Unique), n, c); err {
	case nil:
	case syscall.ESTALE: // nobody's failure
		return gofuse.Status(syscall.ESTALE)
	default:
		return s.fail(err, "open", c.name)
	}
	file, err := s.open(c)
	if err != nil {
		return s.fail(err, "open", c.name)
	}
	h := &handle{Handle: Handle{FH: s.state.NextHandle(), NodeID: n.id, Unique: request.unique}, file: file, size: c.size, key: c.name, reads: prefetch.New(c.name, c.size)}
	if c.tar == nil {
		h.thread = in.Pid // before others can find the handle
	}
	if err := s.enter(h, request); err != nil {
		file.Close()
		return s.fail(err, "open", c.name)
	}
	if c.tar == nil {
		s.next.tell(openedFile{path: s.pathOf(h.key)})
		if h.Backing != 0 { // what the kernel reads is not seen
			s.next.tell(openedFile{s.pathOf(h.key), h.thread})
		}
	}
	h.reply(out)
	return gofuse.OK
}

// reply tells the kernel how to use a handle. Pages of an inode stay valid, for it is
// one version; with a backing file the kernel forbids to say so.
func (h *handle) reply(out *gofuse.OpenOut) {
	out.Fh = h.FH
	out.OpenFlags = gofuse.FOPEN_NOFLUSH
	if h.Backing != 0 {
		out.OpenFlags |= gofuse.FOPEN_PASSTHROUGH
		out.BackingID = h.Backing
		if h.Direct {
			out.OpenFlags |= gofuse.FOPEN_DIRECT_IO
		}
		return
	}
	out.OpenFlags |= gofuse.FOPEN_KEEP_CACHE
}

// checkOpen makes sure that a node is the version to open: the newest known, and
// known to be as fresh as the mount promises. ESTALE makes the kernel look the name
// up again, once, and open what it means by then; a name that is gone is ENOENT, for
// that look-up may be answered from what was true before.
func (s *Session) checkOpen(ctx context.Context, n node) error {
	if n.owner.Current(n.index) != n.index {
		return s.staleOpen()
	}
	if s.proveWithin() > 0 { // a listing proves nothing, nor does what was true once
		return s.recheckOpen(ctx, n)
	}
	verified := n.owner.Verified(n.index)
	if age := s.openAge(); age > 0 && !n.view.NoETag && left(verified, age, time.Now()) >= 0 {
		return nil
	}
	if !s.mayGoOn() || verified.IsZero() || n.view.NoETag {
		return s.recheckOpen(ctx, n)
	}
	verdict, err := orLast(ctx, s, nil, func(ctx context.Context) (verdict, err error) {
		if err := s.recheckOpen(ctx, n); err != syscall.ESTALE {
			return nil, err
		}
		return syscall.ESTALE, nil // an answer, not a failure to get one
	})
	return cmp.Or(err, verdict)
}

// recheckOpen is checkOpen for a version that is not known to be fresh.
func (s *Session) recheckOpen(ctx context.Context, n node) error {
	age := s.openAge()
	next, err := s.recheck(ctx, n.owner, n.index, age)
	if errors.Is(err, objstore.ErrNotExist) {
		// Gone, or a directory by now.
		f, err := s.ask(ctx, n.owner, string(n.view.Name), min(age, s.maxAbsentAge()))
		switch {
		case err != nil:
			return err
		case f.absent:
			return fmt.Errorf("open %q: %w", n.view.Name, objstore.ErrNotExist)
		}
		return s.staleOpen()
	}
	if err != nil {
		return err
	}
	if next != n.index {
		return s.staleOpen()
	}
	return nil
}

// staleOpen has the kernel look the name up again.
func (s *Session) staleOpen() error {
	s.stats.StaleOpens.Add(1)
	return syscall.ESTALE
}

func (t *openTable) answered(request opened) *handle {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.replies[request]
}

// enter records a handle and decides how the kernel reads it.
func (s *Session) enter(h *handle, request opened) error {
	t := &s.opens
	t.mu.Lock()
	defer t.mu.Unlock()
	ino := t.inodes[h.NodeID]
	if ino == nil {
		ino = &inode{}
	}
	result := s.pass(ino, h)
	passing := result == PassthroughUsed || result == PassthroughBroken
	if h.Backing = 0; passing {
		h.Backing = ino.backing
	}
	h.Direct = result == PassthroughBroken
	if err := s.state.Put(h.Handle); err != nil {
		if passing && ino.passing == 0 {
			s.closeBacking(ino)
		}
		return err
	}
	if passing {
		ino.passing++
	} else {
		ino.buffered++
	}
	t.inodes[h.NodeID], t.handles[h.FH], t.replies[request] = ino, h, h
	s.stats.Passthrough[result].Add(1)
	s.stats.OpenFiles.Add(1)
	return nil
}

// pass decides whether the kernel may read the cache's file itself, and registers it
// for the first open; openTable.mu is held.
func (s *Session) pass(ino *inode, h *handle) PassthroughResult {
	if ino.passing == 0 && !s.passthrough.Load() {
		return PassthroughOff
	}
	switch file, ok := h.file.Backing(); {
	case ino.passing > 0 && ok:
		return PassthroughUsed
	case ino.passing > 0: // its disk fails, say: those who have it open so cannot be helped, this one can
		return PassthroughBroken
	case !ok:
		return PassthroughIncomplete
	default:
		return s.register(ino, h, file)
	}
}

// register has the kernel read a file of the cache for all opens of an inode; openTable.mu is held.
func (s *Session) register(ino *inode, h *handle, file *os.File) PassthroughResult {
	if ino.buffered > 0 {
		return PassthroughCachedOpen
	}
	id, errno := openBacking(s.dev, file)
	if errno != 0 {
		if s.logRate.Allow() {
			s.log.Warn("file system: kernel does not read the cache itself", "object", h.key, "errno", errno.Error())
		}
		if errno == syscall.EPERM || errno == syscall.EOPNOTSUPP || errno == syscall.ENOTTY {
			s.passthrough.Store(false) // nor will it for others
		}
		return PassthroughRefused
	}
	s.notes.BackingOpened(id)
	ino.backing = id
	s.stats.OpenBacking.Add(1)
	return PassthroughUsed
}

func (f *rawFS) Release(_ <-chan struct{}, in *gofuse.ReleaseIn) {
	s := f.s
	t := &s.opens
	t.mu.Lock()
	h := t.handles[in.Fh]
	if h == nil { // answered before, by a predecessor or by us
		t.mu.Unlock()
		return
	}
	delete(t.handles, h.FH)
	delete(t.replies, opened{h.Unique, h.NodeID})
	ino := t.inodes[h.NodeID]
	if h.Backing != 0 && ino.passing == 1 {
		s.notes.ClosingBacking(h.Backing) // so that a successor does it if we do not come to
	}
	s.state.Drop(h.FH) // first: a successor must not count on a backing file that is closed
	if h.Backing != 0 {
		ino.passing--
		if ino.passing == 0 {
			s.closeBacking(ino)
		}
	} else {
		ino.buffered--
	}
	if ino.passing+ino.buffered == 0 {
		delete(t.inodes, h.NodeID)
	}
	t.mu.Unlock()
	s.setStream(h, false)
	h.file.Close()
	s.stats.OpenFiles.Add(-1)
}

// closeBacking unregisters the backing file of an inode; openTable.mu is held.
func (s *Session) closeBacking(ino *inode) {
	if errno := closeBacking(s.dev, ino.backing); errno != 0 {
		s.log.Warn("file system: backing file stays registered", "id", ino.backing, "errno", errno.Error())
	}
	s.notes.ClosingBacking(0)
	ino.backing = 0
	s.stats.OpenBacking.Add(-1)
}

// Requests on /dev/fuse (linux/fuse.h).
const (
	iocBackingOpen  = 0x4010e501
	iocBackingClose = 0x4004e502
)

// openBacking registers a file with the kernel and returns its id there, not 0.
func openBacking(dev int, file *os.File) (int32, syscall.Errno) {
	raw, err := file.SyscallConn()
	if err != nil {
		return 0, syscall.EBADF
	}
	var id uintptr
	errno := syscall.EBADF
	_ = raw.Control(func(fd uintptr) {
		m := gofuse.BackingMap{Fd: int32(fd)}
		id, _, errno = syscall.Syscall(syscall.SYS_IOCTL, uintptr(dev), iocBackingOpen, uintptr(unsafe.Pointer(&m)))
	})
	return int32(id), errno
}

func closeBacking(dev int, id int32) syscall.Errno {
	_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(dev), iocBackingClose, uintptr(unsafe.Pointer(&id)))
	return errno
}
