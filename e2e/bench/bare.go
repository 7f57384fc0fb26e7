package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/shardwell/shardwell/e2e/cage"
)

// bareCommand is the first argument with which this program serves the bare
// passthrough file system: in a process of its own, since a reader must not wait for itself.
const bareCommand = "bare-passthrough"

// serveBare mounts root on dir by go-fuse's loopback with passthrough, until SIGTERM.
func serveBare(root, dir string) error {
	node, err := fs.NewLoopbackRoot(root)
	if err != nil {
		return err
	}
	server, err := fs.Mount(dir, node, &fs.Options{MountOptions: fuse.MountOptions{
		DirectMountStrict: true, FsName: "bare", MaxStackDepth: 1,
	}})
	if err != nil {
		return fmt.Errorf("bare passthrough: %w", err)
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	<-stop
	return server.Unmount()
}

// startBare runs serveBare in a process of its own and waits for the mount.
func startBare(h *cage.Host, root, dir string) (*cage.Process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	p, err := h.Start(cage.Command{Name: "bare", Args: []string{self, bareCommand, root, dir}})
	if err != nil {
		return nil, err
	}
	if err := until(func() error {
		if !p.Running() {
			return fmt.Errorf("bare passthrough ended: %s", p.Output())
		}
		if !cage.Mounted(dir) {
			return fmt.Errorf("bare passthrough is not mounted: %s", p.Output())
		}
		return nil
	}); err != nil {
		return nil, err
	}
	return p, nil
}
