package fuse

import (
	"context"
	"errors"
	"fmt"
	"io"
	"syscall"

	"github.com/shardwell/shardwell/fuse/prefetch"
)

// minAheadBytes is how far each sequential reader may be ahead, however many there are.
const minAheadBytes = 16 << 20

// serveRead answers READ. It never answers short: the kernel would take that for the
// end of the file, for everybody.
func (s *Session) serveRead(r *request) syscall.Errno {
	in := readInOf(r.bytes)
	if in == nil {
		s.replyError(headerOf(r.bytes).Unique, syscall.EIO)
		return syscall.EIO
	}
	h := s.opens.get(in.Fh)
	if h == nil || int64(in.Offset) < 0 {
		s.replyError(in.Unique, syscall.EBADF)
		return syscall.EBADF
	}
	off := int64(in.Offset)
	n := int(min(int64(in.Size), MaxReplyBytes, max(0, h.size-off)))
	if n == 0 {
		s.replyError(in.Unique, 0)
		return 0
	}
	s.prefetch(h, off, int64(n))
	buf, err := s.readInto(r.ctx, h, off, n)
	if buf != nil {
		defer buf.put()
	}
	if err != nil {
		errno := toErrno(err, atHandle)
		if errno == 0 {
			errno = syscall.EIO // the end of the file, where it is not
		}
		s.logError(errno, err, "read", h.key)
		s.replyError(in.Unique, errno)
		return errno
	}
	b := buf.bytes()[:replyHeaderBytes+n]
	s.learnKind(h, off, b[replyHeaderBytes:])
	putHeader(b, len(b), 0, in.Unique)
	s.reply(b)
	s.stats.ReadBytes.Add(int64(n))
	return 0
}

// readInto reads n bytes into a reply buffer, which it takes when there is data for
// it. The caller gives the buffer back, also after an error.
func (s *Session) readInto(ctx context.Context, h *handle, off int64, n int) (buf *replyBuffer, err error) {
	take := func() ([]byte, error) {
		if buf != nil {
			return nil, errors.New("buffer taken twice")
		}
		b, err := s.cfg.Buffers.get(ctx, n)
		if err != nil {
			return nil, err
		}
		buf = b
		return b.payload()[:n], nil
	}
	var got int
	if late, ok := h.file.(LateReader); ok {
		got, err = late.ReadLate(ctx, off, n, take)
	} else {
		var p []byte
		if p, err = take(); err != nil {
			return nil, err
		}
		got, err = h.file.ReadAt(ctx, p, off)
	}
	switch {
	case got == n && (err == nil || errors.Is(err, io.EOF)):
		return buf, nil
	case err == nil || errors.Is(err, io.EOF):
		return buf, fmt.Errorf("read %q at %d: %d bytes instead of %d: %w", h.key, off, got, n, io.ErrUnexpectedEOF)
	}
	return buf, err
}

// prefetch has the bytes that a read lets expect fetched.
func (s *Session) prefetch(h *handle, off, n int64) {
	if s.cfg.PrefetchBytes < 0 {
		return
	}
	limit := s.aheadBytes()
	h.mu.Lock()
	want := h.reads.Read(off, n, limit)
	walks := h.thread != 0 && !h.walked && h.reads.Walked()
	h.walked = h.walked || walks
	h.mu.Unlock()
	if walks {
		s.next.tell(openedFile{s.pathOf(h.key), h.thread})
	}
	s.fetchAhead(h, off, want)
}

// learnKind looks at bytes that were read at either end of a file: they tell what it is, and
// what of it is read first.
func (s *Session) learnKind(h *handle, off int64, data []byte) {
	if s.cfg.PrefetchBytes < 0 || off != 0 && off+int64(len(data)) < h.size {
		return
	}
	limit := s.aheadBytes()
	h.mu.Lock()
	want := h.reads.Saw(off, data, limit)
	h.mu.Unlock()
	s.fetchAhead(h, off, want)
}

// fetchAhead has a range fetched for a reader who is at off.
func (s *Session) fetchAhead(h *handle, off int64, want prefetch.Range) {
	if want.N == 0 {
		return
	}
	if want.Whole {
		s.setStream(h, true)
		if filler, ok := h.file.(Filler); ok && filler.Fill(off) {
			return
		}
	}
	h.file.Prefetch(want.Off, want.N)
}

// aheadBytes is how far one reader may be ahead now: his part of what all are.
func (s *Session) aheadBytes() int64 {
	s.opens.mu.Lock()
	streams := max(1, s.opens.streams)
	s.opens.mu.Unlock()
	return min(s.cfg.PrefetchBytes, max(minAheadBytes, s.cfg.PrefetchBytes/int64(streams)))
}

// setStream counts a handle among the sequential readers, or no more.
func (s *Session) setStream(h *handle, on bool) {
	h.mu.Lock()
	changed := h.marked != on
	h.marked = on
	h.mu.Unlock()
	if !changed {
		return
	}
	s.opens.mu.Lock()
	defer s.opens.mu.Unlock()
	if on {
		s.stats.Walks.Add(1)
		s.opens.streams++
	} else {
		s.opens.streams--
	}
}
