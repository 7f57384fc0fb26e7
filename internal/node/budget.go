package node

import (
	"context"
	"sync"
	"time"

	"github.com/shardwell/shardwell/objstore"
	"github.com/shardwell/shardwell/peer/budget"
)

// budgets are this node's parts in the budgets of origins: what it has leased, and what it has
// leased to others where it is the lessor.
type budgets struct {
	n *Node

	mu     sync.Mutex
	purses map[string]*budget.Purse // by origin
	books  map[string]*budget.Ledger
}

// notMine is the answer of who is no lessor, as far as it knows: ask again soon, the rings differ.
var notMine = budget.Lease{For: budget.LeaseTime / 10}

func newBudgets(n *Node) *budgets {
	return &budgets{n: n, purses: make(map[string]*budget.Purse), books: make(map[string]*budget.Ledger)}
}

// pace returns what bounds the bytes a second from an origin, or nil.
func (b *budgets) pace(origin string) objstore.Pace {
	rate := float64(b.n.cfg.MaxOriginRate)
	if rate <= 0 {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.purses[origin]
	if p == nil { // as many as there are endpoints and directories that this node may read
		p = budget.New(budget.Config{
			BytesPerSecond: rate,
			Members:        func() int { return b.n.cluster.ring.history.Current().Len() },
			Ask:            func(ctx context.Context, want float64) (budget.Lease, error) { return b.ask(ctx, origin, rate, want) },
		})
		b.purses[origin] = p
		b.n.requests.begin(func(ctx context.Context) { _ = p.Run(ctx) }) // a node that stops reads nothing any more
	}
	return p
}

// ask leases from whoever divides the budget: the first member of the ring for it that answers.
func (b *budgets) ask(ctx context.Context, origin string, rate, want float64) (budget.Lease, error) {
	lessor := b.lessor(origin)
	if lessor == b.n.id {
		return b.Lease(origin, b.n.id, rate, want), nil
	}
	return b.n.cluster.peers.Lease(ctx, lessor, origin, rate, want)
}

// lessor returns the ring id of who divides the budget of an origin.
func (b *budgets) lessor(origin string) string {
	ring := b.n.cluster.ring
	if owners := ring.Owners(ring.KeyOfName("budget:"+origin), nil); len(owners) > 0 {
		return owners[0]
	}
	return b.n.id // nobody owns anything: each for itself
}

// Lease implements peer.Lessor.
func (b *budgets) Lease(origin, member string, rate, want float64) budget.Lease {
	mine := b.lessor(origin) == b.n.id
	b.mu.Lock()
	defer b.mu.Unlock()
	book := b.books[origin]
	switch {
	case !mine && book != nil:
		delete(b.books, origin)
		return notMine
	case !mine:
		return notMine
	case book == nil && len(b.books) >= maxEndpoints+len(b.n.cfg.OriginDirs):
		return notMine
	case book == nil:
		book = &budget.Ledger{}
		b.books[origin] = book
	}
	return book.Ask(time.Now(), rate, member, want, b.n.cluster.ring.history.Current().Len())
}
