package node

import (
	"context"
	"fmt"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/shardwell/shardwell/internal/config"
	"github.com/shardwell/shardwell/internal/control"
	"github.com/shardwell/shardwell/peer/budget"
)

// read reads an object of a node, as `shardwell get` does.
func (r *running) read(ctx context.Context, uri string) (bytes int64, err error) {
	err = r.Read(ctx, control.ReadRequest{URI: uri}, func(control.Entry) error { return nil }, func(p []byte) error {
		bytes += int64(len(p))
		return nil
	})
	return bytes, err
}

// SEMANTICS O6: With `--max-origin-rate` the cluster takes no more than that from the origin, up to 1.1 times over
// a few seconds, however many nodes read, and also when the member that divides the rate dies.
func TestClusterStaysWithinTheOriginRate(t *testing.T) {
	t.Parallel()
	const rate = 8 << 20
	files := map[string][]byte{}
	for i := range 24 {
		files[fmt.Sprintf("f%d", i)] = randomBytes(1<<20, uint64(i))
	}
	o := newOrigin(t, files)
	nodes := startCluster(t, o.URL(), 3, func(_ int, cfg *config.Config) { cfg.MaxOriginRate = rate })
	began := time.Now()
	var group errgroup.Group
	for key, data := range files {
		for _, n := range nodes {
			group.Go(func() error {
				if got, err := n.read(t.Context(), "s3://data/"+key); err != nil || got != int64(len(data)) {
					return fmt.Errorf("%s of %s: %d bytes, %v", key, n.name, got, err)
				}
				return nil
			})
		}
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	if got, want := o.Counter.Bytes.Load(), sizeOf(files); got != want {
		t.Errorf("the origin gave %d bytes, want %d", got, want)
	}
	// Each node may have what a lease lets pile up.
	least := time.Duration((float64(sizeOf(files))/1.1/rate - 3*0.1) * float64(time.Second))
	if took := time.Since(began); took < least {
		t.Errorf("%d bytes came within %v, at %d bytes a second that takes %v", sizeOf(files), took, rate, least)
	}
}

// Who is not the lessor leases nothing, and says so soon enough to ask another.
func TestOneLessor(t *testing.T) {
	t.Parallel()
	o := newOrigin(t, nil)
	nodes := startCluster(t, o.URL(), 3, func(_ int, cfg *config.Config) { cfg.MaxOriginRate = 1 << 20 })
	lessors := 0
	for _, n := range nodes {
		lease := n.budgets.Lease("https://o", n.id, 1<<20, 1<<20)
		if lease.BytesPerSecond > 0 {
			lessors++
			continue
		}
		if lease.For >= budget.LeaseTime {
			t.Errorf("asks again after %v", lease.For)
		}
		at := n.budgets.lessor("https://o")
		if at == n.id {
			t.Errorf("%s is the lessor and leases nothing", n.name)
		}
		if l, err := n.cluster.peers.Lease(t.Context(), at, "https://o", 1<<20, 1000); err != nil || l.BytesPerSecond > 1000 {
			t.Errorf("%+v, %v", l, err)
		}
	}
	if lessors != 1 {
		t.Errorf("%d lessors", lessors)
	}
}
