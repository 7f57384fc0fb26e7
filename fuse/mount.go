package fuse

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/shardwell/shardwell/fuse/handover"
	"golang.org/x/sys/unix"
)

// sourcePrefix opens the first column of the mount table, so that our mounts are
// known among others.
const sourcePrefix = "shardwell#"

// openDevice attaches a file system to dir and returns the kernel's end of it.
func (c *Config) openDevice(dir string) (fd int, err error) {
	if err := checkMountPoint(dir); err != nil {
		return -1, err
	}
	options := fmt.Sprintf("rootmode=40000,user_id=%d,group_id=%d,default_permissions", os.Getuid(), os.Getgid())
	if c.AllowOther {
		options += ",allow_other"
	}
	flags := uintptr(unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV)
	if c.Mounter == nil {
		return handover.MountFUSE(dir, c.source(), options, flags)
	}
	dev, err := c.Mounter.Mount(dir, c.source(), options, flags)
	if err != nil {
		return -1, err
	}
	return ownDevice(dev)
}

// ownDevice turns a descriptor that came from elsewhere into one that Go does not poll.
func ownDevice(dev *os.File) (fd int, err error) {
	raw, err := dev.SyscallConn()
	if err == nil {
		controlErr := raw.Control(func(old uintptr) {
			if fd, err = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 0); err == nil {
				err = unix.SetNonblock(fd, true)
			}
		})
		err = errors.Join(err, controlErr, dev.Close())
	}
	if err != nil {
		return -1, fmt.Errorf("kernel's end of a mount: %w", err)
	}
	return fd, nil
}

func (c *Config) source() string { return sourcePrefix + c.uri() }

func (c *Config) uri() string {
	switch {
	case c.URI != "":
		return c.URI
	case c.Bucket.Name == "":
		return c.Bucket.Origin + "/" + c.Prefix
	}
	return "s3://" + c.Bucket.Name + "/" + c.Prefix
}

// checkMountPoint says in one line why dir cannot be mounted on.
func checkMountPoint(dir string) error {
	if m, ok := FindMount(dir); ok {
		if m.Ours() {
			return fmt.Errorf("mount %s: %s is mounted there already", dir, m.URI())
		}
		return fmt.Errorf("mount %s: busy: a file system of type %s (%s) is mounted there", dir, m.Type, m.Source)
	}
	info, err := os.Stat(dir)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("mount %s: no such directory: create it first", dir)
	case err != nil:
		return fmt.Errorf("mount %s: %w", dir, err)
	case !info.IsDir():
		return fmt.Errorf("mount %s: not a directory", dir)
	}
	return nil
}

// MountEntry is a line of the mount table.
type MountEntry struct {
	Dir    string
	Device string // "major:minor"
	Type   string
	Source string
}

// Ours reports whether Shardwell serves the mount.
func (m MountEntry) Ours() bool { return strings.HasPrefix(m.Source, sourcePrefix) }

// URI returns what a mount of ours shows.
func (m MountEntry) URI() string { return strings.TrimPrefix(m.Source, sourcePrefix) }

// FindMount returns the topmost mount whose mount point is dir. It asks the mount
// table, never the mount, which may have lost its server.
func FindMount(dir string) (MountEntry, bool) {
	dir = Canonical(dir)
	all, err := Mounts()
	if err != nil {
		return MountEntry{}, false
	}
	for i := len(all) - 1; i >= 0; i-- {
		if all[i].Dir == dir {
			return all[i], true
		}
	}
	return MountEntry{}, false
}

// Canonical returns the path under which the mount table has a directory: absolute,
// with links resolved. It does not look into the directory itself, which may be a
// mount that does not answer.
func Canonical(dir string) string {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return dir
	}
	if _, err := os.Readlink(abs); err == nil { // a link, so no mount point
		if to, err := filepath.EvalSymlinks(abs); err == nil {
			return to
		}
	}
	parent, err := filepath.EvalSymlinks(filepath.Dir(abs))
	if err != nil {
		return abs
	}
	return filepath.Join(parent, filepath.Base(abs))
}

// tableReads is how often the mount table is read to see it twice the same: it is
// given out a page at a time, and lines are missed while others mount and unmount.
const tableReads = 20

