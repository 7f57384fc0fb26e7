package dir_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shardwell/shardwell/objstore"
	"github.com/shardwell/shardwell/objstore/dir"
)

// must fails the test for an error of its preparations.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// names lists everything.
func names(t *testing.T, s *dir.Store, req objstore.ListRequest) []string {
	t.Helper()
	var all []string
	for {
		page, err := s.List(t.Context(), req)
		must(t, err)
		for _, o := range page.Objects {
			all = append(all, o.Key)
		}
		all = append(all, page.Prefixes...)
		if req.Token = page.Next; req.Token == "" {
			return all
		}
	}
}

func read(s *dir.Store, info objstore.Info) (string, error) {
	body, err := s.Get(context.Background(), info.Key, info.ETag, 0, info.Size)
	if err != nil {
		return "", err
	}
	data, err := io.ReadAll(body)
	return string(data), errors.Join(err, body.Close())
}

// Links lead to files and directories of the root, and nowhere else.
func TestLinks(t *testing.T) {
	top := t.TempDir()
	root := filepath.Join(top, "root")
	must(t, os.MkdirAll(filepath.Join(root, "d/e"), 0o755))
	must(t, os.WriteFile(filepath.Join(root, "d/file"), []byte("inside"), 0o644))
	must(t, os.WriteFile(filepath.Join(top, "secret"), []byte("outside"), 0o644))
	for link, to := range map[string]string{
		"in": "d/file", "dirlink": "d", "out": "../secret", "abs": filepath.Join(top, "secret"), "outdir": "..",
		"nowhere": "missing", "self": "self", "d/loop": "../d", "d/e/up": "../..",
	} {
		must(t, os.Symlink(to, filepath.Join(root, link)))
	}
	s := open(t, root)
	info, err := s.Head(t.Context(), "in")
	must(t, err)
	if got, err := read(s, info); err != nil || got != "inside" {
		t.Errorf("%q, %v", got, err)
	}
	for _, key := range []string{"out", "abs", "outdir/secret", "d/e/up/out"} {
		if _, err := s.Head(t.Context(), key); !errors.Is(err, objstore.ErrPermission) {
			t.Errorf("head %q: %v, want ErrPermission", key, err)
		}
		if _, err := s.Get(t.Context(), key, "x", 0, 1); !errors.Is(err, objstore.ErrPermission) {
			t.Errorf("get %q: %v, want ErrPermission", key, err)
		}
	}
	if _, err := s.Head(t.Context(), "self"); !errors.Is(err, objstore.ErrNotExist) {
		t.Errorf("a link to itself: %v", err)
	}
	if got := names(t, s, objstore.ListRequest{Delimiter: "/"}); !slices.Equal(got, []string{"in", "d/", "dirlink/"}) {
		t.Errorf("listed %q", got)
	}
	// Circles end where a directory comes for the second time.
	got := names(t, s, objstore.ListRequest{Limit: 1})
	slices.Sort(got)
	if want := []string{"d/file", "dirlink/file", "in"}; !slices.Equal(got, want) {
		t.Errorf("listed %q, want %q", got, want)
	}
}

func TestWhatIsNoFile(t *testing.T) {
	root := t.TempDir()
	must(t, syscall.Mkfifo(filepath.Join(root, "fifo"), 0o644))
	must(t, os.Mkdir(filepath.Join(root, "empty"), 0o755))
	must(t, os.WriteFile(filepath.Join(root, "bad-\xff\xfe"), []byte("x"), 0o644))
	s := open(t, root)
	for _, key := range []string{"fifo", "empty"} {
		if _, err := s.Head(t.Context(), key); !errors.Is(err, objstore.ErrNotExist) {
			t.Errorf("head %q: %v", key, err)
		}
		// The open of a FIFO must not wait for a writer.
		if _, err := s.Get(t.Context(), key, "x", 0, 1); !errors.Is(err, objstore.ErrChanged) {
			t.Errorf("get %q: %v", key, err)
		}
	}
	for _, key := range []string{"a\x00b", strings.Repeat("x", 5000)} {
		if _, err := s.Head(t.Context(), key); !errors.Is(err, objstore.ErrInvalid) {
			t.Errorf("head %.10q: %v", key, err)
		}
	}
	for _, key := range []string{"../root", "empty/../fifo", "/etc/passwd", "empty//x", strings.Repeat("x", 300)} {
		if _, err := s.Head(t.Context(), key); !errors.Is(err, objstore.ErrNotExist) {
			t.Errorf("head %.20q: %v", key, err)
		}
	}
	// A name that is not UTF-8 is a key like any other.
	info, err := s.Head(t.Context(), "bad-\xff\xfe")
	must(t, err)
	if got, err := read(s, info); err != nil || got != "x" {
		t.Errorf("%q, %v", got, err)
	}
	if got := names(t, s, objstore.ListRequest{Delimiter: "/"}); !slices.Equal(got, []string{"bad-\xff\xfe", "empty/"}) {
		t.Errorf("listed %q", got)
	}
}

