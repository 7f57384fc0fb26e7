package disk

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/shardwell/shardwell/internal/chunk"
)

// faultFS fails calls as fail says, which sees the number of the call, from 1.
type faultFS struct {
	FS
	mu    sync.Mutex
	calls int
	fail  func(call int, op, name string) error
	hang  func(call int, op string) // beside other calls; nil returns at once
	space func() (Space, error)     // nil: the real one
}

func (f *faultFS) check(op, name string) error {
	f.mu.Lock()
	f.calls++
	call := f.calls
	f.mu.Unlock()
	if f.hang != nil {
		f.hang(call, op)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail == nil {
		return nil
	}
	if err := f.fail(call, op, name); err != nil {
		return &fs.PathError{Op: op, Path: name, Err: err}
	}
	return nil
}

func (f *faultFS) OpenFile(name string, flag int, perm fs.FileMode) (FSFile, error) {
	if err := f.check("open", name); err != nil {
		return nil, err
	}
	file, err := f.FS.OpenFile(name, flag, perm)
	if err != nil {
		return nil, err
	}
	return &faultFile{file, f, name}, nil
}

func (f *faultFS) Mkdir(name string, perm fs.FileMode) error {
	return errors.Join(f.check("mkdir", name), f.FS.Mkdir(name, perm))
}

func (f *faultFS) Rename(from, to string) error {
	if err := f.check("rename", from); err != nil {
		return err
	}
	return f.FS.Rename(from, to)
}

func (f *faultFS) Remove(name string) error {
	if err := f.check("unlink", name); err != nil {
		return err
	}
	return f.FS.Remove(name)
}

func (f *faultFS) Stat(name string) (FileStat, error) {
	if err := f.check("stat", name); err != nil {
		return FileStat{}, err
	}
	return f.FS.Stat(name)
}

func (f *faultFS) Statfs(name string) (Space, error) {
	if err := f.check("statfs", name); err != nil {
		return Space{}, err
	}
	if f.space != nil {
		return f.space()
	}
	return f.FS.Statfs(name)
}

type faultFile struct {
	FSFile
	fs   *faultFS
	name string
}

func (f *faultFile) ReadAt(p []byte, off int64) (int, error) {
	if err := f.fs.check("read", f.name); err != nil {
		return 0, err
	}
	return f.FSFile.ReadAt(p, off)
}

// WriteAt writes the first half before it fails, as a disk that fills up does.
func (f *faultFile) WriteAt(p []byte, off int64) (int, error) {
	if err := f.fs.check("write", f.name); err != nil {
		n, _ := f.FSFile.WriteAt(p[:len(p)/2], off)
		return n, err
	}
	return f.FSFile.WriteAt(p, off)
}

func (f *faultFile) Punch(off, n int64) error {
	if err := f.fs.check("punch", f.name); err != nil {
		return err
	}
	return f.FSFile.Punch(off, n)
}

func (f *faultFile) Truncate(size int64) error {
	if err := f.fs.check("truncate", f.name); err != nil {
		return err
	}
	return f.FSFile.Truncate(size)
}

func (f *faultFile) Stat() (FileStat, error) {
	if err := f.fs.check("fstat", f.name); err != nil {
		return FileStat{}, err
	}
	return f.FSFile.Stat()
}

func (f *faultFile) Chmod(mode fs.FileMode) error {
	if err := f.fs.check("chmod", f.name); err != nil {
		return err
	}
	return f.FSFile.Chmod(mode)
}

func (f *faultFile) SetTimes(t time.Time) error {
	if err := f.fs.check("utimens", f.name); err != nil {
		return err
	}
	return f.FSFile.SetTimes(t)
}

func (f *faultFile) StatAt(name string) (FileStat, error) {
	if err := f.fs.check("fstatat", name); err != nil {
		return FileStat{}, err
	}
	return f.FSFile.StatAt(name)
}

func (f *faultFile) Names(n int) ([]string, error) {
	if err := f.fs.check("readdir", f.name); err != nil {
		return nil, err
	}
	return f.FSFile.Names(n)
}

// workload stores, reads, drops and evicts. Errors are what the disk gives; wrong bytes
// end the test. It returns how many errors it met.
func workload(t *testing.T, cfg Config, objects []content) (failures int) {
	t.Helper()
	d, err := Open(cfg)
	if err != nil {
		return 1
	}
	note := func(err error) {
		if err != nil {
			failures++
		}
	}
	for round := range 2 {
		for i, c := range objects {
			f, err := d.Acquire(c.obj, c.id, i%2 == round)
			if note(err); err != nil {
				continue
			}
			for b := range f.Blocks() {
				err := f.Put(c.block(small, b))
				if note(err); err != nil && (!errors.Is(err, ErrNotAdmitted) || f.Has(b)) {
					t.Errorf("put: %v, present %v", err, f.Has(b))
				}
			}
			note(readAndCompare(t, f, c))
			f.Release()
		}
	}
	note(d.walk(context.Background(), nil))
	c := objects[0]
	if f, err := d.Find(c.id); err == nil {
		flipByte(t, d.dataPath(c.id), 100)
		note(readAndCompare(t, f, c))
		note(f.Put(c.block(small, 0)))
		note(readAndCompare(t, f, c))
		f.Release()
	}
	_, err = d.evict(victim(objects[1].id))
	note(err)
	note(d.Close())
	return failures
}

// readAndCompare reads block by block; whatever can be read has to be right.
func readAndCompare(t *testing.T, f *File, c content) (failed error) {
	t.Helper()
	p := make([]byte, small.BlockBytes)
	for b := range f.Blocks() {
		want := c.block(small, b).Data
		n, err := f.ReadAt(p[:len(want)], int64(b)*small.BlockBytes)
		if err != nil {
			failed = err
			if f.Has(b) {
				t.Errorf("block %d is present after: %v", b, err)
			}
			continue
		}
		if !bytes.Equal(p[:n], want) {
			t.Fatalf("block %d of %s: wrong bytes", b, c.obj.Key)
		}
	}
	if backing, ok := f.Backing(); ok {
		got := make([]byte, len(c.data))
		if _, err := backing.ReadAt(got, 0); err == nil && !bytes.Equal(got, c.data) {
			t.Fatalf("backing file of %s: wrong bytes", c.obj.Key)
		}
	}
	return failed
}

func threeContents() []content {
	return []content{
		newContent("a", chunk.MinBlockBytes+100),
		newContent("b", 10),
		newContent("c", 5000),
	}
}

// TestEveryCallFails makes the k-th call fail, for every k, once and from then on.
func TestEveryCallFails(t *testing.T) {
	objects := threeContents()
	count := &faultFS{FS: OS{}}
	cfg := testConfig(t.TempDir())
	cfg.FS = count
	if n := workload(t, cfg, objects); n != 1 { // the byte that was flipped
		t.Fatalf("%d failures without a fault", n)
	}
	for _, errno := range []syscall.Errno{syscall.EIO, syscall.ENOSPC} {
		for _, forever := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v/forever=%v", errno, forever), func(t *testing.T) {
				t.Parallel()
				for k := 1; k <= count.calls; k++ {
					cfg := testConfig(memoryDir(t))
					cfg.FS = &faultFS{FS: OS{}, fail: func(call int, op, name string) error {
						if call == k || forever && call > k {
							return errno
						}
						return nil
					}}
					workload(t, cfg, objects)
					afterFault(t, cfg.Path, objects)
					if t.Failed() {
						t.Fatalf("call %d", k)
					}
				}
			})
		}
	}
}

