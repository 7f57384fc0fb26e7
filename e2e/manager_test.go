package e2e_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shardwell/shardwell/e2e/cage"
	"github.com/shardwell/shardwell/e2e/cluster"
	"github.com/shardwell/shardwell/e2e/dataset"
)

// manager is what a service manager does for a node: it keeps descriptors, and passes them on.
type manager struct {
	t      *testing.T
	socket string
	bin    string
	dir    string
	cmd    *exec.Cmd

	mu    sync.Mutex
	names []string // of files
	files []*os.File
	ready int
}

// manage starts a manager that lives as long as the test.
func manage(t *testing.T, bin string) *manager {
	m := &manager{t: t, bin: bin, dir: t.TempDir()}
	m.socket = filepath.Join(m.dir, "notify")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: m.socket, Net: "unixgram"})
	must(t, err)
	var done sync.WaitGroup
	done.Go(func() {
		for {
			b, oob := make([]byte, 4096), make([]byte, unix.CmsgSpace(4*4))
			n, oobn, _, _, err := l.ReadMsgUnix(b, oob)
			if err != nil {
				return
			}
			m.hear(string(b[:n]), oob[:oobn])
		}
	})
	t.Cleanup(func() {
		m.end(syscall.SIGKILL)
		_ = cage.Detach(filepath.Join(m.dir, "mnt"))
		_ = l.Close()
		done.Wait()
		for _, f := range m.files {
			_ = f.Close()
		}
	})
	return m
}

// hear does what one message says.
func (m *manager) hear(text string, oob []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var fds []int
	if controls, err := unix.ParseSocketControlMessage(oob); err == nil {
		for _, c := range controls {
			all, _ := unix.ParseUnixRights(&c)
			fds = append(fds, all...)
		}
	}
	_, name, _ := strings.Cut(text, "FDNAME=")
	switch {
	case strings.HasPrefix(text, "FDSTORE=1"):
		m.names, m.files = append(m.names, name), append(m.files, os.NewFile(uintptr(fds[0]), name))
		return
	case strings.HasPrefix(text, "FDSTOREREMOVE=1"):
		if i := slices.Index(m.names, name); i >= 0 {
			_ = m.files[i].Close()
			m.names, m.files = slices.Delete(m.names, i, i+1), slices.Delete(m.files, i, i+1)
		}
	case strings.HasPrefix(text, "READY=1"):
		m.ready++
	}
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}

// start runs the node with what is kept, and waits until it says that it is ready.
func (m *manager) start() {
	m.t.Helper()
	m.mu.Lock()
	before := m.ready
	// LISTEN_PID is the service's own, which is known when it runs only.
	m.cmd = exec.Command("sh", "-c", `LISTEN_PID=$$ exec "$0" "$@"`, m.bin, "node", "--cache-dir", filepath.Join(m.dir, "cache")+"=1Gi", "--min-free", "1Mi",
		"--bind", "127.0.0.1:0", "--peer-bind", "127.0.0.1:0", "--metrics-bind", "off", "--control-socket", filepath.Join(m.dir, "control.sock"),
		"--origin-dir", filepath.Join(m.dir, "data"), "--keeper-socket", "systemd")
	m.cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+m.socket, fmt.Sprintf("LISTEN_FDS=%d", len(m.files)), "LISTEN_FDNAMES="+strings.Join(m.names, ":"))
	m.cmd.ExtraFiles = slices.Clone(m.files)
	m.cmd.Stderr = os.Stderr
	err := m.cmd.Start()
	m.mu.Unlock()
	must(m.t, err)
	eventually(m.t, time.Minute, "the node is ready", func() (bool, string) {
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.ready > before, strings.Join(m.names, " ")
	})
}

func (m *manager) end(s syscall.Signal) {
	if m.cmd != nil {
		_ = m.cmd.Process.Signal(s)
		_ = m.cmd.Wait()
		m.cmd = nil
	}
}

func (m *manager) kept() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.files)
}

// The descriptor store of a service manager is a keeper as well.
func TestServiceManagerKeepsMounts(t *testing.T) {
	tools, err := cluster.Prepare()
	must(t, err)
	m := manage(t, tools.Shardwell)
	for _, dir := range []string{"data", "mnt", "cache"} {
		must(t, os.Mkdir(filepath.Join(m.dir, dir), 0o755))
	}
	data := dataset.Random{Seed: seed, Size: 3<<20 + 5}
	must(t, os.WriteFile(filepath.Join(m.dir, "data", "f"), data.Bytes(), 0o644))
	run := func(args ...string) {
		t.Helper()
		_, err := command(t, time.Minute, tools.Shardwell, append(args, "--control-socket", filepath.Join(m.dir, "control.sock"))...)
		must(t, err)
	}
	m.start()
	mnt := filepath.Join(m.dir, "mnt")
	run("mount", "file://"+filepath.Join(m.dir, "data"), mnt)
	if n := m.kept(); n != 3 {
		t.Errorf("%d descriptors are kept", n)
	}
	fd, err := unix.Open(filepath.Join(mnt, "f"), unix.O_RDONLY|unix.O_CLOEXEC, 0) // else the node would have it as well
	must(t, err)
	closeIt := sync.OnceFunc(func() { _ = unix.Close(fd) })
	defer closeIt()
	for _, s := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
		m.end(s)
		m.start()
		p, want := make([]byte, 4096), make([]byte, 4096)
		_, _ = data.ReadAt(want, 1<<20)
		if n, err := unix.Pread(fd, p, 1<<20); n != len(p) || err != nil || !slices.Equal(p, want) {
			t.Errorf("after %v: %d bytes, %v", s, n, err)
		}
		must(t, dataset.CompareFile(filepath.Join(mnt, "f"), data))
	}
	closeIt()
	run("umount", mnt)
	eventually(t, time.Minute, "nothing is kept", func() (bool, string) { return m.kept() == 0, "" })
}
