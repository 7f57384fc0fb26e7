package fuse

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shardwell/shardwell/fuse/handover"
)

// keptMount is a mount that a keeper in this process holds, and that processes serve which
// are killed. No file of it is opened by os.Open: the keeper must go on while nobody answers.
type keptMount struct {
	t      *testing.T
	dir    string // mounted on
	socket string
	files  string // complete files
	origin *fakeOrigin
	cmd    *exec.Cmd
}

// keptOrigin is what every server of a keptMount shows.
func keptOrigin(files string) *fakeOrigin {
	o := newOrigin()
	o.backing = files
	for i := range 16 {
		o.putSized(fmt.Sprintf("data/%02d", i), 300<<10)
		o.putSized(fmt.Sprintf("whole/%02d", i), 300<<10)
	}
	for i := range 500 {
		o.put(fmt.Sprintf("many/%04d", i), []byte("x"))
	}
	o.put("deadly", []byte("x"))
	return o
}

// keep starts a keeper that lives as long as the test, and makes what is to be mounted.
func keep(t *testing.T, change func(*handover.Keeper)) *keptMount {
	t.Helper()
	needFUSE(t)
	base := t.TempDir()
	m := &keptMount{t: t, dir: filepath.Join(base, "mnt"), files: filepath.Join(base, "files"), socket: filepath.Join(base, "keeper.sock")}
	for _, dir := range []string{m.dir, m.files} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	m.origin = keptOrigin(m.files)
	for i := range 16 {
		m.origin.complete(t, fmt.Sprintf("whole/%02d", i))
	}
	socket, err := handover.Listen(m.socket)
	if err != nil {
		t.Fatal(err)
	}
	k := &handover.Keeper{GiveUp: time.Minute, StartWithin: time.Minute, Logf: func(format string, args ...any) { t.Logf("keeper: "+format, args...) }}
	if change != nil {
		change(k)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- k.Run(ctx, socket) }()
	t.Cleanup(func() {
		abort(m.dir)
		m.kill()
		_ = unix.Unmount(m.dir, unix.MNT_DETACH)
		cancel()
		if err := <-done; err != nil {
			t.Errorf("keeper: %v", err)
		}
	})
	return m
}

// serve starts a server and returns when it reads requests.
func (m *keptMount) serve(env ...string) {
	m.t.Helper()
	m.cmd = exec.Command(os.Args[0])
	m.cmd.Env = append(append(os.Environ(), "SHARDWELL_TEST_KEPT="+filepath.Dir(m.dir)), env...)
	m.cmd.Stderr = os.Stderr
	out, err := m.cmd.StdoutPipe()
	if err == nil {
		err = m.cmd.Start()
	}
	if err != nil {
		m.t.Fatal(err)
	}
	said, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || said != "serving\n" {
		rest, _ := io.ReadAll(out)
		m.t.Fatalf("server: %q, %v %s", said, err, rest)
	}
}

func (m *keptMount) kill() {
	if m.cmd == nil {
		return
	}
	_ = m.cmd.Process.Kill()
	_ = m.cmd.Wait()
	m.cmd = nil
}

func (m *keptMount) path(name string) string { return filepath.Join(m.dir, name) }

