package broadcast

import (
	"slices"
	"testing"
	"time"
)

// inCircle returns members in the order in which they stand behind this node.
func inCircle(p *Plan, ids ...string) []string {
	slices.SortFunc(ids, func(a, b string) int {
		if placeOf(a)-p.place < placeOf(b)-p.place {
			return -1
		}
		return 1
	})
	return ids
}

// filling returns what asks a plan for chunks of an object as a member that fills it.
func filling(p *Plan) func(chunk uint32, member string, change func(*Request)) Decision {
	now := noon
	return func(chunk uint32, member string, change func(*Request)) Decision {
		now = now.Add(100 * time.Millisecond)
		r := Request{Chunk: Chunk{Index: chunk}, Span: whole, Member: member, Fill: true}
		if change != nil {
			change(&r)
		}
		return p.Ask(now, r)
	}
}

// A slow member receives from whoever is last in the circle, which closes over its place, and is
// named to nobody; when it says that it is slow no longer it stands where it stood.
func TestSlowMemberLeavesTheCircle(t *testing.T) {
	p := New(Config{Self: "owner"})
	ids := inCircle(p, "a", "b", "c", "d", "e")
	ask := filling(p)
	slow := func(r *Request) { r.Slow = true }
	for _, id := range ids {
		ask(0, id, nil)
	}
	ask(0, ids[2], func(r *Request) { r.Failed = ids[1:2] }) // it waited for the slow one
	if d := ask(0, ids[1], slow); d.Redirect != ids[4] {
		t.Errorf("a slow member is sent to %q, want %q, the last", d.Redirect, ids[4])
	}
	if d := ask(1, ids[1], slow); d.Redirect != "" {
		t.Errorf("a slow member that asks first is sent to %q", d.Redirect)
	}
	for i, want := range []string{"", "", ids[0], ids[2], ids[3]} {
		if i == 1 {
			continue
		}
		if d := ask(1, ids[i], nil); d.Redirect != want {
			t.Errorf("chunk 1: %s is sent to %q, want %q", ids[i], d.Redirect, want)
		}
	}
	if d := ask(2, ids[3], nil); d.Redirect != ids[2] {
		t.Errorf("chunk 2: %s is sent to %q, want %q", ids[3], d.Redirect, ids[2])
	}
	if d := ask(3, ids[2], nil); d.Redirect != ids[0] {
		t.Errorf("chunk 3: %s is sent to %q, want %q over the slow one", ids[2], d.Redirect, ids[0])
	}
	ask(4, ids[1], nil) // it got better
	if d := ask(4, ids[2], nil); d.Redirect != ids[1] {
		t.Errorf("chunk 4: %s is sent to %q, want %q again", ids[2], d.Redirect, ids[1])
	}
}

// When most say that they are slow, none is slower than others.
func TestMostAreNotSlow(t *testing.T) {
	p := New(Config{Self: "owner"})
	ids := inCircle(p, "a", "b", "c", "d")
	ask := filling(p)
	slow := func(r *Request) { r.Slow = true }
	ask(0, ids[0], slow)
	for _, id := range ids[1:] {
		ask(0, id, nil)
	}
	k := p.casts[Chunk{}.Object]
	if !p.isSlow(k, ids[0], noon.Add(time.Second)) {
		t.Error("one of four is not slow")
	}
	ask(0, ids[1], slow)
	if p.isSlow(k, ids[0], noon.Add(time.Second)) || p.isSlow(k, ids[1], noon.Add(time.Second)) || k.slow != 2 {
		t.Errorf("%d of four are slow", k.slow)
	}
	p.Leave(ids[1])
	ask(1, ids[0], nil)
	if k.slow != 0 {
		t.Errorf("%d are slow", k.slow)
	}
}

