package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/shardwell/shardwell/fuse"
	"github.com/shardwell/shardwell/internal/config"
	"github.com/shardwell/shardwell/internal/control"
	"github.com/shardwell/shardwell/internal/node"
)

func newMount(s streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "mount URI DIR [flags]",
		Short: "Mount a dataset",
		Long: `Mounts s3://BUCKET/PREFIX, or file:///DIR of a directory origin, read-only on DIR. The node that runs on this
machine does it; without one, or with --foreground, this command is a node itself until Ctrl-C, which unmounts.
A node of its own without --cache-dir keeps its cache in /var/cache/shardwell (of other users than root: in
~/.cache/shardwell) and takes up to 20 % of that file system. With --control-socket or SHARDWELL_CONTROL_SOCKET a
node is meant to be there: it is an error when none answers, unless --foreground is given.`,
		Example:           `  shardwell mount s3://datasets/imagenet /data --endpoint https://s3.example.com`,
		Args:              exactArgs("URI", "DIR"),
		ValidArgsFunction: completeURI,
	}
	opts := configured(cmd, config.ScopeNode, config.ScopeOrigin, config.ScopeMount, config.ScopeClient)
	foreground := cmd.Flags().Bool("foreground", false, "Run a node of its own in the foreground, even beside one that runs.")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		cfg, err := opts.load()
		if err != nil {
			return err
		}
		dir, err := mountpoint(args[1])
		if err != nil {
			return err
		}
		if _, err := config.ParseURI(args[0]); err != nil {
			return err
		}
		return runMount(cmd.Context(), s, cfg, args[0], dir, *foreground)
	}
	return cmd
}

func runMount(ctx context.Context, s streams, cfg config.Resolved, uri, dir string, foreground bool) error {
	if foreground {
		return mountHere(ctx, s, cfg, uri, dir)
	}
	client, err := control.Dial(ctx, cfg.ControlSocket)
	if errors.Is(err, control.ErrNoNode) {
		if from := cfg.Source("control-socket"); from.Kind == "flag" || from.Kind == "env" { // so a node was meant
			return fmt.Errorf("%w, or run a node of your own with --foreground", err)
		}
		fmt.Fprintf(s.err, "nothing answers on %s: this command is the node\n", cfg.ControlSocket)
		return mountHere(ctx, s, cfg, uri, dir)
	}
	if err != nil {
		return err
	}
	defer client.Close()
	if err := onlyMountOptions(cfg); err != nil {
		return err
	}
	reply, err := client.Mount(ctx, control.MountRequest{URI: uri, Dir: dir, Options: cfg.Attributes()})
	if err != nil {
		return err
	}
	say(s, reply, dir)
	return nil
}

func say(s streams, reply control.MountReply, dir string) {
	word := "mounted"
	if reply.Existing {
		word = "already mounted"
	}
	fmt.Fprintf(s.err, "%s %s on %s\n", word, reply.Source, dir)
}

// onlyMountOptions refuses options of a node where the node is another's.
func onlyMountOptions(cfg config.Resolved) error {
	for _, o := range cfg.Settings() {
		if o.Source.Kind == "flag" && o.NodeOnly {
			return usagef("--%s is the running node's: set it there, or run a node of your own with --foreground", o.Name)
		}
	}
	return nil
}

// mountHere is a node until ctx ends.
func mountHere(ctx context.Context, s streams, cfg config.Resolved, uri, dir string) error {
	if cfg.Source("keeper-socket").Kind == "flag" {
		return usagef("--keeper-socket: a node in the foreground ends with its mount: run `shardwell node` for mounts that outlive it")
	}
	if err := ownCache(s, &cfg.Config); err != nil {
		return err
	}
	if u, err := config.ParseURI(uri); err == nil && u.Dir != "" {
		cfg.OriginDirs = append(cfg.OriginDirs, u.Dir) // the user named it, and nobody else asks
	}
	if cfg.Source("log-level").Kind == "default" { // somebody sits before it
		cfg.LogLevel = "warn"
	}
	log := newLogger(s, cfg.Config)
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	d, err := startDaemon(ctx, s, cfg.Config, nil, log)
	if err != nil {
		return err
	}
	req := control.MountRequest{URI: uri, Dir: dir, Caller: control.Caller{
		UID: uint32(os.Getuid()), GID: uint32(os.Getgid()), PID: int32(os.Getpid()),
	}}
	reply, err := d.node.Mount(ctx, req)
	if err != nil {
		stop()
		<-d.stopped
		if d.err != nil && (errors.Is(err, context.Canceled) || errors.Is(err, node.ErrStopping)) {
			return d.err // the node failed, and Mount with it
		}
		return err
	}
	say(s, reply, dir)
	fmt.Fprintln(s.err, "Ctrl-C unmounts")
	d.awaitUnmount(dir, stop)
	return d.err
}

