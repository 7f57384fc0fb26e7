package disk

import (
	"context"
	"io/fs"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/shardwell/shardwell/internal/chunk"
)

// deadFS is a disk whose pages in memory are all that is left of it: reads past them fail.
type deadFS struct {
	FS
	direct atomic.Int32  // files opened past the page cache
	err    atomic.Uint32 // errno of their reads; 0 reads
}

func (d *deadFS) OpenFile(name string, flag int, perm fs.FileMode) (FSFile, error) {
	file, err := d.FS.OpenFile(name, flag&^unix.O_DIRECT, perm)
	if err == nil && flag&unix.O_DIRECT != 0 && strings.HasSuffix(name, dataSuffix) {
		d.direct.Add(1)
		return deadFile{file, d}, nil
	}
	return file, err
}

type deadFile struct {
	FSFile
	d *deadFS
}

func (f deadFile) ReadAt(p []byte, off int64) (int, error) {
	if errno := syscall.Errno(f.d.err.Load()); errno != 0 {
		return 0, errno
	}
	return f.FSFile.ReadAt(p, off)
}

// A file is not given to the kernel while its disk does not read.
func TestCheckup(t *testing.T) {
	disk := &deadFS{FS: OS{}}
	cfg := testConfig(t.TempDir())
	cfg.FS = disk
	d := openDir(t, cfg)
	c := newContent("key", 3*chunk.MinBlockBytes)
	f := c.acquire(t, d)
	defer f.Release()
	c.putAll(t, f)
	again := func() { d.checkedAt.Store(0) } // time passes
	for range 2 {
		if _, ok := f.Backing(); !ok || disk.direct.Load() != 1 {
			t.Fatalf("given %t after %d checkups, want one in %v", ok, disk.direct.Load(), checkupEvery)
		}
	}
	again()
	disk.err.Store(uint32(syscall.EINVAL))
	if _, ok := f.Backing(); !ok || !d.noDirect.Load() {
		t.Error("a file system without direct I/O gives no files to the kernel")
	}
	d.noDirect.Store(false)
	again()
	disk.err.Store(uint32(syscall.EIO))
	if _, ok := f.Backing(); ok || d.State() != Unstable {
		t.Fatalf("given %t to the kernel, disk %v", ok, d.State())
	}
	c.check(t, f) // the daemon still tries
	for range 3 { // it is read still: by the handles that have it
		d.checkupInUse()
	}
	if d.State() != Down {
		t.Errorf("after four checkups that failed the disk is %v", d.State())
	}
	disk.err.Store(0)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := d.Run(ctx); err != nil { // probes first
		t.Fatal(err)
	}
	d.health = health{} // a minute passes
	if _, ok := f.Backing(); !ok || d.stats.Checkups.Load() != 7 {
		t.Errorf("given %t after the disk came back, %d checkups", ok, d.stats.Checkups.Load())
	}
}

// A checkup is no use of the file, and needs none that is in use.
func TestCheckupIsNoUse(t *testing.T) {
	d := openDir(t, testConfig(t.TempDir()))
	c := newContent("key", 3*chunk.MinBlockBytes)
	c.store(t, d)
	f := c.acquire(t, d)
	if _, ok := f.Backing(); !ok {
		t.Fatal("not given")
	}
	used := f.lastUse.Load()
	d.checkedAt.Store(0)
	d.checkupInUse()
	if f.lastUse.Load() != used || f.refs != 1 {
		t.Errorf("last use %d, was %d; %d references", f.lastUse.Load(), used, f.refs)
	}
	f.Release()
	before := d.stats.Checkups.Load()
	d.checkedAt.Store(0)
	d.checkupInUse()
	if n := d.stats.Checkups.Load(); n != before {
		t.Errorf("%d checkups while the kernel reads nothing", n-before)
	}
}
