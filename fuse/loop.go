package fuse

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// Sizes of what is read from the kernel, in bytes. Nothing is ever written to the
// mount, so requests are small: a name, or two.
const (
	maxWriteBytes     = 4 << 10 // the least that the kernel takes
	requestBytes      = 16 << 10
	maxPagesPerReply  = MaxReplyBytes / 4096
	scratchReplyBytes = 1 << 10 // the largest reply without data is INIT or STATX, under 300
)

// inflight are the requests being served, so that INTERRUPT finds them. A request is
// entered by the reading thread, before the next one is read.
type inflight struct {
	mu    sync.Mutex
	all   map[uint64]*request // by unique without bit 63
	fresh []*request          // reported as interrupted, not looked at yet; at most once each
	news  chan struct{}       // fresh has grown
}

// request is one request on its way.
type request struct {
	ctx      context.Context
	cancel   context.CancelFunc // nil when the reading thread serves it itself
	bytes    []byte
	began    time.Time
	answer   *found       // of a LOOKUP that the reading thread serves itself
	reported atomic.Int64 // when the kernel said that the caller is interrupted, in ns since 1970; 0 = it did not
}

func (f *inflight) add(key uint64, r *request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.all[key] = r
}

func (f *inflight) remove(key uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.all, key)
}

// get returns a request; one that is served by the reading thread, and waits for
// nothing, may not be there.
func (f *inflight) get(unique uint64) *request {
	f.mu.Lock()
	defer f.mu.Unlock()
	if r := f.all[unique&^uniqueResent]; r != nil {
		return r
	}
	return &request{ctx: context.Background()}
}

func (f *inflight) context(unique uint64) context.Context { return f.get(unique).ctx }

// readRequests takes requests off the kernel's queue until the mount is gone (nil),
// stop is signalled (nil) or the device fails. It is the only reader.
func (s *Session) readRequests(ctx context.Context) error {
	buf, err := s.cfg.Buffers.mapBytes(requestBytes)
	if err != nil {
		return fmt.Errorf("map request buffer: %w", err)
	}
	defer func() { _ = unix.Munmap(buf) }()
	for {
		n, err := unix.Read(s.dev, buf)
		switch {
		case err == nil:
			if !s.dispatch(ctx, buf[:n]) {
				return nil
			}
		case err == unix.EAGAIN:
			// What was started runs first: this thread is about to sleep.
			runtime.Gosched()
			if stopped, err := s.waitReadable(); err != nil || stopped {
				return err
			}
		case err == unix.EINTR, err == unix.ENOENT: // the request was taken back
		case err == unix.ENODEV, err == unix.ECONNABORTED:
			return nil
		default:
			return fmt.Errorf("read request of %s: %w", s.Dir(), err)
		}
	}
}

// waitReadable waits until the device has a request; true says that stop was signalled.
func (s *Session) waitReadable() (bool, error) {
	fds := []unix.PollFd{{Fd: int32(s.dev), Events: unix.POLLIN}, {Fd: int32(s.stopFD), Events: unix.POLLIN}}
	for {
		_, err := unix.Poll(fds, -1)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return false, fmt.Errorf("wait for requests of %s: %w", s.Dir(), err)
		}
		return fds[1].Revents != 0, nil
	}
}

// dispatch serves a request at once when that cannot wait, and else starts to. It
// waits itself while MaxInFlightRequests are being served. False ends the session.
func (s *Session) dispatch(ctx context.Context, req []byte) bool {
	if len(req) < inHeaderBytes {
		s.log.Error("file system: request too short", "bytes", len(req))
		return true
	}
	h := headerOf(req)
	alone := false
	if h.Unique&uniqueResent != 0 || !s.resends.Load() {
		if !slices.Contains(unanswered, h.Opcode) {
			var done bool
			if alone, done = s.again(*h); done {
				return true
			}
		}
	}
	switch h.Opcode {
	case opForget, opBatchForget:
		return true // ids live as long as the mount
	case opInterrupt:
		if len(req) >= inHeaderBytes+8 {
			s.stats.Interrupts.Add(1)
			s.inflight.report(binary.NativeEndian.Uint64(req[inHeaderBytes:]))
		}
		return true
	case opInit:
		return s.serveInit(req)
	case opDestroy:
		s.replyError(h.Unique, 0)
		return true
	}
	if alone {
		return s.start(ctx, req, true)
	}
	switch h.Opcode {
	case opGetattr, opStatfs, opOpendir, opReleasedir:
		s.serveAtOnce(req)
		return true
	case opLookup:
		if answer, ok := s.knowsAnswer(h.NodeId, req); ok {
			s.inflight.add(h.Unique&^uniqueResent, &request{ctx: ctx, answer: &answer})
			s.serveAtOnce(req)
			s.inflight.remove(h.Unique &^ uniqueResent)
			return true
		}
	}
	return s.start(ctx, req, false)
}

