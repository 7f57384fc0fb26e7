package disk

import (
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// What somebody else put where files of an object belong is set aside: it costs that object a miss, and says nothing
// about the disk.
func TestStrangeNames(t *testing.T) {
	elsewhere := filepath.Join(t.TempDir(), "elsewhere")
	if err := os.WriteFile(elsewhere, []byte("not to be touched"), 0o600); err != nil {
		t.Fatal(err)
	}
	link := func(name string) error { return os.Symlink(elsewhere, name) }
	folder := func(name string) error { return os.MkdirAll(filepath.Join(name, "in", "it"), 0o700) }
	pipe := func(name string) error { return syscall.Mkfifo(name, 0o600) }
	empty := func(name string) error { return os.WriteFile(name, nil, 0o600) }
	garbage := func(name string) error { return os.WriteFile(name, make([]byte, 9000), 0o600) }
	for what, put := range map[string]func(string) error{"link": link, "folder": folder, "pipe": pipe, "empty": empty, "garbage": garbage} {
		for _, where := range []string{"meta", "data", "both", "prefix"} {
			t.Run(what+" at "+where, func(t *testing.T) {
				d := openDir(t, testConfig(t.TempDir()))
				c := newContent("key", 3*testBlock)
				names := []string{d.metaPath(c.id), d.dataPath(c.id)}
				switch where {
				case "meta":
					names = names[:1]
				case "data":
					names = names[1:]
				case "prefix":
					names = []string{filepath.Dir(names[0])}
				}
				if where != "prefix" {
					c.store(t, d)
					d.trim(0, 1)
				}
				for _, name := range names {
					if err := errors.Join(os.RemoveAll(name), put(name)); err != nil {
						t.Fatal(err)
					}
				}
				f := c.acquire(t, d)
				defer f.Release()
				if f.PresentBlocks() > 0 {
					t.Error("something is present")
				}
				c.putAll(t, f)
				c.check(t, f)
				if d.State() != Normal {
					t.Errorf("the disk is %v", d.State())
				}
				if err := d.walk(t.Context(), nil); err != nil {
					t.Error(err)
				}
				checkLedger(t, d)
			})
		}
	}
	if text, err := os.ReadFile(elsewhere); err != nil || string(text) != "not to be touched" {
		t.Errorf("the target of a link: %q, %v", text, err)
	}
}

// TestDamageThatCannotBeNoted has a disk become read-only under a block that is damaged: nothing of the object is used until
// it could be unlinked, though its sidecar says that all is well.
func TestDamageThatCannotBeNoted(t *testing.T) {
	var readOnly atomic.Bool
	cfg := testConfig(t.TempDir())
	cfg.FS = &faultFS{FS: OS{}, fail: func(_ int, op, _ string) error {
		if readOnly.Load() && (op == "write" || op == "unlink" || op == "rename" || op == "truncate" || op == "utimens") {
			return syscall.EROFS
		}
		return nil
	}}
	d := openDir(t, cfg)
	c := newContent("key", 4*testBlock)
	c.store(t, d)
	used, _ := d.Usage()
	f := c.acquire(t, d)
	flipByte(t, d.dataPath(c.id), testBlock+5)
	readOnly.Store(true)
	if err := readAndCompare(t, f, c); err == nil {
		t.Error("a damaged block was read")
	}
	if _, ok := f.Backing(); ok {
		t.Error("given to the kernel")
	}
	f.Release()
	if now, _ := d.Usage(); now != used {
		t.Errorf("%d bytes are counted, %d are taken", now, used)
	}
	for range 2 {
		if _, err := d.Acquire(c.obj, c.id, true); !errors.Is(err, errDoomed) {
			t.Errorf("acquired what could not be unlinked: %v", err)
		}
		d.work(t.Context())
	}
	readOnly.Store(false)
	d.health = health{} // a minute passes
	d.work(t.Context())
	f = c.acquire(t, d)
	defer f.Release()
	if f.PresentBlocks() != 0 {
		t.Error("damage came back")
	}
	c.putAll(t, f)
	c.check(t, f)
	checkLedger(t, d)
}

// A checkup is due by how much time has passed, whatever the clock of the machine does meanwhile.
func TestCheckupsGoByNoClock(t *testing.T) {
	d := openDir(t, testConfig(t.TempDir()))
	c := newContent("key", 3*testBlock)
	f := c.acquire(t, d)
	defer f.Release()
	c.putAll(t, f)
	for want := range int64(3) {
		d.opened = d.opened.Add(-2 * checkupEvery)
		if _, ok := f.Backing(); !ok || d.stats.Checkups.Load() != want+1 {
			t.Fatalf("given %t, %d checkups", ok, d.stats.Checkups.Load())
		}
	}
	if since := time.Duration(d.checkedAt.Load()); since > time.Since(d.opened) {
		t.Errorf("checked %v after a beginning %v ago", since, time.Since(d.opened))
	}
}

// A cache that is there is opened on a disk without any space, and read: only a new one needs some.
func TestOpenWithoutSpace(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.ENOSPC, syscall.EDQUOT} {
		path := t.TempDir()
		d, err := Open(testConfig(path))
		if err != nil {
			t.Fatal(err)
		}
		c := newContent("key", 2*testBlock)
		c.store(t, d)
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		cfg := testConfig(path)
		full := &faultFS{FS: OS{}, fail: func(_ int, op, _ string) error {
			if op == "write" {
				return errno
			}
			return nil
		}}
		cfg.FS = full
		d = openDir(t, cfg)
		f := c.acquire(t, d)
		c.check(t, f)
		f.Release()
		full.fail = nil
	}
}

