package fuse

import (
	"context"
	"os"
)

// Bounded is a File of which only a part will be read.
type Bounded interface {
	// Bound says that nothing but the bytes [off, off+n) will be read, so that what lies
	// beyond is not fetched. It is called before the first read.
	Bound(off, n int64)
}

// member is a part of an open file: a member of a tar. The kernel cannot read it from the
// file that holds the tar, for it knows no offset there.
type member struct {
	file      File
	off, size int64
}

func newMember(f File, off, size int64) File {
	if b, ok := f.(Bounded); ok {
		b.Bound(off, size)
	}
	m := &member{f, off, size}
	if late, ok := f.(LateReader); ok {
		return &lateMember{m, late}
	}
	return m
}

// ReadAt implements File. Callers stay within the size.
func (m *member) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	return m.file.ReadAt(ctx, p, m.off+off)
}

// Prefetch implements File: what lies behind the member is nobody's concern.
func (m *member) Prefetch(off, n int64) {
	off = min(max(off, 0), m.size)
	if n = min(n, m.size-off); n > 0 {
		m.file.Prefetch(m.off+off, n)
	}
}

// Backing implements File.
func (m *member) Backing() (*os.File, bool) { return nil, false }

// CachedBytes implements File: of a part nobody counts them.
func (m *member) CachedBytes() int64 { return 0 }

// Close implements File.
func (m *member) Close() { m.file.Close() }

// lateMember is a member of a file that waits for bytes before it takes a buffer.
type lateMember struct {
	*member
	late LateReader
}

// ReadLate implements LateReader.
func (m *lateMember) ReadLate(ctx context.Context, off int64, n int, take func() ([]byte, error)) (int, error) {
	return m.late.ReadLate(ctx, m.off+off, n, take)
}
