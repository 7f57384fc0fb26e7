package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/shardwell/shardwell/cache"
	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/internal/config"
	"github.com/shardwell/shardwell/objstore"
	"github.com/shardwell/shardwell/peer/member"
)

// The tally is a toy that keeps all directories, grouped in the end by the depth that the
// tally came to.
func TestTallyAgainstToy(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(2, 12).Draw(t, "limit")
		real := newTally(limit)
		toy := make(map[chunk.Object]share) // by object, its sums
		element := rapid.SampledFrom([]string{"", "a", "b", "c", "dd"})
		for range rapid.IntRange(0, 60).Draw(t, "objects") {
			key := strings.Join(rapid.SliceOfN(element, 1, 6).Draw(t, "path"), "/")
			o := chunk.Object{Origin: "http://o", Bucket: rapid.SampledFrom([]string{"x", "y"}).Draw(t, "bucket"), Key: key}
			local := rapid.Int64Range(0, 100).Draw(t, "local")
			owned := rapid.Int64Range(0, local).Draw(t, "owned")
			real.add(o, local, owned)
			s := toy[o]
			toy[o] = share{LocalBytes: s.LocalBytes + local, OwnedBytes: s.OwnedBytes + owned}
		}
		want := make(map[share]share)
		for o, s := range toy {
			at := share{Origin: o.Origin, Bucket: o.Bucket, Dir: dirOf(o.Key, real.depth)}
			w := want[at]
			want[at] = share{Origin: o.Origin, Bucket: o.Bucket, Dir: at.Dir, LocalBytes: w.LocalBytes + s.LocalBytes, OwnedBytes: w.OwnedBytes + s.OwnedBytes}
		}
		got := real.list()
		if len(got) != len(want) || len(got) > limit {
			t.Fatalf("%d directories, want %d and at most %d", len(got), len(want), limit)
		}
		for _, s := range got {
			if w := want[share{Origin: s.Origin, Bucket: s.Bucket, Dir: s.Dir}]; s != w {
				t.Fatalf("got %+v, want %+v", s, w)
			}
		}
		// What lies under a prefix that is told apart adds up.
		for _, bucket := range []string{"x", "y"} {
			var local, owned int64
			for o, s := range toy {
				if o.Bucket == bucket {
					local, owned = local+s.LocalBytes, owned+s.OwnedBytes
				}
			}
			if l, o := under(got, objstore.Bucket{Origin: "http://o", Name: bucket}, ""); l != local || o != owned {
				t.Fatalf("under %s: %d and %d, want %d and %d", bucket, l, o, local, owned)
			}
		}
	})
}

func TestDirOf(t *testing.T) {
	for _, c := range []struct {
		key   string
		depth int
		want  string
	}{
		{"a/b/c", 9, "a/b/"}, {"a/b/c", 1, "a/"}, {"a/b/c", 0, ""}, {"a", 9, ""}, {"", 9, ""}, {"a/", 9, "a/"}, {"//x", 1, "/"},
	} {
		if got := dirOf(c.key, c.depth); got != c.want {
			t.Errorf("dirOf(%q, %d) = %q, want %q", c.key, c.depth, got, c.want)
		}
	}
}

func TestWithin(t *testing.T) {
	for _, c := range []struct {
		root, dir, want string
		ok              bool
	}{
		{"/d", "/d", "", true}, {"/d", "/d/a/b", "a/b", true}, {"/d/", "/d/a", "a", true}, {"/", "/a", "a", true},
		{"/d", "/data", "", false}, {"/d/a", "/d", "", false},
	} {
		if got, ok := within(c.root, c.dir); got != c.want || ok != c.ok {
			t.Errorf("within(%q, %q) = %q, %v", c.root, c.dir, got, ok)
		}
	}
}

// For a while after a change of the members, those who may have acted for an absent
// owner are asked as well; afterwards only owners of earlier tables.
func TestEarlierOwners(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const grace = time.Minute
		g := chunk.Geometry{ChunkBytes: 1 << 20, BlockBytes: 128 << 10}
		p := newPlacement("m0", g, 1<<20, grace)
		var all []member.Member
		for i := range 5 {
			all = append(all, member.Member{ID: fmt.Sprintf("m%d", i), Weight: 1})
		}
		update := func() {
			t.Helper()
			if err := p.update(all); err != nil {
				t.Fatal(err)
			}
		}
		update()
		key := p.KeyOfName("x")
		for ; p.Owners(key, nil)[0] != "m0"; key += 1 << 40 {
		}
		all[0].State = member.Restarting
		update()
		acting := p.Owners(key, nil)
		if slices.Contains(acting, "m0") {
			t.Fatalf("%v answer while m0 restarts", acting)
		}
		all[0].State = member.Alive
		update()
		if got := p.EarlierOwners(key, nil); !slices.Contains(got, acting[0]) || slices.Contains(got, "m0") {
			t.Errorf("after the restart %v are asked, want %s among them", got, acting[0])
		}
		got := p.EarlierOwners(key, []string{"first"})
		if got[0] != "first" || len(got) != len(slices.Compact(slices.Sorted(slices.Values(got)))) {
			t.Errorf("%v: not appended, or twice the same", got)
		}
		time.Sleep(2*grace + time.Second)
		if got, want := p.EarlierOwners(key, nil), p.Ring.EarlierOwners(key, nil); !slices.Equal(got, want) {
			t.Errorf("long after the restart %v are asked, want the owners of earlier tables: %v", got, want)
		}
		// A new member asks those that it took something from.
		all = append(all, member.Member{ID: "new", Weight: 1})
		before := make(map[uint64]string)
		for k := uint64(0); k < 1<<60; k += 1 << 52 {
			before[k] = p.Owners(k, nil)[0]
		}
		update()
		for k, owner := range before {
			if now := p.Owners(k, nil)[0]; now != owner && !slices.Contains(p.EarlierOwners(k, nil), owner) {
				t.Errorf("%s took %x from %s and does not ask it", now, k, owner)
			}
		}
	})
}

// While the disks are walked for long, a question gets what was known before.
func TestSharesWhileDisksAreWalked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		known := []share{{Dir: "a/", LocalBytes: 7}}
		n := &Node{requests: newRequests()}
		walk := make(chan struct{})
		n.usage.at, n.usage.shares, n.usage.walk = time.Now().Add(-time.Hour), known, walk
		began := time.Now()
		got, err := n.shares(t.Context())
		if err != nil || !slices.Equal(got, known) || time.Since(began) != usagePatience {
			t.Errorf("got %v, %v after %v", got, err, time.Since(began))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := n.shares(ctx); err != context.DeadlineExceeded {
			t.Errorf("who waits less: %v", err)
		}
		go n.walkDisksOf(walk)
		if got, err := n.shares(t.Context()); err != nil || len(got) != 0 {
			t.Errorf("when it has ended: %v, %v", got, err)
		}
		n.requests.close()
		n.usage.at = time.Time{}
		if _, err := n.shares(t.Context()); err != ErrStopping {
			t.Errorf("when the node stops: %v", err)
		}
	})
}

// walkDisksOf ends a walk over no disks.
func (n *Node) walkDisksOf(done chan struct{}) {
	n.disks, n.cache = &disks{}, new(cache.Cache)
	n.walkDisks(context.Background(), done)
}

func TestJoinedErrorsAreOneLine(t *testing.T) {
	err := oneLine(fmt.Errorf("x: %w", &config.Error{What: "a\nb"}))
	if err.Error() != "x: a; b" {
		t.Errorf("got %q", err)
	}
	var c *config.Error
	if !errors.As(err, &c) {
		t.Error("the class is lost")
	}
}
