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

// startDaemon starts a node, which runs until ctx ends. With a turn it goes on with the
// mounts of a predecessor; it takes the turn over.
func startDaemon(ctx context.Context, s streams, cfg config.Config, turn *node.Turn, log *slog.Logger) (*daemon, error) {
	socket, err := control.Listen(cfg.ControlSocket)
	if err != nil {
		turn.Close()
		return nil, err
	}
	n, err := node.Resume(cfg, log, turn)
	if err != nil {
		_ = socket.Close()
		turn.Close()
		return nil, err
	}
	d := &daemon{node: n, stopped: make(chan struct{})}
	remove := s.last.add(n.Detach)
	go func() {
		defer close(d.stopped)
		defer remove()
		d.err = d.run(ctx, socket, log)
		turn.Close() // last of all: the next one begins now
	}()
	return d, nil
}

// run returns when node and socket have ended; each ends the other.
func (d *daemon) run(ctx context.Context, socket net.Listener, log *slog.Logger) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		defer stop()
		return d.node.Run(ctx)
	})
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