// Mounts returns the mount table of this process, in the order of mounting.
func Mounts() ([]MountEntry, error) {
	var table []byte
	for range tableReads {
		again, err := os.ReadFile("/proc/self/mountinfo")
		if err != nil {
			return nil, fmt.Errorf("read mount table: %w", err)
		}
		if table != nil && bytes.Equal(table, again) {
			break
		}
		table = again
	}
	var all []MountEntry
	for line := range strings.Lines(string(table)) {
		if m, ok := parseMount(strings.TrimSuffix(line, "\n")); ok {
			all = append(all, m)
		}
	}
	return all, nil
}

// deviceOf returns the device of the file system that dir is on, as "major:minor",
// "" when it cannot be told. It does not ask the file system, which may be ours.
func deviceOf(dir string) string {
	var st unix.Statx_t
	flags := unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT | unix.AT_STATX_DONT_SYNC
	if err := unix.Statx(unix.AT_FDCWD, dir, flags, 0, &st); err != nil {
		return ""
	}
	return fmt.Sprintf("%d:%d", st.Dev_major, st.Dev_minor)
}

// deviceBehind returns the device of the file system that a kernel's end belongs to, "" when the
// kernel does not say, as older ones do not.
func deviceBehind(dev int) string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", dev))
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		if minor, ok := strings.CutPrefix(line, "fuse_connection:"); ok {
			return "0:" + strings.TrimSpace(minor)
		}
	}
	return ""
}

// parseMount reads a line of mountinfo: id, parent, device, root, mount point,
// options, optional fields, "-", type, source, options.
func parseMount(line string) (MountEntry, bool) {
	front, back, ok := strings.Cut(line, " - ")
	f, b := strings.Fields(front), strings.Split(back, " ")
	if !ok || len(f) < 5 || len(b) < 2 {
		return MountEntry{}, false
	}
	return MountEntry{Dir: unescape(f[4]), Device: f[2], Type: b[0], Source: unescape(b[1])}, true
}

// unescape undoes the octal escapes of the mount table: \040 for a space.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var out strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if v, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				out.WriteByte(byte(v))
				i += 3
				continue
			}
		}
		out.WriteByte(s[i])
	}
	return out.String()
}

// raiseReadAhead lets the kernel read further ahead than the 128 KiB that it allows
// a FUSE file system.
func (s *Session) raiseReadAhead() {
	path := "/sys/class/bdi/" + s.device + "/read_ahead_kb"
	bytes := s.cfg.ReadAheadBytes
	if bytes == 0 {
		bytes = DefaultReadAheadBytes
	}
	if err := os.WriteFile(path, strconv.AppendInt(nil, bytes>>10, 10), 0); err != nil {
		s.log.Warn("file system: reads stay small", "mount", s.Dir(), "error", err)
	}
}

// servedPatience is how long a mount may take to say how full it is, which its server
// answers at once when there is one.
const servedPatience = 2 * time.Second

// Served reports whether a process answers for a mount, or may again: one that a keeper
// holds says nothing until the next server comes. One whose server died for good says that
// it is not connected, but for what the kernel remembers, such as attributes: how
// full a file system is it never does.
func Served(dir string) bool {
	answer := make(chan error, 1)
	go func() {
		var st unix.Statfs_t
		answer <- unix.Statfs(dir, &st)
	}()
	select {
	case err := <-answer:
		return !errors.Is(err, unix.ENOTCONN) && !errors.Is(err, unix.ECONNABORTED)
	case <-time.After(servedPatience):
		return true
	}
}

// UnmountDir detaches the topmost mount of dir. When it is busy, lazy detaches it
// from the tree all the same and leaves it to its users.
func UnmountDir(dir string, lazy bool) error {
	err := unix.Unmount(dir, unix.UMOUNT_NOFOLLOW)
	if errors.Is(err, unix.EBUSY) && lazy {
		err = unix.Unmount(dir, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH)
	}
	switch {
	case errors.Is(err, unix.EBUSY):
		return fmt.Errorf("unmount %s: busy: files are open or processes are inside: end them first", dir)
	case errors.Is(err, unix.EINVAL):
		return fmt.Errorf("unmount %s: nothing is mounted there", dir)
	case err != nil:
		return fmt.Errorf("unmount %s: %w", dir, err)
	}
	return nil
}
