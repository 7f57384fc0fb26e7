package dir_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shardwell/shardwell/objstore/dir"
	"github.com/shardwell/shardwell/objstore/objstoretest"
)

func open(t *testing.T, root string) *dir.Store {
	t.Helper()
	s, err := dir.New(root)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// write replaces a file by rename.
func write(root, key string, data []byte) error {
	path := filepath.Join(root, key)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	tmp := filepath.Join(root, "..", "new")
	if err := os.WriteFile(tmp, data, 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

// holds tells which keys can be paths. Two of the suite's cannot be side by side
// on a file system: those below a key that is itself a file.
func holds(key string) bool {
	for part := range strings.SplitSeq(key, "/") {
		if part == "" || part == "." || part == ".." || len(part) > 255 {
			return false
		}
	}
	return key != "a" && key != "z"
}

func TestConformance(t *testing.T) {
	objstoretest.TestStore(t, func(t *testing.T) objstoretest.Target {
		root := filepath.Join(t.TempDir(), "root")
		if err := os.Mkdir(root, 0o755); err != nil {
			t.Fatal(err)
		}
		return objstoretest.Target{
			Store:  open(t, root),
			Put:    func(key string, data []byte) error { return write(root, key, data) },
			Delete: func(key string) error { return os.Remove(filepath.Join(root, key)) },
			Holds:  holds,
		}
	})
}
