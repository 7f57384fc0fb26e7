package tarindex

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Scanner makes the index of one tar from its headers. It is not safe for concurrent use.
type Scanner struct {
	size    int64
	next    int64 // where the next member's headers begin
	headers int
	done    bool
	b       *builder
	block   [blockBytes]byte
}

// NewScanner returns a Scanner of a tar of size bytes.
func NewScanner(size int64) *Scanner { return &Scanner{size: size, b: newBuilder()} }

// Next returns the offset of the headers that are wanted next.
func (s *Scanner) Next() int64 { return s.next }

// Done reports whether all of the tar is known.
func (s *Scanner) Done() bool { return s.done }

// Bytes is about the memory that the scanner takes.
func (s *Scanner) Bytes() int64 { return s.b.x.Bytes() }

// Scan goes on from where it stopped, as far as r has the headers. It returns nil when all of the
// tar is known, and the error of r when that lacks bytes; then Scan may be called again with
// a reader that has them. What is wrong with the tar is in the index, and no error. r reads bytes
// of the tar by their offsets.
func (s *Scanner) Scan(r io.ReaderAt) error {
	for !s.done {
		if err := s.member(r); err != nil {
			return err
		}
	}
	return nil
}

// Index returns the index when Scan is done. The scanner is of no more use.
func (s *Scanner) Index() *Index { return s.b.finish() }

// member reads the headers of one member.
func (s *Scanner) member(r io.ReaderAt) error {
	switch left := s.size - s.next; {
	case left == 0 && s.next > 0:
		s.done = true // without the blocks of zeros that mark the end
		return nil
	case left < blockBytes && s.next > 0 || left == 0:
		s.damaged("the tar ends in the middle of a header")
		return nil
	}
	b := s.block[:min(blockBytes, s.size-s.next)]
	if n, err := r.ReadAt(b, s.next); n < len(b) {
		if err == nil || errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return err
	}
	if len(b) < blockBytes {
		s.damaged("") // no tar is as short as that
		return nil
	}
	h, ok := plainHeader(&s.block, s.next)
	if !ok {
		if zero(s.block[:]) {
			s.done = true
			return nil
		}
		var err, failed error
		h, err, failed = readHeader(r, s.next, s.size)
		switch {
		case failed != nil:
			return failed
		case errors.Is(err, io.ErrUnexpectedEOF):
			s.damaged("the tar ends in the middle of a header")
			return nil
		case err != nil:
			s.damaged(fmt.Sprintf("at byte %d: %v", s.next, err))
			return nil
		}
	}
	s.take(&h)
	return nil
}

// damaged ends the index before a place at which the tar cannot be understood.
func (s *Scanner) damaged(why string) {
	s.done = true
	if s.headers > 0 {
		s.b.x.damage = why
		return
	}
	s.b = newBuilder() // nothing was found
	s.b.x.refused = refusal{kind: refusedNotTar}
	if how := compression(s.block[:]); how != "" {
		s.b.x.refused = refusal{kind: refusedCompressed, detail: how}
	}
}

// take decides what becomes of a member.
func (s *Scanner) take(h *header) {
	s.headers++
	if h.kind == tar.TypeXGlobalHeader {
		for k := range h.pax {
			if k == "path" || k == "linkpath" || k == "size" || strings.HasPrefix(k, "GNU.sparse.") {
				s.damaged(fmt.Sprintf("at byte %d: %q for all members that follow", s.next, k))
				return
			}
		}
		s.next = h.next
		return
	}
	s.show(h)
	if s.b.full() || s.headers > MaxHeaders {
		s.b = newBuilder()
		s.b.x.refused = refusal{kind: refusedTooLarge}
		s.done = true
		return
	}
	if h.next > s.size {
		s.done = true
		// The last member may lack what fills its block.
		if h.data+h.size > s.size || h.sparse() {
			s.b.x.damage = "the tar ends in the middle of a member"
		}
		return
	}
	s.next = h.next
}

