package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shardwell/shardwell/internal/control"
	"github.com/shardwell/shardwell/objstore"
)

// shelf is a source of objects by key; one whose bytes are "broken" ends in the middle.
type shelf map[string]string

func (s shelf) List(_ context.Context, req control.ListRequest, yield func(control.Entry) error) error {
	prefix := strings.TrimPrefix(req.URI, "s3://b/")
	seen := map[string]bool{}
	for key, data := range s {
		rest, ok := strings.CutPrefix(key, prefix)
		if !ok {
			continue
		}
		e := control.Entry{Name: rest, Size: int64(len(data))}
		if dir, _, deeper := strings.Cut(rest, "/"); deeper {
			e = control.Entry{Name: dir + "/"}
		}
		if !seen[e.Name] {
			seen[e.Name] = true
			if err := yield(e); err != nil {
				return err
			}
		}
	}
	if len(seen) == 0 {
		return objstore.ErrNotExist
	}
	return nil
}

func (s shelf) Read(_ context.Context, req control.ReadRequest, begin func(control.Entry) error, write func([]byte) error) error {
	key := strings.TrimPrefix(req.URI, "s3://b/")
	if req.Name != "" {
		key = strings.TrimSuffix(key, "/") + "/" + req.Name
	}
	data, ok := s[strings.TrimPrefix(key, "/")]
	if !ok {
		return objstore.ErrNotExist
	}
	if err := begin(control.Entry{Size: int64(len(data))}); err != nil {
		return err
	}
	half := len(data) / 2
	if err := write([]byte(data[:half])); err != nil {
		return err
	}
	if data == "broken" {
		return objstore.ErrChanged
	}
	return write([]byte(data[half:]))
}

// SEMANTICS G1: `shardwell get` gives a file its name only when all of its bytes, of one version and checked, are there.
func TestGetNamesWhatIsWhole(t *testing.T) {
	s := shelf{"d/a": "alpha", "d/sub/deep/b": "beta", "d/bad": "broken", "d/../out": "no", "e": "other"}
	dir := filepath.Join(t.TempDir(), "new", "dir")
	var said bytes.Buffer
	err := (&getter{from: s, s: streams{err: &said}}).all(t.Context(), "s3://b/d", dir)
	if !errors.As(err, new(partly)) || !strings.Contains(err.Error(), "bad: ") || !strings.Contains(err.Error(), "../out: ") {
		t.Errorf("ended with %v", err)
	}
	found := map[string]string{}
	_ = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			data, _ := os.ReadFile(path)
			rel, _ := filepath.Rel(dir, path)
			found[rel] = string(data)
		}
		return err
	})
	if len(found) != 2 || found["a"] != "alpha" || found["sub/deep/b"] != "beta" {
		t.Errorf("the directory has %q", found)
	}
	one := t.TempDir()
	if err := (&getter{from: s, s: streams{err: &said}}).all(t.Context(), "s3://b/e", one); err != nil {
		t.Error(err)
	}
	if data, _ := os.ReadFile(filepath.Join(one, "e")); string(data) != "other" {
		t.Errorf("one object came as %q", data)
	}
}
