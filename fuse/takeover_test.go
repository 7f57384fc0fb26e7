package fuse

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shardwell/shardwell/fuse/handover"
)

// What a reader waits for when its server is killed is answered by the next one, also when
// that stood by, and when names are in memory because the disk is full.
func TestWaitingReadOutlivesItsServer(t *testing.T) {
	m := keep(t, nil)
	state := filepath.Join(filepath.Dir(m.dir), "state")
	if err := errors.Join(os.Mkdir(state, 0o755), unix.Mount("tmpfs", state, "tmpfs", 0, "size=4k")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(state, unix.MNT_DETACH) })
	m.serve("SHARDWELL_TEST_STUCK=stuck-1")
	var st unix.Stat_t
	if err := unix.Stat(m.path("many/0001"), &st); err != nil { // ids of names that the disk did not take
		t.Fatal(err)
	}
	fd, err := openRaw(m.path("stuck-1"), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	result := make(chan error, 1)
	go func() {
		p := make([]byte, 8192)
		n, err := unix.Pread(fd, p, 4096)
		if err == nil && (n != len(p) || p[1] != pattern(4097)) {
			err = errors.New("wrong bytes")
		}
		result <- err
	}()
	first := m.cmd
	standby := &keptMount{t: t, dir: m.dir, socket: m.socket, files: m.files, origin: m.origin}
	t.Cleanup(standby.kill)
	ready := make(chan struct{})
	go func() {
		defer close(ready)
		standby.serve("SHARDWELL_TEST_STUCK=stuck-1", "SHARDWELL_TEST_GO_ON=1")
	}()
	select {
	case err := <-result:
		t.Fatalf("the read did not wait: %v", err)
	case <-ready:
		t.Fatal("two servers at a time")
	case <-time.After(200 * time.Millisecond): // long enough for what must not happen
	}
	_, _ = first.Process.Kill(), first.Wait()
	m.cmd = nil
	<-ready
	if err := <-result; err != nil {
		t.Errorf("the read that waited: %v", err)
	}
	ino := st.Ino
	if err := unix.Stat(m.path("many/0001"), &st); err != nil || st.Ino != ino {
		t.Errorf("a name has another id: %d, %d, %v", st.Ino, ino, err)
	}
}

// Readers of a mount that nobody comes back for get an error.
func TestGiveUp(t *testing.T) {
	m := keep(t, func(k *handover.Keeper) { k.GiveUp = time.Second })
	m.serve()
	held, err := openRaw(m.path("data/00"), unix.O_DIRECT)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(held)
	m.kill()
	began := time.Now()
	_, err = unix.Pread(held, make([]byte, 4096), 0)
	if took := time.Since(began); err == nil || took > 30*time.Second {
		t.Errorf("got %v after %v", err, took)
	}
	await(t, "the mount is dead", func() bool { return !Served(m.dir) })
}