// unanswered are the requests that are not counted when they come again: they have no
// answer, or one that waits for nothing.
var unanswered = []uint32{opForget, opBatchForget, opInterrupt, opInit, opDestroy}

// start serves a request in a goroutine of its own, alone when it is under suspicion. False
// says that the session ends.
func (s *Session) start(ctx context.Context, req []byte, alone bool) bool {
	h := *headerOf(req)
	select {
	case s.slots <- struct{}{}:
	case <-ctx.Done():
		return false
	}
	r := &request{bytes: slices.Clone(req), began: time.Now()}
	r.ctx, r.cancel = s.requestContext(ctx, h.Opcode)
	key := h.Unique &^ uniqueResent
	s.inflight.add(key, r)
	s.serving.Add(1)
	s.stats.InFlight.Add(1)
	go func() {
		defer s.serving.Done()
		defer s.stats.InFlight.Add(-1)
		defer func() { <-s.slots }()
		defer s.inflight.remove(key)
		defer r.cancel()
		if alone {
			leave, ok := s.tryAlone(r)
			if !ok {
				s.replyError(h.Unique, syscall.EINTR)
				return
			}
			defer leave()
		}
		s.serve(r)
	}()
	return true
}

// nameGrace is what a request about names gets beyond its budget, so that it ends with
// the error of those who know what was waited for.
const nameGrace = 500 * time.Millisecond

// requestContext bounds requests about names, which may take several questions.
func (s *Session) requestContext(ctx context.Context, opcode uint32) (context.Context, context.CancelFunc) {
	switch opcode {
	case opLookup, opOpen, opReaddir, opReaddirplus:
		return context.WithTimeout(ctx, s.cfg.NameBudget+nameGrace)
	}
	return context.WithCancel(ctx)
}

func (s *Session) serveAtOnce(req []byte) {
	began := time.Now()
	h := *headerOf(req)
	defer s.answerPanic(h)
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	errno := s.serveSmall(req, h)
	s.count(h.Opcode, began, errno)
}

// serve answers one request. A panic, or a page of the listing that cannot be read,
// costs that request only.
func (s *Session) serve(r *request) {
	h := *headerOf(r.bytes)
	defer s.answerPanic(h)
	debug.SetPanicOnFault(true)
	var errno syscall.Errno
	switch h.Opcode {
	case opRead:
		errno = s.serveRead(r)
	case opReaddir, opReaddirplus:
		errno = s.serveReaddir(r)
	case opGetxattr, opListxattr:
		errno = s.serveSized(r, h, xattrBytes(r.bytes))
	default:
		errno = s.serveSmall(r.bytes, h)
	}
	s.count(h.Opcode, r.began, errno)
}

func (s *Session) count(opcode uint32, began time.Time, errno syscall.Errno) {
	s.stats.Ops[opOf(opcode)].observe(time.Since(began))
	if errno != 0 {
		s.stats.countError(errno)
	}
}

