package disk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/shardwell/shardwell/internal/chunk"
)

// TestOpenErrors shows what the user reads, in one line.
func TestOpenErrors(t *testing.T) {
	used := t.TempDir()
	openDir(t, testConfig(used))
	failing := func(op string, errno syscall.Errno) func(*Config) {
		return func(cfg *Config) {
			cfg.FS = &faultFS{FS: OS{}, fail: func(_ int, o, _ string) error {
				if o == op {
					return errno
				}
				return nil
			}}
		}
	}
	other := t.TempDir()
	if d, err := Open(testConfig(other)); err != nil || d.Close() != nil {
		t.Fatal(err)
	}
	newer := t.TempDir()
	if err := os.WriteFile(filepath.Join(newer, layoutName), []byte("shardwell cache, layout 9, chunk 1, block 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name   string
		change func(cfg *Config)
		want   string
	}{
		{"locked", func(cfg *Config) { cfg.Path = used }, fmt.Sprintf("in use by another process (pid %d)", os.Getpid())},
		{"not writable", failing("open", syscall.EACCES), "not writable by uid"},
		{"read-only", failing("open", syscall.EROFS), "read-only file system"},
		{"no space", failing("write", syscall.ENOSPC), "no space"},
		{"quota", failing("mkdir", syscall.EDQUOT), "no space"},
		{"no parent", func(cfg *Config) { cfg.Path = filepath.Join(cfg.Path, "a", "b") }, "neither does its parent"},
		{"a file", func(cfg *Config) { cfg.Path = file }, "not a directory"},
		{"other geometry", func(cfg *Config) { cfg.Path, cfg.Geometry = other, chunk.DefaultGeometry() }, "made for other sizes"},
		{"another version", func(cfg *Config) { cfg.Path = newer }, `layout is "shardwell cache, layout 9`},
		{"bad geometry", func(cfg *Config) { cfg.Geometry.BlockBytes = 5 }, "block size 5"},
		{"negative budget", func(cfg *Config) { cfg.BudgetBytes = -1 }, "must not be negative"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cfg := testConfig(t.TempDir())
			tt.change(&cfg)
			d, err := Open(cfg)
			if err == nil {
				d.Close()
				t.Fatal("opened")
			}
			if msg := err.Error(); !strings.Contains(msg, tt.want) || !strings.Contains(msg, cfg.Path) || strings.Contains(msg, "\n") {
				t.Errorf("the message is %q", msg)
			}
		})
	}
}

func TestDamagedSmallFiles(t *testing.T) {
	cfg := testConfig(t.TempDir())
	d, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	c := newContent("k", 100)
	c.store(t, d)
	first := d.NodeID()
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{nodeIDName, cleanName, layoutName} {
		if err := os.Truncate(filepath.Join(cfg.Path, name), 0); err != nil {
			t.Fatal(err)
		}
	}
	d = openDir(t, cfg)
	if d.NodeID() == first || len(d.NodeID()) != 16 {
		t.Errorf("node id %q", d.NodeID())
	}
	if d.ledger.exact() {
		t.Error("an empty clean mark counts")
	}
	f := c.acquire(t, d)
	defer f.Release()
	c.check(t, f)
}

func TestCleanMark(t *testing.T) {
	var used [prefixes]use
	for i := range used {
		used[i] = use{int64(i) << 40, int64(i) << 39}
	}
	text := formatClean(used)
	if len(text) > maxSmallFileBytes/2 {
		t.Errorf("the mark takes %d bytes", len(text))
	}
	if got, ok := parseClean(text); !ok || got != used {
		t.Error("the mark does not come back")
	}
	for n := range text {
		if _, ok := parseClean(text[:n]); ok {
			t.Fatalf("a mark cut to %d bytes counts", n)
		}
	}
}

// TestManyObjects holds more objects than may be open, and is refused only when all are in use.
func TestManyObjects(t *testing.T) {
	cfg := testConfig(t.TempDir())
	cfg.MaxOpen = 4
	d := openDir(t, cfg)
	for i := range 20 {
		newContent(fmt.Sprint(i), 100).store(t, d)
	}
	if n := len(d.open); n > 4 {
		t.Errorf("%d objects are open", n)
	}
	var held []*File
	for i := range 4 {
		held = append(held, newContent(fmt.Sprint(i), 100).acquire(t, d))
	}
	if _, err := d.Find(newContent("5", 100).id); !errors.Is(err, ErrTooManyOpen) {
		t.Errorf("the fifth: %v", err)
	}
	for i, f := range held {
		newContent(fmt.Sprint(i), 100).check(t, f)
		f.Release()
	}
	seen := make(map[string]Entry)
	if err := d.Each(context.Background(), func(e Entry) error { seen[e.Object.Key] = e; return nil }); err != nil {
		t.Fatal(err)
	}
	if e := seen["7"]; len(seen) != 20 || e.Present != 1 || e.Total != 1 || e.Bytes <= 0 || !e.Owned || e.LastUse == 0 {
		t.Errorf("%d objects listed, one is %+v", len(seen), e)
	}
	stop := errors.New("stop")
	if err := d.Each(context.Background(), func(Entry) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("Each: %v", err)
	}
}

