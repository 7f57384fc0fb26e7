package fuse

import (
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A thread without the descriptors of the process still runs Go: it may collect garbage there, which polls the
// network, and set timers, which wakes who polls.
func TestWithoutFilesRunsGo(t *testing.T) {
	file, err := os.Open("/proc/self/stat")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	conn, err := file.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var number int
	if err := conn.Control(func(fd uintptr) { number = int(fd) }); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		done := make(chan error, 1)
		go func() {
			done <- withoutFiles(func() error {
				var st unix.Stat_t
				if err := unix.Fstat(number, &st); err != unix.EBADF {
					t.Errorf("a file of the process: %v", err)
				}
				for range 20 {
					runtime.GC()
					time.AfterFunc(time.Microsecond, func() {})
					runtime.Gosched()
				}
				fds, err := os.ReadDir("/proc/thread-self/fd")
				for _, fd := range fds {
					to, _ := os.Readlink("/proc/thread-self/fd/" + fd.Name())
					if len(fd.Name()) > 1 && !strings.HasPrefix(to, "anon_inode:[event") && to != "" && !strings.HasPrefix(to, "/proc/") {
						t.Errorf("descriptor %s is left: %s", fd.Name(), to)
					}
				}
				return err
			})
		}()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
}
