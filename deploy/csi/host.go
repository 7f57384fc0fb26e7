package csi

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/shardwell/shardwell/fuse"
	"github.com/shardwell/shardwell/internal/config"
)

// host is the mount table as the driver changes it. What can wait for a file system of
// ours returns when its time is over, whatever that does.
type host interface {
	// table lists what is mounted, in the order of mounting.
	table() ([]fuse.MountEntry, error)
	// attach shows a mounted directory read-only at target, which it makes if it is
	// not there, and over what is mounted there. It leaves nothing behind when it fails.
	attach(source, target string) error
	// detach takes all mounts of ours away from target, in use or not, and removes
	// the empty directory. That there is none is no error.
	detach(target string) error
	// alive reports whether somebody answers, or may answer yet, for a mount of ours.
	alive(dir string) bool
	// abort ends a mount of ours and every call that waits for it.
	abort(dir string) error
}

// Limits of calls into the kernel.
const (
	syscallPatience = 5 * time.Second // for one that has nothing to wait for
	maxLeftBehind   = 32              // of those that did not return in time
	maxLayers       = 16              // of mounts over each other on one target, each of which every Pod with it has, too
)

// kernel is the real host. Paths below root are walked without following links.
type kernel struct {
	root string // the kubelet's directory, as the mount table has it
	left chan struct{}
}

func newKernel(kubeletDir string) (*kernel, error) {
	if !filepath.IsAbs(kubeletDir) || filepath.Clean(kubeletDir) != kubeletDir || kubeletDir == "/" {
		return nil, &config.Error{What: fmt.Sprintf("%q is not an absolute path without . and ..", kubeletDir), Where: "--kubelet-dir"}
	}
	root, err := filepath.EvalSymlinks(kubeletDir)
	if err != nil {
		return nil, &config.Error{What: fmt.Sprintf("directory %s: %v", kubeletDir, unwrapPath(err)), Where: "--kubelet-dir", Do: "name the one in which the kubelet of this machine keeps its Pods"}
	}
	return &kernel{root: root, left: make(chan struct{}, maxLeftBehind)}, nil
}

func (k *kernel) table() ([]fuse.MountEntry, error) { return fuse.Mounts() }

// targetPath returns a target as the mount table has it, or says why it cannot be one, without
// looking at it. Named and root are the kubelet's directory, as it names it and as it is.
func targetPath(target, named, root string) (string, error) {
	switch {
	case target == "":
		return "", refused(codes.InvalidArgument, "target_path is missing")
	case len(target) > maxPathBytes || strings.ContainsAny(target, "\x00\n\r"):
		return "", refused(codes.InvalidArgument, "target_path is longer than %d bytes or holds a control character", maxPathBytes)
	case !filepath.IsAbs(target) || filepath.Clean(target) != target:
		return "", refused(codes.InvalidArgument, "target_path %q is not an absolute path without . and ..", target)
	case !strings.HasPrefix(target, named+"/"):
		return "", refused(codes.InvalidArgument, "target_path %q does not lie under the kubelet's directory %s: start the driver with --kubelet-dir", target, named)
	}
	return root + strings.TrimPrefix(target, named), nil
}

// parent opens the directory in which target lies.
func (k *kernel) parent(target string) (fd int, base string, err error) {
	root, err := unix.Open(k.root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, "", fmt.Errorf("%s: %w", k.root, err)
	}
	defer unix.Close(root)
	rel := strings.TrimPrefix(target, k.root+"/")
	fd, err = unix.Openat2(root, filepath.Dir(rel), &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	switch {
	case errors.Is(err, unix.ELOOP):
		return -1, "", refused(codes.InvalidArgument, "target_path %s: there is a symbolic link on the way", target)
	case errors.Is(err, unix.ENOTDIR):
		return -1, "", refused(codes.InvalidArgument, "target_path %s: something on the way is no directory", target)
	case err != nil:
		return -1, "", fmt.Errorf("target_path %s: %w", target, err)
	}
	return fd, filepath.Base(rel), nil
}

// attach implements host. The copy of the mount is made read-only before it is shown.
func (k *kernel) attach(source, target string) (failed error) {
	parent, base, err := k.parent(target)
	if err != nil {
		return err
	}
	defer unix.Close(parent)
	if _, covers := fuse.FindMount(target); !covers { // nobody may answer for what is mounted there
		made, err := makeDir(parent, base, target)
		if err != nil {
			return err
		}
		defer func() {
			if failed != nil && made {
				_ = unix.Unlinkat(parent, base, unix.AT_REMOVEDIR)
			}
		}()
	}
	tree, err := unix.OpenTree(unix.AT_FDCWD, source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return fmt.Errorf("copy of the mount %s: %w", source, err)
	}
	defer unix.Close(tree)
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV}
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return fmt.Errorf("copy of the mount %s: make it read-only: %w", source, err)
	}
	if err := unix.MoveMount(tree, "", parent, base, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("target_path %s: mount: %w", target, err)
	}
	return nil
}

