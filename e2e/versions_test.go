package e2e_test

import (
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/shardwell/shardwell/e2e/cluster"
	"github.com/shardwell/shardwell/e2e/dataset"
	"github.com/shardwell/shardwell/e2e/origin"
)

// heldBytes is how much of a file is read before its object is replaced.
const heldBytes = 16 << 20

// readHead reads what is to be held, a MiB at a time.
func readHead(t *testing.T, f *os.File, want dataset.Random) {
	t.Helper()
	if err := dataset.Compare(io.NewSectionReader(f, 0, heldBytes), want, heldBytes); err != nil {
		t.Fatalf("%s: before the change: %v", f.Name(), err)
	}
}

// readOld reads an open file, whose object has been replaced, to its end: the first heldBytes
// must have the old bytes, each MiB behind them old bytes or ESTALE. It returns how many were stale.
func readOld(t *testing.T, f *os.File, old dataset.Random) (stale int) {
	t.Helper()
	got, want := make([]byte, 1<<20), make([]byte, 1<<20)
	for off := int64(0); off < old.Size; off += 1 << 20 {
		n, err := f.ReadAt(got, off)
		if err == io.EOF && off+int64(n) == old.Size {
			err = nil
		}
		if errors.Is(err, syscall.ESTALE) && off >= heldBytes {
			stale++
			continue
		}
		length := min(1<<20, old.Size-off)
		_, _ = old.ReadAt(want[:length], off)
		if err != nil || int64(n) != length || string(got[:n]) != string(want[:length]) {
			t.Errorf("old handle at %d MiB: %d bytes, %v; want the old bytes or ESTALE", off>>20, n, err)
		}
	}
	return stale
}

// A handle reads one version: overwritten or deleted under it, with the same size or another,
// it gives old bytes or ESTALE; a new open has the new version.
func TestReplacedWhileOpen(t *testing.T) {
	const size = 96 << 20
	for _, change := range []struct {
		name string
		size int64 // of the new version; 0 deletes
	}{{"same size", size}, {"smaller", 1 << 20}, {"larger", size + 12345}, {"deleted", 0}} {
		t.Run(change.name, func(t *testing.T) {
			c := start(t, cluster.Options{Nodes: 2})
			old := dataset.Random{Seed: seed, Size: size}
			fresh := dataset.Random{Seed: seed + 1, Size: change.size}
			_, err := c.Origin.Put(t.Context(), bucket, "d/k", old.Reader(), size)
			must(t, err)
			dirs := mount(t, c, "s3://"+bucket+"/d", "--consistency", "open")
			var files []*os.File
			for _, dir := range dirs {
				f, err := os.Open(filepath.Join(dir, "k"))
				must(t, err)
				defer f.Close()
				files = append(files, f)
				readHead(t, f, old)
			}
			if change.size == 0 {
				must(t, c.Origin.Delete(t.Context(), bucket, "d/k"))
			} else {
				_, err := c.Origin.Put(t.Context(), bucket, "d/k", fresh.Reader(), fresh.Size)
				must(t, err)
			}
			for _, f := range files {
				t.Logf("%d of %d MiB were stale", readOld(t, f, old), size>>20)
			}
			for _, dir := range dirs {
				path := filepath.Join(dir, "k")
				if change.size == 0 {
					if _, err := os.Open(path); !errors.Is(err, fs.ErrNotExist) {
						t.Errorf("open after deletion: %v, want ENOENT", err)
					}
				} else if err := dataset.CompareFile(path, fresh); err != nil {
					t.Errorf("new open: %v", err)
				}
			}
		})
	}
}

