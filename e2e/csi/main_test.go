package csi_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/shardwell/shardwell/e2e/cluster"
	e2ecsi "github.com/shardwell/shardwell/e2e/csi"
)

// bucket is the bucket of every test.
const bucket = "data"

func TestMain(m *testing.M) {
	if _, err := cluster.Prepare(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// start makes a cluster with the bucket that lives as long as the test.
func start(t *testing.T, opts cluster.Options) *cluster.Cluster {
	t.Helper()
	c, err := cluster.Start(opts)
	if c != nil {
		t.Cleanup(func() {
			if t.Failed() {
				t.Log("logs:\n" + c.Logs(40))
			}
			if err := c.Close(); err != nil {
				t.Errorf("clean-up: %v", err)
			}
		})
	}
	must(t, err)
	if opts.Origin.Store == nil {
		must(t, c.Origin.MakeBucket(t.Context(), bucket))
	}
	return c
}

// drive runs a driver beside the first node, and checks in the end that it left nothing behind.
func drive(t *testing.T, c *cluster.Cluster, flags ...string) *e2ecsi.Driver {
	t.Helper()
	d, err := e2ecsi.Start(c, c.Nodes[0], flags...)
	if d != nil {
		t.Cleanup(func() {
			if err := d.Close(); err != nil {
				t.Errorf("clean-up: %v", err)
			}
		})
	}
	must(t, err)
	return d
}

func put(t *testing.T, c *cluster.Cluster, key, text string) {
	t.Helper()
	_, err := c.Origin.Put(t.Context(), bucket, key, strings.NewReader(text), int64(len(text)))
	must(t, err)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually polls until ok or the time is over.
func eventually(t *testing.T, wait time.Duration, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(wait); !ok(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %v", what, wait)
		}
	}
}
