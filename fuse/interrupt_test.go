package fuse

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// everyday are the signals that interrupt nothing.
var everyday = []syscall.Signal{unix.SIGURG, unix.SIGPROF, unix.SIGVTALRM, unix.SIGCHLD, unix.SIGWINCH, unix.SIGCONT}

// caller is another process that makes bare system calls, as a program in C does. It
// has handlers for all signals, says in which thread it is, and then what came out.
func caller(mode, path string) {
	runtime.LockOSThread()
	signal.Notify(make(chan os.Signal, 1)) // all
	fmt.Println("thread", unix.Gettid())
	var err error
	switch mode {
	case "storm":
		err = callInStorm(path)
	case "direct":
		err = readOnce(path, unix.O_DIRECT)
	case "buffered":
		err = readOnce(path, 0)
	case "stat":
		var st unix.Stat_t
		err = unix.Stat(path, &st)
	case "map":
		err = touch(path)
	}
	fmt.Println("result", err)
}

func readOnce(path string, flags int) error {
	fd, err := unix.Open(path, unix.O_RDONLY|flags, 0)
	if err != nil {
		return err
	}
	p, err := unix.Mmap(-1, 0, 64<<10, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON) // aligned
	if err != nil {
		return err
	}
	n, err := unix.Pread(fd, p, 0)
	if err == nil && n != len(p) {
		return fmt.Errorf("%d bytes", n)
	}
	return err
}

// touch reads a page of a mapped file.
func touch(path string) error {
	fd, err := unix.Open(path, unix.O_RDONLY, 0)
	if err != nil {
		return err
	}
	p, err := unix.Mmap(fd, 0, 64<<10, unix.PROT_READ, unix.MAP_SHARED)
	if err == nil {
		err = unix.Madvise(p, unix.MADV_RANDOM) // no readahead: one page, which can be interrupted
	}
	if err == nil && p[4096] != pattern(4096) {
		err = fmt.Errorf("byte %d", p[4096])
	}
	return err
}

// callInStorm makes calls while another thread sends signals to this one.
func callInStorm(dir string) error {
	pid, tid := unix.Getpid(), unix.Gettid()
	var done atomic.Bool
	var storm sync.WaitGroup
	storm.Go(func() {
		for i := 0; !done.Load(); i++ {
			_ = unix.Tgkill(pid, tid, everyday[i%len(everyday)])
		}
	})
	defer storm.Wait()
	defer done.Store(true)
	p := make([]byte, 1000)
	for i := range 1500 {
		path := filepath.Join(dir, fmt.Sprintf("f-%d", i%100))
		var st unix.Stat_t
		if err := unix.Stat(path+"-none", &st); err != unix.ENOENT {
			return fmt.Errorf("stat: %w", err)
		}
		fd, err := unix.Open(path, unix.O_RDONLY, 0)
		if err != nil {
			return fmt.Errorf("open: %w", err)
		}
		if n, err := unix.Pread(fd, p, 0); n != 1 || err != nil {
			return fmt.Errorf("read: %d, %w", n, err)
		}
		_ = unix.Close(fd)
		if fd, err = unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY, 0); err != nil {
			return fmt.Errorf("open directory: %w", err)
		}
		if n, err := unix.Getdents(fd, p); n == 0 || err != nil {
			return fmt.Errorf("read directory: %d, %w", n, err)
		}
		_ = unix.Close(fd)
	}
	return nil
}

// called is a process that runs caller.
type called struct {
	cmd    *exec.Cmd
	tid    int
	result chan string // what came out; closed without a word when it died
}

