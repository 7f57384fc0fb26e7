package node

import (
	"fmt"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/shardwell/shardwell/fuse"
)

// deadMount leaves a mount behind as a node does that is killed.
func deadMount(t *testing.T, dir string) {
	t.Helper()
	dev, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", dev)
	if err := unix.Mount("shardwell#s3://data/", dir, "fuse.shardwell", unix.MS_RDONLY, options); err != nil {
		t.Fatal(err)
	}
	if err := unix.Close(dev); err != nil {
		t.Fatal(err)
	}
}

// A node that was killed and started again takes its dead mount away when it is
// told to unmount it, or to mount there again.
func TestDeadMountOfAnEarlierLife(t *testing.T) {
	needMounts(t)
	data := randomBytes(1<<20, 1)
	o := newOrigin(t, map[string][]byte{"k": data})
	n := start(t, testConfig(t, o.URL()))

	gone := filepath.Clean(t.TempDir())
	deadMount(t, gone)
	if err := n.Umount(t.Context(), gone); err != nil {
		t.Error(err)
	}
	if _, ok := fuse.FindMount(gone); ok {
		t.Error("the dead mount is still there")
	}
	oneGoodLine(t, n.Umount(t.Context(), gone), "mounted there")

	again := filepath.Clean(t.TempDir())
	deadMount(t, again)
	mustMount(t, n, "s3://data/", again, nil)
	if err := readAll(again, map[string][]byte{"k": data}); err != nil {
		t.Error(err)
	}
	if err := n.Umount(t.Context(), again); err != nil {
		t.Error(err)
	}
}
