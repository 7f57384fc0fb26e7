package handover

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Socket is where servers come to a keeper.
type Socket struct {
	f    *os.File
	lock int // held as long as the socket is open: whoever has it owns the path
}

// Close ends it; connections go on.
func (s *Socket) Close() error { return errors.Join(s.f.Close(), unix.Close(s.lock)) }

// Listen opens the socket of a keeper, for its own user only, and makes its directory. The
// socket of a keeper that died is replaced; that of one that lives is an error.
func Listen(socket string) (*Socket, error) {
	f, err := listen(socket)
	if err != nil {
		return nil, fmt.Errorf("socket %s: %w", socket, err)
	}
	return f, nil
}

func listen(socket string) (*Socket, error) {
	if err := os.MkdirAll(filepath.Dir(socket), 0o755); err != nil {
		return nil, err
	}
	lock, err := unix.Open(socket+".lock", unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	if err := unix.Flock(lock, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = unix.Close(lock)
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, errors.New("another keeper uses it: stop that one, or give this one another --socket")
		}
		return nil, fmt.Errorf("lock: %w", err)
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err == nil {
		err = bind(fd, socket)
		if err != nil {
			_ = unix.Close(fd)
		}
	}
	if err != nil {
		_ = unix.Close(lock)
		return nil, err
	}
	return &Socket{fileOf(fd, socket), lock}, nil
}

// bind makes the socket under another name first, so that it never stands there with a
// wider mode than it should have, or before it takes connections.
func bind(fd int, socket string) error {
	temp := fmt.Sprintf("%s.%d", socket, os.Getpid())
	_ = os.Remove(temp)
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: temp}); err != nil {
		return err
	}
	err := os.Chmod(temp, 0o600)
	if err == nil {
		err = unix.Listen(fd, maxConnections)
	}
	if err == nil {
		err = os.Rename(temp, socket)
	}
	if err != nil {
		_ = os.Remove(temp)
	}
	return err
}

// callerAllowed reports whether the process at the other end may have what is kept: it is
// of root or of the keeper's own user.
func callerAllowed(fd int) bool {
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	return err == nil && (cred.Uid == 0 || int(cred.Uid) == os.Geteuid())
}
