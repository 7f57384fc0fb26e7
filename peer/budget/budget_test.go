package budget

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/shardwell/shardwell/objstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Whoever asks when for what, leases that are good never add up to more than the rate.
func TestLeasesStayWithinTheRate(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const rate = 1000.0
		var l Ledger
		now := time.Unix(1000, 0)
		good := map[string]Lease{}
		ends := map[string]time.Time{}
		for range rapid.IntRange(1, 200).Draw(t, "questions") {
			now = now.Add(time.Duration(rapid.IntRange(0, 400).Draw(t, "later")) * time.Millisecond)
			who := fmt.Sprint(rapid.IntRange(0, 9).Draw(t, "member"))
			want := rapid.Float64Range(0, 2*rate).Draw(t, "want")
			lease := l.Ask(now, rate, who, want, 10)
			if lease.BytesPerSecond > want+1e-6 || lease.For <= 0 || lease.For > LeaseTime {
				t.Fatalf("%+v for who wants %f", lease, want)
			}
			good[who], ends[who] = lease, now.Add(lease.For)
			sum := 0.0
			for id, x := range good {
				if ends[id].After(now) {
					sum += x.BytesPerSecond
				}
			}
			if sum > rate+1e-6 {
				t.Fatalf("leases add up to %f", sum)
			}
		}
	})
}

// Who wants little gets it, the others have equal parts of the rest.
func TestPartsAreFair(t *testing.T) {
	var l Ledger
	now := time.Unix(1000, 0)
	wants := map[string]float64{"a": 100, "b": 1000, "c": 1000, "d": 50}
	var got map[string]float64
	for range 60 { // until a new lessor has settled, and newcomers are known
		got = map[string]float64{}
		for id, w := range wants {
			got[id] = l.Ask(now, 1000, id, w, 4).BytesPerSecond
		}
		now = now.Add(LeaseTime / 10)
	}
	for id, want := range map[string]float64{"a": 100, "b": 425, "c": 425, "d": 50} {
		if got[id] < want-1e-6 || got[id] > want+1e-6 {
			t.Errorf("%s has %f, want %f", id, got[id], want)
		}
	}
}

func TestNewLessorGivesEqualParts(t *testing.T) {
	var l Ledger
	now := time.Unix(1000, 0)
	if g := l.Ask(now, 1000, "a", 1000, 50); g.BytesPerSecond != 20 {
		t.Errorf("a new lessor gives %+v", g)
	}
	now = now.Add(settleTime)
	for _, want := range []time.Duration{firstTime, LeaseTime} { // it was forgotten meanwhile
		if g := l.Ask(now, 1000, "a", 1000, 50); g.BytesPerSecond != 1000 || g.For != want {
			t.Errorf("the only one who asks has %+v", g)
		}
	}
	l.Resign()
	if g := l.Ask(now, 1000, "a", 1000, 50); g.BytesPerSecond != 20 {
		t.Errorf("a lessor that was none for a while gives %+v", g)
	}
}

// endless is an origin whose bodies have no end. It counts what was taken from it.
type endless struct {
	objstore.Store
	bytes *atomic.Int64
}

func (e endless) Get(context.Context, string, string, int64, int64) (io.ReadCloser, error) {
	return io.NopCloser(e), nil
}

func (e endless) Read(p []byte) (int, error) {
	e.bytes.Add(int64(len(p)))
	return len(p), nil
}

// nodes are members that read an origin under one budget.
type nodes struct {
	lessor  atomic.Int32 // who it is; -1: nobody answers
	members int          // more than those that read

	mu     sync.Mutex
	books  []Ledger
	purses []*Purse
	bytes  atomic.Int64
}

var errDead = errors.New("no answer")

