package fuse

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// successor hands m's mount over to a new session, which knows only the state and the
// listings that m leaves.
func (m *testMount) successor(t *testing.T) *testMount {
	t.Helper()
	return m.successorOf(t, func(*Session) {})
}

// successorOf is successor with a change of the new session before it serves.
func (m *testMount) successorOf(t *testing.T, change func(*Session)) *testMount {
	t.Helper()
	dev, err := m.HandOver(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := <-m.done; err != nil {
		t.Fatalf("run: %v", err)
	}
	m.cancel = nil
	cfg := m.cfg
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	next := &testMount{Session: s, dir: m.dir, origin: m.origin, done: make(chan error, 1)}
	t.Cleanup(func() {
		next.stop(t)
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	if err := s.Adopt(dev, m.dir, ""); err != nil {
		t.Fatal(err)
	}
	change(s)
	ctx, cancel := context.WithCancel(context.Background())
	next.cancel = cancel
	go func() { next.done <- s.Run(ctx) }()
	return next
}

// A session goes on under another one: open files, passed through or not, a directory
// read half-way, a read that waits, node ids.
func TestHandOver(t *testing.T) {
	o := newOrigin()
	o.backing = t.TempDir()
	o.putSized("d/buffered", 3<<20)
	o.putSized("d/passing", 3<<20)
	o.putSized("stuck", 1<<20)
	var want []string
	for i := range 300 {
		name := fmt.Sprintf("%04d", i)
		o.put("many/"+name, []byte(name))
		want = append(want, name)
	}
	o.complete(t, "d/passing")
	m := mount(t, o, func(c *Config) { c.State = newProcessState() })
	names(t, m.path("d"))
	before, err := os.Stat(m.path("d/buffered"))
	if err != nil {
		t.Fatal(err)
	}
	buffered, passing := open(t, m.path("d/buffered")), open(t, m.path("d/passing"))
	fd, err := unix.Open(m.path("many"), unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	var got []string
	collect := func(n int) {
		buf := make([]byte, n)
		n, err := unix.Getdents(fd, buf)
		if err != nil {
			t.Fatal(err)
		}
		_, _, got = unix.ParseDirent(buf[:n], -1, got)
	}
	collect(1 << 10)
	var reader sync.WaitGroup
	reader.Go(func() {
		if b, err := os.ReadFile(m.path("stuck")); err != nil || len(b) != 1<<20 || b[4097] != pattern(4097) {
			t.Errorf("the read that waits: %d bytes, %v", len(b), err)
		}
	})
	until(t, "the read waits", func() bool { return o.waiting.Load() > 0 })

	next := m.successor(t)
	until(t, "the read waits again", func() bool { return o.waiting.Load() > 0 })
	p := make([]byte, 100)
	for _, f := range []*os.File{buffered, passing} {
		if n, err := f.ReadAt(p, 2<<20); n != 100 || err != nil || p[7] != pattern(2<<20+7) {
			t.Errorf("%s: %d, %v", f.Name(), n, err)
		}
	}
	for range 20 {
		collect(4 << 10)
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("directory read across: %d names, %d wanted", len(got), len(want))
	}
	again := open(t, m.path("d/passing")) // with the backing id that the first has
	if n, err := again.ReadAt(p, 1<<20); n != 100 || err != nil {
		t.Errorf("opened again: %d, %v", n, err)
	}
	if err := next.Forget(t.Context(), ""); err != nil {
		t.Error(err)
	}
	after, err := os.Stat(m.path("d/buffered"))
	if err != nil || !os.SameFile(before, after) || !before.ModTime().Equal(after.ModTime()) {
		t.Errorf("node changed: %+v, %+v, %v", before, after, err)
	}
	close(o.stuck)
	reader.Wait()
	for _, f := range []*os.File{buffered, passing, again} {
		f.Close()
	}
	until(t, "nothing is open", func() bool {
		return next.Stats().OpenFiles.Load() == 0 && next.Stats().OpenBacking.Load() == 0
	})
	if left := next.state.Handles(); len(left) != 0 {
		t.Errorf("handles stay recorded: %+v", left)
	}
}

// A caller that waits across a hand-over is interrupted as before, also when the
// predecessor had the kernel's only report.
func TestHandOverOfWaitingCallers(t *testing.T) {
	for _, n := range []syscall.Signal{unix.SIGINT, unix.SIGKILL} {
		t.Run(n.String(), func(t *testing.T) {
			o := newOrigin()
			m := mount(t, o, func(c *Config) { c.State = newProcessState() })
			p := call(t, "stat", m.path("stuck-name"))
			until(t, "the call waits", func() bool { return o.waiting.Load() > 0 })
			everydaySignalsPass(t, m, p)
			m.successor(t)
			until(t, "the call waits again", func() bool { return o.waiting.Load() > 0 })
			p.signal(t, n)
			p.ends(t, map[bool]string{true: "interrupted system call"}[n == unix.SIGINT], 5*time.Second)
		})
	}
}

// A successor with other options would not mean the same by the kernel's requests.
func TestHandOverOtherOptions(t *testing.T) {
	o := newOrigin()
	o.put("f", []byte("x"))
	m := mount(t, o, func(c *Config) { c.State = newProcessState() })
	names(t, m.dir)
	cfg := m.cfg
	cfg.NoPassthrough = true
	if s, err := New(cfg); err == nil || !strings.Contains(err.Error(), "other options") {
		t.Errorf("%v, %v", s, err)
	}
	cfg = m.cfg
	cfg.Prefix = "other"
	if s, err := New(cfg); err == nil || !strings.Contains(err.Error(), "another mount") {
		t.Errorf("%v, %v", s, err)
	}
}

// A successor knows what names there are: who goes on with a directory, lists it again or opens what is in it waits
// for no question, and while the origin is silent that goes on as it would have without a change of servers.
func TestHandOverOfNames(t *testing.T) {
	o := newOrigin()
	for i := range 300 {
		o.put(fmt.Sprintf("many/%04d", i), []byte("x"))
	}
	o.put("byname", []byte("y"))
	m := mount(t, o, func(c *Config) { c.State, c.Consistency = newProcessState(), Consistency{TTL: time.Hour} })
	want := names(t, m.path("many"))
	if got := content(t, m.path("byname")); got != "y" {
		t.Fatal(got)
	}
	fd, err := openRaw(m.path("many"), unix.O_DIRECTORY)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	buf := make([]byte, 1<<10)
	n, err := unix.Getdents(fd, buf)
	if err != nil {
		t.Fatal(err)
	}
	_, count, _ := unix.ParseDirent(buf[:n], -1, nil)

	next := m.successor(t)
	if got := names(t, next.path("many")); !slices.Equal(got, want) {
		t.Errorf("%d names, before %d", len(got), len(want))
	}
	if got := content(t, next.path("many/0007")); got != "x" {
		t.Error(got)
	}
	if pages, heads := next.Stats().ListPages.Load(), next.Stats().Heads.Load(); pages+heads != 0 {
		t.Errorf("the successor asked for %d pages and %d names", pages, heads)
	}

	speak := o.hush()
	defer speak()
	last := next.successorOf(t, func(s *Session) { s.cfg.Consistency.TTL = time.Nanosecond }) // all that is known is old
	for {
		if n, err = unix.Getdents(fd, buf); err != nil || n == 0 {
			break
		}
		_, k, _ := unix.ParseDirent(buf[:n], -1, nil)
		count += k
	}
	if err != nil || count != len(want) {
		t.Errorf("the directory read across: %d names, %v", count, err)
	}
	for name, data := range map[string]string{"byname": "y", "many/0100": "x"} {
		var st unix.Stat_t
		if err := unix.Stat(last.path(name), &st); err != nil {
			t.Errorf("stat %s: %v", name, err)
		}
		if got := content(t, last.path(name)); got != data {
			t.Errorf("%s: %q", name, got)
		}
	}
}
