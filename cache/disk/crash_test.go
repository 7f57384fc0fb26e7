package disk

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/shardwell/shardwell/internal/chunk"
)

const pageBytes = 4096

// op is one change of a recorded file system. File numbers play the inode.
type op struct {
	kind string // create, write, truncate, rename, remove, mkdir
	name string
	to   string
	file int
	off  int64
	data []byte
	size int64
}

// recordFS writes down every change on its way to a real directory.
type recordFS struct {
	FS
	root string

	mu    sync.Mutex
	ops   []op
	names map[string]int
	files int
}

func newRecordFS(root string) *recordFS {
	return &recordFS{FS: OS{}, root: root, names: make(map[string]int)}
}

func (r *recordFS) rel(name string) string { return strings.TrimPrefix(name, r.root) }

// add notes op and, under the same lock, carries out update.
func (r *recordFS) add(o op, update func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if update != nil {
		update()
	}
	r.ops = append(r.ops, o)
}

func (r *recordFS) OpenFile(name string, flag int, perm fs.FileMode) (FSFile, error) {
	file, err := r.FS.OpenFile(name, flag, perm)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	rel := r.rel(name)
	if _, ok := r.names[rel]; !ok && flag&os.O_CREATE != 0 {
		r.files++
		r.names[rel] = r.files
		r.ops = append(r.ops, op{kind: "create", name: rel, file: r.files})
	}
	if flag&os.O_TRUNC != 0 {
		r.ops = append(r.ops, op{kind: "truncate", file: r.names[rel]})
	}
	return &recordFile{file, r, r.names[rel]}, nil
}

func (r *recordFS) Mkdir(name string, perm fs.FileMode) error {
	err := r.FS.Mkdir(name, perm)
	if err == nil {
		r.add(op{kind: "mkdir", name: r.rel(name)}, nil)
	}
	return err
}

func (r *recordFS) Rename(from, to string) error {
	err := r.FS.Rename(from, to)
	if err == nil {
		r.add(op{kind: "rename", name: r.rel(from), to: r.rel(to)}, func() {
			r.names[r.rel(to)] = r.names[r.rel(from)]
			delete(r.names, r.rel(from))
		})
	}
	return err
}

func (r *recordFS) Remove(name string) error {
	err := r.FS.Remove(name)
	if err == nil {
		r.add(op{kind: "remove", name: r.rel(name)}, func() { delete(r.names, r.rel(name)) })
	}
	return err
}

type recordFile struct {
	FSFile
	r    *recordFS
	file int
}

func (f *recordFile) WriteAt(p []byte, off int64) (int, error) {
	f.r.add(op{kind: "write", file: f.file, off: off, data: append([]byte(nil), p...)}, nil)
	return f.FSFile.WriteAt(p, off)
}

func (f *recordFile) Truncate(size int64) error {
	f.r.add(op{kind: "truncate", file: f.file, size: size}, nil)
	return f.FSFile.Truncate(size)
}

// Stat tells the file's number as its inode, which a clone keeps.
func (f *recordFile) Stat() (FileStat, error) {
	st, err := f.FSFile.Stat()
	st.Inode = uint64(f.file)
	return st, err
}

// cloned is a directory as a crash could have left it.
type cloned struct {
	names map[string]int
	dirs  map[string]bool
	files map[int][]byte
}

func newCloned() *cloned {
	return &cloned{names: make(map[string]int), dirs: map[string]bool{"": true}, files: make(map[int][]byte)}
}

// apply makes one change; what rests on a change that was lost is lost as well.
func (c *cloned) apply(o op) {
	switch o.kind {
	case "create":
		c.names[o.name] = o.file
	case "write":
		data := c.files[o.file]
		if end := int(o.off) + len(o.data); end > len(data) {
			data = append(data, make([]byte, end-len(data))...)
		}
		copy(data[o.off:], o.data)
		c.files[o.file] = data
	case "truncate":
		data := c.files[o.file]
		if n := int(o.size); n <= len(data) {
			data = data[:n:n]
		} else {
			data = append(data, make([]byte, n-len(data))...)
		}
		c.files[o.file] = data
	case "rename":
		if file, ok := c.names[o.name]; ok {
			c.names[o.to] = file
			delete(c.names, o.name)
		}
	case "remove":
		delete(c.names, o.name)
	case "mkdir":
		c.dirs[o.name] = true
	}
}

