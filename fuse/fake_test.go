package fuse

import (
	"context"
	"crypto/md5"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/objstore"
	"golang.org/x/sys/unix"
)

// fakeOrigin is a bucket in memory with names and data, whose answers can be held
// back. It is Names and Data at once.
type fakeOrigin struct {
	mu       sync.Mutex
	objects  map[string]fakeObject
	keys     []string // sorted; nil when it must be sorted again
	pageSize int
	age      time.Duration // of answers
	old      *fakeOrigin   // answers whoever takes answers of oldAge
	oldAge   time.Duration
	answered func(key string) // before Head returns what it has found
	headErr  error
	listErr  error
	silent   chan struct{}   // what is asked waits for it; nil = nothing
	bareList bool            // listings tell no ETags
	bareHead map[string]bool // keys whose HEAD tells none
	onlyUTF8 bool            // other keys are listed, but refused
	backing  string          // directory of complete files; "" = none

	backingName string // of every file there, instead of its id

	heads, lists atomic.Int64
	asked        atomic.Int64 // while silent
	opens        atomic.Int64
	openFiles    atomic.Int64
	stuck        chan struct{} // reads of keys that begin with "stuck", and HEADs of "stuck-name", wait for it
	waiting      atomic.Int64
	prefetched   sync.Map // key → furthest offset
}

type fakeObject struct {
	info objstore.Info
	data []byte
	size int64 // of content made up from the offset, when data is nil
}

var fakeBucket = objstore.Bucket{Origin: "https://origin.test", Name: "bucket"}

func newOrigin() *fakeOrigin {
	return &fakeOrigin{objects: make(map[string]fakeObject), pageSize: 1000, stuck: make(chan struct{})}
}

func (o *fakeOrigin) put(key string, data []byte) {
	sum := md5.Sum(data)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.keys = nil
	o.objects[key] = fakeObject{data: slices.Clone(data), size: int64(len(data)),
		info: objstore.Info{Key: key, Size: int64(len(data)), ETag: hex.EncodeToString(sum[:]), ModTime: time.Unix(1700000000, 123)}}
}

// putSized adds an object whose byte at offset i is pattern(i).
func (o *fakeOrigin) putSized(key string, size int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.keys = nil
	o.objects[key] = fakeObject{size: size, info: objstore.Info{Key: key, Size: size, ETag: fmt.Sprintf("sized-%d", size), ModTime: time.Unix(1700000000, 0)}}
}

func pattern(off int64) byte { return byte(off>>12) ^ byte(off*7) }

func (o *fakeOrigin) delete(key string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.keys = nil
	delete(o.objects, key)
}

func (o *fakeOrigin) requests() int64 { return o.heads.Load() + o.lists.Load() }

func (o *fakeOrigin) Head(ctx context.Context, q objstore.Query, key string) (objstore.Info, time.Duration, error) {
	if old := o.oldFor(q); old != nil {
		info, _, err := old.Head(ctx, q, key)
		return info, o.oldAge, err
	}
	if err := o.hear(ctx); err != nil {
		return objstore.Info{}, 0, err
	}
	if o.answered != nil {
		defer o.answered(key) // runs after the unlock
	}
	if key == "stuck-name" {
		if err := o.waitStuck(ctx); err != nil {
			return objstore.Info{}, 0, err
		}
	}
	o.heads.Add(1)
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.headErr != nil {
		return objstore.Info{}, 0, o.headErr
	}
	if o.onlyUTF8 && !utf8.ValidString(key) {
		return objstore.Info{}, 0, fmt.Errorf("head %q: %w", key, objstore.ErrInvalid)
	}
	obj, ok := o.objects[key]
	if !ok {
		return objstore.Info{}, 0, fmt.Errorf("head %q: %w", key, objstore.ErrNotExist)
	}
	if o.bareHead[key] {
		obj.info.ETag = ""
	}
	return obj.info, o.answerAge(q), nil
}

