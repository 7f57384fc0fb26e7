package kube

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"
)

// StartupTaint is the key of the taint that keeps Pods away from nodes whose driver does not run yet.
const StartupTaint = "shardwell.io/not-ready"

// How long [Untaint] waits between its tries: a second while a node comes up, more when something stays wrong.
const (
	firstPause = time.Second
	lastPause  = time.Minute
)

// Untaint waits until the kubelet of a node knows the driver and ready reports no error, then
// takes the start-up taint off the node and returns. It goes on trying until ctx ends, and
// returns its error then; what the API server refuses for good is logged, and ends it with nil: a
// node without the taint works all the same.
func Untaint(ctx context.Context, c *Client, name, driver string, ready func(context.Context) error, log *slog.Logger) error {
	said := ""
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		lifted, err := untaint(ctx, c, name, driver, ready)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err == nil:
			if lifted {
				log.Info("kube: took the start-up taint off the node", "node", name, "taint", StartupTaint)
			}
			return nil
		case Final(err):
			log.Warn("kube: may not take the start-up taint off the node", "node", name, "taint", StartupTaint, "err", err)
			return nil
		case err.Error() != said:
			said = err.Error()
			log.Info("kube: the start-up taint stays for now", "node", name, "err", err)
		}
		t := time.NewTimer(pause/2 + rand.N(pause)) // nodes that start together do not ask together
		select {
		case <-ctx.Done():
			t.Stop()
			return context.Cause(ctx)
		case <-t.C:
		}
	}
}

// notYet is why the taint stays, without an error.
type notYet string

func (e notYet) Error() string { return string(e) }

func untaint(ctx context.Context, c *Client, name, driver string, ready func(context.Context) error) (bool, error) {
	if err := ready(ctx); err != nil {
		return false, err
	}
	known, err := c.Registered(ctx, name, driver)
	if err != nil {
		return false, err
	}
	if !known {
		return false, notYet("the kubelet does not know the driver yet")
	}
	return c.Lift(ctx, name, StartupTaint)
}
