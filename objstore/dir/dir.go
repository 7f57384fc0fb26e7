// Package dir reads a directory as if it were a bucket: a parallel file system
// or NFS that every node has mounted at the same path. It is an implementation
// of objstore.Store.
//
// A key is a path below the root. The ETag of a file is made of its size, its
// modification time in nanoseconds and its inode, so every node sees the same
// one, and a file that is replaced or written gets another. It promises that
// bytes were read between two looks at the file that showed the version asked for. A
// writer that changes a file within the granularity of its time stamps (4 ms on
// older kernels), to the same size, goes unnoticed; so does one that sets the time
// back: replace files by rename. Symbolic links are followed within the root and
// refused when they leave it. A listing leaves those out, and what is neither file nor
// directory, without a word: they are not objects. Names with empty, "." or ".." parts do not exist.
//
// The kernel cannot be told to give up a read of a file system that hangs: such
// a call returns when the file system does, whatever its context says.
package dir

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/objstore"
)

// Store reads the files below one directory. It is safe for concurrent use.
type Store struct {
	root *os.Root
	path string
	scan scanner
}

var _ objstore.Store = (*Store)(nil)

// New opens a directory. path is absolute. A missing directory is an error of
// class objstore.ErrNoBucket.
func New(path string) (*Store, error) {
	if !filepath.IsAbs(path) {
		return nil, fmt.Errorf("origin directory %q: must be absolute: %w", path, objstore.ErrInvalid)
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		if class := classOf(err); class == objstore.ErrNotExist {
			err = errNoDirectory{}
		} else if class != nil {
			err = fmt.Errorf("%w: %w", class, err)
		}
		return nil, fmt.Errorf("origin directory %q: %w", path, err)
	}
	return &Store{root: root, path: path, scan: scanner{maxNames: maxWindowNames}}, nil
}

// errNoDirectory is what a bucket that is missing is called here.
type errNoDirectory struct{}

func (errNoDirectory) Error() string { return "no such directory" }
func (errNoDirectory) Unwrap() error { return objstore.ErrNoBucket }

// Close gives the directory back. Bodies that are open read on.
func (s *Store) Close() error { return s.root.Close() }

// Origin returns the canonical URL of a directory: "file:///mnt/data".
func Origin(path string) string { return "file://" + filepath.Clean(path) }

// version returns the ETag of a file.
func version(info fs.FileInfo) string {
	var inode uint64
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		inode = st.Ino
	}
	return fmt.Sprintf("%x-%x-%x", info.Size(), info.ModTime().UnixNano(), inode)
}

// infoOf describes a file.
func infoOf(key string, info fs.FileInfo) objstore.Info {
	return objstore.Info{Key: key, Size: info.Size(), ETag: version(info), ModTime: info.ModTime().UTC()}
}

// checkKey refuses keys that os.Root would read as another file's name.
func checkKey(key string) error {
	if key == "" || len(key) > chunk.MaxKeyBytes || strings.IndexByte(key, 0) >= 0 {
		return fmt.Errorf("%w: key of %d bytes", objstore.ErrInvalid, len(key))
	}
	for part := range strings.SplitSeq(key, "/") {
		if part == "" || part == "." || part == ".." {
			return fmt.Errorf("%w: %w", objstore.ErrNotExist, errors.New("no file has such a name"))
		}
	}
	return nil
}

// classOf is the only place where errors of the system become classes; nil is
// a transient one.
func classOf(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.ENAMETOOLONG),
		errors.Is(err, syscall.EISDIR), errors.Is(err, syscall.ELOOP), errors.Is(err, syscall.ENXIO):
		return objstore.ErrNotExist
	case errors.Is(err, fs.ErrPermission):
		return objstore.ErrPermission
	case errors.Is(err, syscall.ESTALE):
		return objstore.ErrChanged
	case errors.Is(err, fs.ErrInvalid), errors.Is(err, fs.ErrClosed):
		return objstore.ErrInvalid
	case isEscape(err):
		return objstore.ErrPermission
	}
	return nil
}