// Whose fault it is that a directory cannot be opened.
func TestFaultyDisks(t *testing.T) {
	old := t.TempDir()
	if d, err := Open(testConfig(old)); err != nil || d.Close() != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		errno error
		path  string
		want  bool
	}{
		{syscall.EIO, t.TempDir(), true},
		{syscall.EUCLEAN, old, true},
		{syscall.EROFS, old, true}, // it could be written to once
		{syscall.EROFS, t.TempDir(), false},
		{syscall.EACCES, old, false},
		{syscall.ENOSPC, t.TempDir(), false},
	} {
		cfg := testConfig(tt.path)
		cfg.FS = &faultFS{FS: OS{}, fail: func(_ int, op, _ string) error {
			if op == "open" || op == "write" {
				return tt.errno
			}
			return nil
		}}
		d, err := Open(cfg)
		if err == nil {
			d.Close()
		}
		if errors.Is(err, ErrFaulty) != tt.want {
			t.Errorf("%v: %v, faulty: %t", tt.errno, err, !tt.want)
		}
	}
	free := make(chan struct{})
	defer close(free)
	cfg := testConfig(filepath.Join(t.TempDir(), "none", "cache")) // so that calls which come back late leave nothing
	cfg.CallTimeout = 20 * time.Millisecond
	cfg.FS = &faultFS{FS: OS{}, hang: func(int, string) { <-free }}
	if _, err := Open(cfg); !errors.Is(err, ErrFaulty) || !errors.Is(err, ErrHung) {
		t.Errorf("a disk that does not answer: %v", err)
	}
}

// Each goes on past a sidecar that the disk does not give, and says so; one that is damaged, or gone, is just not there.
func TestEachPastWhatCannotBeRead(t *testing.T) {
	var bad string
	cfg := testConfig(t.TempDir())
	cfg.FS = &faultFS{FS: OS{}, fail: func(_ int, op, name string) error {
		if op == "open" && name == bad {
			return syscall.EIO
		}
		return nil
	}}
	d := openDir(t, cfg)
	for _, key := range []string{"a", "b", "c"} {
		newContent(key, 1000).store(t, d)
	}
	each := func() (seen int, err error) {
		err = d.Each(t.Context(), func(Entry) error { seen++; return nil })
		return seen, err
	}
	flipByte(t, d.metaPath(newContent("a", 1000).id), 5)
	if seen, err := each(); err != nil || seen != 2 {
		t.Errorf("one is damaged: %d seen, %v", seen, err)
	}
	bad = d.metaPath(newContent("b", 1000).id)
	if seen, err := each(); !errors.Is(err, syscall.EIO) || seen != 1 {
		t.Errorf("one cannot be read: %d seen, %v", seen, err)
	}
	bad = ""
}
