package control

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Listen opens the control socket with mode 0600 and makes its directory
// if there is none. The socket of a node that died is replaced; that of one that lives is
// an error. A lock beside the socket decides who it belongs to.
func Listen(socket string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(socket), 0o755); err != nil {
		return nil, cannotListen(socket, unwrapPath(err))
	}
	lock, err := lockFile(socket + ".lock")
	if err != nil {
		return nil, cannotListen(socket, err)
	}
	l, err := bind(socket)
	if err != nil {
		unlock(lock)
		return nil, cannotListen(socket, err)
	}
	return &listener{UnixListener: l, socket: socket, lock: lock}, nil
}

// cannotListen says what to do, where the error does not.
func cannotListen(socket string, err error) error {
	if errors.Is(err, errLocked) {
		return fmt.Errorf("control socket %s: %w", socket, err)
	}
	return fmt.Errorf("control socket %s: %w: give --control-socket a place that this user may write to", socket, err)
}

// bind makes the socket under another name first, so that it never stands there
// with a wider mode than it should have.
func bind(socket string) (*net.UnixListener, error) {
	temp := fmt.Sprintf("%s.%d", socket, os.Getpid())
	_ = os.Remove(temp)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: temp, Net: "unix"})
	if err != nil {
		return nil, unwrapPath(err)
	}
	l.SetUnlinkOnClose(false) // the name changes
	err = os.Chmod(temp, 0o600)
	if err == nil {
		err = os.Rename(temp, socket)
	}
	if err != nil {
		_ = l.Close()
		_ = os.Remove(temp)
		return nil, unwrapPath(err)
	}
	return l, nil
}

// listener removes the socket and the lock when it is closed.
type listener struct {
	*net.UnixListener
	socket string
	lock   *os.File
	once   sync.Once
}

func (l *listener) Close() error {
	err := l.UnixListener.Close()
	l.once.Do(func() {
		_ = os.Remove(l.socket)
		unlock(l.lock)
	})
	return err
}

var errLocked = errors.New("another node uses it: stop that one, or give this one its own --control-socket")

// lockFile takes an exclusive lock on a file that it makes, and is sure that
// the file it locked is the one that has the name.
func lockFile(path string) (*os.File, error) {
	for {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return nil, unwrapPath(err)
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			_ = f.Close()
			if errors.Is(err, unix.EWOULDBLOCK) {
				return nil, errLocked
			}
			return nil, fmt.Errorf("lock: %w", err)
		}
		if sameFile(f, path) {
			return f, nil
		}
		_ = f.Close() // its owner removed it between our open and our lock
	}
}

func sameFile(f *os.File, path string) bool {
	a, errA := f.Stat()
	b, errB := os.Stat(path)
	return errA == nil && errB == nil && os.SameFile(a, b)
}

// unlock removes the lock file while it is still locked.
func unlock(f *os.File) {
	_ = os.Remove(f.Name())
	_ = f.Close()
}

// unwrapPath drops the operation and path of an error whose reader knows them.
func unwrapPath(err error) error {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno
	}
	return err
}
