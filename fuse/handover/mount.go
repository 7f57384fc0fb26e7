package handover

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// MountFUSE attaches a file system of type fuse.shardwell to dir and returns the kernel's
// end of it, which does not block. The file system answers to nobody until requests
// are read from there.
func MountFUSE(dir, source, options string, flags uintptr) (fd int, err error) {
	fd, err = unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) {
			return -1, fmt.Errorf("mount %s: open /dev/fuse: %w: mounting needs root (CAP_SYS_ADMIN)", dir, err)
		}
		return -1, fmt.Errorf("mount %s: open /dev/fuse: %w: this machine has no FUSE, or hides it from us", dir, err)
	}
	if err := unix.Mount(source, dir, "fuse.shardwell", flags, fmt.Sprintf("fd=%d,%s", fd, options)); err != nil {
		_ = unix.Close(fd)
		if errors.Is(err, unix.EPERM) {
			return -1, fmt.Errorf("mount %s: %w: mounting needs root (CAP_SYS_ADMIN)", dir, err)
		}
		return -1, fmt.Errorf("mount %s: %w", dir, err)
	}
	return fd, nil
}

// fileOf returns a descriptor as a file.
func fileOf(fd int, name string) *os.File { return os.NewFile(uintptr(fd), name) }
