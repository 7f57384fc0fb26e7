package fuse

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv("SHARDWELL_TEST_VICTIM"); dir != "" {
		victim(dir)
		return
	}
	if base := os.Getenv("SHARDWELL_TEST_KEPT"); base != "" {
		keptServer(base)
		return
	}
	if mode, path, ok := strings.Cut(os.Getenv("SHARDWELL_TEST_CALLER"), ":"); ok {
		caller(mode, path)
		return
	}
	if path := os.Getenv("SHARDWELL_TEST_MAP"); path != "" {
		if err := mapFile(path); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// until waits for a condition that something else brings about.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatalf("not within 10 s: %s", what)
		}
	}
}

// 256 reads that wait for an origin that does not answer hold up neither a stat nor
// a read of what is here, and no buffer.
//
// SEMANTICS O4: An origin that does not answer costs the readers of what is not cached; what is cached
// reads on, and stat and local reads stay fast.
func TestStuckReads(t *testing.T) {
	o := newOrigin()
	const count = 256
	for i := range count {
		o.putSized(fmt.Sprintf("stuck-%d", i), 8<<20)
	}
	local := randomBytes(50<<20, 9)
	o.put("local", local)
	m := mount(t, o, nil)
	names(t, m.dir)
	var readers sync.WaitGroup
	for i := range count {
		flags := unix.O_RDONLY
		if i%2 == 0 {
			flags |= unix.O_DIRECT // the kernel waits for these and for readahead differently
		}
		fd, err := unix.Open(m.path(fmt.Sprintf("stuck-%d", i)), flags, 0)
		if err != nil {
			t.Fatal(err)
		}
		readers.Go(func() {
			defer unix.Close(fd)
			n, err := unix.Pread(fd, make([]byte, 1<<20), 0)
			if n != 1<<20 || err != nil {
				t.Errorf("stuck read: %d, %v", n, err)
			}
		})
	}
	until(t, "all reads wait", func() bool { return o.waiting.Load() >= count })

	fd, err := unix.Open(m.path("local"), unix.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	var stats, reads []time.Duration
	p := make([]byte, 1<<20)
	for i := range 50 {
		began := time.Now()
		var st unix.Stat_t
		if err := unix.Stat(m.path(fmt.Sprintf("none-%d", i)), &st); err != unix.ENOENT { // the kernel has to ask
			t.Fatal(err)
		}
		stats = append(stats, time.Since(began))
		began = time.Now()
		if n, err := unix.Pread(fd, p, int64(i)<<20); n != len(p) || err != nil || !bytes.Equal(p, local[i<<20:][:n]) {
			t.Fatal(n, err)
		}
		reads = append(reads, time.Since(began))
	}
	slices.Sort(stats)
	slices.Sort(reads)
	t.Logf("stat: median %v, worst %v; read of 1 MiB: median %v, worst %v", stats[25], stats[49], reads[25], reads[49])
	// The cores are shared, so the few worst are not judged.
	if !raceEnabled && (stats[44] > 10*time.Millisecond || reads[44] > 10*time.Millisecond) {
		t.Errorf("nine of ten: stat %v, read %v", stats[44], reads[44])
	}
	m.cfg.Buffers.large.mu.Lock()
	made := m.cfg.Buffers.large.made
	m.cfg.Buffers.large.mu.Unlock()
	if made > 8 {
		t.Errorf("%d large buffers in use", made)
	}
	close(o.stuck)
	readers.Wait()
}

// A reader that is interrupted gets away from an origin that does not answer.
//
// SEMANTICS I1: A reader that is interrupted (a signal, Ctrl-C) returns promptly, whatever the origin
// does.
func TestInterrupt(t *testing.T) {
	o := newOrigin()
	o.putSized("stuck", 1<<20)
	m := mount(t, o, nil)
	cmd := exec.Command("dd", "if="+m.path("stuck"), "of=/dev/null", "iflag=direct", "bs=64k")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	until(t, "dd waits", func() bool { return o.waiting.Load() > 0 })
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("dd succeeded")
	}
	until(t, "nothing waits", func() bool { return o.waiting.Load() == 0 })
	if m.Stats().Interrupts.Load() == 0 {
		t.Error("no interrupt was counted")
	}
	close(o.stuck)
}

// The end of ctx takes the mount away from readers that wait.
func TestStopWhileStuck(t *testing.T) {
	o := newOrigin()
	o.putSized("stuck", 1<<20)
	m := mount(t, o, nil)
	var got atomic.Value
	var wg sync.WaitGroup
	wg.Go(func() {
		_, err := os.ReadFile(m.path("stuck"))
		got.Store(err)
	})
	until(t, "the read waits", func() bool { return o.waiting.Load() > 0 })
	m.stop(t)
	wg.Wait()
	if err, _ := got.Load().(error); err == nil {
		t.Error("the read succeeded")
	}
}