// write lays the clone out in root, and returns a file system that shows its inodes.
func (c *cloned) write(t *testing.T, root string) *cloneFS {
	t.Helper()
	for dir := range maps.Keys(c.dirs) {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for name, file := range c.names {
		if !c.dirs[strings.TrimSuffix(filepath.Dir(name), "/")] {
			continue
		}
		if err := os.WriteFile(filepath.Join(root, name), c.files[file], 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return &cloneFS{OS{}, root, maps.Clone(c.names)}
}

// cloneFS gives the files of a clone the inodes that they had.
type cloneFS struct {
	FS
	root  string
	names map[string]int
}

func (c *cloneFS) OpenFile(name string, flag int, perm fs.FileMode) (FSFile, error) {
	file, err := c.FS.OpenFile(name, flag, perm)
	if err != nil {
		return nil, err
	}
	inode, ok := c.names[strings.TrimPrefix(name, c.root)]
	if !ok || flag&os.O_CREATE != 0 {
		return file, nil
	}
	return &cloneFile{file, uint64(inode)}, nil
}

type cloneFile struct {
	FSFile
	inode uint64
}

func (c *cloneFile) Stat() (FileStat, error) {
	st, err := c.FSFile.Stat()
	st.Inode = c.inode
	return st, err
}

// record runs a short life of a cache and returns its changes.
func record(t *testing.T, objects []content) []op {
	t.Helper()
	cfg := testConfig(t.TempDir())
	r := newRecordFS(cfg.Path)
	cfg.FS = r
	if n := workload(t, cfg, objects); n != 1 {
		t.Fatalf("%d failures while recording", n)
	}
	return r.ops
}

// split cuts writes at page borders, as a crash can.
func split(ops []op) (pages []op) {
	for _, o := range ops {
		for o.kind == "write" && o.off/pageBytes != (o.off+int64(len(o.data))-1)/pageBytes {
			n := pageBytes - o.off%pageBytes
			head := o
			head.data = o.data[:n]
			pages = append(pages, head)
			o.off, o.data = o.off+n, o.data[n:]
		}
		pages = append(pages, o)
	}
	return pages
}

// survive opens what a crash left. With sameBoot nothing may be found damaged.
func survive(t *testing.T, c *cloned, objects []content, sameBoot bool) {
	t.Helper()
	root := memoryDir(t)
	cfg := testConfig(root)
	cfg.FS = c.write(t, root)
	if !sameBoot {
		cfg.BootID = "boot-two"
	}
	d, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range objects {
		f := o.acquire(t, d)
		if _, ok := f.Backing(); ok && !sameBoot {
			t.Error("given to the kernel unchecked after a power cut")
		}
		present := f.PresentBlocks()
		err := readAndCompare(t, f, o)
		if sameBoot && f.PresentBlocks() != present {
			t.Errorf("a kill damaged %s: %v", o.obj.Key, err)
		}
		f.Release()
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	afterFault(t, root, objects)
}

// TestKillAtEveryStep stops after every change, and in the midst of every write.
func TestKillAtEveryStep(t *testing.T) {
	objects := threeContents()
	ops := record(t, objects)
	clone := newCloned()
	// The workload itself damages a byte, behind the recorder's back: its repair is a
	// plain rewrite here.
	for i, o := range ops {
		if o.kind == "write" && len(o.data) > 1 {
			half := o
			half.data = o.data[:len(o.data)/2]
			clone.apply(half)
			survive(t, clone, objects, true)
		}
		clone.apply(o)
		survive(t, clone, objects, true)
		if t.Failed() {
			t.Fatalf("after change %d of %d: %s %s%d", i, len(ops), o.kind, o.name, o.file)
		}
	}
}

// TestPowerCut lets any subset of the written pages and other changes reach the disk.
func TestPowerCut(t *testing.T) {
	objects := append(threeContents(), newContent("d", 3*chunk.MinBlockBytes+1))
	ops := split(record(t, objects))
	for seed := range uint64(150) {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 1))
			clone := newCloned()
			reached := 0.5 + rng.Float64()/2
			for _, o := range ops[:rng.IntN(len(ops)+1)] {
				if o.kind == "mkdir" || rng.Float64() < reached {
					clone.apply(o)
				}
			}
			survive(t, clone, objects, false)
		})
	}
}

// TestWalkAfterKill sweeps up what was half made.
func TestWalkAfterKill(t *testing.T) {
	d := openDir(t, testConfig(t.TempDir()))
	whole, half := newContent("whole", 100), newContent("half", 100)
	whole.store(t, d)
	if err := os.MkdirAll(d.path(folder(half.id)), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{d.dataPath(half.id), d.metaPath(half.id) + tempSuffix} {
		if err := os.WriteFile(name, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.walk(context.Background(), nil); err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(d.path(folder(half.id), half.id.String()+"*")); len(left) > 0 {
		t.Errorf("still there: %v", left)
	}
	checkLedger(t, d)
	f := whole.acquire(t, d)
	defer f.Release()
	whole.check(t, f)
}