// keptServer is the process of a server.
func keptServer(base string) {
	if err := serveKept(base); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

// through mounts by way of a keeper.
type through struct {
	client   *handover.Client
	area     *handover.Area
	listings *os.File
	id       uint64
}

func (m *through) Mount(dir, source, options string, flags uintptr) (dev *os.File, err error) {
	m.id, dev, err = m.client.Mount(dir, source, options, flags, m.area.File(), m.listings)
	return dev, err
}

func serveKept(base string) error {
	c, err := handover.Dial(filepath.Join(base, "keeper.sock"), fmt.Sprint(os.Getpid()))
	if err != nil {
		return err
	}
	sessions, err := c.Claim(context.Background(), false)
	if err != nil {
		return err
	}
	o := keptOrigin(filepath.Join(base, "files"))
	for _, key := range strings.Fields(os.Getenv("SHARDWELL_TEST_STUCK")) {
		o.putSized(key, 1<<20)
	}
	if os.Getenv("SHARDWELL_TEST_GO_ON") != "" {
		close(o.stuck)
	}
	o.answered = func(key string) {
		if key == "deadly-name" {
			_ = os.WriteFile(filepath.Join(base, "crashed"), nil, 0o600)
			_ = unix.Kill(os.Getpid(), unix.SIGKILL)
		}
	}
	cfg := Config{Bucket: fakeBucket, Names: o, Data: o, StateDir: filepath.Join(base, "state"), Buffers: NewBuffers(8 << 20),
		Logger: slog.New(slog.NewTextHandler(os.Stderr, nil))}
	mounter := &through{client: c}
	if len(sessions) == 0 {
		if mounter.area, err = handover.NewArea([]byte("test")); err != nil {
			return err
		}
	} else {
		if mounter.area, err = handover.OpenArea(sessions[0].Area); err != nil {
			return err
		}
		cfg.Resume, cfg.Listings, mounter.id = true, sessions[0].Listings, sessions[0].ID
	}
	cfg.State, cfg.Mounter = mounter.area, mounter
	cfg.Crashed = os.Remove(filepath.Join(base, "crashed")) == nil
	s, err := New(cfg)
	if err != nil {
		return err
	}
	mounter.listings = s.ListingsFile()
	if len(sessions) == 0 {
		err = s.Mount(filepath.Join(base, "mnt"))
	} else {
		err = s.Adopt(sessions[0].Dev, sessions[0].Dir, sessions[0].Device)
	}
	if err != nil {
		return err
	}
	if err := c.Serving(mounter.id); err != nil {
		return err
	}
	fmt.Println("serving")
	return s.Run(context.Background())
}

// reader uses a mount and says what went wrong.
type reader struct {
	m     *keptMount
	ops   atomic.Int64
	stop  atomic.Bool
	group sync.WaitGroup
}

// loop runs f until stop, at least once after the last kill.
func (r *reader) loop(what string, f func(*rand.Rand) error) {
	r.group.Go(func() {
		rnd := rand.New(rand.NewPCG(1, uint64(len(what))))
		for !r.stop.Load() {
			if err := f(rnd); err != nil {
				r.m.t.Errorf("%s: %v", what, err)
				return
			}
			r.ops.Add(1)
		}
	})
}

// checkRead reads a piece of a file and compares it.
func checkRead(fd int, rnd *rand.Rand, size int) error {
	p := make([]byte, 1+rnd.IntN(64<<10))
	off := rnd.IntN(size - len(p))
	n, err := unix.Pread(fd, p, int64(off))
	if err != nil || n != len(p) {
		return fmt.Errorf("read %d at %d: %d, %w", len(p), off, n, err)
	}
	for i, b := range p {
		if b != pattern(int64(off+i)) {
			return fmt.Errorf("byte %d is wrong", off+i)
		}
	}
	return nil
}

func openRaw(path string, flags int) (int, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|flags, 0)
	if err != nil {
		return -1, fmt.Errorf("open: %w", err)
	}
	return fd, nil
}

// use starts readers of every kind.
func (m *keptMount) use() *reader {
	r := &reader{m: m}
	for _, kind := range []string{"data", "whole"} {
		for _, flags := range []int{0, unix.O_DIRECT} {
			if kind == "whole" && flags != 0 {
				continue // the kernel reads a file of ours, which wants aligned offsets
			}
			held, err := openRaw(m.path(kind+"/00"), flags)
			if err != nil {
				m.t.Fatal(err)
			}
			m.t.Cleanup(func() { unix.Close(held) })
			r.loop("held "+kind, func(rnd *rand.Rand) error { return checkRead(held, rnd, 300<<10) })
		}
		r.loop("opened "+kind, func(rnd *rand.Rand) error {
			fd, err := openRaw(m.path(fmt.Sprintf("%s/%02d", kind, rnd.IntN(16))), 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			return checkRead(fd, rnd, 300<<10)
		})
	}
	r.loop("stat", func(rnd *rand.Rand) error {
		var st unix.Stat_t
		if err := unix.Stat(m.path(fmt.Sprintf("many/%04d", rnd.IntN(500))), &st); err != nil || st.Size != 1 {
			return fmt.Errorf("%d bytes, %w", st.Size, err)
		}
		if err := unix.Stat(m.path(fmt.Sprintf("many/none-%d", rnd.Int())), &st); !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("a name that is not: %w", err)
		}
		return nil
	})
	r.loop("list", func(rnd *rand.Rand) error {
		fd, err := openRaw(m.path("many"), unix.O_DIRECTORY)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		count, buf := 0, make([]byte, 512+rnd.IntN(1024))
		for {
			n, err := unix.Getdents(fd, buf)
			if err != nil || n == 0 {
				if count != 500 || err != nil {
					return fmt.Errorf("%d names, %w", count, err)
				}
				return nil
			}
			_, k, _ := unix.ParseDirent(buf[:n], -1, nil)
			count += k
		}
	})
	return r
}

// await waits for a condition that processes bring about, on a machine that may be busy.
func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

// keptKills is enough to meet every state that a request can be in more than once; the
// thousand of the benchmark are for what is rare.
const keptKills = 25

// Servers are killed one after the other while readers of every kind go on: no error, no wrong byte.
func TestKilledServersAreNotNoticed(t *testing.T) {
	m := keep(t, nil)
	m.serve()
	r := m.use()
	for range keptKills {
		before := r.ops.Load()
		await(t, "readers go on", func() bool { return r.ops.Load() > before+20 || t.Failed() })
		m.kill()
		m.serve()
	}
	before := r.ops.Load()
	await(t, "readers go on at the end", func() bool { return r.ops.Load() > before+100 || t.Failed() })
	r.stop.Store(true)
	r.group.Wait()
	t.Logf("%d operations over %d kills", r.ops.Load(), keptKills)
}