func TestUnmount(t *testing.T) {
	o := newOrigin()
	o.putSized("f", 3<<20)
	m := mount(t, o, nil)
	f, err := os.Open(m.path("f"))
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Unmount(false); err == nil || !strings.Contains(err.Error(), "busy") {
		t.Errorf("unmount while a file is open: %v", err)
	}
	if err := m.Unmount(true); err != nil {
		t.Fatal(err)
	}
	if _, ok := FindMount(m.dir); ok {
		t.Error("still mounted")
	}
	p := make([]byte, 100)
	if _, err := f.ReadAt(p, 2<<20); err != nil || p[0] != pattern(2<<20) {
		t.Errorf("a file that was open: %v", err)
	}
	select {
	case err := <-m.done:
		t.Errorf("the session ended while a file is open: %v", err)
	default:
	}
	f.Close()
	select {
	case m.done <- <-m.done:
	case <-time.After(10 * time.Second):
		t.Error("the session goes on after the last user")
	}
	if err := m.Unmount(true); err == nil || !strings.Contains(err.Error(), "nothing is mounted") {
		t.Errorf("a second unmount: %v", err)
	}
}

// victim is a process of its own that serves a mount until it is killed.
func victim(dir string) {
	o := newOrigin()
	o.put("f", []byte("x"))
	o.putSized("stuck", 1<<20)
	o.answered = func(key string) {
		if key == "unanswered" {
			fmt.Println("asked")
			<-o.stuck
		}
	}
	s, err := New(Config{Bucket: fakeBucket, Names: o, Data: o, StateDir: filepath.Join(filepath.Dir(dir), "state"), Buffers: NewBuffers(0)})
	if err == nil {
		err = s.Mount(dir)
	}
	if err == nil && os.Getenv("SHARDWELL_TEST_SELF") != "" {
		go func() { // as declinePoll, in the middle of its look-up
			<-s.Ready()
			fmt.Println(withoutFiles(func() error {
				_, err := unix.Open(filepath.Join(dir, "unanswered"), unix.O_RDONLY, 0)
				return err
			}))
		}()
	}
	if err == nil {
		fmt.Println("mounted")
		err = s.Run(context.Background())
	}
	fmt.Println(err)
}

// A killed daemon leaves nobody hanging: readers get errors at once.
func TestKilledDaemon(t *testing.T) {
	needFUSE(t)
	dir := filepath.Join(t.TempDir(), "mnt")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "SHARDWELL_TEST_VICTIM="+dir)
	var out bytes.Buffer
	cmd.Stdout = &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		abort(dir)
		_ = unix.Unmount(dir, unix.MNT_DETACH)
	})
	until(t, "mounted", func() bool {
		_, ok := FindMount(dir)
		return ok
	})
	if b, err := os.ReadFile(filepath.Join(dir, "f")); err != nil || string(b) != "x" {
		t.Errorf("before: %q, %v", b, err)
	}
	var wg sync.WaitGroup
	var got atomic.Value
	started := make(chan struct{})
	wg.Go(func() {
		f, err := os.Open(filepath.Join(dir, "stuck"))
		close(started)
		if err == nil {
			_, err = f.Read(make([]byte, 10))
			f.Close()
		}
		got.Store(err)
	})
	<-started
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	wg.Wait()
	if err, _ := got.Load().(error); !errors.Is(err, syscall.ENOTCONN) && !errors.Is(err, syscall.ECONNABORTED) {
		t.Errorf("a read when the daemon is killed: %v", err)
	}
	if _, err := os.Open(filepath.Join(dir, "f")); !errors.Is(err, syscall.ENOTCONN) {
		t.Errorf("afterwards: %v", err)
	}
	if err := checkMountPoint(dir); err == nil || !strings.Contains(err.Error(), "mounted there already") {
		t.Errorf("mounting over it: %v", err)
	}
	if err := UnmountDir(dir, true); err != nil {
		t.Error(err)
	}
}

// A daemon that is killed while it waits for its own mount leaves nothing hanging.
func TestKilledWhileItAsksItself(t *testing.T) {
	needFUSE(t)
	dir := filepath.Join(t.TempDir(), "mnt")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "SHARDWELL_TEST_VICTIM="+dir, "SHARDWELL_TEST_SELF=1")
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		abort(dir)
		_ = unix.Unmount(dir, unix.MNT_DETACH)
	})
	for lines := bufio.NewScanner(out); lines.Scan() && lines.Text() != "asked"; {
		t.Log(lines.Text())
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		abort(dir)
		<-ended
		t.Error("the process does not end")
	}
	if _, err := os.Open(filepath.Join(dir, "f")); !errors.Is(err, syscall.ENOTCONN) {
		t.Errorf("afterwards: %v", err)
	}
}

// A session that is stopped before, while or just after it agrees with the kernel
// ends, and its mount with it.
func TestStopAtOnce(t *testing.T) {
	needFUSE(t)
	o := newOrigin()
	buffers := NewBuffers(0)
	defer buffers.Close()
	for i := range 30 {
		s, err := New(Config{Bucket: fakeBucket, Names: o, Data: o, StateDir: t.TempDir(), Buffers: buffers})
		if err != nil {
			t.Fatal(err)
		}
		m := &testMount{Session: s, dir: t.TempDir(), origin: o, done: make(chan error, 1)}
		if err := s.Mount(m.dir); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		m.cancel = cancel
		go func() { m.done <- s.Run(ctx) }()
		for range i {
			runtime.Gosched()
		}
		m.stop(t)
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}
