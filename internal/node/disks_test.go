package node

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/shardwell/shardwell/cache/disk"
	"github.com/shardwell/shardwell/fuse"
	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/internal/config"
)

// failingDisk is an ext4 file system on a loop device, which gets EIO for what lies behind the end of its image.
type failingDisk struct {
	t          *testing.T
	dir, image string
	imageBytes int64
}

func newFailingDisk(t *testing.T) *failingDisk {
	t.Helper()
	d := &failingDisk{t: t, dir: t.TempDir(), image: filepath.Join(t.TempDir(), "image"), imageBytes: 96 << 20}
	if err := os.WriteFile(d.image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	d.resize(d.imageBytes)
	for _, args := range [][]string{{"mkfs.ext4", "-q", "-F", d.image}, {"mount", "-o", "loop", d.image, d.dir}} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", args, err, out)
		}
	}
	t.Cleanup(func() { // after the node's own
		d.resize(d.imageBytes)
		if err := unix.Unmount(d.dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return d
}

func (d *failingDisk) resize(n int64) {
	d.t.Helper()
	if err := os.Truncate(d.image, n); err != nil {
		d.t.Fatal(err)
	}
}

// fail loses all that is on the disk but for what is in memory; of a file nothing is.
func (d *failingDisk) fail(file string) {
	d.t.Helper()
	f, err := os.Open(file)
	if err != nil {
		d.t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Syncfs(int(f.Fd())); err != nil {
		d.t.Fatal(err)
	}
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		d.t.Fatal(err)
	}
	d.resize(1 << 20)
}

// SEMANTICS K7: A cache disk that fails under files which the kernel reads by itself is found by reads past the page cache, every 5 s; what is opened from then on is read through the daemon, whoever still has the file open.
//
// TestPassthroughOnAFailingDisk has one of two disks lose what it holds.
func TestPassthroughOnAFailingDisk(t *testing.T) {
	t.Parallel()
	needMounts(t)
	bad := newFailingDisk(t)
	files := make(map[string][]byte)
	for i := range 12 {
		files[fmt.Sprint(i)] = randomBytes(1<<20, uint64(i))
	}
	o := newOrigin(t, files)
	cfg := testConfig(t, o.URL())
	cfg.CacheDirs = append(cfg.CacheDirs, config.CacheDir{Path: filepath.Join(bad.dir, "cache")})
	n := start(t, cfg)
	dir := n.mountOn(t, "s3://data/")
	if err := readAll(dir, files); err != nil {
		t.Fatal(err)
	}
	file, name := "", "" // an object on the disk that is going to fail
	err := n.disks.dirs[1].Each(t.Context(), func(e disk.Entry) error {
		file, name = dataFile(n.disks.dirs[1], e.ID), e.Object.Key
		return nil
	})
	if err != nil || file == "" {
		t.Fatalf("nothing is on the second disk (%v)", err)
	}
	passed := func(r fuse.PassthroughResult) int64 { return n.mounts.totals().passthrough[r] }
	until(t, "the last handle is closed", func() bool { return n.mounts.all()[0].session.Stats().OpenFiles.Load() == 0 })
	before, err := openFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	defer before.close()
	if passed(fuse.PassthroughUsed) == 0 {
		if os.Getenv("CI") == "true" {
			t.Fatal("the kernel has no passthrough")
		}
		t.Skip("the kernel has no passthrough")
	}
	bad.fail(file)
	if got, err := before.readAll(); !errors.Is(err, unix.EIO) {
		t.Errorf("the kernel reads %d bytes of a disk that is gone: %v", len(got), err)
	}
	until(t, "the node finds that the disk fails", func() bool { return n.disks.dirs[1].State() != disk.Normal })
	after, err := openFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	defer after.close()
	if got, err := after.readAll(); err != nil || !bytes.Equal(got, files[name]) {
		t.Errorf("opened after the failure was found: %d bytes, %v", len(got), err)
	}
	if passed(fuse.PassthroughBroken) != 1 {
		t.Error("it was not opened beside the other one")
	}
	if err := readAll(dir, files); err != nil {
		t.Error(err)
	}
	if n.disks.dirs[0].State() != disk.Normal {
		t.Error("the other disk suffers")
	}
}

// dataFile is where a directory keeps the bytes of an object.
func dataFile(d *disk.Dir, id chunk.ObjectID) string {
	return filepath.Join(d.Path(), "objects", id.String()[:2], id.String()+".data")
}

// SEMANTICS K6: A cache disk that fails, is full, or does not answer, also when the node starts, costs a read through the daemon time and hits, never an error.
//
// A disk that fails at the start of a node costs hits: the node goes on with the others, or without any, and says so.
//
// The file system is read-only by then, as one is whose disk has failed before.
func TestStartBesideAFaultyDisk(t *testing.T) {
	t.Parallel()
	needMounts(t)
	for _, alone := range []bool{false, true} {
		t.Run(fmt.Sprint("alone=", alone), func(t *testing.T) {
			bad := newFailingDisk(t)
			files := map[string][]byte{"a": randomBytes(1<<20, 1), "b": randomBytes(1<<20, 2), "c": randomBytes(1<<20, 3)}
			o := newOrigin(t, files)
			cfg := testConfig(t, o.URL())
			dirs := []config.CacheDir{{Path: filepath.Join(bad.dir, "cache")}}
			if !alone {
				dirs = append(dirs, cfg.CacheDirs...)
			}
			cfg.CacheDirs = dirs
			n := start(t, cfg)
			if err := readAll(n.mountOn(t, "s3://data/"), files); err != nil {
				t.Fatal(err)
			}
			if err := n.stop(); err != nil {
				t.Fatal(err)
			}
			if err := unix.Mount("", bad.dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
				t.Fatal(err)
			}
			n = start(t, cfg)
			if err := readAll(n.mountOn(t, "s3://data/"), files); err != nil {
				t.Error(err)
			}
			st, err := n.Status(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			states := make(map[string]string)
			for _, d := range st.Disks {
				states[d.Path] = d.State
			}
			for i, d := range dirs {
				if want := []string{"down", "normal"}[min(i, 1)]; states[d.Path] != want {
					t.Errorf("%s is %q, want %s", d.Path, states[d.Path], want)
				}
			}
		})
	}
}
