package cage

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

var sweepOnce sync.Once

// sweep removes what runs that were killed left behind: namespaces, mounts and
// directories of processes that are no more. Errors are of no interest: another run
// may sweep at the same time.
func sweep() {
	entries, _ := os.ReadDir("/run/netns")
	for _, e := range entries {
		if orphan(e.Name()) {
			_ = ip("netns", "del", e.Name())
		}
	}
	dirs, _ := filepath.Glob(filepath.Join(os.TempDir(), prefix+"*"))
	for _, d := range dirs {
		if orphan(filepath.Base(d)) {
			if detachBelow(d) == nil {
				_ = os.RemoveAll(d)
			}
		}
	}
}

// orphan reports whether name was made by a process that is gone.
func orphan(name string) bool {
	rest, ok := strings.CutPrefix(name, prefix)
	if !ok {
		return false
	}
	digits, _, _ := strings.Cut(rest, "-")
	pid, err := strconv.Atoi(digits)
	if err != nil || pid == os.Getpid() {
		return false
	}
	return errors.Is(unix.Kill(pid, 0), unix.ESRCH)
}

// detachBelow lazily unmounts all mounts under dir, the deepest first, and
// aborts the FUSE connections among them, so that nobody hangs in one.
func detachBelow(dir string) error {
	var errs []error
	for _, m := range mountsBelow(dir) {
		if m.fuse {
			_ = os.WriteFile(fmt.Sprintf("/sys/fs/fuse/connections/%d/abort", m.minor), []byte("1"), 0)
		}
		if err := unix.Unmount(m.dir, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
			errs = append(errs, fmt.Errorf("cage: unmount %s: %w", m.dir, err))
		}
	}
	return errors.Join(errs...)
}

type mountPoint struct {
	dir   string
	minor int
	fuse  bool
}

// mountsBelow lists the mounts under dir, the deepest first.
func mountsBelow(dir string) []mountPoint {
	data, _ := os.ReadFile("/proc/self/mountinfo")
	var found []mountPoint
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		if len(fields) < 9 {
			continue
		}
		at := unescape(fields[4])
		if at != dir && !strings.HasPrefix(at, dir+"/") {
			continue
		}
		_, minor, _ := strings.Cut(fields[2], ":")
		n, _ := strconv.Atoi(minor)
		found = append(found, mountPoint{dir: at, minor: n, fuse: strings.Contains(line, " - fuse")})
	}
	sort.SliceStable(found, func(i, j int) bool { return len(found[i].dir) > len(found[j].dir) })
	return found
}

// unescape undoes the octal escapes of mountinfo.
func unescape(s string) string {
	for _, e := range [][2]string{{`\040`, " "}, {`\011`, "\t"}, {`\012`, "\n"}, {`\134`, `\`}} {
		s = strings.ReplaceAll(s, e[0], e[1])
	}
	return s
}

// Mounted reports whether dir itself is a mount point.
func Mounted(dir string) bool {
	for _, m := range mountsBelow(dir) {
		if m.dir == dir {
			return true
		}
	}
	return false
}

// Detach frees a mount whose server is gone or stuck. It is no error if
// nothing is mounted.
func Detach(dir string) error { return detachBelow(dir) }
