package main

import (
	"context"
	"log/slog"
	"net"

	"golang.org/x/sync/errgroup"

	"github.com/shardwell/shardwell/internal/config"
	"github.com/shardwell/shardwell/internal/control"
	"github.com/shardwell/shardwell/internal/node"
)

// daemon is a node in this process and its control socket.
type daemon struct {
	node    *node.Node
	stopped chan struct{} // closed when both have ended
	err     error         // why; to be read after stopped
}

// startDaemon starts a node, which runs until ctx ends.
func startDaemon(ctx context.Context, s streams, cfg config.Config, log *slog.Logger) (*daemon, error) {
	socket, err := control.Listen(cfg.ControlSocket)
	if err != nil {
		return nil, err
	}
	n, err := node.New(cfg, log)
	if err != nil {
		_ = socket.Close()
		return nil, err
	}
	d := &daemon{node: n, stopped: make(chan struct{})}
	remove := s.last.add(n.Detach)
	go func() {
		defer close(d.stopped)
		defer remove()
		d.err = d.run(ctx, socket, log)
	}()
	return d, nil
}

// run returns when node and socket have ended; one that fails ends the other.
func (d *daemon) run(ctx context.Context, socket net.Listener, log *slog.Logger) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return d.node.Run(ctx) })
	group.Go(func() error { return control.NewServer(d.node, node.Version, log).Run(ctx, socket) })
	err := group.Wait()
	if stoppedBy(ctx, err) {
		return nil
	}
	return err
}

// stoppedBy reports whether err only says that ctx ended.
func stoppedBy(ctx context.Context, err error) bool {
	return ctx.Err() != nil && err == context.Cause(ctx)
}
