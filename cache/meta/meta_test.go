package meta

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/objstore"
	"github.com/shardwell/shardwell/objstore/objstoretest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type oneStore struct{ objstore.Store }

func (o oneStore) Open(context.Context, objstore.Bucket) (objstore.Store, error) { return o.Store, nil }

var bucket = objstore.Bucket{Origin: "https://s3.example.com", Name: "b"}

func maxAge(d time.Duration) objstore.Query { return objstore.Query{Bucket: bucket, MaxAge: d} }

func newCache(t *testing.T, change func(*Config)) (*Cache, *objstoretest.Mem) {
	t.Helper()
	origin := objstoretest.NewMem()
	cfg := Config{Origins: oneStore{origin}}
	if change != nil {
		change(&cfg)
	}
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c, origin
}

func wantRequests(t *testing.T, origin *objstoretest.Mem, op objstore.Op, want int64) {
	t.Helper()
	if got := origin.Requests(op); got != want {
		t.Errorf("%v requests: got %d, want %d", op, got, want)
	}
}

func TestAnswersAreCachedWithTheirAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, origin := newCache(t, nil)
		defer c.Close()
		info := origin.Put("k", []byte("abc"))
		ask := func(max time.Duration, wantAge time.Duration, requests int64) {
			t.Helper()
			got, age, err := c.Head(t.Context(), maxAge(max), "k")
			if err != nil || got != info || age != wantAge {
				t.Errorf("head: got %v, age %v, %v; want age %v", got, age, err, wantAge)
			}
			c.store.r.Wait()
			wantRequests(t, origin, objstore.OpHead, requests)
		}
		ask(time.Minute, 0, 1)
		time.Sleep(40 * time.Second)
		ask(time.Minute, 40*time.Second, 1)
		ask(0, 0, 2)
		time.Sleep(61 * time.Second)
		ask(time.Minute, 0, 3)
		ask(1<<62, 0, 3)

		for range 2 {
			_, age, err := c.Head(t.Context(), maxAge(time.Minute), "none")
			if !errors.Is(err, objstore.ErrNotExist) || age > time.Minute {
				t.Errorf("of no key: got %v, age %v", err, age)
			}
			c.store.r.Wait()
			time.Sleep(time.Second)
		}
		wantRequests(t, origin, objstore.OpHead, 4)
	})
}

func TestManyCallersShareOneQuery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, origin := newCache(t, nil)
		defer c.Close()
		origin.Put("d/k", []byte("abc"))
		heads, lists := origin.Hold(objstore.OpHead), origin.Hold(objstore.OpList)
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() {
				if _, _, err := c.Head(t.Context(), maxAge(time.Minute), "d/k"); err != nil {
					t.Error(err)
				}
				p, _, err := c.List(t.Context(), maxAge(time.Minute), objstore.ListRequest{Prefix: "d/", Delimiter: "/"})
				if err != nil || len(p.Objects) != 1 {
					t.Error(p, err)
				}
			})
		}
		synctest.Wait()
		heads.Open()
		synctest.Wait()
		lists.Open()
		wg.Wait()
		wantRequests(t, origin, objstore.OpHead, 1)
		wantRequests(t, origin, objstore.OpList, 1)
	})
}

// A query that began before a caller with MaxAge 0 is too old for it; all such
// callers share the next.
func TestFreshCallersShareTheNextQuery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, origin := newCache(t, nil)
		defer c.Close()
		old := origin.Put("k", []byte("old"))
		gate := origin.Hold(objstore.OpHead)
		var wg sync.WaitGroup
		ask := func(max time.Duration, etag string) {
			wg.Go(func() {
				got, _, err := c.Head(t.Context(), maxAge(max), "k")
				if err != nil || etag != "" && got.ETag != etag {
					t.Errorf("got %v, %v", got, err)
				}
			})
		}
		ask(time.Minute, "")
		synctest.Wait()
		time.Sleep(time.Second)
		fresh := origin.Put("k", []byte("new")) // Mem answers with what there is when the gate opens
		for range 50 {
			ask(0, fresh.ETag)
		}
		for range 50 {
			ask(time.Minute, "")
		}
		synctest.Wait()
		gate.Open()
		wg.Wait()
		wantRequests(t, origin, objstore.OpHead, 2)
		_ = old
	})
}

func TestQueryEndsWithItsLastCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, origin := newCache(t, nil)
		defer c.Close()
		origin.Hold(objstore.OpHead)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, _, err := c.Head(ctx, maxAge(0), "k")
		if !errors.Is(err, objstore.ErrUnavailable) {
			t.Errorf("got %v", err)
		}
		synctest.Wait()
		if n := len(c.origin.m); n != 0 {
			t.Errorf("%d queries go on", n)
		}
		done := make(chan error)
		go func() {
			_, _, err := c.Head(t.Context(), maxAge(0), "k")
			done <- err
		}()
		time.Sleep(DefaultQueryBudget + time.Second)
		if err := <-done; !errors.Is(err, objstore.ErrUnavailable) || objstore.Final(err) {
			t.Errorf("behind the budget: got %v", err)
		}
		go func() {
			_, _, err := c.Head(t.Context(), maxAge(0), "k")
			done <- err
		}()
		synctest.Wait()
		go c.Close()
		if err := <-done; !errors.Is(err, ErrClosed) {
			t.Errorf("closed: got %v", err)
		}
	})
}

func TestForget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, origin := newCache(t, nil)
		defer c.Close()
		for _, k := range []string{"a/x", "a/y", "b/x"} {
			origin.Put(k, []byte(k))
		}
		ask := func() {
			for _, k := range []string{"a/x", "a/y", "b/x"} {
				if _, _, err := c.Head(t.Context(), maxAge(time.Hour), k); err != nil {
					t.Error(err)
				}
			}
			for _, p := range []string{"", "a/", "b/"} {
				if _, _, err := c.List(t.Context(), maxAge(time.Hour), objstore.ListRequest{Prefix: p}); err != nil {
					t.Error(err)
				}
			}
			c.store.r.Wait()
			time.Sleep(time.Second)
		}
		ask()
		for _, step := range []struct {
			bucket, prefix string
			heads, lists   int64 // requests to the origin so far, after asking again
		}{
			{"b", "zz", 3, 4}, // what lists everything may tell of zz
			{"b", "a/x", 4, 6}, {"b", "a/", 6, 8}, {"c", "", 6, 8}, {"b", "", 9, 11},
		} {
			c.Forget(objstore.Bucket{Origin: bucket.Origin, Name: step.bucket}, step.prefix)
			time.Sleep(time.Second)
			ask()
			wantRequests(t, origin, objstore.OpHead, step.heads)
			wantRequests(t, origin, objstore.OpList, step.lists)
		}

		// An answer on its way when it was forgotten is neither kept nor given to later callers.
		gate := origin.Hold(objstore.OpHead)
		done := make(chan bool)
		go func() {
			c.Head(t.Context(), maxAge(0), "a/x")
			done <- true
		}()
		synctest.Wait()
		c.Forget(bucket, "a/")
		origin.ResetCounts()
		go func() {
			c.Head(t.Context(), maxAge(time.Hour), "a/x")
			done <- true
		}()
		synctest.Wait()
		gate.Open()
		<-done
		<-done
		wantRequests(t, origin, objstore.OpHead, 1)

		for i := range 2 * maxForgotten {
			c.Forget(bucket, fmt.Sprint(i))
		}
		if n := len(c.forgotten); n > maxForgotten {
			t.Errorf("%d prefixes remembered as forgotten", n)
		}
	})
}

// ring of caches, each of which believes that another is the owner.
type peers struct {
	nodes []*Cache
	owner []int
	self  int
}

func (p peers) to(q objstore.Query) (*Cache, objstore.Query, error) {
	if p.owner[p.self] == p.self || q.Hops >= chunk.MaxHops {
		return nil, q, fmt.Errorf("peers: %w", chunk.ErrNotHeld)
	}
	q.Hops++
	return p.nodes[p.owner[p.self]], q, nil
}

