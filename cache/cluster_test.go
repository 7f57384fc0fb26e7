package cache

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shardwell/shardwell/internal/chunk"
)

// cluster is caches that are each other's peers, each with its own idea of who
// owns everything.
type cluster struct {
	nodes []*rig
	owner []int // by node
	asked atomic.Int64
}

func (cl *cluster) fetcher(self int) chunk.Fetcher {
	return fetcherFunc(func(ctx context.Context, req chunk.Request, d chunk.Deliver) error {
		to := cl.owner[self]
		if to == self || req.Hops >= chunk.MaxHops {
			return chunk.ErrNotHeld
		}
		req.Source.Set(fmt.Sprint(to))
		req.Hops++
		req.From = fmt.Sprint(self)
		req.Source = nil
		cl.asked.Add(1)
		return cl.nodes[to].Lend(ctx, req, func(p chunk.Piece) error {
			return d(chunk.Block{Index: p.Index, CRC: p.CRC, Data: p.Data})
		})
	})
}

func newCluster(t *testing.T, owners ...int) *cluster {
	cl := &cluster{owner: owners}
	for i := range owners {
		cl.nodes = append(cl.nodes, newRig(t, 8, func(c *Config) {
			c.Peers = cl.fetcher(i)
			c.Owned = func(chunk.Request) bool { return cl.owner[i] == i }
			if i > 0 {
				c.Origin = &OriginFetcher{Geometry: small, Origins: oneStore{cl.nodes[0].origin}, Arena: c.Arena}
			}
		}))
	}
	return cl
}

func (cl *cluster) shut(t *testing.T) {
	for _, r := range cl.nodes {
		r.Close() // all of them before any is looked at: they lend to each other
	}
	for _, r := range cl.nodes {
		r.shut(t)
	}
}

// SEMANTICS O1: However many nodes and processes read at once, each block goes from
// the origin into the cluster once, and again only when it was not kept: a cache smaller than what is read drops or does
// not take blocks, and a node that is lost takes its blocks along.
func TestClusterReadsTheOriginOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := newCluster(t, 2, 2, 2, 2, 2)
		obj, data := cl.nodes[0].put("k", 3*512<<10+17)
		var wg sync.WaitGroup
		for _, r := range cl.nodes {
			for range 3 {
				wg.Go(func() {
					f := r.open(t, obj)
					defer f.Close()
					for off := 0; off < len(data); off += 100000 {
						wantRead(t, f, data, off, min(100000, len(data)-off))
					}
				})
			}
		}
		wg.Wait()
		if got := cl.nodes[0].origin.Bytes(); got != obj.Size {
			t.Errorf("origin bytes: got %d, want %d", got, obj.Size)
		}
		cl.shut(t)
	})
}

func TestTablesThatDisagreeDoNotHangReaders(t *testing.T) {
	for _, owners := range [][]int{{1, 0}, {1, 2, 0}, {1, 1, 1, 0}, {1, 2, 3, 4, 0}} {
		t.Run(fmt.Sprint(owners), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cl := newCluster(t, owners...)
				obj, data := cl.nodes[0].put("k", 512<<10)
				began := time.Now()
				var wg sync.WaitGroup
				for _, r := range cl.nodes {
					wg.Go(func() {
						f := r.open(t, obj)
						defer f.Close()
						wantRead(t, f, data, 0, len(data))
					})
				}
				wg.Wait()
				if took := time.Since(began); took != 0 {
					t.Errorf("took %v: somebody waited for somebody who waited", took)
				}
				if got := cl.nodes[0].origin.Bytes(); got > int64(len(owners))*obj.Size {
					t.Errorf("origin bytes: got %d of %d", got, obj.Size)
				}
				cl.shut(t)
			})
		})
	}
}