// Who stands behind a member that lags is as far behind the others, and is not to blame.
func TestOnlyTheFirstOfThoseBehindLags(t *testing.T) {
	p := New(Config{Self: "owner", MaxLag: 4})
	ids := inCircle(p, "a", "b", "c", "d")
	ask := filling(p)
	for i := range uint32(6) {
		for k, id := range ids {
			if k == 0 || i < 1 {
				ask(i, id, nil)
			}
		}
	}
	k := p.casts[Chunk{}.Object]
	for i, want := range []bool{false, true, false, false} {
		if got := p.lags(k, ids[i], noon.Add(time.Minute)); got != want {
			t.Errorf("number %d lags: %v", i, got)
		}
	}
	if d := ask(7, ids[3], nil); d.Redirect != ids[2] || d.Lags {
		t.Errorf("%s is sent to %q, lags %v; want %q", ids[3], d.Redirect, d.Lags, ids[2])
	}
	if d := ask(7, ids[1], nil); !d.Lags {
		t.Errorf("%s is not told that it lags", ids[1])
	}
	ask(8, ids[1], func(r *Request) { r.Slow = true }) // found slow: all is forgotten
	for i, id := range ids {
		if p.lags(k, id, noon.Add(time.Minute)) {
			t.Errorf("number %d lags still", i)
		}
	}
}

// Now and then a member fetches a chunk instead of this node, which gets it from there.
func TestProbes(t *testing.T) {
	p := New(Config{Self: "owner", ProbeEvery: 3})
	ask := filling(p)
	fresh := func(r *Request) { r.Fresh = true }
	var probed []uint32
	for i := range uint32(9) {
		d := ask(i, "a", fresh)
		if d.Probe != (d.Redirect == "a") || d.Probe && d.Against != i-1 {
			t.Errorf("chunk %d: %+v", i, d)
		}
		if d.Probe {
			probed = append(probed, i)
			if who, delegate := p.Elsewhere(noon.Add(time.Minute), Chunk{Index: i}, whole, whole, nil, false); who != "a" || !delegate {
				t.Errorf("this node is sent to %q, delegate %v", who, delegate)
			}
		}
	}
	if !slices.Equal(probed, []uint32{1, 4, 7}) {
		t.Errorf("probes were chunks %v", probed)
	}
	for i := uint32(20); i < 30; i++ {
		for _, change := range []func(*Request){nil, func(r *Request) { r.Fresh, r.Slow = true, true }, func(r *Request) { r.Fresh, r.ServeOnly = true, true }} {
			i++
			if d := ask(i, "a", change); d.Redirect != "" {
				t.Errorf("chunk %d was probed", i)
			}
		}
	}
	never := New(Config{Self: "owner", ProbeEvery: -1})
	ask = filling(never)
	for i := range uint32(100) {
		if d := ask(i, "a", fresh); d.Redirect != "" {
			t.Errorf("chunk %d was probed", i)
		}
	}
}

// The first in the circle fetches what an owner that is slow is left with, whoever asks first; the owner gets it
// from the last.
func TestViceOfASlowOwner(t *testing.T) {
	p := New(Config{Self: "owner"})
	ids := inCircle(p, "a", "b", "c", "d")
	ask := filling(p)
	for _, id := range ids {
		ask(0, id, nil)
	}
	relieved := func(r *Request) { r.Delegate = true }
	for _, i := range []int{2, 1, 0, 3} {
		want := ids[max(0, i-1)]
		if d := ask(1, ids[i], relieved); d.Redirect != want {
			t.Errorf("number %d is sent to %q, want %q", i, d.Redirect, want)
		}
	}
	later := noon.Add(5 * time.Second)
	if who, delegate := p.Elsewhere(later, Chunk{Index: 1}, whole, whole, nil, true); who != ids[3] || delegate {
		t.Errorf("the owner is sent to %q, want %q", who, ids[3])
	}
	// What nobody asked for yet the vice fetches for the owner, and then for others.
	if who, delegate := p.Elsewhere(later, Chunk{Index: 2}, whole, whole, nil, true); who != ids[0] || !delegate {
		t.Errorf("the owner is sent to %q, delegate %v; want %q", who, delegate, ids[0])
	}
	if d := ask(2, ids[1], relieved); d.Redirect != ids[0] {
		t.Errorf("sent to %q, want %q", d.Redirect, ids[0])
	}
	if who, _ := p.Elsewhere(later, Chunk{Index: 3}, whole, whole, nil, false); who != "" {
		t.Errorf("an owner that is not slow is sent to %q", who)
	}
	if who, _ := p.Elsewhere(later, Chunk{Index: 3}, whole, whole, ids, true); who != "" {
		t.Errorf("sent to %q, though all have failed", who)
	}
}
