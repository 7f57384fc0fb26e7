package demo

import (
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/shardwell/shardwell/fuse"
)

// takeAwayMounts ends all mounts under dir, those that nobody serves included, and
// returns those that it could not. Who waits for an answer that will not come is
// freed by aborting the connection.
func takeAwayMounts(dir string) []string {
	all, err := fuse.Mounts()
	if err != nil {
		return []string{err.Error()}
	}
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		dir = real // as the kernel writes it
	}
	var left []string
	for i := len(all) - 1; i >= 0; i-- {
		m := all[i]
		if !strings.HasPrefix(m.Dir, dir+"/") {
			continue
		}
		if m.Ours() {
			abort(m)
		}
		if err := unix.Unmount(m.Dir, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH); err != nil {
			left = append(left, m.Dir+": "+err.Error())
		}
	}
	return left
}

// abort ends a FUSE connection, if it is still there.
func abort(m fuse.MountEntry) {
	_, minor, _ := strings.Cut(m.Device, ":")
	_ = os.WriteFile("/sys/fs/fuse/connections/"+minor+"/abort", []byte("1"), 0)
}