// TestDescriptorsRunOut gets on with fewer files when the process has no more.
func TestDescriptorsRunOut(t *testing.T) {
	limited := false
	cfg := testConfig(t.TempDir())
	var d *Dir
	cfg.FS = &faultFS{FS: OS{}, fail: func(_ int, op, _ string) error {
		if op == "open" && limited && len(d.open) > 3 {
			return syscall.EMFILE
		}
		return nil
	}}
	d = openDir(t, cfg)
	for i := range 10 {
		newContent(fmt.Sprint(i), 100).store(t, d)
	}
	limited = true
	for i := range 10 {
		c := newContent(fmt.Sprint(i+5), 100)
		f := c.acquire(t, d)
		c.putAll(t, f)
		c.check(t, f)
		f.Release()
	}
	limited = false
}

func TestReleaseTwicePanics(t *testing.T) {
	d := openDir(t, testConfig(t.TempDir()))
	f := newContent("k", 1).acquire(t, d)
	f.Release()
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	f.Release()
}

func TestPutRefusesWrongLengths(t *testing.T) {
	d := openDir(t, testConfig(t.TempDir()))
	c := newContent("k", chunk.MinBlockBytes+5)
	f := c.acquire(t, d)
	defer f.Release()
	for _, b := range []chunk.Block{{Index: 0, Data: make([]byte, 5)}, {Index: 1, Data: make([]byte, 6)}, {Index: 2}, {Index: 2, Data: []byte{1}}} {
		if err := f.Put(b); err == nil || errors.Is(err, ErrNotAdmitted) {
			t.Errorf("block %d of %d bytes: %v", b.Index, len(b.Data), err)
		}
	}
}

func TestEmptyObject(t *testing.T) {
	d := openDir(t, testConfig(t.TempDir()))
	f := newContent("k", 0).acquire(t, d)
	defer f.Release()
	if !f.Complete() || f.CachedBytes() != 0 || len(f.Missing(nil, chunk.Span{})) != 0 {
		t.Error("an empty object lacks something")
	}
}

func TestMissing(t *testing.T) {
	d := openDir(t, testConfig(t.TempDir()))
	c := newContent("k", 10*chunk.MinBlockBytes)
	f := c.acquire(t, d)
	defer f.Release()
	all := chunk.Span{Count: 10}
	if got := fmt.Sprint(f.Missing(nil, all)); got != "[blocks 0+10]" {
		t.Errorf("of nothing: %v", got)
	}
	for _, b := range []uint32{0, 3, 4, 9} {
		if err := f.Put(c.block(small, b)); err != nil {
			t.Fatal(err)
		}
	}
	if got := fmt.Sprint(f.Missing(nil, all)); got != "[blocks 1+2 blocks 5+4]" {
		t.Errorf("missing %v", got)
	}
	if got := fmt.Sprint(f.Missing(nil, chunk.Span{First: 4, Count: 2})); got != "[blocks 5+1]" {
		t.Errorf("missing %v", got)
	}
	if f.HasAll(all) || !f.HasAll(chunk.Span{First: 3, Count: 2}) || f.PresentBlocks() != 4 || f.CachedBytes() != 4*chunk.MinBlockBytes {
		t.Error("counts are wrong")
	}
}

func TestZeroSumIsNotStored(t *testing.T) {
	d := openDir(t, testConfig(t.TempDir()))
	f := newContent("k", 4).acquire(t, d)
	defer f.Release()
	data := []byte{0xab, 0x9b, 0xe0, 0x9b} // the four bytes whose CRC32C is 0
	if chunk.Checksum(data) != 0 {
		t.Fatal("not the right bytes")
	}
	if err := f.Put(chunk.Block{Data: data}); !errors.Is(err, ErrNotAdmitted) || f.Has(0) {
		t.Errorf("put: %v, present %v", err, f.Has(0))
	}
}

// TestOpenDoesNotScan counts the system calls of a start: they do not grow with the cache.
func TestOpenDoesNotScan(t *testing.T) {
	for _, clean := range []bool{true, false} {
		path := t.TempDir()
		calls := func() int {
			count := &faultFS{FS: OS{}}
			cfg := testConfig(path)
			cfg.FS = count
			d, err := Open(cfg)
			if err != nil {
				t.Fatal(err)
			}
			n := count.calls
			if err := d.Close(); err != nil {
				t.Fatal(err)
			}
			if !clean {
				_ = os.Remove(filepath.Join(path, cleanName))
			}
			return n
		}
		calls() // makes the directory
		empty := calls()
		d, err := Open(testConfig(path))
		if err != nil {
			t.Fatal(err)
		}
		for i := range 200 {
			newContent(fmt.Sprint(i), 10).store(t, d)
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		if !clean {
			_ = os.Remove(filepath.Join(path, cleanName))
		}
		if full := calls(); full != empty {
			t.Errorf("clean %v: %d calls to open an empty cache, %d with 200 objects", clean, empty, full)
		}
	}
}

func TestClosed(t *testing.T) {
	d, err := Open(testConfig(t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	c := newContent("k", 100)
	f := c.acquire(t, d)
	c.putAll(t, f)
	if err := d.Close(); err == nil || !strings.Contains(err.Error(), "1 objects are still in use") {
		t.Errorf("close with a file in use: %v", err)
	}
	if _, err := d.Find(c.id); !errors.Is(err, ErrClosed) {
		t.Errorf("Find: %v", err)
	}
	c.check(t, f) // whoever has it reads on
	f.Release()
	if err := d.Close(); err != nil {
		t.Errorf("second close: %v", err)
	}
}
