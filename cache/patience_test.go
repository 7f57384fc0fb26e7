package cache

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/objstore"
)

const budget = 5 * time.Second

// wantLate reads and fails unless the read ends with class after low to high.
func wantLate(t *testing.T, f *File, off int64, class error, low, high time.Duration) {
	t.Helper()
	began := time.Now()
	_, err := f.ReadAt(t.Context(), make([]byte, 100), off)
	if took := time.Since(began); !errors.Is(err, class) || took < low || took > high {
		t.Errorf("%v after %v; want %v after %v to %v", err, took, class, low, high)
	}
}

// hangs is an upstream that brings nothing.
func hangs(ctx context.Context, _ chunk.Request, _ chunk.Deliver) error {
	<-ctx.Done()
	return ctx.Err()
}

// SEMANTICS E1: Not found is ENOENT at open; denied is EACCES; changed or deleted under an open handle is ESTALE; everything transient is retried inside a budget (60 s by default), one for each call however much it asks, and then EIO.
func TestReadersHaveOneBudget(t *testing.T) {
	for name, origin := range map[string]fetcherFunc{
		"hangs":   hangs,
		"refuses": func(context.Context, chunk.Request, chunk.Deliver) error { return errors.New("connection refused") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, 8, func(c *Config) {
					c.ReadBudget, c.Origin = budget, origin
					c.Peers = fetcherFunc(func(ctx context.Context, req chunk.Request, _ chunk.Deliver) error {
						select { // members that are dead take some of it
						case <-time.After(req.Patience / 3):
							return chunk.ErrNotHeld
						case <-ctx.Done():
							return ctx.Err()
						}
					})
				})
				defer r.shut(t)
				obj, _ := r.put("k", 512<<10)
				f := r.open(t, obj)
				defer f.Close()
				var wg sync.WaitGroup
				for i := range 5 { // those who join do not make the first wait longer
					wg.Go(func() {
						time.Sleep(time.Duration(i) * 1200 * time.Millisecond)
						wantLate(t, f, 0, objstore.ErrUnavailable, budget-maxPause, budget+readersGrace)
					})
				}
				wg.Wait()
			})
		})
	}
}

// A reader who began first gives up first, whoever joined its call since.
func TestJoinersDoNotProlongTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 8, func(c *Config) { c.ReadBudget, c.Origin = budget, fetcherFunc(hangs) })
		defer r.shut(t)
		obj, _ := r.put("k", 512<<10)
		f := r.open(t, obj)
		defer f.Close()
		var wg sync.WaitGroup
		defer wg.Wait()
		for i := range 20 {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * 500 * time.Millisecond)
				_, _ = f.ReadAt(t.Context(), make([]byte, 1), 0)
			})
		}
		began := time.Now()
		_, err := f.ReadAt(t.Context(), make([]byte, 1), 0)
		if took := time.Since(began); !errors.Is(err, objstore.ErrUnavailable) || took > budget+readersGrace {
			t.Errorf("%v after %v, want at most %v", err, took, budget+readersGrace)
		}
	})
}

// The kernel reads a page again when reading ahead has failed: no second wait.
func TestFailureHoldsForAMoment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fetches := 0
		r := newRig(t, 8, func(c *Config) {
			c.ReadBudget = budget
			c.Origin = fetcherFunc(func(ctx context.Context, req chunk.Request, d chunk.Deliver) error {
				fetches++
				return hangs(ctx, req, d)
			})
		})
		defer r.shut(t)
		obj, _ := r.put("k", 2*512<<10)
		f := r.open(t, obj)
		defer f.Close()
		wantLate(t, f, 0, objstore.ErrUnavailable, budget, budget+readersGrace)
		before := fetches
		wantLate(t, f, 0, objstore.ErrUnavailable, 0, 0)
		if fetches != before {
			t.Error("the origin was asked again")
		}
		wantLate(t, f, 512<<10, objstore.ErrUnavailable, budget, budget+readersGrace) // of another chunk nothing is known
		wantLate(t, f, 0, objstore.ErrUnavailable, budget, budget+readersGrace)       // a moment later neither
	})
}