// makeDir makes a directory and reports whether it was not there before. Something else in its place is an error.
func makeDir(parent int, base, target string) (made bool, err error) {
	err = unix.Mkdirat(parent, base, 0o750)
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return false, fmt.Errorf("target_path %s: %w", target, err)
	}
	made = err == nil
	var st unix.Stat_t
	if err := unix.Fstatat(parent, base, &st, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT); err != nil {
		return made, fmt.Errorf("target_path %s: %w", target, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return made, refused(codes.InvalidArgument, "target_path %s: is no directory", target)
	}
	return made, nil
}

// detach implements host.
func (k *kernel) detach(target string) error {
	parent, base, err := k.parent(target)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(parent)
	for range 2 * maxLayers {
		top, ok := fuse.FindMount(target)
		if !ok {
			break
		}
		if !top.Ours() {
			return refused(codes.FailedPrecondition, "target_path %s: a file system of type %s (%s) is mounted there, which is none of this driver", target, top.Type, top.Source)
		}
		// Through the directory that was opened: the path cannot have changed.
		at := fmt.Sprintf("/proc/self/fd/%d/%s", parent, base)
		if err := k.within(func() error { return unmount(at) }); err != nil {
			return fmt.Errorf("target_path %s: unmount: %w", target, err)
		}
	}
	switch err := unix.Unlinkat(parent, base, unix.AT_REMOVEDIR); {
	case err == nil, errors.Is(err, unix.ENOENT), errors.Is(err, unix.EROFS) && absent(parent, base):
		return nil
	case errors.Is(err, unix.ENOTDIR):
		return refused(codes.InvalidArgument, "target_path %s: is no directory", target)
	default:
		return fmt.Errorf("target_path %s: remove the directory: %w", target, err)
	}
}

// absent reports whether a directory has no such entry: on a file system that was made read-only the kernel
// does not say so when it is to be removed.
func absent(parent int, base string) bool {
	var st unix.Stat_t
	return errors.Is(unix.Fstatat(parent, base, &st, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT), unix.ENOENT)
}

// unmount takes the topmost mount away; one that is in use leaves the tree, and
// ends with its last user.
func unmount(at string) error {
	err := unix.Unmount(at, unix.UMOUNT_NOFOLLOW)
	if errors.Is(err, unix.EBUSY) {
		err = unix.Unmount(at, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH)
	}
	if errors.Is(err, unix.EINVAL) { // somebody was faster
		return nil
	}
	return err
}

// alive implements host. A daemon that is being replaced does not answer, and will: no
// answer counts as one.
func (k *kernel) alive(dir string) bool {
	dead := errors.New("dead")
	err := k.within(func() error {
		if !fuse.Served(dir) {
			return dead
		}
		return nil
	})
	return !errors.Is(err, dead)
}

// abort implements host: MNT_FORCE ends the connection with the daemon, in use or not.
func (k *kernel) abort(dir string) error {
	top, ok := fuse.FindMount(dir)
	if !ok || !top.Ours() {
		return nil
	}
	return k.within(func() error {
		_ = unix.Unmount(dir, unix.UMOUNT_NOFOLLOW|unix.MNT_FORCE) // EBUSY says that only the calls have ended
		if _, still := fuse.FindMount(dir); !still {
			return nil
		}
		return unmount(dir)
	})
}

// within runs a call that should not wait, and leaves it behind if it does.
func (k *kernel) within(call func() error) error {
	select {
	case k.left <- struct{}{}:
	default:
		return fmt.Errorf("%d calls into the kernel do not return", maxLeftBehind)
	}
	ctx, cancel := context.WithTimeout(context.Background(), syscallPatience)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		defer func() { <-k.left }()
		done <- call()
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("the kernel does not return within %v", syscallPatience)
	}
}

// unwrapPath drops the operation and path of an error whose reader knows them.
func unwrapPath(err error) error {
	var path *os.PathError
	if errors.As(err, &path) {
		return path.Err
	}
	return err
}