func (s *Scanner) show(h *header) {
	b := s.b
	path, reason := clean(h.name)
	switch {
	case reason != "":
	case h.kind == tar.TypeDir:
		b.add(member{path: path, mtime: h.mtime, dir: true})
		return
	case path == "":
		reason = reasonNoName
	case h.kind == tar.TypeLink:
		if b.link(path, h.link, h.mtime) {
			return
		}
		reason = reasonNoTarget
	case h.kind == tar.TypeSymlink:
		reason = reasonSymlink
	case h.kind == tar.TypeChar, h.kind == tar.TypeBlock, h.kind == tar.TypeFifo:
		reason = reasonSpecial
	case h.sparse():
		reason = reasonSparse
	case h.kind != tar.TypeReg && h.kind != tar.TypeCont:
		reason = reasonKind
	case h.size > s.size-h.data:
		reason = reasonCut
	default:
		b.add(member{path: path, off: h.data, size: h.size, mtime: h.mtime})
		return
	}
	b.leave(h.name, reason)
}

// compression tells by its first bytes how something is compressed, "" when it is not.
func compression(b []byte) string {
	for _, k := range [...]struct{ magic, name string }{
		{"\x1f\x8b", "gzip"}, {"\x28\xb5\x2f\xfd", "zstd"}, {"\xfd7zXZ\x00", "xz"}, {"BZh", "bzip2"},
		{"\x04\x22\x4d\x18", "lz4"}, {"LZIP", "lzip"}, {"\x1f\x9d", "compress"}, {"\xff\x06\x00\x00sNaPpY", "snappy"},
	} {
		if strings.HasPrefix(string(b), k.magic) {
			return k.name
		}
	}
	return ""
}

// CompressedName reports whether a name is that of a compressed tar, and how.
func CompressedName(name string) (how string, ok bool) {
	for _, k := range [...]struct{ suffix, how string }{
		{".tar.gz", "gzip"}, {".tgz", "gzip"}, {".tar.zst", "zstd"}, {".tzst", "zstd"}, {".tar.xz", "xz"}, {".txz", "xz"},
		{".tar.bz2", "bzip2"}, {".tbz2", "bzip2"}, {".tbz", "bzip2"}, {".tar.lz4", "lz4"}, {".tar.Z", "compress"},
	} {
		if strings.HasSuffix(name, k.suffix) {
			return k.how, true
		}
	}
	return "", false
}

// TarName reports whether a name is that of a tar.
func TarName(name string) bool { return strings.HasSuffix(name, ".tar") && name != ".tar" }

// Scan makes the index of a tar of size bytes, of which read fills blocks of blockBytes. An
// error is of read.
func Scan(size, blockBytes int64, read func(p []byte, off int64) error) (*Index, error) {
	s := NewScanner(size)
	if err := s.Scan(&scanReader{size: size, buf: make([]byte, blockBytes), at: -1, read: read}); err != nil {
		return nil, err
	}
	return s.Index(), nil
}

// scanReader reads a tar by whole blocks, the last of which it keeps.
type scanReader struct {
	size int64
	buf  []byte
	at   int64 // of the block in buf; -1: none
	read func(p []byte, off int64) error

	src   Source // told what will be read soon; nil: nothing is
	run   int    // blocks read one after the other
	ahead int64  // up to where that was told
}

func (r *scanReader) ReadAt(p []byte, off int64) (int, error) {
	done := 0
	for done < len(p) {
		at := (off + int64(done)) / int64(len(r.buf)) * int64(len(r.buf))
		n := min(int64(len(r.buf)), r.size-at)
		if n <= 0 {
			return done, io.EOF
		}
		if at != r.at {
			if err := r.next(at, n); err != nil {
				return done, err
			}
		}
		done += copy(p[done:], r.buf[off+int64(done)-at:n])
	}
	return done, nil
}

// next reads another block.
func (r *scanReader) next(at, n int64) error {
	if at == r.at+int64(len(r.buf)) {
		r.run++
	} else {
		r.run, r.ahead = 0, 0
	}
	if r.src != nil && r.run >= denseBlocks && at+prefetchBytes/2 > r.ahead {
		from := max(at+n, r.ahead)
		r.ahead = at + prefetchBytes
		r.src.Prefetch(from, r.ahead-from)
	}
	r.at = -1
	if err := r.read(r.buf[:n], at); err != nil {
		return err
	}
	r.at = at
	return nil
}
