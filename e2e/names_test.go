package e2e_test

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/shardwell/shardwell/e2e/cluster"
	"github.com/shardwell/shardwell/e2e/dataset"
	"github.com/shardwell/shardwell/e2e/origin"
)

// goodKeys can be paths and must be readable byte for byte.
var goodKeys = []string{
	"plain", "dir/file", "dir/deep/er/file", " space ", "dir/ leading", "trailing ", "a+b=c&d?e#f%41%zz", "back\\slash",
	"tab\tnewline\nbell\x07", "*?[]{}$`'\"", "-rf", "~", "...", "..a", "a..", ".hidden", "ünï/cödé",
	"caf\u00e9-nfc", "cafe\u0301-nfd", "\u202eright to left", "emoji-\U0001f40c",
	strings.Repeat("n", 255), "long/" + strings.Repeat("x", 200) + "/" + strings.Repeat("y", 255), "utf8-\u00ff-255" + strings.Repeat("z", 200),
}

// badKeys cannot be paths and must be left out, counted and named.
var badKeys = []string{
	"a//b", "/abs", "x/./y", ".", "..", "../up", "x/../y", "x/..", "//", strings.Repeat("n", 256),
	"sub/" + strings.Repeat("m", 256) + "/file", "trail//",
}

// oddKeys may be either; whichever it is, look-up and listing must agree.
var oddKeys = []string{"invalid-\xff\xfe", "dir\xc3/file", "over\xed\xa0\x80long"}

// zoo fills a store in memory with the keys under "zoo/". Each object's bytes are its key.
func zoo() *origin.Memory {
	m := origin.NewMemory()
	for _, k := range slices.Concat(goodKeys, badKeys, oddKeys) {
		m.Put("zoo/"+k, []byte("bytes of "+k))
	}
	m.Put("zoo/marked/", nil) // a directory's marker
	m.Put("zoo/marked/file", []byte("bytes of marked/file"))
	m.Put("zoo/empty-marked/", nil)
	m.Put("zoo/blue", []byte("bytes of blue"))
	m.Put("zoo/blue/x", []byte("bytes of blue/x"))
	return m
}

// walk reads the whole tree: names of files and their bytes, by path.
func walk(t *testing.T, dir string) map[string]string {
	t.Helper()
	found := make(map[string]string)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			t.Errorf("listed, but cannot be looked at: %v", err)
			return nil
		}
		if d.IsDir() {
			return nil
		}
		data, err := os.ReadFile(path)
		if err != nil {
			t.Errorf("listed, but cannot be read: %v", err)
			return nil
		}
		found[strings.TrimPrefix(path, dir+"/")] = string(data)
		return nil
	})
	must(t, err)
	return found
}

func TestKeyZoo(t *testing.T) {
	c := start(t, cluster.Options{Nodes: 2, Origin: origin.Options{Store: zoo()}})
	listed := mountOn(t, c.Nodes[0], "s3://"+bucket+"/zoo") // asked by listing first
	looked := mountOn(t, c.Nodes[1], "s3://"+bucket+"/zoo") // asked by name first
	lookedUp := make(map[string]string)
	for _, k := range slices.Concat(goodKeys, badKeys, oddKeys, []string{"marked/file", "blue", "blue/x"}) {
		// Not filepath.Join, which would clean the name.
		data, err := os.ReadFile(looked + "/" + k)
		if err == nil {
			lookedUp[k] = string(data)
		} else if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENAMETOOLONG) &&
			!errors.Is(err, syscall.EISDIR) && !errors.Is(err, syscall.ENOTDIR) && !errors.Is(err, syscall.EILSEQ) {
			t.Errorf("look-up of %q: %v", k, err)
		}
	}
	found := walk(t, listed)
	for _, k := range append(slices.Clone(goodKeys), "marked/file") {
		if want := "bytes of " + k; found[k] != want || lookedUp[k] != want {
			t.Errorf("key %q: %q by listing and %q by name, want %q", k, found[k], lookedUp[k], want)
		}
	}
	for _, k := range badKeys {
		if found[k] != "" {
			t.Errorf("key %q cannot be a path, but was listed", k)
		}
	}
	for path, data := range found {
		if data != "bytes of "+path {
			t.Errorf("file %q holds %q", path, data)
		}
		if lookedUp[path] != data {
			t.Errorf("file %q: listed with %q, looked up as %q", path, data, lookedUp[path])
		}
	}
	for path := range lookedUp {
		// The kernel itself resolves "." and ".." and "//"; they reach other objects.
		if _, ok := found[path]; !ok && !slices.Contains(badKeys, path) {
			t.Errorf("file %q was looked up, but is not listed", path)
		}
	}
	blue := found["blue"] != ""
	if under := found["blue/x"] != ""; blue == under {
		t.Errorf("\"blue\" visible: %v, \"blue/x\" visible: %v; want exactly one", blue, under)
	}
	if info, err := os.Stat(filepath.Join(listed, "empty-marked")); err != nil || !info.IsDir() {
		t.Errorf("a directory marker is no directory: %v", err)
	}
	for _, again := range []string{listed, looked} {
		if second := walk(t, again); !maps.Equal(found, second) {
			t.Errorf("another walk of %s gives %d files, the first gave %d", filepath.Base(again), len(second), len(found))
		}
	}
	namedInStatus(t, c.Nodes[0], found)
}

