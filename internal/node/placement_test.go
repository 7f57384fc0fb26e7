package node

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/peer/member"
	"github.com/shardwell/shardwell/peer/ring"
)

// nodes returns members of these numbers; a negative one owns nothing.
func nodes(numbers ...int) (all []member.Member) {
	for _, n := range numbers {
		m := member.Member{State: member.Alive, Weight: 1}
		if n < 0 {
			n, m.NoOwner = -n, true
		}
		m.ID = fmt.Sprintf("node-%d", n)
		all = append(all, m)
	}
	return all
}

func tableOf(t *testing.T, all []member.Member) *ring.Table {
	t.Helper()
	p := newPlacement("nobody", chunk.DefaultGeometry(), 1<<30, 0)
	if err := p.update(all); err != nil {
		t.Fatal(err)
	}
	return p.history.Current()
}

// keys are spread over the ring.
func keys() (all []ring.Key) {
	for i := range 500 {
		all = append(all, ring.KeyOfName(fmt.Sprint(i)))
	}
	return all
}

// A node that joins asks the owners of the time before it, however it gets to know them,
// and does not ask longer than it must.
func TestJoinerKnowsWhoOwnedBefore(t *testing.T) {
	const self = 9
	for name, c := range map[string]struct {
		seen   [][]member.Member // by update, a second apart
		before []member.Member   // whose owners it has to ask
	}{
		"all at once":         {[][]member.Member{nodes(self), nodes(1, 2, 3, self)}, nodes(1, 2, 3)},
		"in batches":          {[][]member.Member{nodes(self), nodes(1, self), nodes(1, 2, self), nodes(1, 2, 3, 4, self)}, nodes(1, 2, 3, 4)},
		"with another joiner": {[][]member.Member{nodes(self), nodes(1, 2, 3, self), nodes(1, 2, 3, 4, self)}, nodes(1, 2, 3)},
		"beside a reader":     {[][]member.Member{nodes(self), nodes(1, 2, -3, self)}, nodes(1, 2)},
		"nobody owned":        {[][]member.Member{nodes(self), nodes(-1, -2, self)}, nil},
		"owns nothing":        {[][]member.Member{nodes(-self), nodes(1, 2, -self)}, nil},
		"stays alone":         {[][]member.Member{nodes(self), nodes(self)}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPlacement("node-9", chunk.DefaultGeometry(), 1<<30, time.Nanosecond)
				for _, all := range c.seen {
					if err := p.update(all); err != nil {
						t.Fatal(err)
					}
					time.Sleep(time.Second) // past the time in which successors count
				}
				if got, want := p.history.Current().Fingerprint(), tableOf(t, c.seen[len(c.seen)-1]).Fingerprint(); got != want {
					t.Error("the table in use is not that of the members of now")
				}
				before := tableOf(t, c.before)
				for _, k := range keys() {
					earlier := p.EarlierOwners(uint64(k), nil)
					owner := before.Owner(k)
					if owner == nil && len(earlier) > 0 {
						t.Fatalf("asks %v, and nobody owned anything", earlier)
					}
					if now := p.history.Current().Owner(k); owner != nil && now.ID == p.self && !slices.Contains(earlier, owner.ID) {
						t.Fatalf("asks %v, and %s owned it", earlier, owner.ID)
					}
				}
			})
		})
	}
}

// Who joins when this node was there for long had nothing before.
func TestLateJoinersAreNew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlacement("node-1", chunk.DefaultGeometry(), 1<<30, time.Nanosecond)
		for _, all := range [][]member.Member{nodes(1), nodes(1, 2), nodes(1, 2, 3)} {
			if err := p.update(all); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
		}
		for _, k := range keys() {
			if earlier := p.EarlierOwners(uint64(k), nil); slices.Contains(earlier, "node-3") {
				t.Fatalf("asks %v", earlier)
			}
		}
	})
}

// What is owned chunk by chunk is kept by everybody who owns a chunk, what is owned whole by its
// owner, or by the member that acts for one that restarts.
func TestWhoKeepsAnObject(t *testing.T) {
	g := chunk.DefaultGeometry()
	const placeWhole = 2 * chunk.DefaultChunkBytes
	all := nodes(1, 2, 3, 4, -5)
	away := nodes(1, 2, 3, 4, -5)
	away[0].State = member.Restarting
	notFirst := 0
	for _, members := range [][]member.Member{all, away} {
		table := tableOf(t, members)
		for _, m := range members {
			p := newPlacement(m.ID, g, placeWhole, 0)
			if err := p.update(members); err != nil {
				t.Fatal(err)
			}
			for i := range 200 {
				obj := chunk.Object{Origin: "o", Key: fmt.Sprint(i), Size: int64(i%5) * chunk.DefaultChunkBytes}
				want, first := false, false
				for c := range max(1, g.Chunks(obj.Size)) {
					acts := table.Acting(ring.KeyOf(obj.ID(), obj.Size, placeWhole, c)).ID == m.ID
					want, first = want || acts, first || acts && c == 0
				}
				if want && !first {
					notFirst++
				}
				if got := p.keeps(obj, obj.ID()); got != want {
					t.Fatalf("%s keeps object %d of %d bytes: %v, want %v", m.ID, i, obj.Size, got, want)
				}
			}
		}
	}
	if notFirst == 0 {
		t.Error("nobody owned a later chunk only")
	}
}
