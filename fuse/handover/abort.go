package handover

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// deviceOf returns the device of the file system that is mounted on dir, as
// "major:minor". It asks the kernel and never the file system, which may not answer.
func deviceOf(dir string) (string, error) {
	var st unix.Statx_t
	flags := unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT | unix.AT_STATX_DONT_SYNC
	if err := unix.Statx(unix.AT_FDCWD, dir, flags, 0, &st); err != nil {
		return "", fmt.Errorf("device of %s: %w", dir, err)
	}
	return fmt.Sprintf("%d:%d", st.Dev_major, st.Dev_minor), nil
}

// ended reports whether the mount behind the kernel's end is gone or was aborted.
func ended(dev int) bool {
	fds := []unix.PollFd{{Fd: int32(dev), Events: 0}}
	n, err := unix.Poll(fds, 0)
	return n == 1 && err == nil && fds[0].Revents&(unix.POLLERR|unix.POLLHUP|unix.POLLNVAL) != 0
}

// abort ends what waits for a mount, whoever else has its descriptor: a server
// that hangs has. The mount must not have ended, for its device may be another's then.
func abort(device string) error {
	_, minor, ok := strings.Cut(device, ":")
	if !ok {
		return fmt.Errorf("abort: device %q is not known", device)
	}
	name := minor + "/abort"
	err := os.WriteFile("/sys/fs/fuse/connections/"+name, []byte("1"), 0)
	if err == nil {
		return nil
	}
	if private := abortPrivately(name); private != nil {
		return fmt.Errorf("abort %s: %w", device, errors.Join(err, private))
	}
	return nil
}

// abortPrivately does it where fusectl is not mounted, by a mount that nobody sees.
func abortPrivately(name string) error {
	fs, err := unix.Fsopen("fusectl", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return fmt.Errorf("fusectl: %w", err)
	}
	defer unix.Close(fs)
	if err := unix.FsconfigCreate(fs); err != nil {
		return fmt.Errorf("fusectl: %w", err)
	}
	root, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("mount fusectl: %w", err)
	}
	defer unix.Close(root)
	fd, err := unix.Openat(root, name, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("fusectl: open %s: %w", name, err)
	}
	defer unix.Close(fd)
	_, err = unix.Write(fd, []byte("1"))
	return err
}