// afterFault opens the directory on a disk that works again.
func afterFault(t *testing.T, path string, objects []content) {
	t.Helper()
	d, err := Open(testConfig(path))
	if err != nil {
		t.Fatal(err)
	}
	if err := d.walk(context.Background(), nil); err != nil {
		t.Fatal(err)
	}
	for _, c := range objects {
		f := c.acquire(t, d)
		_ = readAndCompare(t, f, c)
		c.putAll(t, f)
		c.check(t, f)
		f.Release()
	}
	checkLedger(t, d)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	os.RemoveAll(path)
}

// TestRejectReasons shows which error is booked as what, and that nothing is left.
func TestRejectReasons(t *testing.T) {
	for errno, want := range map[syscall.Errno]Reject{
		syscall.ENOSPC: RejectNoSpace, syscall.EDQUOT: RejectQuota, syscall.EIO: RejectIO, syscall.EROFS: RejectIO,
	} {
		for _, op := range []string{"open", "write", "truncate", "rename"} {
			on := false
			cfg := testConfig(t.TempDir())
			cfg.FS = &faultFS{FS: OS{}, fail: func(_ int, o, _ string) error {
				if on && o == op {
					return errno
				}
				return nil
			}}
			d := openDir(t, cfg)
			c := newContent("k", 100)
			f := c.acquire(t, d)
			on = true
			err := f.Put(c.block(small, 0))
			on = false
			var reject *RejectError
			if !errors.As(err, &reject) || reject.Reason != want || !errors.Is(err, errno) || d.stats.Rejected[want].Load() != 1 {
				t.Errorf("%v on %s: %v", errno, op, err)
			}
			if err := f.Put(c.block(small, 0)); err != nil {
				t.Errorf("%v on %s, then: %v", errno, op, err)
			}
			c.check(t, f)
			f.Release()
		}
	}
}
