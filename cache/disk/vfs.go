package disk

import (
	"io"
	"io/fs"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// FS is what the tier asks of a file system. [OS] is the real one; tests put
// failing and recording ones in its place. Names are absolute paths.
type FS interface {
	OpenFile(name string, flag int, perm fs.FileMode) (FSFile, error)
	Mkdir(name string, perm fs.FileMode) error
	Rename(from, to string) error
	Remove(name string) error
	Stat(name string) (FileStat, error)
	Statfs(name string) (Space, error)
}

// FSFile is an open file or directory.
type FSFile interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	Truncate(size int64) error
	Stat() (FileStat, error)
	Chmod(mode fs.FileMode) error
	// SetTimes sets the time of the last modification.
	SetTimes(mtime time.Time) error
	// StatAt describes the entry name of a directory.
	StatAt(name string) (FileStat, error)
	// Names returns up to n further names of a directory, and io.EOF at the end.
	Names(n int) ([]string, error)
	// Punch gives the space of n bytes back to the file system; they read as zeros.
	Punch(off, n int64) error
	// OS returns the file for system calls that the kernel carries out by itself
	// (sendfile, passthrough).
	OS() *os.File
}

// FileStat is what the tier wants to know of a file.
type FileStat struct {
	Size    int64
	Used    int64 // bytes really allocated (st_blocks)
	Inode   uint64
	Mode    fs.FileMode // permission bits
	ModTime int64       // nanoseconds since 1970
}

// Space is the state of a file system.
type Space struct {
	TotalBytes, FreeBytes int64 // free: for processes without privileges
	UsedBytes             int64
	Inodes, FreeInodes    int64 // Inodes is 0 where the file system does not count them
}

// OS is the real file system.
type OS struct{}

type osFile struct{ f *os.File }

// OpenFile implements [FS].
func (OS) OpenFile(name string, flag int, perm fs.FileMode) (FSFile, error) {
	f, err := os.OpenFile(name, flag|unix.O_NOFOLLOW, perm)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

// Mkdir implements [FS].
func (OS) Mkdir(name string, perm fs.FileMode) error { return os.Mkdir(name, perm) }

// Rename implements [FS].
func (OS) Rename(from, to string) error { return os.Rename(from, to) }

// Remove implements [FS].
func (OS) Remove(name string) error { return unlink(name) }

func unlink(name string) error {
	if err := unix.Unlink(name); err != nil {
		return &fs.PathError{Op: "unlink", Path: name, Err: err}
	}
	return nil
}

// Stat implements [FS].
func (OS) Stat(name string) (FileStat, error) {
	var st unix.Stat_t
	if err := unix.Lstat(name, &st); err != nil {
		return FileStat{}, &fs.PathError{Op: "stat", Path: name, Err: err}
	}
	return statOf(&st), nil
}

// Statfs implements [FS].
func (OS) Statfs(name string) (Space, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(name, &s); err != nil {
		return Space{}, &fs.PathError{Op: "statfs", Path: name, Err: err}
	}
	unit := int64(s.Bsize)
	if s.Frsize > 0 {
		unit = int64(s.Frsize)
	}
	return Space{
		TotalBytes: int64(s.Blocks) * unit,
		FreeBytes:  int64(s.Bavail) * unit,
		UsedBytes:  int64(s.Blocks-s.Bfree) * unit,
		Inodes:     int64(s.Files),
		FreeInodes: int64(s.Ffree),
	}, nil
}

func (o osFile) ReadAt(p []byte, off int64) (int, error)  { return o.f.ReadAt(p, off) }
func (o osFile) WriteAt(p []byte, off int64) (int, error) { return o.f.WriteAt(p, off) }
func (o osFile) Close() error                             { return o.f.Close() }
func (o osFile) Truncate(size int64) error                { return o.f.Truncate(size) }
func (o osFile) Chmod(mode fs.FileMode) error             { return o.f.Chmod(mode) }
func (o osFile) Names(n int) ([]string, error)            { return o.f.Readdirnames(n) }
func (o osFile) OS() *os.File                             { return o.f }

func (o osFile) Punch(off, n int64) error {
	return o.control("punch hole", func(fd int) error {
		return unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n)
	})
}

func (o osFile) SetTimes(mtime time.Time) error {
	ts := [2]unix.Timespec{{Nsec: unix.UTIME_OMIT}, unix.NsecToTimespec(mtime.UnixNano())}
	return o.control("utimensat", func(fd int) error {
		_, _, errno := unix.Syscall6(unix.SYS_UTIMENSAT, uintptr(fd), 0, uintptr(unsafe.Pointer(&ts)), 0, 0, 0)
		if errno != 0 {
			return errno
		}
		return nil
	})
}

func (o osFile) Stat() (FileStat, error) {
	var st unix.Stat_t
	err := o.control("fstat", func(fd int) error { return unix.Fstat(fd, &st) })
	return statOf(&st), err
}

func (o osFile) StatAt(name string) (FileStat, error) {
	var st unix.Stat_t
	err := o.control("fstatat", func(fd int) error { return unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW) })
	return statOf(&st), err
}

// control runs call on the descriptor without taking it out of the runtime's
// poller, which os.File.Fd would.
func (o osFile) control(op string, call func(fd int) error) error {
	conn, err := o.f.SyscallConn()
	if err != nil {
		return err
	}
	var callErr error
	if err := conn.Control(func(fd uintptr) { callErr = call(int(fd)) }); err != nil {
		return err
	}
	if callErr != nil {
		return &fs.PathError{Op: op, Path: o.f.Name(), Err: callErr}
	}
	return nil
}

func statOf(st *unix.Stat_t) FileStat {
	return FileStat{
		Size:    st.Size,
		Used:    st.Blocks * 512, // the unit of st_blocks, whatever the block size
		Inode:   st.Ino,
		Mode:    fs.FileMode(st.Mode & 0o777),
		ModTime: st.Mtim.Nano(),
	}
}
