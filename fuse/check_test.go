package fuse

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/shardwell/shardwell/objstore"
	"github.com/shardwell/shardwell/objstore/dir"
)

// dirNames asks a directory origin.
type dirNames struct{ *dir.Store }

func (d dirNames) Head(ctx context.Context, _ objstore.Query, key string) (objstore.Info, time.Duration, error) {
	info, err := d.Store.Head(ctx, key)
	return info, 0, err
}

func (d dirNames) List(ctx context.Context, _ objstore.Query, req objstore.ListRequest) (objstore.Page, time.Duration, error) {
	page, err := d.Store.List(ctx, req)
	return page, 0, err
}

// An empty directory of a directory origin can be mounted; there is no bucket to tell of.
func TestCheckDirectoryOrigin(t *testing.T) {
	root := t.TempDir()
	for _, d := range []string{"a/empty", "a/empty-2"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 1500 { // sorted before "empty/"
		if err := os.WriteFile(filepath.Join(root, fmt.Sprintf("a/empty-%d.f", i)), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	store, err := dir.New(root)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	origin := "file://" + root
	buffers := NewBuffers(0)
	defer buffers.Close()
	for prefix, want := range map[string]string{
		"": "", "a": "", "a/empty": "", "a/empty/": "",
		"a/none":      origin + "/a/none: no such directory",
		"none/at/all": origin + "/none/at/all: no such directory",
		"a/empty-1.f": origin + "/a/empty-1.f names an object, not a directory: mount what it lies in",
	} {
		s, err := New(Config{Bucket: objstore.Bucket{Origin: origin}, Prefix: prefix, Names: dirNames{store}, Data: newOrigin(),
			StateDir: t.TempDir(), Buffers: buffers})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Check(t.Context()); (err == nil) != (want == "") || err != nil && err.Error() != want {
			t.Errorf("prefix %q: %v, want %q", prefix, err, want)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}
