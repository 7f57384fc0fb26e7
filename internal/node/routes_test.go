package node

import (
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/shardwell/shardwell/internal/config"
)

// slack is how many copies may leave the origin at most on its return: a fetch that waits to try again meets it as well
// as the owner's. That it is one otherwise package peer tests, where time stands still.
const slack = 2

// way is one node's way to the origin, which can be cut.
type way struct {
	url string
	cut atomic.Bool
}

// newWay returns a proxy for one node.
func newWay(t *testing.T) *way {
	t.Helper()
	w := new(way)
	transport := new(http.Transport)
	forward := &httputil.ReverseProxy{Director: func(*http.Request) {}, Transport: transport}
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if w.cut.Load() {
			panic(http.ErrAbortHandler) // the connection breaks
		}
		forward.ServeHTTP(rw, r)
	}))
	t.Cleanup(func() {
		server.Close()
		transport.CloseIdleConnections()
	})
	w.url = server.URL
	return w
}

// behindWays gives each node a way of its own to the origin.
func behindWays(t *testing.T, count int) (ways []*way, change func(int, *config.Config)) {
	for range count {
		ways = append(ways, newWay(t))
	}
	return ways, func(i int, cfg *config.Config) { cfg.Proxy = ways[i].url }
}

// everyNodeReads reads everything on each node at once.
func everyNodeReads(t *testing.T, dirs []string, files map[string][]byte) {
	t.Helper()
	var group errgroup.Group
	for _, dir := range dirs {
		group.Go(func() error { return readAll(dir, files) })
	}
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
}

// Nodes read right bytes while one of them cannot reach the origin, its own readers included, and it is seen to.
func TestOneNodesWayIsCut(t *testing.T) {
	needMounts(t)
	for _, count := range []int{2, 3} {
		files := dataset()
		o := newOrigin(t, files)
		ways, change := behindWays(t, count)
		nodes := startCluster(t, o.URL(), count, change)
		ways[0].cut.Store(true)
		var dirs []string
		for i := range nodes { // the last one first: it lists the directory, or has it listed
			dirs = append(dirs, nodes[count-1-i].mountOn(t, "s3://data/"))
		}
		everyNodeReads(t, dirs, files)
		if got, want := o.Counter.Bytes.Load(), sizeOf(files); got > want*slack {
			t.Errorf("%d nodes: the origin gave %d bytes, want %d", count, got, want)
		}
		if got := nodes[0].origins.stats.Bytes.Load(); got != 0 {
			t.Errorf("%d nodes: %d bytes came by the way that is cut", count, got)
		}
		said := strings.Count(nodes[0].log.String(), "origin does not answer this node") // none, should it own nothing
		if said > 1 {
			t.Errorf("%d nodes: the node says %d times that its way is cut", count, said)
		}
		ways[0].cut.Store(false)
		until(t, "the way is found to work again", func() bool { return !nodes[0].origins.routes.Shaky(o.URL()) })
		if got := strings.Count(nodes[0].log.String(), "origin answers this node again"); got != said {
			t.Errorf("%d nodes: the node says %d times that its way works again, and %d times that it does not", count, got, said)
		}
	}
}

// The owner whose way is cut has no use for a grant either: who acts in its place is given one of its own.
func TestTenantsBehindAnOwnersCutWay(t *testing.T) {
	needMounts(t)
	files := dataset()
	ways, change := behindWays(t, 3)
	w := newTenants(t, files, 3, change)
	w.user("alice", nil)
	ways[1].cut.Store(true)
	dir := w.mount(t, 0, "alice", "s3://data/")
	if err := readAll(dir, files); err != nil {
		t.Error(err)
	}
	var got int64
	for _, a := range w.Asked() {
		if a.User != "alice" {
			t.Errorf("asked by %+v", a)
		}
	}
	for _, n := range w.nodes {
		got += n.origins.stats.Bytes.Load()
	}
	if want := sizeOf(files); got > want*slack {
		t.Errorf("the origin gave %d bytes, want %d", got, want)
	}
}

// An origin that has answered nobody for a while is not asked by all for everything when it comes back.
func TestOriginComesBackToAll(t *testing.T) {
	needMounts(t)
	files := dataset()
	o := newOrigin(t, files)
	ways, change := behindWays(t, 3)
	nodes := startCluster(t, o.URL(), 3, change)
	var dirs []string
	for _, n := range nodes {
		dir := n.mountOn(t, "s3://data/")
		if _, err := namesIn(dir); err != nil {
			t.Fatal(err)
		}
		dirs = append(dirs, dir)
	}
	for _, w := range ways {
		w.cut.Store(true)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		everyNodeReads(t, dirs, files)
	}()
	for _, n := range nodes { // one after the other acts for those before, and finds out
		until(t, "a node knows", func() bool { return n.origins.routes.Cut(o.URL()) })
	}
	for _, w := range ways {
		w.cut.Store(false)
	}
	<-done
	if got, want := o.Counter.Bytes.Load(), sizeOf(files); got > want*slack {
		t.Errorf("the origin gave %d bytes, want %d", got, want)
	}
}