func call(t *testing.T, mode, path string) *called {
	t.Helper()
	c := &called{cmd: exec.Command(os.Args[0]), result: make(chan string, 1)}
	c.cmd.Env = append(os.Environ(), "SHARDWELL_TEST_CALLER="+mode+":"+path, "GOMAXPROCS=2") // a thread that sends signals runs beside the one that gets them
	c.cmd.Stderr = os.Stderr
	out, err := c.cmd.StdoutPipe()
	if err == nil {
		err = c.cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	if !lines.Scan() {
		t.Fatal("the caller says nothing")
	}
	if _, err := fmt.Sscan(lines.Text(), new(string), &c.tid); err != nil {
		t.Fatalf("%q: %v", lines.Text(), err)
	}
	var reader sync.WaitGroup
	reader.Go(func() {
		defer close(c.result)
		for lines.Scan() {
			c.result <- strings.TrimPrefix(lines.Text(), "result ")
		}
		_ = c.cmd.Wait()
	})
	t.Cleanup(func() {
		_ = c.cmd.Process.Kill()
		reader.Wait()
	})
	return c
}

func (c *called) signal(t *testing.T, n syscall.Signal) {
	t.Helper()
	if err := unix.Tgkill(c.cmd.Process.Pid, c.tid, n); err != nil {
		t.Errorf("signal %d: %v", n, err)
	}
}

// ends waits for what came out, which is to take less than limit.
func (c *called) ends(t *testing.T, want string, limit time.Duration) {
	t.Helper()
	began := time.Now()
	select {
	case got := <-c.result:
		if got != want {
			t.Errorf("came out: %q, want %q", got, want)
		}
		t.Logf("after %v", time.Since(began))
	case <-time.After(limit):
		t.Errorf("nothing came out within %v, want %q", limit, want)
	}
}

// SEMANTICS I3: Signals that programs get all the time (a runtime's preemption, timers of profilers,
// children that end, windows that change) interrupt no call, as on a disk.
func TestSignalStorm(t *testing.T) {
	o := newOrigin()
	for i := range 100 {
		o.put(fmt.Sprintf("d/f-%d", i), []byte("x"))
	}
	m := mount(t, o, func(c *Config) { c.Consistency.Mode = ModeOpen }) // so that the calls wait for answers
	call(t, "storm", m.path("d")).ends(t, "<nil>", time.Minute)
	if m.Stats().Interrupts.Load() == 0 || m.Stats().Interrupted.Load() != 0 {
		t.Errorf("%d interrupts reported, %d requests ended for it", m.Stats().Interrupts.Load(), m.Stats().Interrupted.Load())
	}
	t.Logf("%d interrupts", m.Stats().Interrupts.Load())
}

// A call that waits goes on through everyday signals, of which the kernel reports only
// the first, and ends for others that come later.
func TestSignalsOfWaitingCallers(t *testing.T) {
	const prompt = 5 * time.Second // 200 ms of ours, and what shared cores add
	for _, c := range []struct {
		name, mode string
		signal     syscall.Signal // 0 lets the origin answer
		want       string         // "" when the caller dies
	}{
		{"answer", "direct", 0, "<nil>"},
		{"SIGINT, direct read", "direct", unix.SIGINT, "interrupted system call"},
		{"SIGTERM, direct read", "direct", unix.SIGTERM, "interrupted system call"},
		{"SIGALRM, direct read", "direct", unix.SIGALRM, "interrupted system call"},
		{"SIGKILL, direct read", "direct", unix.SIGKILL, ""},
		{"SIGINT, buffered read", "buffered", unix.SIGINT, "interrupted system call"},
		{"SIGKILL, buffered read", "buffered", unix.SIGKILL, ""},
		{"SIGINT, look-up", "stat", unix.SIGINT, "interrupted system call"},
		{"SIGKILL, look-up", "stat", unix.SIGKILL, ""},
		{"SIGKILL, mapped page", "map", unix.SIGKILL, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			o, m := stuckMount(t)
			name := "stuck"
			if c.mode == "stat" {
				name = "stuck-name"
			}
			p := call(t, c.mode, m.path(name))
			until(t, "the call waits", func() bool { return o.waiting.Load() > 0 })
			everydaySignalsPass(t, m, p)
			if c.signal == 0 {
				close(o.stuck)
			} else {
				p.signal(t, c.signal)
			}
			p.ends(t, c.want, prompt)
			// What was read ahead is nobody's once the caller has ended, and the file is closed then.
			until(t, "nothing waits", func() bool { return o.waiting.Load() == 0 && o.openFiles.Load() == 0 })
		})
	}
}