// An origin that ignores If-Match and answers with the new version is seen through.
func TestOriginThatIgnoresIfMatch(t *testing.T) {
	const size = 96 << 20
	m := origin.NewMemory()
	old, fresh := dataset.Random{Seed: seed, Size: size}, dataset.Random{Seed: seed + 1, Size: size}
	m.PutReader("d/k", old, size, "11111111111111111111111111111111")
	c := start(t, cluster.Options{Nodes: 2, Origin: origin.Options{Store: m}})
	c.Origin.SetFault(func(origin.Request) *origin.Fault { return &origin.Fault{Lie: origin.LieNoMatch} })
	dir := mount(t, c, "s3://"+bucket+"/d", "--consistency", "open")[c.Nodes[0]]
	f, err := os.Open(filepath.Join(dir, "k"))
	must(t, err)
	defer f.Close()
	readHead(t, f, old)
	m.PutReader("d/k", fresh, size, "22222222222222222222222222222222")
	t.Logf("%d of %d MiB were stale", readOld(t, f, old), size>>20)
	if err := dataset.CompareFile(filepath.Join(dir, "k"), fresh); err != nil {
		t.Errorf("new open: %v", err)
	}
}

// The modes of consistency: "immutable" never asks again, "ttl" asks when it is over, "open" at
// each open; refresh makes the whole cluster forget at once.
func TestConsistencyModesAndRefresh(t *testing.T) {
	const size = 1 << 20
	c := start(t, cluster.Options{Nodes: 2})
	versions := []dataset.Random{{Seed: seed, Size: size}, {Seed: seed + 1, Size: size}}
	put := func(v int) {
		_, err := c.Origin.Put(t.Context(), bucket, "d/k", versions[v].Reader(), size)
		must(t, err)
	}
	put(0)
	uri := "s3://" + bucket + "/d"
	n := c.Nodes[0]
	dirs := map[string]string{}
	for _, mode := range []string{"immutable", "ttl=1h", "ttl=2s", "open"} {
		dirs[mode] = mountOn(t, n, uri, "--consistency", mode)
	}
	far := mountOn(t, c.Nodes[1], uri, "--consistency", "ttl=1h")
	sees := func(dir string, v int) error { return dataset.CompareFile(filepath.Join(dir, "k"), versions[v]) }
	for mode, dir := range dirs {
		if err := sees(dir, 0); err != nil {
			t.Errorf("%s, first version: %v", mode, err)
		}
	}
	must(t, sees(far, 0))
	put(1)
	if err := sees(dirs["open"], 1); err != nil {
		t.Errorf("open: sees the new version at once: %v", err)
	}
	eventually(t, toolWait, "ttl=2s sees the new version", func() (bool, string) {
		err := sees(dirs["ttl=2s"], 1)
		return err == nil, errText(err)
	})
	for _, mode := range []string{"immutable", "ttl=1h"} {
		if err := sees(dirs[mode], 0); err != nil {
			t.Errorf("%s: must still see the old version: %v", mode, err)
		}
	}
	if err := sees(far, 0); err != nil {
		t.Errorf("ttl=1h on the other node: must still see the old version: %v", err)
	}
	r, err := n.Run("refresh", uri)
	must(t, err)
	t.Logf("refresh said %q", r.Stdout+r.Stderr)
	for name, dir := range map[string]string{"ttl=1h": dirs["ttl=1h"], "ttl=1h on the other node": far, "immutable": dirs["immutable"]} {
		if err := sees(dir, 1); err != nil {
			t.Errorf("%s: after refresh: %v", name, err)
		}
	}
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// Denied is EACCES, gone is ENOENT, and neither is taken for the other.
func TestDeniedAndGone(t *testing.T) {
	m := origin.NewMemory()
	m.Put("d/denied", make([]byte, 1000))
	m.Put("d/there", make([]byte, 1000))
	c := start(t, cluster.Options{Nodes: 1, Origin: origin.Options{Store: m}})
	c.Origin.SetFault(func(r origin.Request) *origin.Fault {
		if r.Key == "d/denied" && (r.Op == origin.OpGet || r.Op == origin.OpHead) {
			return &origin.Fault{Status: http.StatusForbidden}
		}
		return nil
	})
	dir := mountOn(t, c.Nodes[0], "s3://"+bucket+"/d")
	if _, err := os.ReadFile(filepath.Join(dir, "there")); err != nil {
		t.Errorf("object beside the denied one: %v", err)
	}
	if _, err := os.ReadFile(filepath.Join(dir, "denied")); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("denied object: %v, want EACCES", err)
	}
	if _, err := os.ReadFile(filepath.Join(dir, "nothing")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("absent object: %v, want ENOENT", err)
	}
}
