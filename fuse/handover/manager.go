package handover

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Manager is the service manager of the machine (systemd), which keeps descriptors for a
// service over its restarts, and closes them when the service ends for good.
type Manager struct {
	socket string

	mu   sync.Mutex // one deposits at a time
	next uint64
}

// firstPassed is the first descriptor that a service manager passes.
const firstPassed = 3

// namePrefix opens the names of descriptors; number and role follow.
const namePrefix = "shardwell-"

var roles = [maxFiles]string{"dev", "area", "names"}

// Notify tells the service manager something, such as "READY=1", with files for it. It does
// nothing where none wants to hear.
func Notify(state string, files ...int) error {
	socket := os.Getenv("NOTIFY_SOCKET")
	if socket == "" {
		return nil
	}
	return notify(socket, state, files)
}

// KeepNotifying tells the service manager that this process is well, as often as that wants to hear
// it (WatchdogSec= of systemd), until done is closed. It ends a process that does not say so.
func KeepNotifying(done <-chan struct{}) {
	us, err := strconv.ParseInt(os.Getenv("WATCHDOG_USEC"), 10, 64)
	if pid := os.Getenv("WATCHDOG_PID"); err != nil || us <= 0 || pid != "" && pid != strconv.Itoa(os.Getpid()) {
		<-done
		return
	}
	tick := time.NewTicker(max(time.Duration(us)*time.Microsecond/4, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-done:
			return
		case <-tick.C:
			_ = Notify("WATCHDOG=1") // it says the same again soon
		}
	}
}

func notify(socket, state string, files []int) error {
	if strings.HasPrefix(socket, "@") {
		socket = "\x00" + socket[1:]
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("service manager: %w", err)
	}
	defer unix.Close(fd)
	var oob []byte
	if len(files) > 0 {
		oob = unix.UnixRights(files...)
	}
	if err := unix.Sendmsg(fd, []byte(state), oob, &unix.SockaddrUnix{Name: socket}, unix.MSG_NOSIGNAL); err != nil {
		return fmt.Errorf("service manager: %w", err)
	}
	return nil
}

// OpenManager returns the service manager that started this process, and what it has kept
// of its predecessor. It is called once, before anything else opens files.
func OpenManager() (*Manager, []Session, error) {
	m := &Manager{socket: os.Getenv("NOTIFY_SOCKET")}
	if m.socket == "" {
		return nil, nil, errors.New("no service manager keeps mounts: the variable NOTIFY_SOCKET is not set (systemd: Type=notify and FileDescriptorStoreMax=)")
	}
	kept := make(map[uint64][]*os.File)
	if pid, _ := strconv.Atoi(os.Getenv("LISTEN_PID")); pid == os.Getpid() {
		n, _ := strconv.Atoi(os.Getenv("LISTEN_FDS"))
		names := strings.Split(os.Getenv("LISTEN_FDNAMES"), ":")
		for i := range min(n, len(names), maxFiles*MaxSessions) {
			m.take(kept, firstPassed+i, names[i])
		}
	}
	var all []Session
	for id, files := range kept {
		m.next = max(m.next, id)
		s := Session{ID: id, Dev: files[0], Area: files[1], Listings: files[2]}
		if s.Dev == nil || s.Area == nil {
			_ = s.Close()
			_ = m.Drop(id)
			continue
		}
		all = append(all, s)
	}
	return m, all, nil
}

// take sorts one descriptor in.
func (m *Manager) take(kept map[uint64][]*os.File, fd int, name string) {
	rest, ok := strings.CutPrefix(name, namePrefix)
	number, role, ok2 := strings.Cut(rest, "-")
	id, err := strconv.ParseUint(number, 10, 64)
	if !ok || !ok2 || err != nil {
		return
	}
	unix.CloseOnExec(fd)
	if kept[id] == nil {
		kept[id] = make([]*os.File, maxFiles)
	}
	for i, r := range roles {
		if r == role {
			kept[id][i] = fileOf(fd, name)
		}
	}
}

// Deposit has a session kept, and waits until it is. The files stay the caller's.
func (m *Manager) Deposit(s Session) (id uint64, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.next++
	for i, f := range []*os.File{s.Dev, s.Area, s.Listings} {
		if f == nil {
			continue
		}
		one := Session{Area: f}
		fds, err := one.descriptors()
		if err != nil {
			return 0, err
		}
		// FDPOLL=0: the manager would look at the mount with each of its requests.
		state := fmt.Sprintf("FDSTORE=1\nFDPOLL=0\nFDNAME=%s%d-%s", namePrefix, m.next, roles[i])
		if err := notify(m.socket, state, fds); err != nil {
			return 0, err
		}
	}
	return m.next, m.barrier()
}

// barrier waits until the manager has taken what it was sent: it closes the file then.
func (m *Manager) barrier() error {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return fmt.Errorf("service manager: %w", err)
	}
	defer unix.Close(p[0])
	err := notify(m.socket, "BARRIER=1", p[1:])
	_ = unix.Close(p[1])
	if err != nil {
		return err
	}
	fds := []unix.PollFd{{Fd: int32(p[0]), Events: unix.POLLIN}}
	for end := time.Now().Add(sendPatience); ; {
		n, err := unix.Poll(fds, int(max(0, time.Until(end).Milliseconds())))
		switch {
		case n > 0:
			return nil
		case err != nil && !errors.Is(err, unix.EINTR):
			return fmt.Errorf("service manager: %w", err)
		case n == 0 && err == nil:
			return errors.New("service manager: it has not taken the mount")
		}
	}
}

// Serving does nothing: the manager knows whether the service runs.
func (m *Manager) Serving(uint64) error { return nil }

// Drop says that a mount has ended.
func (m *Manager) Drop(id uint64) error {
	for _, role := range roles {
		if err := notify(m.socket, fmt.Sprintf("FDSTOREREMOVE=1\nFDNAME=%s%d-%s", namePrefix, id, role), nil); err != nil {
			return err
		}
	}
	return nil
}