// stuckMount has a file, "stuck", whose reads wait, and a name that waits.
func stuckMount(t *testing.T) (*fakeOrigin, *testMount) {
	o := newOrigin()
	o.putSized("stuck", 1<<20)
	return o, mount(t, o, nil)
}

// everydaySignalsPass sends signals that a call survives.
func everydaySignalsPass(t *testing.T, m *testMount, p *called) {
	t.Helper()
	for _, n := range everyday {
		p.signal(t, n)
	}
	looks := m.Stats().CallerLooks.Load()
	until(t, "the caller was looked at", func() bool { return m.Stats().CallerLooks.Load() >= looks+3 })
	if n := m.Stats().Interrupted.Load(); n != 0 {
		t.Errorf("%d requests ended", n)
	}
	if m.origin.waiting.Load() == 0 {
		t.Error("nothing waits any more")
	}
}

// Who waits for a page of a mapped file would get SIGBUS for an interruption.
func TestSignalAtMappedPage(t *testing.T) {
	o, m := stuckMount(t)
	p := call(t, "map", m.path("stuck"))
	until(t, "the page is asked for", func() bool { return o.waiting.Load() > 0 })
	p.signal(t, unix.SIGINT)
	looks := m.Stats().CallerLooks.Load()
	until(t, "the caller was looked at", func() bool { return m.Stats().CallerLooks.Load() >= looks+7 })
	close(o.stuck)
	p.ends(t, "<nil>", 5*time.Second)
}

// A caller whose signals cannot be seen is let go after a while.
func TestUnseenCaller(t *testing.T) {
	var w watcher
	r := &request{bytes: make([]byte, inHeaderBytes), began: time.Now()}
	headerOf(r.bytes).Opcode = opLookup
	for _, pid := range []uint32{0, 1 << 30} {
		headerOf(r.bytes).Pid = pid
		now := time.Now()
		r.reported.Store(0)
		if w.interrupted(r, now.Add(time.Hour)) {
			t.Error("not reported, but ended")
		}
		r.reported.Store(now.UnixNano())
		if w.interrupted(r, now.Add(graceful/2)) || !w.interrupted(r, now.Add(graceful+time.Millisecond)) {
			t.Error("not ended after the grace, or before")
		}
	}
	// One that is nowhere has ended, if that can be known: nobody waits for what was read for it.
	for _, sees := range []bool{false, true} {
		for _, c := range []struct {
			pid  uint32
			op   uint32
			ends bool
		}{{1 << 30, opRead, true}, {1 << 30, opLookup, false}, {0, opRead, false}, {uint32(os.Getpid()), opRead, false}} {
			w.sees = sees
			headerOf(r.bytes).Pid, headerOf(r.bytes).Opcode = c.pid, c.op
			r.reported.Store(0)
			if got := w.interrupted(r, r.began.Add(time.Minute)); got != (c.ends && sees) || w.interrupted(r, r.began.Add(graceful/2)) {
				t.Errorf("%+v, seen %v: ended: %v", c, sees, got)
			}
		}
	}
}

func TestSignalSets(t *testing.T) {
	if all := everydaySignals & slowSignals; all != 0 {
		t.Errorf("%b in both", all)
	}
	for _, n := range []syscall.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGKILL, 32} {
		if (everydaySignals|slowSignals)&setOf(n) != 0 {
			t.Errorf("signal %d does not interrupt at once", n)
		}
	}
	for _, n := range []syscall.Signal{33, 34, 64} {
		if slowSignals&setOf(n) == 0 {
			t.Errorf("signal %d interrupts at once", n)
		}
	}
}