// A request that ends its server whenever it is served fails in the end, and what was
// beside it does not.
func TestDeadlyRequest(t *testing.T) {
	m := keep(t, nil)
	m.serve("SHARDWELL_TEST_STUCK=stuck-1")
	fd, err := openRaw(m.path("stuck-1"), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	var beside sync.WaitGroup
	beside.Go(func() {
		if n, err := unix.Pread(fd, make([]byte, 4096), 0); n != 4096 || err != nil {
			t.Errorf("the read beside it: %d, %v", n, err)
		}
	})
	failed := make(chan error, 1)
	go func() {
		var st unix.Stat_t
		failed <- unix.Stat(m.path("deadly-name"), &st)
	}()
	ends := 0
	const crashes = maxBlame / blameOfCrash
	for range 2 * (crashes + againBeforeDock) {
		select {
		case err := <-failed:
			if !errors.Is(err, unix.EIO) || ends < crashes {
				t.Errorf("it failed with %v after %d servers", err, ends)
			}
			m.kill()
			m.serve("SHARDWELL_TEST_STUCK=stuck-1", "SHARDWELL_TEST_GO_ON=1")
			beside.Wait()
			return
		case <-ended(m):
			ends++
			m.kill()
			m.serve("SHARDWELL_TEST_STUCK=stuck-1")
		}
	}
	t.Errorf("it has ended %d servers and goes on", ends)
	abort(m.dir)
	beside.Wait()
}

// ended is closed when the server has ended by itself.
func ended(m *keptMount) <-chan struct{} {
	done := make(chan struct{})
	p := m.cmd.Process
	go func() {
		_, _ = p.Wait()
		close(done)
	}()
	return done
}

// heir makes a session that goes on with what another has left in its area, which it did
// not hand over.
func heir(t *testing.T, m *Session, dir string) *testMount {
	t.Helper()
	duplicate := func(f *os.File) *os.File {
		fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		return os.NewFile(uintptr(fd), f.Name())
	}
	area, err := handover.OpenArea(duplicate(m.state.(*handover.Area).File()))
	if err != nil {
		t.Fatal(err)
	}
	dev, err := m.Device()
	if err != nil {
		t.Fatal(err)
	}
	cfg := m.cfg
	cfg.State, cfg.Resume, cfg.Listings = area, true, duplicate(m.ListingsFile())
	s, err := New(cfg)
	if err == nil {
		err = s.Adopt(dev, dir, "")
	}
	if err != nil {
		t.Fatal(err)
	}
	next := &testMount{Session: s, dir: dir, origin: cfg.Data.(*fakeOrigin), done: make(chan error, 1)}
	ctx, cancel := context.WithCancel(context.Background())
	next.cancel = cancel
	t.Cleanup(func() {
		next.stop(t)
		if err := errors.Join(s.Close(), area.Close()); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	go func() { next.done <- s.Run(ctx) }()
	return next
}

// Where the kernel sends nothing again, what a predecessor took fails, and nobody waits for ever.
func TestKernelThatSendsNothingAgain(t *testing.T) {
	o := newOrigin()
	o.putSized("stuck", 1<<20)
	o.put("f", []byte("x"))
	area, err := handover.NewArea(nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = area.Close() })
	m := mount(t, o, func(c *Config) { c.State = area })
	m.resends.Store(false)
	fd, err := openRaw(m.path("stuck"), unix.O_DIRECT)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	failed := make(chan error, 1)
	go func() {
		_, err := unix.Pread(fd, make([]byte, 4096), 0)
		failed <- err
	}()
	until(t, "the read waits", func() bool { return o.waiting.Load() > 0 })
	await(t, "only that is noted", func() bool { return len(area.Unanswered()) == 1 })
	next := m.successorOf(t, func(s *Session) { s.resends.Store(false) })
	if err := <-failed; !errors.Is(err, unix.EIO) {
		t.Errorf("the read that waited: %v", err)
	}
	var st unix.Stat_t
	if err := unix.Stat(next.path("f"), &st); err != nil {
		t.Errorf("what comes after it: %v", err)
	}
	await(t, "nothing is unanswered", func() bool { return len(area.Unanswered()) == 0 })
}

// A server may end before it has agreed with the kernel, before it has said so, and after.
func TestKilledWhileAgreeing(t *testing.T) {
	needFUSE(t)
	for _, taken := range []bool{false, true} {
		o := newOrigin()
		o.put("f", []byte("x"))
		buffers := NewBuffers(8 << 20)
		defer buffers.Close()
		area, err := handover.NewArea(nil)
		if err != nil {
			t.Fatal(err)
		}
		s, err := New(Config{Bucket: fakeBucket, Names: o, Data: o, StateDir: t.TempDir(), Buffers: buffers, State: area})
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		if err := s.Mount(dir); err != nil {
			t.Fatal(err)
		}
		if taken {
			req := make([]byte, requestBytes)
			n, err := unix.Read(s.dev, req)
			if err != nil {
				t.Fatal(err)
			}
			reply, err := s.initReply(req[:n])
			if err == nil {
				err = area.SaveInit(req[:n], reply)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		next := heir(t, s, dir)
		var st unix.Stat_t
		if err := unix.Stat(next.path("f"), &st); err != nil || st.Size != 1 {
			t.Errorf("taken %v: %d bytes, %v", taken, st.Size, err)
		}
		<-next.Ready()
		_ = unix.Close(s.dev)
		s.dev = -1
		if err := errors.Join(s.Close(), area.Close()); err != nil {
			t.Error(err)
		}
	}
}

// Files that a server registered and did not note, or was about to unregister, when it was
// killed, are unregistered by the next, and those in use are not.
func TestSweepBacking(t *testing.T) {
	o := newOrigin()
	o.backing = t.TempDir()
	for _, key := range []string{"a", "b"} {
		o.putSized(key, 1<<20)
		o.complete(t, key)
	}
	area, err := handover.NewArea(nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = area.Close() })
	m := mount(t, o, func(c *Config) { c.State = area })
	if !m.passthrough.Load() {
		skip(t, "the kernel has no passthrough")
	}
	a := open(t, m.path("a"))
	handles := area.Handles()
	used := handles[0].Backing
	register := func() int32 {
		t.Helper()
		id, errno := openBacking(m.dev, m.ListingsFile())
		if errno != 0 {
			t.Fatal(errno)
		}
		return id
	}
	closing, noted, lost := register(), register(), register()
	area.BackingOpened(noted)
	area.ClosingBacking(closing)
	dev, err := m.Device() // which the end of m closes
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	next := m.successor(t)
	await(t, "swept", func() bool { return area.BackingClosing() == 0 })
	for _, id := range []int32{closing, noted, lost} {
		if errno := closeBacking(next.dev, id); errno == 0 {
			t.Errorf("%d stayed registered", id)
		}
	}
	if got := area.Handles(); !slices.Equal(got, handles) || got[0].Backing != used {
		t.Errorf("handles: %v, before %v", got, handles)
	}
	p := make([]byte, 100)
	for _, f := range []*os.File{a, open(t, m.path("b")), open(t, m.path("a"))} {
		if n, err := f.ReadAt(p, 4096); n != 100 || err != nil || p[1] != pattern(4097) {
			t.Errorf("%s: %d, %v", f.Name(), n, err)
		}
		f.Close()
	}
}