func (p peers) Head(ctx context.Context, q objstore.Query, key string) (objstore.Info, time.Duration, error) {
	c, q, err := p.to(q)
	if err != nil {
		return objstore.Info{}, 0, err
	}
	if end, ok := ctx.Deadline(); ok { // as package peer does, for the way back
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, end.Add(-time.Until(end)/10))
		defer cancel()
	}
	return c.Head(ctx, q, key)
}

func (p peers) List(ctx context.Context, q objstore.Query, req objstore.ListRequest) (objstore.Page, time.Duration, error) {
	c, q, err := p.to(q)
	if err != nil {
		return objstore.Page{}, 0, err
	}
	return c.List(ctx, q, req)
}

// SEMANTICS O2: Each listing page and each question about a name goes to the origin
// once within its time to live, for the whole cluster.
func TestClusterAsksOnce(t *testing.T) {
	for _, tc := range []struct {
		owner []int
		max   int64 // requests of each kind
	}{{[]int{2, 2, 2, 2}, 1}, {[]int{1, 0}, 2}, {[]int{1, 2, 0}, 3}} {
		t.Run(fmt.Sprint(tc.owner), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				nodes := make([]*Cache, len(tc.owner))
				origin := objstoretest.NewMem()
				for i := range nodes {
					nodes[i], _ = newCache(t, func(c *Config) {
						c.Origins, c.Peers = oneStore{origin}, peers{nodes, tc.owner, i}
					})
				}
				origin.Put("k", []byte("abc"))
				heads := origin.Hold(objstore.OpHead)
				var wg sync.WaitGroup
				for _, c := range nodes {
					for range 10 {
						wg.Go(func() {
							if _, _, err := c.Head(t.Context(), maxAge(time.Minute), "k"); err != nil {
								t.Error(err)
							}
							if _, _, err := c.Head(t.Context(), maxAge(time.Minute), "none"); !errors.Is(err, objstore.ErrNotExist) {
								t.Error(err)
							}
							if _, _, err := c.List(t.Context(), maxAge(time.Minute), objstore.ListRequest{}); err != nil {
								t.Error(err)
							}
						})
					}
				}
				synctest.Wait()
				heads.Open()
				wg.Wait()
				if n := origin.Requests(objstore.OpHead); n > 2*tc.max {
					t.Errorf("HEADs: got %d, want at most %d", n, 2*tc.max)
				}
				if n := origin.Requests(objstore.OpList); n > tc.max {
					t.Errorf("LISTs: got %d, want at most %d", n, tc.max)
				}
				for _, c := range nodes {
					c.Close()
				}
			})
		})
	}
}

type brokenPeers struct {
	objstore.Names
	fails int
	err   error
}

func (b *brokenPeers) Head(context.Context, objstore.Query, string) (objstore.Info, time.Duration, error) {
	if b.fails--; b.fails >= 0 {
		return objstore.Info{}, 0, b.err
	}
	return objstore.Info{}, 0, chunk.ErrNotHeld
}

func TestTransientErrorsOfPeersAreTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &brokenPeers{fails: 5, err: errors.New("broken pipe")}
		c, origin := newCache(t, func(c *Config) { c.Peers = p })
		defer c.Close()
		origin.Put("k", []byte("abc"))
		if _, _, err := c.Head(t.Context(), maxAge(0), "k"); err != nil {
			t.Error(err)
		}
		p.fails, p.err = 1, objstore.ErrPermission
		if _, _, err := c.Head(t.Context(), maxAge(0), "k"); !errors.Is(err, objstore.ErrPermission) {
			t.Errorf("got %v", err)
		}
		p.fails = 1e9
		p.err = errors.New("broken pipe")
		if _, _, err := c.Head(t.Context(), maxAge(0), "k"); !errors.Is(err, p.err) {
			t.Errorf("behind the budget: got %v", err)
		}
	})
}

