package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/shardwell/shardwell/e2e/cluster"
)

// seed makes all data.
const seed = 42

// with runs f on a cluster that it starts and ends, with the bucket made.
func with(opts cluster.Options, f func(*cluster.Cluster) error) (err error) {
	c, err := cluster.Start(opts)
	if c == nil {
		return err
	}
	defer func() {
		if err != nil {
			say("logs:\n%s", c.Logs(15))
		}
		err = errors.Join(err, c.Close())
	}()
	if err != nil {
		return err
	}
	if opts.Origin.Store == nil {
		if err := c.Origin.MakeBucket(context.Background(), bucket); err != nil {
			return err
		}
	}
	return f(c)
}

func put(c *cluster.Cluster, key string, r io.Reader, size int64) error {
	_, err := c.Origin.Put(context.Background(), bucket, key, r, size)
	return err
}

// untilWait bounds every wait for something that happens by itself.
const untilWait = 30 * time.Second

// until polls until f returns nil.
func until(f func() error) error {
	deadline := time.Now().Add(untilWait)
	for {
		err := f()
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("not within %v: %w", untilWait, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// restartEmpty gives the node an empty cache and a fresh mount of uri.
func restartEmpty(n *cluster.Node, uri string) (string, error) {
	if err := n.Stop(); err != nil {
		return "", err
	}
	if err := n.Wipe(); err != nil {
		return "", err
	}
	if err := n.Start(); err != nil {
		return "", err
	}
	return n.Mount(uri)
}

// cpuOf adds up the processor time of nodes so far.
func cpuOf(nodes ...*cluster.Node) (time.Duration, error) {
	var sum time.Duration
	for _, n := range nodes {
		d, err := n.Proc.CPU()
		if err != nil {
			return 0, err
		}
		sum += d
	}
	return sum, nil
}

// perGiB is seconds per GiB.
func perGiB(d time.Duration, bytes int64) float64 { return d.Seconds() / (float64(bytes) / (1 << 30)) }
