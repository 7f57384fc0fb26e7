package csi_test

import (
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/shardwell/shardwell/e2e/cluster"
)

// With a keeper a volume outlives the daemon: who reads waits and goes on, and the driver neither replaces
// nor ends what is only waiting for the next one.
func TestVolumeOutlivesDaemon(t *testing.T) {
	c := start(t, cluster.Options{Nodes: 1, Keeper: true})
	put(t, c, "a.txt", "hello")
	put(t, c, "b.txt", "later")
	d := drive(t, c)
	dir, err := d.Publish(t.Context(), "reads", attributes)
	must(t, err)
	_, err = d.Publish(t.Context(), "goes", attributes)
	must(t, err)
	h := hold(t, dir)
	n := c.Nodes[0]
	for range 3 {
		must(t, n.End())
		if _, err := d.Publish(t.Context(), "reads", attributes); status.Code(err) != codes.Unavailable {
			t.Errorf("publish again while the daemon is away: got %v, want %v", err, codes.Unavailable)
		}
		must(t, n.Start())
		h.readAgain(t)
		_, err = d.Publish(t.Context(), "reads", attributes)
		must(t, err)
	}
	read(t, dir, "b.txt", "later")
	if n := len(d.Mounts()); n != 3 {
		t.Errorf("%d mounts: %v; want one and two copies of it", n, d.Mounts())
	}

	// Volumes go while the daemon is away, and are in nobody's way when it is back.
	must(t, n.End())
	must(t, d.Unpublish(t.Context(), "goes"))
	gone(t, d, "reads")
	must(t, n.Start())
	dir, err = d.Publish(t.Context(), "next", attributes)
	must(t, err)
	read(t, dir, "a.txt", "hello")
	gone(t, d, "next")
}
