package kubeletclient_test

import (
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"k8s.io/klog/v2"

	"github.com/shardwell/shardwell/e2e/cluster"
)

// bucket is the bucket of every test.
const bucket = "data"

func TestMain(m *testing.M) {
	flag.Parse()
	if !testing.Verbose() {
		klog.LogToStderr(false)
		klog.SetOutput(io.Discard)
	}
	if _, err := cluster.Prepare(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// start makes a cluster of one node with the bucket and an object "a.txt" that lives as long as the test.
func start(t *testing.T, opts cluster.Options) *cluster.Cluster {
	t.Helper()
	opts.Nodes = 1
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
	must(t, c.Origin.MakeBucket(t.Context(), bucket))
	_, err = c.Origin.Put(t.Context(), bucket, "a.txt", strings.NewReader("hello"), 5)
	must(t, err)
	return c
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wait bounds what a test waits for on a loaded machine.
const wait = 60 * time.Second

// eventually polls until ok or the time is over.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(wait); !ok(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %v", what, wait)
		}
	}
}
