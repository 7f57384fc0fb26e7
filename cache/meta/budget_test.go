package meta

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shardwell/shardwell/objstore"
	"github.com/shardwell/shardwell/objstore/objstoretest"
)

// While the origin does not answer, a caller waits for its budget, whichever nodes the
// question goes through, and one node asks the origin.
func TestOriginThatHangsCostsOneBudget(t *testing.T) {
	const budget = 5 * time.Second
	for _, owner := range [][]int{{2, 2, 2}, {1, 2, 2}, {0, 0, 0}} {
		t.Run(fmt.Sprint(owner), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				nodes := make([]*Cache, len(owner))
				origin := objstoretest.NewMem()
				for i := range nodes {
					nodes[i], _ = newCache(t, func(c *Config) {
						c.Origins, c.Peers, c.QueryBudget = oneStore{origin}, peers{nodes, owner, i}, budget
					})
				}
				origin.Hold(objstore.OpHead)
				var wg sync.WaitGroup
				for _, wait := range []time.Duration{0, 0, 4 * time.Second} { // the last joins late
					wg.Go(func() {
						time.Sleep(wait)
						began := time.Now()
						_, _, err := nodes[0].Head(t.Context(), maxAge(0), "k")
						if took := time.Since(began); !errors.Is(err, objstore.ErrUnavailable) || objstore.Final(err) || took > budget || took < budget-minAgain {
							t.Errorf("%v after %v, want %v after %v or a little less", err, took, objstore.ErrUnavailable, budget)
						}
					})
				}
				wg.Wait()
				if n := origin.Requests(objstore.OpHead); n > 4 { // anew for what is left of the time
					t.Errorf("the origin was asked %d times", n)
				}
				for _, c := range nodes {
					c.Close()
				}
			})
		})
	}
}
