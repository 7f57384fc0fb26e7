package fuse

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/shardwell/shardwell/fuse/tarindex"
	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/objstore"
	"golang.org/x/sys/unix"
)

// fakeTars scans the tars of an origin.
type fakeTars struct {
	o     *fakeOrigin
	scans atomic.Int64
}

func (f *fakeTars) Index(_ context.Context, obj chunk.Object) (*tarindex.Index, error) {
	f.scans.Add(1)
	f.o.mu.Lock()
	data := f.o.objects[obj.Key].data
	f.o.mu.Unlock()
	s := tarindex.NewScanner(obj.Size)
	if err := s.Scan(bytes.NewReader(data)); err != nil {
		return nil, err
	}
	x := s.Index()
	if err := x.Err(); err != nil {
		return nil, fmt.Errorf("index %s: %w", obj.URI(), err)
	}
	return x, nil
}

// pack makes a tar of names and what they hold.
func pack(t testing.TB, pairs ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for i := 0; i < len(pairs); i += 2 {
		if err := w.WriteHeader(&tar.Header{Name: pairs[i], Size: int64(len(pairs[i+1])), Mode: 0o600}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(pairs[i+1])); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// mountTars shows an origin with the members of its tars.
func mountTars(t testing.TB, o *fakeOrigin, change func(*Config)) (*testMount, *fakeTars) {
	tars := &fakeTars{o: o}
	return mount(t, o, func(c *Config) {
		c.Tars = tars
		if change != nil {
			change(c)
		}
	}), tars
}

// entries reads a directory, in its order.
func entries(t *testing.T, dir string) (names []string) {
	t.Helper()
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	buf := make([]byte, 300) // small steps
	for {
		n, err := unix.Getdents(fd, buf)
		if err != nil {
			t.Fatalf("read %s: %v", dir, err)
		}
		if n == 0 {
			return names
		}
		_, _, names = unix.ParseDirent(buf[:n], -1, names)
	}
}

// contentOf reads a file of a mount of this process.
func contentOf(t *testing.T, path string) string {
	t.Helper()
	b, err := readAll(path)
	if err != nil {
		t.Errorf("read %s: %v", path, err)
	}
	return string(b)
}

func readAll(path string) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	var all []byte
	buf := make([]byte, 1000)
	for {
		n, err := unix.Read(fd, buf)
		if err != nil || n == 0 {
			return all, err
		}
		all = append(all, buf[:n]...)
	}
}

// SEMANTICS M1: With `--tar-view`, `DIR/.tar/x.tar/` has the members of `DIR/x.tar` as files, in the order of the tar; each has the bytes that unpacking would give, of the version that an open of the tar would see.
func TestTarViewShowsMembers(t *testing.T) {
	o := newOrigin()
	var pairs, want []string
	for i := range 200 {
		for _, ext := range []string{"jpg", "cls"} {
			name := fmt.Sprintf("%05d.%s", 1000-i, ext)
			pairs, want = append(pairs, name, strings.Repeat(name, i*10)), append(want, name)
		}
	}
	pairs = append(pairs, "sub/deep/file", "below", "../../out", "no", "/abs", "inside", "sub/deep/file", "the last")
	raw := pack(t, pairs...)
	o.put("d/x.tar", raw)
	o.put("y.tar", pack(t, "one", "1"))
	o.put("d/note.txt", []byte("plain"))
	m, _ := mountTars(t, o, nil)
	if got := entries(t, m.path("d/.tar")); !slices.Equal(got, []string{"x.tar"}) {
		t.Errorf("tars: %q", got)
	}
	if got := entries(t, m.path("d/.tar/x.tar")); !slices.Equal(got, append(slices.Clone(want), "sub", "abs")) {
		t.Errorf("members: %q", got)
	}
	for i := 0; i < len(want); i++ {
		path := m.path("d/.tar/x.tar/" + want[i])
		if got := contentOf(t, path); got != pairs[2*i+1] {
			t.Errorf("%s: %d bytes, want %d", want[i], len(got), len(pairs[2*i+1]))
		}
		if st, err := os.Lstat(path); err != nil || st.Size() != int64(len(pairs[2*i+1])) || !st.Mode().IsRegular() {
			t.Errorf("%s: %v, %v", want[i], st, err)
		}
	}
	if got := contentOf(t, m.path("d/.tar/x.tar/sub/deep/file")); got != "the last" {
		t.Errorf("the last of a name: %q", got)
	}
	if got := contentOf(t, m.path(".tar/y.tar/one")); got != "1" {
		t.Errorf("at the root: %q", got)
	}
	if got := contentOf(t, m.path("d/x.tar")); got != string(raw) {
		t.Error("the tar itself is not what it was")
	}
	for _, none := range []string{"d/.tar/none.tar", "d/.tar/note.txt", "d/.tar/x.tar/none", "d/.tar/x.tar/sub/none", "d/.tar/d", "d/.tar/.tar", ".tar/d"} {
		if _, err := os.Lstat(m.path(none)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", none, err)
		}
	}
}

// SEMANTICS M2: `.tar` is found by its name and never listed, so that what walks through a mount sees the bucket and nothing else; a key of that name has it for itself; without `--tar-view` there is none.
func TestTarViewIsNotListed(t *testing.T) {
	o := newOrigin()
	o.put("a/x.tar", pack(t, "one", "1"))
	o.put("b/.tar", []byte("a key"))
	o.put("b/x.tar", pack(t, "one", "1"))
	o.put("c/.tar/x.tar", []byte("below a key"))
	o.put("c/x.tar", pack(t, "one", "1"))
	m, _ := mountTars(t, o, nil)
	for _, dir := range []string{"a", "b", "c"} { // before the walk, which must not find it for that
		_, _ = os.Lstat(m.path(dir + "/.tar/x.tar/one"))
	}
	var seen []string
	err := filepath.WalkDir(m.dir, func(path string, d fs.DirEntry, err error) error {
		rel, _ := filepath.Rel(m.dir, path)
		seen = append(seen, rel)
		return err
	})
	want := []string{".", "a", "a/x.tar", "b", "b/.tar", "b/x.tar", "c", "c/.tar", "c/.tar/x.tar", "c/x.tar"}
	if err != nil || !slices.Equal(seen, want) {
		t.Errorf("a walk sees %q, %v", seen, err)
	}
	if got := contentOf(t, m.path("b/.tar")); got != "a key" {
		t.Errorf("b/.tar: %q", got)
	}
	if got := contentOf(t, m.path("c/.tar/x.tar")); got != "below a key" {
		t.Errorf("c/.tar/x.tar: %q", got)
	}
	if files, _ := m.Listed(); files != 5 {
		t.Errorf("%d files are counted, want those of the bucket", files)
	}
	off := mount(t, o, nil)
	if _, err := os.Lstat(off.path("a/.tar")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without the view: %v", err)
	}
}

// A new version of a tar is another directory; who has a member of the old one open reads on or
// gets ESTALE.
func TestTarViewFollowsVersions(t *testing.T) {
	o := newOrigin()
	o.put("x.tar", pack(t, "one", "first", "gone", "1"))
	m, _ := mountTars(t, o, func(c *Config) { c.Consistency = Consistency{Mode: ModeOpen} })
	if got := contentOf(t, m.path(".tar/x.tar/one")); got != "first" {
		t.Errorf("got %q", got)
	}
	fd, err := unix.Open(m.path(".tar/x.tar/gone"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	o.put("x.tar", pack(t, "new", "n", "one", "second version"))
	if got := contentOf(t, m.path(".tar/x.tar/one")); got != "second version" {
		t.Errorf("after the change: %q", got)
	}
	if _, err := readAll(m.path(".tar/x.tar/gone")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a member that is gone: %v", err)
	}
	if _, err := unix.Pread(fd, make([]byte, 1), 0); err != syscall.ESTALE {
		t.Errorf("an open member of the old version: %v", err)
	}
	o.delete("x.tar")
	if _, err := readAll(m.path(".tar/x.tar/one")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a member of a tar that is gone: %v", err)
	}
}

// SEMANTICS M3: What is no tar, or is compressed, is refused: EOPNOTSUPP for compressed ones, ENOTDIR for what is no tar, with a line in the log; the object itself is readable as it is.
func TestTarViewRefuses(t *testing.T) {
	o := newOrigin()
	gz := append([]byte("\x1f\x8b\x08"), make([]byte, 3000)...)
	o.put("named.tar.gz", gz)
	o.put("hidden.tar", gz)
	o.put("text.tar", bytes.Repeat([]byte("text "), 500))
	o.put("empty.tar", nil)
	m, _ := mountTars(t, o, nil)
	for name, want := range map[string]syscall.Errno{"named.tar.gz": syscall.EOPNOTSUPP, "hidden.tar": syscall.EOPNOTSUPP, "text.tar": syscall.ENOTDIR, "empty.tar": syscall.ENOTDIR} {
		if _, err := os.ReadDir(m.path(".tar/" + name)); !errors.Is(err, want) {
			t.Errorf("list %s: %v, want %v", name, err, want)
		}
		if _, err := os.Lstat(m.path(".tar/" + name + "/x")); !errors.Is(err, want) {
			t.Errorf("look up in %s: %v, want %v", name, err, want)
		}
	}
	if got := contentOf(t, m.path("hidden.tar")); got != string(gz) {
		t.Error("the object is not readable as it is")
	}
}

// Node ids, directory cookies and open members mean the same to a successor, which needs no
// index for what is known.
func TestTarViewSurvivesHandOver(t *testing.T) {
	o := newOrigin()
	var pairs, want []string
	for i := range 300 {
		name := fmt.Sprintf("dir/%04d", i)
		pairs, want = append(pairs, name, name+" of the tar"), append(want, name[4:])
	}
	o.put("d/x.tar", pack(t, pairs...))
	m, tars := mountTars(t, o, nil)
	fd, err := unix.Open(m.path("d/.tar/x.tar/dir/0007"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	dirFD, err := unix.Open(m.path("d/.tar/x.tar/dir"), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(dirFD)
	var got []string
	step := func() bool {
		buf := make([]byte, 2000)
		n, err := unix.Getdents(dirFD, buf)
		if err != nil {
			t.Fatal(err)
		}
		_, _, got = unix.ParseDirent(buf[:n], -1, got)
		return n > 0
	}
	step()
	before := inodeOf(t, m.path("d/.tar/x.tar/dir/0007"))
	next := m.successor(t)
	scans := tars.scans.Load()
	b := make([]byte, 100)
	if n, err := unix.Pread(fd, b, 0); err != nil || string(b[:n]) != "dir/0007 of the tar" {
		t.Errorf("an open member: %q, %v", b[:max(n, 0)], err)
	}
	if n := tars.scans.Load(); n != scans {
		t.Errorf("the index was needed %d times for an open member", n-scans)
	}
	for step() {
	}
	if !slices.Equal(got, want) {
		t.Errorf("a listing over two sessions: %d names, %q", len(got), got)
	}
	if after := inodeOf(t, next.path("d/.tar/x.tar/dir/0007")); after != before {
		t.Errorf("inode %d, was %d", after, before)
	}
	if got := contentOf(t, next.path("d/.tar/x.tar/dir/0299")); got != "dir/0299 of the tar" {
		t.Errorf("another member: %q", got)
	}
}

// A successor without the view goes on with what is open, and shows no more of it.
func TestTarViewIsTakenAway(t *testing.T) {
	o := newOrigin()
	o.put("x.tar", pack(t, "one", "1", "two", "2"))
	m, _ := mountTars(t, o, nil)
	fd, err := unix.Open(m.path(".tar/x.tar/one"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	next := m.successorOf(t, func(s *Session) { s.cfg.Tars = nil })
	b := make([]byte, 10)
	if n, err := unix.Pread(fd, b, 0); err != nil || string(b[:n]) != "1" {
		t.Errorf("an open member: %q, %v", b[:max(n, 0)], err)
	}
	if _, err := os.Lstat(next.path(".tar/x.tar/two")); err == nil {
		t.Error("a member is shown")
	}
	if n := o.heads.Load(); n > 10 {
		t.Errorf("%d questions", n)
	}
}

func inodeOf(t *testing.T, path string) uint64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Ino
}

// A mount that has to prove that it may read proves it of the tar before it shows what is in it.
func TestTarViewNeedsAProof(t *testing.T) {
	o := newOrigin()
	o.put("x.tar", pack(t, "one", "1", "two", "2"))
	m, _ := mountTars(t, o, func(c *Config) { c.Prove = func() time.Duration { return 1 } })
	if got := contentOf(t, m.path(".tar/x.tar/one")); got != "1" {
		t.Errorf("got %q", got)
	}
	o.mu.Lock()
	o.headErr = objstore.ErrPermission
	o.mu.Unlock()
	if _, err := os.Lstat(m.path(".tar/x.tar/two")); err == nil {
		t.Error("a member is shown to who may not read the tar")
	}
	if _, err := os.ReadDir(m.path(".tar/x.tar")); err == nil {
		t.Error("members are listed to who may not read the tar")
	}
	if _, err := readAll(m.path(".tar/x.tar/one")); err == nil {
		t.Error("a member is read by who may not read the tar")
	}
}

// Attributes, and paths that lead back.
func TestTarViewDirectories(t *testing.T) {
	o := newOrigin()
	o.put("d/x.tar", pack(t, "sub/one", "1"))
	m, _ := mountTars(t, o, nil)
	if got, want := inodeOf(t, m.path("d/.tar/..")), inodeOf(t, m.path("d")); got != want {
		t.Errorf("the way back leads to %d, want %d", got, want)
	}
	buf := make([]byte, 200)
	n, err := unix.Lgetxattr(m.path("d/.tar/x.tar/sub/one"), xattrSource, buf)
	if err != nil || string(buf[:n]) != "s3://bucket/d/x.tar" {
		t.Errorf("source: %q, %v", buf[:max(0, n)], err)
	}
	if _, err := unix.Lgetxattr(m.path("d/.tar/x.tar/sub/one"), xattrCached, buf); err != unix.ENODATA {
		t.Errorf("cached: %v", err)
	}
	for _, name := range []string{"d/.tar", "d/.tar/x.tar", "d/.tar/x.tar/sub"} {
		st, err := os.Lstat(m.path(name))
		if err != nil || !st.IsDir() {
			t.Errorf("%s: %v, %v", name, st, err)
		}
	}
	if err := os.WriteFile(m.path("d/.tar/x.tar/new"), nil, 0o600); !errors.Is(err, syscall.EROFS) {
		t.Errorf("write: %v", err)
	}
}