// An origin that is slow is not one that is gone: each block is a new beginning.
func TestEachBlockIsProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var data []byte
		r := newRig(t, 8, func(c *Config) {
			c.ReadBudget = budget
			c.Origin = fetcherFunc(func(ctx context.Context, req chunk.Request, d chunk.Deliver) error {
				return slowly(data, budget-time.Second)(ctx, req, d)
			})
		})
		defer r.shut(t)
		var obj chunk.Object
		obj, data = r.put("k", 512<<10)
		f := r.open(t, obj)
		defer f.Close()
		wantRead(t, f, data, 0, len(data))
	})
}

// Nor is one whose calls have to queue, as long as those before them get on.
func TestQueueThatMovesIsProgress(t *testing.T) {
	for name, up := range map[string]bool{"slow": true, "gone": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				all := make(map[string][]byte)
				r := newRig(t, 8, func(c *Config) {
					c.ReadBudget, c.MaxFetches, c.MaxFetchesPerBucket = budget, 1, 1
					c.Origin = fetcherFunc(func(ctx context.Context, req chunk.Request, d chunk.Deliver) error {
						if !up {
							return hangs(ctx, req, d)
						}
						return slowly(all[req.Object.Key], 3*time.Second)(ctx, req, d)
					})
				})
				defer r.shut(t)
				var wg sync.WaitGroup
				for i := range 6 {
					obj, data := r.put(fmt.Sprint("k", i), block)
					all[obj.Key] = data
					f := r.open(t, obj)
					defer f.Close()
					wg.Go(func() {
						began := time.Now()
						_, err := f.ReadAt(t.Context(), make([]byte, block), 0)
						took := time.Since(began)
						if up && err != nil {
							t.Errorf("%v after %v", err, took)
						}
						if !up && (err == nil || took > budget+readersGrace) {
							t.Errorf("%v after %v", err, took)
						}
					})
				}
				wg.Wait()
			})
		})
	}
}

// A peer is told within the time it gave why nothing comes: that it is the origin, or not.
func TestPeerIsToldInTime(t *testing.T) {
	for _, owner := range []bool{true, false} {
		t.Run(fmt.Sprint("owner ", owner), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, 8, func(c *Config) {
					c.Origin = fetcherFunc(hangs)
					c.Peers = fetcherFunc(func(ctx context.Context, req chunk.Request, d chunk.Deliver) error {
						if owner {
							return chunk.ErrNotHeld
						}
						return hangs(ctx, req, d)
					})
				})
				defer r.shut(t)
				obj, _ := r.put("k", 512<<10)
				req := ask(obj, "p")
				req.Patience = 2 * time.Second
				began := time.Now()
				_, err := r.collect(t.Context(), req)
				if took := time.Since(began); err == nil || errors.Is(err, objstore.ErrUnavailable) != owner || objstore.Final(err) || took < req.Patience || took > req.Patience+peersGrace/2 {
					t.Errorf("%v after %v", err, took)
				}
			})
		})
	}
}

// Three nodes that do not agree who the owner is, and an origin that is gone.
func TestOneBudgetThroughTheCluster(t *testing.T) {
	for _, owners := range [][]int{{1, 1, 1}, {1, 2, 2}, {1, 2, 0}, {0, 0, 0}} {
		class := objstore.ErrUnavailable
		if owners[2] == 0 && owners[0] == 1 {
			class = errLate // some wait for others that wait, and cannot tell for what
		}
		t.Run(fmt.Sprint(owners), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cl := newCluster(t, owners...)
				for _, r := range cl.nodes {
					r.cfg.ReadBudget, r.cfg.Origin = budget, fetcherFunc(hangs)
				}
				obj, _ := cl.nodes[0].put("k", 512<<10)
				var wg sync.WaitGroup
				for _, r := range cl.nodes {
					wg.Go(func() {
						f := r.open(t, obj)
						defer f.Close()
						wantLate(t, f, 0, class, budget, budget+readersGrace)
					})
				}
				wg.Wait()
				cl.shut(t)
			})
		})
	}
}
