package fuse

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// withoutFiles runs f, which uses our own mount, on a thread that holds no descriptors but
// the standard ones. A thread that waits for an answer outlives SIGKILL. If it shared
// the descriptors of the process, they would outlive it too: nobody would ever
// answer, and the mount would hang for good; with a keeper, that would not learn that
// the process is gone. The caller's goroutine ends soon after,
// and the thread with it: the main thread would not, and would keep its copies of all
// descriptors, locks and unlinked files among them, as long as the process lives.
func withoutFiles(f func() error) error {
	runtime.LockOSThread() // for ever
	if unix.Gettid() == unix.Getpid() {
		defer runtime.UnlockOSThread()
		done := make(chan error)
		go func() { done <- withoutFiles(f) }() // on another thread: this one is taken
		return <-done
	}
	keep, err := runtimeFiles()
	if err != nil {
		return fmt.Errorf("go without descriptors: %w", err)
	}
	first := uint(firstOwnFile)
	for _, fd := range append(keep, math.MaxUint32) {
		if first < fd {
			if err := unix.CloseRange(first, fd-1, unix.CLOSE_RANGE_UNSHARE); err != nil {
				return fmt.Errorf("go without descriptors: %w", err)
			}
		}
		first = fd + 1
	}
	return f()
}

// runtimeFiles returns the descriptors that Go's scheduler uses on whatever thread it runs, and ends the
// process over when it cannot: where it polls, and what wakes it. They refer to nothing else.
func runtimeFiles() (fds []uint, err error) {
	const dir = "/proc/self/fd"
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		fd, err := strconv.ParseUint(e.Name(), 10, 31)
		if err != nil || fd < firstOwnFile {
			continue
		}
		switch to, _ := os.Readlink(filepath.Join(dir, e.Name())); to {
		case "anon_inode:[eventpoll]", "anon_inode:[eventfd]":
			fds = append(fds, uint(fd))
		}
	}
	slices.Sort(fds)
	return fds, nil
}

// firstOwnFile is the first descriptor that is not a standard one.
const firstOwnFile = 3