// unmountPoll is how often a node in the foreground looks whether it is still needed.
const unmountPoll = time.Second

// awaitUnmount returns when the daemon has ended, and ends it when the mount that
// it was started for has gone and nobody made another.
func (d *daemon) awaitUnmount(dir string, stop func()) {
	tick := time.NewTicker(unmountPoll)
	defer tick.Stop()
	for {
		select {
		case <-d.stopped:
			return
		case <-tick.C:
		}
		if _, mounted := fuse.FindMount(dir); mounted {
			continue
		}
		if st, err := d.node.Status(context.Background()); err == nil && len(st.Mounts) == 0 {
			stop()
			<-d.stopped
			return
		}
	}
}

// ownCacheShare is the part of a file system, in percent, that a node in the foreground takes for its
// cache when nobody said how much: the file system is not its own.
const ownCacheShare = 20

// ownCache gives a node in the foreground a place for its cache when it was given none, and says which.
func ownCache(s streams, cfg *config.Config) error {
	if len(cfg.CacheDirs) > 0 {
		return nil
	}
	base, err := os.UserCacheDir()
	if err != nil || os.Geteuid() == 0 {
		base = "/var/cache"
	}
	dir := filepath.Join(base, "shardwell")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("cache directory %s: %w: give --cache-dir DIR", dir, err)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return fmt.Errorf("cache directory %s: %w: give --cache-dir DIR=SIZE", dir, err)
	}
	budget := max(int64(fs.Blocks)*fs.Frsize/100*ownCacheShare, int64(cfg.ChunkSize))
	cfg.CacheDirs = []config.CacheDir{{Path: dir, Budget: config.Bytes(budget)}}
	fmt.Fprintf(s.err, "caches in %s, up to %s (%d %% of its file system): --cache-dir DIR=SIZE sets another place and size\n", dir, size(budget), ownCacheShare)
	return nil
}

// mountpoint returns the absolute path of a directory that can be mounted on.
// Whether it is one already is for the node to judge, which knows its own.
func mountpoint(arg string) (string, error) {
	if arg == "" {
		return "", usagef("mountpoint: the name of the directory is empty")
	}
	dir, err := filepath.Abs(arg)
	if err != nil {
		return "", fmt.Errorf("mountpoint %s: %w", arg, err)
	}
	st, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("mountpoint %s: no such directory: make it first", dir)
	case errors.Is(err, syscall.ENOTCONN), errors.Is(err, syscall.ECONNABORTED):
		if real := fuse.Canonical(dir); dead(real) {
			return real, nil // whoever mounts takes it away
		}
		return "", fmt.Errorf("mountpoint %s: the mount of a process that died is in the way: take it away with `shardwell umount %s`", dir, dir)
	case err != nil:
		return "", fmt.Errorf("mountpoint %s: %w", dir, errors.Unwrap(err))
	case !st.IsDir():
		return "", fmt.Errorf("mountpoint %s: not a directory: name one", dir)
	}
	real, err := filepath.EvalSymlinks(dir) // as the kernel's table of mounts has it
	if err != nil {
		return "", fmt.Errorf("mountpoint %s: %w", dir, err)
	}
	return real, nil
}

// dead reports whether a mount of ours is on dir whose server died for good.
func dead(dir string) bool {
	m, ok := fuse.FindMount(dir)
	return ok && m.Ours() && !fuse.Served(dir)
}

// completeURI offers what opens a URI.
func completeURI(_ *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveFilterDirs
	}
	starts := slices.DeleteFunc([]string{"s3://", "file:///"}, func(s string) bool { return len(prefix) > len(s) })
	return starts, cobra.ShellCompDirectiveNoSpace | cobra.ShellCompDirectiveNoFileComp
}
