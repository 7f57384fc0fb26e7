package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/shardwell/shardwell/fuse"
	"github.com/shardwell/shardwell/internal/config"
	"github.com/shardwell/shardwell/internal/control"
)

func newUmount(s streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "umount DIR",
		Short: "End a mount",
		Long: `Ends a mount of the node that runs on this machine. A mount that is in use is refused. The mount of a node that
died is taken away, so that the directory can be used again.`,
		Args: exactArgs("DIR"),
	}
	opts := configured(cmd, config.ScopeClient)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		cfg, err := opts.load()
		if err != nil {
			return err
		}
		dir, err := filepath.Abs(args[0])
		if err != nil {
			return fmt.Errorf("%s: %w", args[0], err)
		}
		return runUmount(cmd.Context(), s, cfg, dir)
	}
	return cmd
}

func runUmount(ctx context.Context, s streams, cfg config.Resolved, dir string) error {
	m, mounted := fuse.FindMount(dir)
	if real, err := filepath.EvalSymlinks(dir); !mounted && err == nil { // a link to it
		m, mounted = fuse.FindMount(real)
	}
	if !mounted {
		return fmt.Errorf("%s: nothing is mounted there", dir)
	}
	if !m.Ours() {
		return fmt.Errorf("%s: a file system of type %s is mounted there: use umount(8)", dir, m.Type)
	}
	client, err := control.Dial(ctx, cfg.ControlSocket)
	if err == nil {
		defer client.Close()
		if err := client.Umount(ctx, m.Dir); err != nil {
			return err
		}
		fmt.Fprintf(s.err, "unmounted %s from %s\n", m.URI(), m.Dir)
		return nil
	}
	if !errors.Is(err, control.ErrNoNode) || served(m.Dir) {
		return err
	}
	if err := fuse.UnmountDir(m.Dir, true); err != nil {
		return err
	}
	fmt.Fprintf(s.err, "its node had died: took the mount of %s away\n", m.URI())
	return nil
}

// served reports whether a process answers for a mount. One whose server died
// says that it is not connected, but for what the kernel remembers, such as
// attributes: how full a file system is it never does.
func served(dir string) bool {
	var st unix.Statfs_t
	err := unix.Statfs(dir, &st)
	return !errors.Is(err, unix.ENOTCONN) && !errors.Is(err, unix.ECONNABORTED)
}