// namedInStatus checks that every key that is not to be seen is named by status.
func namedInStatus(t *testing.T, n *cluster.Node, found map[string]string) {
	t.Helper()
	s, err := n.Status()
	must(t, err)
	named := make(map[string]string)
	for _, k := range s.SkippedKeys {
		named[strings.TrimPrefix(k.Key, "zoo/")] = k.Reason
	}
	for _, k := range slices.Concat(badKeys, oddKeys) {
		_, seen := found[k]
		spelled := string([]rune(k)) // as JSON spells bytes that are not UTF-8
		reason, skipped := named[spelled]
		// A directory whose name cannot be one is skipped as a whole.
		for name := range named {
			skipped = skipped || strings.HasSuffix(name, "/") && strings.HasPrefix(spelled, name)
		}
		if seen == skipped {
			t.Errorf("key %q: visible %v, skipped in status %v (%s); want one of both; status names %q",
				k, seen, skipped, reason, slices.Sorted(maps.Keys(named)))
		}
	}
	if len(named) == 0 {
		t.Errorf("status names no skipped key: %+v", s)
	}
}

// A directory of many names is listed once for the cluster, page by page, and looking at
// the names afterwards asks the origin nothing.
func TestLargeDirectoryIsListedOnce(t *testing.T) {
	const names = 20_000
	m := origin.NewMemory()
	for i := range names {
		m.PutReader(fmt.Sprintf("many/%06d.tar", i), dataset.Random{Seed: seed, Size: 1000}, 1000, fmt.Sprintf("%032x", i))
	}
	c := start(t, cluster.Options{Nodes: 3, Origin: origin.Options{Store: m}})
	dirs := mount(t, c, "s3://"+bucket+"/many")
	c.Origin.Reset()
	done := make(chan error, len(dirs))
	for _, dir := range dirs {
		go func() {
			entries, err := os.ReadDir(dir)
			if err == nil && len(entries) != names {
				err = fmt.Errorf("%s has %d names, want %d", dir, len(entries), names)
			}
			done <- err
		}()
	}
	for range dirs {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	rs := c.Origin.Requests()
	if got, want := len(rs.Of(origin.OpList)), names/1000; got < want || got > want+1 {
		t.Errorf("three nodes listed %d names with %d LISTs, want %d", names, got, want)
	}
	c.Origin.Reset()
	dir := dirs[c.Nodes[2]]
	for i := range 1000 {
		path := filepath.Join(dir, fmt.Sprintf("%06d.tar", i*20))
		info, err := os.Stat(path)
		if err != nil || info.Size() != 1000 {
			t.Fatalf("stat: %v, %v", info, err)
		}
		f, err := os.Open(path)
		must(t, err)
		must(t, f.Close())
	}
	if rs := c.Origin.Requests(); len(rs) != 0 {
		t.Errorf("stat and open of 1000 listed names asked the origin: %v, want nothing", rs)
	}
}