// TestRandomOperations compares with an origin that changes: no answer may be older
// than its caller allows, and its age is true.
func TestRandomOperations(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	synctest.Test(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(seed, 0))
		nodes := make([]*Cache, 3)
		origin := objstoretest.NewMem()
		for i := range nodes {
			nodes[i], _ = newCache(t, func(c *Config) {
				c.Origins, c.Peers = oneStore{origin}, peers{nodes, []int{1, 1, 1}, i}
				c.MemoryBytes = 1 << 16
			})
			defer nodes[i].Close()
		}
		changed := map[string]time.Time{} // when the version before the current one ended
		var mu sync.Mutex
		etags := map[string]string{}
		for range 2000 {
			k := fmt.Sprint(rng.IntN(20))
			c := nodes[rng.IntN(3)]
			switch rng.IntN(6) {
			case 0:
				mu.Lock()
				etags[k] = origin.Put(k, fmt.Append(nil, rng.Uint64())).ETag
				changed[k] = time.Now()
				mu.Unlock()
			case 1:
				time.Sleep(time.Duration(rng.IntN(20)) * time.Second)
			default:
				time.Sleep(time.Millisecond)
				max := time.Duration(rng.IntN(30)) * time.Second
				info, age, err := c.Head(t.Context(), maxAge(max), k)
				if err != nil && !errors.Is(err, objstore.ErrNotExist) {
					t.Fatal(err)
				}
				if age > max+time.Millisecond {
					t.Errorf("age %v of at most %v", age, max)
				}
				if asked := time.Now().Add(-age); info.ETag != etags[k] && asked.After(changed[k]) {
					t.Errorf("an answer asked for at %v is that of before %v", asked, changed[k])
				}
			}
		}
	})
}

func randomPage(rng *rand.Rand, n int) (p objstore.Page) {
	for i := range n {
		var sum [16]byte
		for j := range sum {
			sum[j] = byte(rng.Uint32())
		}
		etag := fmt.Sprintf("%x", sum)
		switch rng.IntN(40) {
		case 0:
			etag += "-12"
		case 1:
			etag = "\"W/" + etag
		case 2:
			etag += "-012"
		}
		p.Objects = append(p.Objects, objstore.Info{
			Key: fmt.Sprintf("imagenet/train/train-%09d.tar", i), Size: rng.Int64N(1 << 30), ETag: etag,
			ModTime: time.Unix(1.7e9+rng.Int64N(1e6), rng.Int64N(1000)*1e6).UTC(),
		})
	}
	return p
}

func TestPageEncoding(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	pages := []objstore.Page{
		{}, {Next: "x"}, {Prefixes: []string{"a/", "ab/", "b/"}}, randomPage(rng, 1), randomPage(rng, 1000),
		{Objects: []objstore.Info{{Key: "\xff\x00"}, {Key: "", ETag: "ABCDEF00000000000000000000000000"}}},
	}
	for _, want := range pages {
		got, err := decodePage(encodePage(want))
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("got %v, %v; want %v", got, err, want)
		}
	}
	size := len(encodePage(pages[4]))
	t.Logf("1000 names: %d bytes", size)
	if size > 60_000 {
		t.Errorf("1000 names take %d bytes; a million must fit into 64 MiB", size)
	}
}

func FuzzDecodePage(f *testing.F) {
	f.Add(encodePage(randomPage(rand.New(rand.NewPCG(1, 1)), 3)))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := decodePage(b)
		if err != nil {
			return
		}
		again, err := decodePage(encodePage(p))
		if err != nil || len(again.Objects) != len(p.Objects) {
			t.Errorf("%v %v", again, err)
		}
	})
}

func TestMillionNamesStayCached(t *testing.T) {
	c, _ := newCache(t, nil)
	defer c.Close()
	rng := rand.New(rand.NewPCG(1, 1))
	page := encodePage(randomPage(rng, 1000))
	for i := range 1000 {
		qu := question{bucket: bucket, name: "imagenet/train/", list: true, req: objstore.ListRequest{Prefix: "imagenet/train/", Token: fmt.Sprint(i)}}
		c.keep(&answer{question: qu, asked: time.Now(), page: page})
		c.store.r.Wait()
	}
	n := 0
	c.store.r.IterValues(func(*answer) bool { n++; return false })
	if n != 1000 {
		t.Errorf("of 1000 pages %d stayed", n)
	}
	used := c.store.r.MaxCost() - c.store.r.RemainingCost()
	t.Logf("a million names: %d MiB", used>>20)
	if used > 64<<20 {
		t.Errorf("a million names take %d bytes", used)
	}
}
