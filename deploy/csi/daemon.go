package csi

import (
	"context"
	"time"

	"github.com/shardwell/shardwell/internal/control"
)

// Daemon is what the driver asks of the node of this machine. Methods are safe for
// concurrent use; their errors are those of [control.Node].
type Daemon interface {
	Mount(ctx context.Context, req control.MountRequest) (control.MountReply, error)
	Release(ctx context.Context, dir string) error
	Usage(ctx context.Context, dir string) (control.Usage, error)
	Version(ctx context.Context) (control.Version, error)
}

// Limits of the calls to the daemon. The kubelet gives up after two minutes.
const (
	mountTimeout   = 60 * time.Second
	releaseTimeout = 8 * time.Second
	usageTimeout   = 10 * time.Second
	probeTimeout   = 3 * time.Second
)

// Socket is the path of a control socket, and the [Daemon] behind it. It connects for
// each call: a daemon that was replaced is found at once.
type Socket string

// Mount implements Daemon.
func (s Socket) Mount(ctx context.Context, req control.MountRequest) (reply control.MountReply, err error) {
	err = s.call(ctx, mountTimeout, func(ctx context.Context, c *control.Client) (err error) {
		reply, err = c.Mount(ctx, req)
		return err
	})
	return reply, err
}

// Release implements Daemon.
func (s Socket) Release(ctx context.Context, dir string) error {
	return s.call(ctx, releaseTimeout, func(ctx context.Context, c *control.Client) error { return c.Release(ctx, dir) })
}

// Usage implements Daemon.
func (s Socket) Usage(ctx context.Context, dir string) (u control.Usage, err error) {
	err = s.call(ctx, usageTimeout, func(ctx context.Context, c *control.Client) (err error) {
		u, err = c.Usage(ctx, dir)
		return err
	})
	return u, err
}

// Version implements Daemon.
func (s Socket) Version(ctx context.Context) (v control.Version, err error) {
	err = s.call(ctx, probeTimeout, func(ctx context.Context, c *control.Client) (err error) {
		v, err = c.Version(ctx)
		return err
	})
	return v, err
}

func (s Socket) call(ctx context.Context, limit time.Duration, do func(context.Context, *control.Client) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	c, err := control.Dial(ctx, string(s))
	if err != nil {
		return err
	}
	defer c.Close()
	return do(ctx, c)
}