func (s *Session) answerPanic(h gofuse.InHeader) {
	if p := recover(); p != nil {
		s.log.Error("file system: panic", "operation", opOf(h.Opcode).String(), "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
		s.count(h.Opcode, time.Now(), syscall.EIO)
		s.replyError(h.Unique, syscall.EIO)
	}
}

var scratchPool = sync.Pool{New: func() any { return new([scratchReplyBytes]byte) }}

// serveSmall answers a request whose reply has no data of its own. The reply is made
// up first, which may take long, and then copied to a locked buffer.
func (s *Session) serveSmall(req []byte, h gofuse.InHeader) syscall.Errno {
	scratch := scratchPool.Get().(*[scratchReplyBytes]byte)
	defer scratchPool.Put(scratch)
	n, status := s.ps.HandleRequest([][]byte{req}, [][]byte{scratch[:]})
	if n == 0 {
		if status != gofuse.OK {
			s.replyError(h.Unique, syscall.EIO)
			return syscall.EIO
		}
		return 0
	}
	buf, err := s.cfg.Buffers.get(context.Background(), n-replyHeaderBytes)
	if err != nil {
		s.reply(scratch[:n]) // better from here than not at all
		return errnoOf(scratch[:])
	}
	defer buf.put()
	s.reply(buf.bytes()[:copy(buf.bytes(), scratch[:n])])
	return errnoOf(scratch[:])
}

// serveSized answers a request that says itself how much it wants.
func (s *Session) serveSized(r *request, h gofuse.InHeader, size int) syscall.Errno {
	need := size + scratchReplyBytes // HandleRequest wants room for its structures too
	buf, err := s.cfg.Buffers.get(r.ctx, min(need, MaxReplyBytes))
	if err != nil {
		errno := toErrno(err, atLookup)
		s.replyError(h.Unique, errno)
		return errno
	}
	defer buf.put()
	n, status := s.ps.HandleRequest([][]byte{r.bytes}, [][]byte{buf.bytes()})
	if n == 0 {
		if status == gofuse.OK {
			return 0
		}
		s.replyError(h.Unique, syscall.EIO)
		return syscall.EIO
	}
	s.reply(buf.bytes()[:n])
	return errnoOf(buf.bytes())
}

func xattrBytes(req []byte) int {
	if len(req) < inHeaderBytes+4 {
		return 0
	}
	return int(binary.NativeEndian.Uint32(req[inHeaderBytes:]))
}

// serveInit agrees on the protocol. Every generation of the daemon must answer the
// same, so the first answer is recorded before it is sent.
func (s *Session) serveInit(req []byte) bool {
	reply, err := s.initReply(req)
	if err == nil {
		err = s.state.SaveInit(req, reply)
	}
	if err != nil {
		s.log.Error("file system: cannot agree with the kernel", "error", err)
		s.replyError(headerOf(req).Unique, syscall.EIO)
		return false
	}
	s.reply(reply)
	s.agreed(req, reply)
	s.raiseReadAhead()
	s.polling.Go(func() {
		defer s.readyOnce.Do(func() { close(s.ready) })
		if s.cfg.Mounter == nil {
			s.declinePollInTime()
		}
	})
	return true
}

// declineWait bounds the wait for the kernel to hear that nothing can be polled. It takes a millisecond, but for descriptors
// that are closed on the way: some file systems write a file back then, to a disk that may not answer.
const declineWait = 3 * time.Second

// declinePollInTime is declinePoll, which is left behind when it takes too long: the mount is more than what it is for.
func (s *Session) declinePollInTime() {
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.declinePoll()
	}()
	late := time.NewTimer(declineWait)
	defer late.Stop()
	select {
	case <-done:
	case <-late.C:
		s.log.Warn("file system: poll is not declined in time")
	}
}

// declinePoll makes the kernel ask once whether files can be polled, to hear that they
// cannot. Go polls each file that it opens in a call that its scheduler does not know
// to block: a process that opens a file of its own mount could not stop the world
// until it is answered, nor answer. (go-fuse knows the name and the remedy.)
func (s *Session) declinePoll() {
	err := withoutFiles(func() error {
		fd, err := unix.Open(filepath.Join(s.Dir(), ".go-fuse-epoll-hack"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		_, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return err
	})
	if err != nil {
		s.log.Debug("file system: poll not declined", "error", err)
	}
}

// initReply makes the reply to INIT. Reads may be of 1 MiB, which go-fuse allows
// only together with writes of that size, and so with requests of that size.
func (s *Session) initReply(req []byte) ([]byte, error) {
	out := make([]byte, scratchReplyBytes)
	n, status := s.ps.HandleRequest([][]byte{req}, [][]byte{out})
	if !status.Ok() || n < initOutFlags2+4 {
		return nil, errors.New("kernel's protocol is too old")
	}
	if errno := errnoOf(out); errno != 0 {
		return nil, fmt.Errorf("kernel's protocol: %w", errno)
	}
	binary.NativeEndian.PutUint16(out[initOutMaxPages:], maxPagesPerReply)
	return out[:n], nil
}

// agreed takes note of what the kernel offered and accepted.
func (s *Session) agreed(req, reply []byte) {
	s.resends.Store(len(req) >= initInFlags2+4 && binary.NativeEndian.Uint32(req[initInFlags2:])&(gofuse.CAP_HAS_RESEND>>32) != 0)
	s.epochs.Store(len(req) >= initInMinor+4 && binary.NativeEndian.Uint32(req[initInMinor:]) >= epochMinor)
	flags := uint64(binary.NativeEndian.Uint32(reply[initOutFlags:])) | uint64(binary.NativeEndian.Uint32(reply[initOutFlags2:]))<<32
	s.passthrough.Store(flags&gofuse.CAP_PASSTHROUGH != 0 && !s.cfg.NoPassthrough)
}

// nameOf returns the name in a LOOKUP.
func nameOf(req []byte) string {
	name := req[inHeaderBytes:]
	if i := slices.Index(name, 0); i >= 0 {
		name = name[:i]
	}
	return string(name)
}
