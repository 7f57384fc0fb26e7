package peer

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/peer/member"
	"github.com/shardwell/shardwell/peer/ring"
)

func TestDirectoryOfAKey(t *testing.T) {
	for key, want := range map[string]string{"": "", "a": "", "a/": "a/", "a/b/c.tar": "a/b/", "/x": "/"} {
		if got := directory(key); got != want {
			t.Errorf("directory(%q) = %q, want %q", key, got, want)
		}
	}
}

func TestRingOfTables(t *testing.T) {
	h := ring.NewHistory(0)
	push := func(members ...ring.Member) {
		t.Helper()
		table, err := ring.Build(h.Current(), members)
		if err != nil {
			t.Fatal(err)
		}
		h.Push(table)
	}
	r := RingOf(h, small, 1<<20)
	if got := r.Owners(1, nil); got != nil {
		t.Errorf("an empty table has owners %v", got)
	}
	obj := chunk.Object{Key: "k", Size: 1 << 20}
	id := obj.ID()
	whole := r.KeyOfBlocks(obj, id, chunk.Span{First: 9, Count: 1})
	if whole != r.KeyOfBlocks(obj, id, chunk.Span{First: 0, Count: 1}) {
		t.Error("a small object has two owners")
	}
	obj.Size = 2 << 20
	a, b := r.KeyOfBlocks(obj, id, chunk.Span{First: 0, Count: 1}), r.KeyOfBlocks(obj, id, chunk.Span{First: 8, Count: 1})
	if a == b || a != r.KeyOfBlocks(obj, id, chunk.Span{First: 7, Count: 1}) {
		t.Error("a large object is owned by chunks")
	}
	push(ring.Member{ID: "a"}, ring.Member{ID: "b"}, ring.Member{ID: "c"})
	first := r.Owners(whole, nil)
	if len(first) != 3 || len(r.EarlierOwners(whole, nil)) != 0 {
		t.Fatalf("owners %v", first)
	}
	// The owner restarts: its successor answers, and the table stays.
	var members []ring.Member
	for _, id := range []string{"a", "b", "c"} {
		m := ring.Member{ID: id}
		if id == first[0] {
			m.State = ring.Restarting
		}
		members = append(members, m)
	}
	push(members...)
	if got := r.Owners(whole, nil); !slices.Equal(got, first[1:]) {
		t.Errorf("owners %v, want %v", got, first[1:])
	}
	// The owner hands its place over and stays to be read from.
	for i := range members {
		members[i].State = ring.Alive
		members[i].NoOwner = members[i].ID == first[0]
	}
	push(members...)
	if got := r.EarlierOwners(whole, []string{"x"}); !slices.Equal(got, []string{"x", first[0]}) {
		t.Errorf("earlier owners %v, want %v", got, first[:1])
	}
}

func TestReachableMembers(t *testing.T) {
	var d Directory
	if _, ok := d.Lookup("a"); ok || d.All() != nil {
		t.Error("an empty directory has members")
	}
	at := netip.MustParseAddrPort("[2001:db8::1]:7947")
	d.Set(Reachable([]member.Member{
		{ID: "a", Name: "node-a", PeerAddr: at, Zone: "z", Rack: "r"},
		{ID: "b", State: member.Restarting}, {ID: "c", State: member.Down}, {ID: "me", State: member.Restarting, Self: true},
	}))
	if m, ok := d.Lookup("a"); !ok || m != (Member{ID: "a", Name: "node-a", Addr: "[2001:db8::1]:7947", Zone: "z", Rack: "r"}) {
		t.Errorf("%+v", m)
	}
	if _, ok := d.Lookup("b"); ok || len(d.All()) != 2 {
		t.Errorf("%+v", d.All())
	}
}