// errEscape is what os.Root says of a path that leaves it. The value has no
// name, so we provoke it once.
var errEscape = sync.OnceValue(func() error {
	root, err := os.OpenRoot("/")
	if err != nil {
		return err
	}
	defer root.Close()
	_, err = root.Stat("..")
	if pe := (*fs.PathError)(nil); errors.As(err, &pe) {
		return pe.Err
	}
	return err
})

// isEscape reports whether os.Root refused a link that leaves the root.
func isEscape(err error) bool {
	var pe *fs.PathError
	return errors.As(err, &pe) && pe.Err == errEscape()
}

// fail names the operation and the key, and gives err its class.
func fail(op objstore.Op, key string, err error) error {
	if class := classOf(err); class != nil && !errors.Is(err, class) {
		if op == objstore.OpGet && class == objstore.ErrNotExist {
			class = objstore.ErrChanged // the version was there
		}
		err = fmt.Errorf("%w: %w", class, err)
	}
	return fmt.Errorf("%s %q: %w", op, key, err)
}

// Head implements objstore.Store.
func (s *Store) Head(ctx context.Context, key string) (objstore.Info, error) {
	if err := errors.Join(ctx.Err(), checkKey(key)); err != nil {
		return objstore.Info{}, fail(objstore.OpHead, key, err)
	}
	info, err := s.root.Stat(key)
	if err != nil {
		return objstore.Info{}, fail(objstore.OpHead, key, err)
	}
	if !info.Mode().IsRegular() {
		return objstore.Info{}, fail(objstore.OpHead, key, fmt.Errorf("%w: not a regular file", objstore.ErrNotExist))
	}
	return infoOf(key, info), nil
}

// Get implements objstore.Store.
func (s *Store) Get(ctx context.Context, key, etag string, off, n int64) (io.ReadCloser, error) {
	if off < 0 || n <= 0 {
		return nil, fail(objstore.OpGet, key, fmt.Errorf("range [%d, +%d): %w", off, n, objstore.ErrInvalid))
	}
	if err := errors.Join(ctx.Err(), checkKey(key)); err != nil {
		return nil, fail(objstore.OpGet, key, err)
	}
	// Without O_NONBLOCK the open of a FIFO waits for a writer.
	f, err := s.root.OpenFile(key, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, fail(objstore.OpGet, key, err)
	}
	b := &body{ctx: ctx, file: f, key: key, etag: etag, off: off, left: n}
	if err := b.check(); err != nil {
		_ = f.Close() // nothing was written
		return nil, fail(objstore.OpGet, key, err)
	}
	return b, nil
}

// body reads a range of one version.
type body struct {
	ctx       context.Context
	file      *os.File
	key, etag string
	off, left int64
}

// check looks whether the file is still the version asked for.
func (b *body) check() error {
	info, err := b.file.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() || version(info) != b.etag {
		return objstore.ErrChanged
	}
	if b.off > info.Size()-b.left {
		return fmt.Errorf("range [%d, +%d) of %d bytes: %w", b.off, b.left, info.Size(), objstore.ErrInvalid)
	}
	return nil
}

// Read implements io.Reader. It looks at the file after each read, before it
// hands the bytes out; one look costs about a microsecond.
func (b *body) Read(p []byte) (int, error) {
	if b.left == 0 {
		return 0, io.EOF
	}
	if err := b.ctx.Err(); err != nil {
		return 0, fail(objstore.OpGet, b.key, err)
	}
	if int64(len(p)) > b.left {
		p = p[:b.left]
	}
	n, err := b.file.ReadAt(p, b.off)
	if cerr := b.check(); cerr != nil {
		return 0, fail(objstore.OpGet, b.key, cerr)
	}
	b.off += int64(n)
	b.left -= int64(n)
	if err == io.EOF && b.left > 0 {
		err = io.ErrUnexpectedEOF
	}
	if err != nil && b.left > 0 {
		return n, fail(objstore.OpGet, b.key, err)
	}
	return n, nil
}

// Close implements io.Closer.
func (b *body) Close() error { return b.file.Close() }
