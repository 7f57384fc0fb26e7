package fuse

import (
	"bytes"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

func passthroughs(m *testMount) (all [NumPassthroughResults]int64) {
	for i := range all {
		all[i] = m.Stats().Passthrough[i].Load()
	}
	return all
}

func open(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func TestPassthrough(t *testing.T) {
	o := newOrigin()
	o.backing = t.TempDir()
	data := randomBytes(3<<20+5, 4)
	o.put("f", data)
	o.complete(t, "f")
	m := mount(t, o, nil)
	<-m.Ready()
	if !m.passthrough.Load() {
		skip(t, "the kernel has no passthrough")
	}
	a, b := open(t, m.path("f")), open(t, m.path("f"))
	p := make([]byte, len(data))
	if n, err := a.ReadAt(p, 0); n != len(p) || err != nil || !bytes.Equal(p, data) {
		t.Errorf("read: %d, %v", n, err)
	}
	if n, err := b.ReadAt(p[:10], 100); n != 10 || err != nil || !bytes.Equal(p[:10], data[100:110]) {
		t.Errorf("second handle: %d, %v", n, err)
	}
	mapped, err := unix.Mmap(int(b.Fd()), 0, len(data), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil || !bytes.Equal(mapped, data) {
		t.Errorf("mmap: %v", err)
	}
	if err == nil {
		_ = unix.Munmap(mapped)
	}
	if n := m.Stats().ReadBytes.Load(); n != 0 {
		t.Errorf("the daemon served %d bytes", n)
	}
	if got := passthroughs(m); got[PassthroughUsed] != 2 || m.Stats().OpenBacking.Load() != 1 {
		t.Errorf("opens: %v, %d files registered", got, m.Stats().OpenBacking.Load())
	}
	a.Close()
	b.Close()
	until(t, "nothing is open", func() bool { return m.Stats().OpenFiles.Load()+m.Stats().OpenBacking.Load() == 0 })
	if got := content(t, m.path("f")); got != string(data) {
		t.Error("open after the last close")
	}
}

// Opens of one inode are all buffered or all passed through, but for those that find the
// file in the cache no good: they are read through the daemon, past the others.
func TestPassthroughNeverMixes(t *testing.T) {
	o := newOrigin()
	o.backing = t.TempDir()
	o.put("f", randomBytes(1<<20, 5))
	m := mount(t, o, nil)
	a := open(t, m.path("f"))
	if !m.passthrough.Load() {
		skip(t, "the kernel has no passthrough")
	}
	o.complete(t, "f")
	b := open(t, m.path("f"))
	p := make([]byte, 100)
	for _, f := range []*os.File{a, b} {
		if _, err := f.ReadAt(p, 5000); err != nil {
			t.Error(err)
		}
	}
	if got := passthroughs(m); got[PassthroughIncomplete] != 1 || got[PassthroughCachedOpen] != 1 {
		t.Errorf("opens: %v", got)
	}
	a.Close()
	b.Close()
	until(t, "nothing is open", func() bool { return m.Stats().OpenFiles.Load() == 0 })
	c := open(t, m.path("f"))
	if err := os.RemoveAll(o.backing); err != nil { // dropped from the cache: who has it open keeps it
		t.Fatal(err)
	}
	d := open(t, m.path("f"))
	for _, f := range []*os.File{c, d} {
		if _, err := f.ReadAt(p, 5000); err != nil {
			t.Error(err)
		}
	}
	if got := passthroughs(m); got[PassthroughUsed] != 1 || got[PassthroughBroken] != 1 || m.Stats().ReadBytes.Load() < 100 {
		t.Errorf("opens: %v", got)
	}
	c.Close()
	if _, err := d.ReadAt(p, 7000); err != nil {
		t.Error(err)
	}
	d.Close()
	until(t, "nothing is open or registered", func() bool { return m.Stats().OpenFiles.Load()+m.Stats().OpenBacking.Load() == 0 })
}

func TestPassthroughOff(t *testing.T) {
	o := newOrigin()
	o.backing = t.TempDir()
	o.put("f", []byte("x"))
	o.complete(t, "f")
	m := mount(t, o, func(c *Config) { c.NoPassthrough = true })
	if got := content(t, m.path("f")); got != "x" {
		t.Error(got)
	}
	if got := passthroughs(m); got[PassthroughOff] != 1 {
		t.Errorf("opens: %v", got)
	}
}

// A cache file that the kernel cannot read itself, for it lies on a FUSE file system,
// is read through the daemon.
func TestPassthroughRefused(t *testing.T) {
	below := newOrigin()
	below.put("x", []byte("x"))
	lower := mount(t, below, nil)
	o := newOrigin()
	o.put("f", []byte("hello"))
	o.backing, o.backingName = lower.dir, "x"
	m := mount(t, o, nil)
	<-m.Ready()
	if !m.passthrough.Load() {
		skip(t, "the kernel has no passthrough")
	}
	for range 2 {
		if got := content(t, m.path("f")); got != "hello" {
			t.Error(got)
		}
		until(t, "nothing is open", func() bool { return m.Stats().OpenFiles.Load() == 0 })
	}
	if got := passthroughs(m); got[PassthroughRefused] != 2 {
		t.Errorf("opens: %v", got)
	}
}