func (n *nodes) ask(ctx context.Context, rate float64, who int, want float64) (Lease, error) {
	if !sleep(ctx, time.Millisecond) {
		return Lease{}, ctx.Err()
	}
	at := n.lessor.Load()
	if at < 0 {
		<-ctx.Done()
		return Lease{}, errDead
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.books[at].Ask(time.Now(), rate, fmt.Sprint(who), want, len(n.books)), nil
}

// start makes each node read, in streams, until ctx ends.
func (n *nodes) start(ctx context.Context, group *sync.WaitGroup, count, streams int, rate float64) {
	n.books = make([]Ledger, max(count, n.members))
	for i := range count {
		p := New(Config{BytesPerSecond: rate, Members: func() int { return count },
			Ask: func(ctx context.Context, want float64) (Lease, error) { return n.ask(ctx, rate, i, want) }})
		n.purses = append(n.purses, p)
		group.Go(func() { _ = p.Run(ctx) })
		store := objstore.NewLimit(nil, 0, 0).Paced(endless{bytes: &n.bytes}, p)
		for range streams {
			group.Go(func() {
				body, err := store.Get(ctx, "k", "e", 0, 1)
				if err != nil {
					return
				}
				defer body.Close()
				buf := make([]byte, 64<<10)
				for ctx.Err() == nil {
					_, _ = body.Read(buf)
				}
			})
		}
	}
}

// SEMANTICS O6: With `--max-origin-rate` the cluster takes no more than that from the origin, up to 1.1 times over
// a few seconds, however many nodes read, and also when the member that divides the rate dies.
//
// Fifty cold nodes take what the budget allows and no more, also while the lessor is dead and
// after another has taken its place; counted at the origin.
func TestFiftyColdNodesStayWithinTheBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const rate, seconds = 400 << 20, 5
		ctx, cancel := context.WithCancel(t.Context())
		var group sync.WaitGroup
		var n nodes
		begin := time.Now()
		n.start(ctx, &group, 50, 2, rate)
		phase := func(what string, least float64) {
			before := n.bytes.Load()
			time.Sleep(seconds * time.Second)
			got := float64(n.bytes.Load()-before) / (seconds * rate)
			t.Logf("%s: %.3f of the rate", what, got)
			if got < least || got > 1.1 {
				t.Errorf("%s: %.3f of the rate, want %.2f to 1.1", what, got, least)
			}
		}
		phase("cold", 0.80)
		phase("warm", 0.95)
		n.lessor.Store(-1)
		phase("the lessor is dead", 0.65) // a pause of one lease, then equal parts
		n.lessor.Store(7)
		phase("another lessor", 0.90)
		phase("it has settled", 0.95)
		cancel()
		group.Wait()
		total := float64(n.bytes.Load()) / (rate * time.Since(begin).Seconds())
		t.Logf("in all: %.3f of the rate", total)
		if total > 1.1 {
			t.Errorf("in all %.3f of the rate", total)
		}
	})
}

// One node that reads alone has all of the rate, whatever the others could have.
func TestOneReaderHasAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const rate = 100 << 20
		ctx, cancel := context.WithCancel(t.Context())
		var group sync.WaitGroup
		n := nodes{members: 20}
		n.start(ctx, &group, 1, 4, rate)
		time.Sleep(settleTime + 2*LeaseTime)
		before := n.bytes.Load()
		time.Sleep(5 * time.Second)
		cancel()
		group.Wait()
		if got := float64(n.bytes.Load()-before) / (5 * rate); got < 0.95 || got > 1.05 {
			t.Errorf("%.3f of the rate", got)
		}
	})
}

// A waiter whose context ends returns at once, and leaves its turn to others.
func TestWaitersCanBeInterrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(Config{BytesPerSecond: 10, Members: func() int { return 1 },
			Ask: func(context.Context, float64) (Lease, error) { return Lease{10, LeaseTime}, nil }})
		run, stop := context.WithCancel(t.Context())
		var group sync.WaitGroup
		group.Go(func() { _ = p.Run(run) })
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begin := time.Now()
		if err := p.WaitN(ctx, 1<<20); !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) != time.Second {
			t.Errorf("%v after %v", err, time.Since(begin))
		}
		if err := p.WaitN(t.Context(), 1); err != nil {
			t.Error(err)
		}
		stop()
		group.Wait()
	})
}
