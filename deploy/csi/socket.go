package csi

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shardwell/shardwell/internal/config"
)

// How long a driver waits for the one before it to end.
const (
	lockPatience = 20 * time.Second // a Pod that is replaced has ended by then, or was killed
	lockPoll     = 100 * time.Millisecond
)

// lockDir makes the driver's directory and keeps other drivers out of it until unlock is called.
func lockDir(ctx context.Context, dir string) (unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, fmt.Errorf("directory of the driver %s: %w", dir, unwrapPath(err))
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("directory of the driver %s: %w", dir, unwrapPath(err))
	}
	patience := time.After(lockPatience)
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, errors.Join(fmt.Errorf("directory of the driver %s: lock: %w", dir, err), f.Close())
		}
		select {
		case <-time.After(lockPoll):
		case <-patience:
			_ = f.Close()
			return nil, fmt.Errorf("directory of the driver %s: another driver of this machine uses it: stop that one first", dir)
		case <-ctx.Done():
			_ = f.Close()
			return nil, ctx.Err()
		}
	}
}

// listen makes a unix socket that only root may use, in place of one that a driver before left.
func listen(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return nil, fmt.Errorf("socket %s: %w", path, unwrapPath(err))
	}
	if st, err := os.Lstat(path); err == nil {
		if st.Mode().Type() != os.ModeSocket {
			return nil, fmt.Errorf("socket %s: something else has this name: remove it, or give another --endpoint", path)
		}
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("socket %s: %w", path, unwrapPath(err))
		}
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("socket %s: %w", path, errors.Unwrap(err))
	}
	if err := os.Chmod(path, 0o600); err != nil {
		_ = l.Close()
		return nil, fmt.Errorf("socket %s: %w", path, unwrapPath(err))
	}
	return l, nil
}

// socketPath returns the path in an endpoint: unix:///PATH, or the path alone.
func socketPath(endpoint string) (string, error) {
	path := endpoint
	if strings.HasPrefix(endpoint, "unix:") {
		path = ""
		if u, err := url.Parse(endpoint); err == nil {
			path = u.Path
		}
	}
	const maxSocketBytes = 107 // sun_path of Linux
	if !filepath.IsAbs(path) || len(path) > maxSocketBytes {
		return "", &config.Error{What: fmt.Sprintf("%q is no Unix socket", endpoint), Where: "--endpoint", Do: fmt.Sprintf("write it like unix:///csi/csi.sock, at most %d bytes", maxSocketBytes)}
	}
	return path, nil
}