func (o *fakeOrigin) waitStuck(ctx context.Context) error {
	o.waiting.Add(1)
	defer o.waiting.Add(-1)
	select {
	case <-o.stuck:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// hush makes the origin leave all questions without an answer until the returned
// function is called.
func (o *fakeOrigin) hush() (speak func()) {
	silent := make(chan struct{})
	o.mu.Lock()
	defer o.mu.Unlock()
	o.silent = silent
	return sync.OnceFunc(func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.silent = nil
		close(silent)
	})
}

// refuse makes the origin answer all questions with err.
func (o *fakeOrigin) refuse(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.headErr, o.listErr = err, err
}

// hear waits while the origin is silent.
func (o *fakeOrigin) hear(ctx context.Context) error {
	o.mu.Lock()
	silent := o.silent
	o.mu.Unlock()
	if silent == nil {
		return nil
	}
	o.asked.Add(1)
	select {
	case <-silent:
		return nil
	case <-ctx.Done():
		return objstore.Unavailable(errors.New("no answer of a test"))
	}
}

// oldFor returns who answers a question with what was once, nil for o itself.
func (o *fakeOrigin) oldFor(q objstore.Query) *fakeOrigin {
	o.mu.Lock()
	defer o.mu.Unlock()
	if q.MaxAge < o.oldAge {
		return nil
	}
	return o.old
}

func (o *fakeOrigin) answerAge(q objstore.Query) time.Duration { return min(o.age, q.MaxAge) }

func (o *fakeOrigin) List(ctx context.Context, q objstore.Query, req objstore.ListRequest) (objstore.Page, time.Duration, error) {
	if old := o.oldFor(q); old != nil {
		page, _, err := old.List(ctx, q, req)
		return page, o.oldAge, err
	}
	if err := o.hear(ctx); err != nil {
		return objstore.Page{}, 0, err
	}
	o.lists.Add(1)
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.listErr != nil {
		return objstore.Page{}, 0, o.listErr
	}
	if o.onlyUTF8 && !utf8.ValidString(req.Prefix) {
		return objstore.Page{}, 0, fmt.Errorf("list %q: %w", req.Prefix, objstore.ErrInvalid)
	}
	if o.keys == nil {
		for k := range o.objects {
			o.keys = append(o.keys, k)
		}
		slices.Sort(o.keys)
	}
	limit := req.Limit
	if limit == 0 || limit > o.pageSize {
		limit = o.pageSize
	}
	var page objstore.Page
	i, _ := slices.BinarySearch(o.keys, max(req.Prefix, req.Token))
	for i < len(o.keys) {
		key := o.keys[i]
		if !strings.HasPrefix(key, req.Prefix) {
			break
		}
		if len(page.Objects)+len(page.Prefixes) == limit {
			page.Next = key
			break
		}
		if rest := key[len(req.Prefix):]; req.Delimiter != "" {
			if part, _, below := strings.Cut(rest, req.Delimiter); below {
				dir := req.Prefix + part + req.Delimiter
				page.Prefixes = append(page.Prefixes, dir)
				// On to the first key behind all that begin with dir.
				i, _ = slices.BinarySearch(o.keys, dir[:len(dir)-1]+string(dir[len(dir)-1]+1))
				continue
			}
		}
		info := o.objects[key].info
		if o.bareList {
			info.ETag = ""
		}
		page.Objects = append(page.Objects, info)
		i++
	}
	return page, o.answerAge(q), nil
}

func (o *fakeOrigin) Open(obj chunk.Object) (File, error) {
	o.opens.Add(1)
	o.mu.Lock()
	defer o.mu.Unlock()
	have, ok := o.objects[obj.Key]
	if !ok || have.info.ETag != obj.ETag {
		have = fakeObject{}
	}
	o.openFiles.Add(1)
	f := &fakeFile{o: o, obj: obj, have: have}
	if o.backing != "" {
		name := o.backingName
		if name == "" {
			name = obj.ID().String()
		}
		f.back, _ = os.Open(filepath.Join(o.backing, name))
	}
	return f, nil
}

// complete gives an object a backing file.
func (o *fakeOrigin) complete(t *testing.T, key string) {
	t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	have := o.objects[key]
	obj := chunk.Object{Origin: fakeBucket.Origin, Bucket: fakeBucket.Name, Key: key, ETag: have.info.ETag, Size: have.size}
	if err := os.WriteFile(filepath.Join(o.backing, obj.ID().String()), have.bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (f fakeObject) bytes() []byte {
	if f.data != nil {
		return f.data
	}
	b := make([]byte, f.size)
	for i := range b {
		b[i] = pattern(int64(i))
	}
	return b
}

type fakeFile struct {
	o    *fakeOrigin
	obj  chunk.Object
	have fakeObject
	back *os.File
}

func (f *fakeFile) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	return f.ReadLate(ctx, off, len(p), func() ([]byte, error) { return p, nil })
}

func (f *fakeFile) ReadLate(ctx context.Context, off int64, want int, take func() ([]byte, error)) (int, error) {
	if strings.HasPrefix(f.obj.Key, "stuck") {
		if err := f.o.waitStuck(ctx); err != nil {
			return 0, err
		}
	}
	f.o.mu.Lock()
	now, ok := f.o.objects[f.obj.Key]
	f.o.mu.Unlock()
	switch {
	case !ok:
		return 0, fmt.Errorf("get %q: %w", f.obj.Key, objstore.ErrNotExist)
	case now.info.ETag != f.obj.ETag:
		return 0, fmt.Errorf("get %q: %w", f.obj.Key, objstore.ErrChanged)
	}
	p, err := take()
	if err != nil {
		return 0, err
	}
	p = p[:want]
	n := want
	if f.have.data != nil {
		n = copy(p, f.have.data[off:])
	} else {
		for i := range p {
			p[i] = pattern(off + int64(i))
		}
	}
	if off+int64(n) == f.obj.Size {
		return n, io.EOF
	}
	return n, nil
}

func (f *fakeFile) Prefetch(off, n int64) { f.o.prefetched.Store(f.obj.Key, off+n) }

func (f *fakeFile) Backing() (*os.File, bool) { return f.back, f.back != nil }

func (f *fakeFile) CachedBytes() int64 { return f.obj.Size / 2 }

func (f *fakeFile) Close() {
	f.o.openFiles.Add(-1)
	if f.back != nil {
		f.back.Close()
	}
}

// testMount is a session that serves in the background.
type testMount struct {
	*Session
	dir    string
	origin *fakeOrigin
	done   chan error
	cancel context.CancelFunc
}

// needFUSE skips where nothing can be mounted, except in CI, where that is an error.
func needFUSE(t testing.TB) {
	t.Helper()
	_, err := os.Stat("/dev/fuse")
	if os.Getuid() == 0 && err == nil {
		return
	}
	skip(t, "needs root and /dev/fuse")
}

// skip ends a test that this machine cannot run; on CI it fails.
func skip(t testing.TB, why string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatal(why)
	}
	t.Skip(why)
}

// mount shows origin on a directory of the test until it ends.
func mount(t testing.TB, origin *fakeOrigin, change func(*Config)) *testMount {
	t.Helper()
	needFUSE(t)
	buffers := NewBuffers(8 << 20)
	cfg := Config{Bucket: fakeBucket, Names: origin, Data: origin, StateDir: t.TempDir(), Buffers: buffers,
		Logger: slog.New(slog.NewTextHandler(testWriter{t}, nil))}
	if change != nil {
		change(&cfg)
	}
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	m := &testMount{Session: s, dir: t.TempDir(), origin: origin, done: make(chan error, 1)}
	t.Cleanup(func() {
		m.stop(t)
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		if cfg.Buffers == buffers {
			buffers.Close()
		}
	})
	if err := s.Mount(m.dir); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	m.cancel = cancel
	go func() { m.done <- s.Run(ctx) }()
	<-s.Ready()
	return m
}

// stop ends the session and makes sure that no mount stays without a server.
func (m *testMount) stop(t testing.TB) {
	if m.cancel == nil {
		return
	}
	m.cancel()
	select {
	case err := <-m.done:
		if err != nil {
			t.Errorf("run: %v", err)
		}
	case <-time.After(20 * time.Second):
		abort(m.dir)
		t.Errorf("session does not end")
	}
	m.cancel = nil
	if e, ok := FindMount(m.dir); ok {
		abort(m.dir)
		_ = unix.Unmount(m.dir, unix.MNT_DETACH)
		t.Errorf("still mounted: %+v", e)
	}
	if n := m.origin.openFiles.Load(); n != 0 {
		t.Errorf("%d files are still open", n)
	}
}

// abort ends a connection from outside, as an administrator would.
func abort(dir string) {
	if e, ok := FindMount(dir); ok {
		_, minor, _ := strings.Cut(e.Device, ":")
		_ = os.WriteFile("/sys/fs/fuse/connections/"+minor+"/abort", []byte("1"), 0) // where fusectl is mounted
		_ = unix.Unmount(dir, unix.MNT_FORCE|unix.UMOUNT_NOFOLLOW)
	}
}

func (m *testMount) path(name string) string { return filepath.Join(m.dir, name) }

type testWriter struct{ t testing.TB }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Logf("%s", p)
	return len(p), nil
}