// A file that is written in place, to the same size, while it is read.
func TestWrittenInPlace(t *testing.T) {
	root := t.TempDir()
	path := filepath.Join(root, "k")
	must(t, os.WriteFile(path, []byte(strings.Repeat("1", 1000)), 0o644))
	must(t, os.Chtimes(path, time.Now(), time.Now().Add(-time.Hour)))
	s := open(t, root)
	info, err := s.Head(t.Context(), "k")
	must(t, err)
	body, err := s.Get(t.Context(), "k", info.ETag, 0, 1000)
	must(t, err)
	defer body.Close()
	if _, err := io.ReadFull(body, make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	must(t, os.WriteFile(path, []byte(strings.Repeat("2", 1000)), 0o644))
	if rest, err := io.ReadAll(body); !errors.Is(err, objstore.ErrChanged) || len(rest) != 0 {
		t.Errorf("%d bytes, %v; want ErrChanged", len(rest), err)
	}
	if _, err := read(s, info); !errors.Is(err, objstore.ErrChanged) {
		t.Errorf("%v, want ErrChanged", err)
	}
	must(t, os.Truncate(path, 10))
	if _, err := read(s, info); !errors.Is(err, objstore.ErrChanged) {
		t.Errorf("%v, want ErrChanged", err)
	}
}

func TestNew(t *testing.T) {
	for path, class := range map[string]error{
		"relative":                            objstore.ErrInvalid,
		filepath.Join(t.TempDir(), "missing"): objstore.ErrNoBucket,
	} {
		if _, err := dir.New(path); !errors.Is(err, class) {
			t.Errorf("%q: %v, want %v", path, err, class)
		}
	}
	if got := dir.Origin("/mnt/data/"); got != "file:///mnt/data" {
		t.Error(got)
	}
}

// A directory with more names than a window: every name once, in order, with
// any page size, and the same again after names came and went.
func TestLargeDirectory(t *testing.T) {
	const n = 1500
	root := t.TempDir()
	must(t, os.Mkdir(filepath.Join(root, "many"), 0o755))
	want := make([]string, 0, n)
	for i := range n {
		name := fmt.Sprintf("many/%08x", uint32(i)*2654435761)
		want = append(want, name)
		f, err := os.OpenFile(filepath.Join(root, name), os.O_CREATE|os.O_WRONLY, 0o644)
		must(t, err)
		must(t, f.Close())
	}
	slices.Sort(want)
	s := open(t, root)
	s.SetWindow(256)
	for _, req := range []objstore.ListRequest{{Prefix: "many/", Delimiter: "/"}, {}, {Limit: 7}} {
		if got := names(t, s, req); !slices.Equal(got, want) {
			t.Errorf("%+v: %d names, want %d in order", req, len(got), len(want))
		}
	}
	must(t, os.Remove(filepath.Join(root, want[0])))
	page, err := s.List(t.Context(), objstore.ListRequest{Prefix: "many/", Limit: 1})
	must(t, err)
	if page.Objects[0].Key != want[1] {
		t.Errorf("the first page shows %q, which is gone", page.Objects[0].Key)
	}
	page, err = s.List(t.Context(), objstore.ListRequest{Prefix: "many/ffff", Delimiter: "/"})
	must(t, err)
	if i, _ := slices.BinarySearch(want, "many/ffff"); len(page.Objects) != n-i {
		t.Errorf("%d names under a prefix, want %d", len(page.Objects), n-i)
	}
}
