package ring

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/shardwell/shardwell/internal/chunk"
)

// anyMembers draws a set of members, in any order.
func anyMembers(t *rapid.T, label string, most int) []Member {
	ids := rapid.SliceOfNDistinct(rapid.StringMatching(`[a-z0-9]{1,8}`), 0, most, rapid.ID[string]).Draw(t, label)
	members := make([]Member, len(ids))
	for i, id := range ids {
		members[i] = Member{
			ID:      id,
			Weight:  rapid.SampledFrom([]int64{0, 1, 1, 1, 2, 5, 1 << 30}).Draw(t, "weight"),
			NoOwner: rapid.IntRange(0, 9).Draw(t, "reader") == 0,
			State:   State(rapid.IntRange(0, 1).Draw(t, "state")),
		}
	}
	return members
}

// keyIn returns a key of partition part.
func keyIn(part int) Key { return Key(part)<<(64-partitionBits) | 12345 }

func ids(list []*Member) string {
	var names []string
	for _, m := range list {
		names = append(names, m.ID)
	}
	return strings.Join(names, " ")
}

// difference returns the first partition that two tables answer differently, or "".
func difference(a, b *Table) string {
	if !slices.Equal(a.place.ids, b.place.ids) || a.place.width != b.place.width || len(a.place.owner) != len(b.place.owner) {
		return "the owning members differ"
	}
	for part := range a.place.owner {
		if a.place.owner[part] != b.place.owner[part] || !slices.Equal(a.place.row(part), b.place.row(part)) {
			return fmt.Sprintf("partition %d: %s against %s", part, ids(a.Owners(keyIn(part), nil)), ids(b.Owners(keyIn(part), nil)))
		}
	}
	return ""
}

func TestOrderAndHistoryDoNotMatter(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var table *Table
		for range rapid.IntRange(1, 2).Draw(rt, "steps") {
			members := anyMembers(rt, "members", 7)
			var err error
			if table, err = Build(table, members); err != nil {
				rt.Fatal(err)
			}
			slices.Reverse(members)
			fresh, err := Build(nil, members)
			if err != nil {
				rt.Fatal(err)
			}
			if d := difference(table, fresh); d != "" {
				rt.Fatal(d)
			}
			if table.Fingerprint() != fresh.Fingerprint() {
				rt.Fatal("fingerprints differ")
			}
		}
	})
}

// Small changes to large clusters take the fast way; it must be the same way.
func TestSmallChangesGiveTheTableOfAFreshStart(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	members := someMembers(150)
	members[3].Weight = 4
	table := mustBuild(t, nil, members)
	fast := 0
	for step := range 12 {
		next := slices.Clone(members)
		for range 1 + rng.IntN(2) {
			i := rng.IntN(len(next))
			switch rng.IntN(4) {
			case 0:
				next = slices.Delete(next, i, i+1)
			case 1:
				next = append(next, Member{ID: fmt.Sprintf("new-%d-%d", step, len(next))})
			case 2:
				next[i].Weight = 1 + rng.Int64N(3)
			case 3:
				next[i].NoOwner = !next[i].NoOwner
			}
		}
		got := mustBuild(t, table, next)
		if compare(table.place, got.place).cheap() {
			fast++
		}
		if d := difference(got, mustBuild(t, nil, next)); d != "" {
			t.Fatalf("step %d: %s", step, d)
		}
		table, members = got, next
	}
	if fast < 6 {
		t.Errorf("only %d of 12 changes took the fast way", fast)
	}
}

func TestNoMemberOwnsMoreThanTheBound(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		members := anyMembers(rt, "members", 20)
		table, err := Build(nil, members)
		if err != nil {
			rt.Fatal(err)
		}
		total, sum := int64(0), 0.0
		for _, m := range table.owners {
			total += m.Weight
		}
		for _, m := range table.Members() {
			share := table.OwnedShare(m.ID)
			sum += share
			most := 0.0
			if !m.NoOwner {
				most = (LoadBound*Partitions*float64(m.Weight)/float64(total) + 1) / Partitions
			}
			if share > most {
				rt.Fatalf("%s owns %.4f, at most %.4f", m.ID, share, most)
			}
		}
		if want := min(1, float64(total)); math.Abs(sum-want) > 1e-9 {
			rt.Fatalf("shares sum up to %v, want %v", sum, want)
		}
	})
}

func TestOwnersAreDistinctAndCompleteForSmallClusters(t *testing.T) {
	for n := range 9 {
		members := append(someMembers(n), Member{ID: "reader", NoOwner: true})
		table := mustBuild(t, nil, members)
		want := min(n, 1+Successors)
		for part := range Partitions {
			list := table.Owners(keyIn(part), nil)
			seen := map[string]bool{}
			for _, m := range list {
				seen[m.ID] = true
			}
			if len(list) != want || len(seen) != want || seen["reader"] {
				t.Fatalf("%d members, partition %d: %s", n, part, ids(list))
			}
			if n > 0 && (table.Owner(keyIn(part)) != list[0] || table.Acting(keyIn(part)) != list[0]) {
				t.Fatalf("%d members, partition %d: owner is not the first of %s", n, part, ids(list))
			}
		}
		if n == 0 && (table.Owner(1) != nil || table.Acting(1) != nil) {
			t.Error("somebody owns where nobody may")
		}
	}
}

func TestWeightsAreShares(t *testing.T) {
	members := someMembers(20)
	for i := range members {
		members[i].Weight = 1 + int64(i)%4
	}
	table := mustBuild(t, nil, members)
	for _, m := range members {
		if got, want := table.OwnedShare(m.ID), float64(m.Weight)/50; math.Abs(got/want-1) > 0.12 {
			t.Errorf("%s of weight %d owns %.4f, want about %.4f", m.ID, m.Weight, got, want)
		}
	}
}

// Only ratios count, however unequal, and a weight that changes moves what it has to.
func TestWeightsAreRatios(t *testing.T) {
	members := []Member{{ID: "a", Weight: 1}, {ID: "b", Weight: 3}, {ID: "c", Weight: 12}}
	table := mustBuild(t, nil, members)
	for i := range members {
		if got, want := table.OwnedShare(members[i].ID), float64(members[i].Weight)/16; math.Abs(got/want-1) > 0.04 {
			t.Errorf("%s owns %.4f, want about %.4f", members[i].ID, got, want)
		}
		members[i].Weight <<= 38 // a petabyte where 4 KiB were
	}
	if d := difference(table, mustBuild(t, nil, members)); d != "" {
		t.Error("other units:", d)
	}
	members = someMembers(20)
	table = mustBuild(t, nil, members)
	for i := range members {
		members[i].Weight = 4
	}
	members[7].Weight = 3
	smaller := mustBuild(t, table, members)
	its, others := movement(table, smaller, members[7].ID)
	if share := Partitions / 20 / 4; its < share*3/4 || its > share*5/4 || others > share/2 {
		t.Errorf("a quarter less weight: %d partitions move to or from the member, about %d are to, and %d between others", its, share, others)
	}
}

// A hit ratio of the whole cluster: owners fill up to what they have, and keep that.
func TestCapacitiesAddUp(t *testing.T) {
	const objects = 40_000
	for _, capacities := range [][]int64{{1, 1, 1}, {1, 2, 4}, {1, 10}, {3, 5, 8, 13, 21, 34}} {
		members, total := make([]Member, len(capacities)), int64(0)
		for i, c := range capacities {
			members[i] = Member{ID: fmt.Sprintf("node-%05d", i), Weight: c}
			total += c
		}
		table := mustBuild(t, nil, members)
		for _, part := range []float64{0.25, 0.5, 0.75, 1} { // of the dataset that all have room for
			room := make(map[string]float64)
			for i, c := range capacities {
				room[members[i].ID] = part * objects * float64(c) / float64(total)
			}
			hits := 0
			for i := range objects {
				id := chunk.Object{Key: fmt.Sprint(i)}.ID()
				if owner := table.Owner(KeyOfObject(id)).ID; room[owner] >= 1 {
					room[owner]--
					hits++
				}
			}
			if got := float64(hits) / objects; math.Abs(got-part) > 0.02 {
				t.Errorf("capacities %v for %.2f of a dataset: hit ratio %.3f", capacities, part, got)
			}
		}
	}
}

// movement compares the owners of two tables: partitions that left or came to id, and that moved between others.
func movement(a, b *Table, id string) (its, others int) {
	for part := range Partitions {
		x, y := a.Owner(keyIn(part)), b.Owner(keyIn(part))
		switch {
		case x.ID == y.ID:
		case x.ID == id || y.ID == id:
			its++
		default:
			others++
		}
	}
	return its, others
}

func TestAJoinOrLeaveMovesLittleMoreThanItsShare(t *testing.T) {
	for _, n := range []int{2, 3, 10, 100, 1000} {
		members := someMembers(n + 1)
		id := members[n/2].ID
		with := mustBuild(t, nil, members)
		without := mustBuild(t, with, slices.Delete(slices.Clone(members), n/2, n/2+1))
		its, others := movement(with, without, id)
		t.Logf("%d members: %.4f is the member's, %.4f moves between others",
			n+1, float64(its)/Partitions, float64(others)/Partitions)
		if limit := Partitions / (n + 1) / 4; others > limit {
			t.Errorf("%d members: %d partitions move between others, at most %d", n+1, others, limit)
		}
	}
}

// The successor that answered for a lost owner has its bytes: it must be the next owner.
func TestWhoActedForALostOwnerOwnsNext(t *testing.T) {
	for _, n := range []int{3, 10, 100, 1000} {
		members := someMembers(n)
		lost := members[n/2].ID
		away := slices.Clone(members)
		away[n/2].State = Restarting
		before := mustBuild(t, nil, away)
		after := mustBuild(t, before, slices.Delete(slices.Clone(members), n/2, n/2+1))
		owned, same := 0, 0
		for part := range Partitions {
			k := keyIn(part)
			if before.Owner(k).ID != lost {
				continue
			}
			owned++
			if before.Acting(k).ID == after.Owner(k).ID {
				same++
			}
		}
		t.Logf("%d members: %d of %d partitions go to who acted for them", n, same, owned)
		if float64(same) < 0.85*float64(owned) {
			t.Errorf("%d members: only %d of %d partitions go to who acted for them", n, same, owned)
		}
	}
}

func TestARestartingMemberKeepsItsPlace(t *testing.T) {
	members := someMembers(10)
	before := mustBuild(t, nil, members)
	members[4].State = Restarting
	after := mustBuild(t, before, members)
	if d := difference(before, after); d != "" {
		t.Fatal(d)
	}
	if before.place != after.place {
		t.Error("the placement was built anew")
	}
	for part := range Partitions {
		k := keyIn(part)
		list := after.Owners(k, nil)
		want := list[0]
		if want.State == Restarting {
			want = list[1]
		}
		if got := after.Acting(k); got != want {
			t.Fatalf("partition %d: %s acts, want %s", part, got.ID, want.ID)
		}
	}
}

func TestMembersThatCannotBeAreRefused(t *testing.T) {
	for name, members := range map[string][]Member{
		"empty id":      {{ID: ""}},
		"long id":       {{ID: strings.Repeat("x", MaxIDBytes+1)}},
		"twice":         {{ID: "a"}, {ID: "b"}, {ID: "a"}},
		"owner, reader": {{ID: "a"}, {ID: "a", NoOwner: true}},
		"heavy":         {{ID: "a", Weight: MaxWeight + 1}},
		"negative":      {{ID: "a", Weight: -1}},
		"too many":      someMembers(MaxMembers + 1),
	} {
		if _, err := Build(nil, members); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// More members than anybody has, and the extremes of weight: no panic, no member too many.
func TestManyMembersHaveRoom(t *testing.T) {
	table := mustBuild(t, nil, someMembers(4_000))
	most := 0.0
	for _, m := range table.Members() {
		most = max(most, table.OwnedShare(m.ID))
	}
	if most*Partitions > 21 {
		t.Errorf("a member owns %.0f partitions, the mean is 16.4", most*Partitions)
	}
	mustBuild(t, nil, []Member{{ID: "a", Weight: MaxWeight}, {ID: "b"}})
}

// Placement is part of the protocol: two releases in one cluster must agree.
func TestPlacementStaysAsItIs(t *testing.T) {
	table := mustBuild(t, nil, someMembers(12))
	id := chunk.Object{Origin: "https://s3.example.com", Bucket: "b", Key: "k", ETag: "e", Size: 1}.ID()
	for name, want := range map[Key]string{
		KeyOfObject(id):                         "f95afe5e67147463 node-00002 node-00009 node-00008 node-00003 node-00010",
		KeyOfChunk(id, 7):                       "35f82dfd9bc4fa58 node-00010 node-00001 node-00002 node-00006 node-00004",
		KeyOfName("list", "https://x", "b", ""): "f24f2ae87dcdffce node-00005 node-00007 node-00001 node-00008 node-00004",
	} {
		if got := fmt.Sprintf("%016x %s", uint64(name), ids(table.Owners(name, nil))); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestKeysDependOnSizeAndParts(t *testing.T) {
	var id chunk.ObjectID
	if KeyOf(id, 10, 10, 0) != KeyOf(id, 10, 10, 9) {
		t.Error("an object of place-whole size is placed by chunks")
	}
	if KeyOf(id, 11, 10, 0) == KeyOf(id, 11, 10, 1) {
		t.Error("a larger object is placed whole")
	}
	if KeyOfName("a", "bc") == KeyOfName("ab", "c") || KeyOfName("a", "") == KeyOfName("a") || KeyOfName("") == KeyOfName("", "") {
		t.Error("names with other parts have one key")
	}
}

func TestLookupsDoNotAllocate(t *testing.T) {
	h := NewHistory(0)
	for n := 3; n < 8; n++ {
		h.Push(mustBuild(t, h.Current(), someMembers(n)))
	}
	buf := make([]*Member, 0, 16)
	var id chunk.ObjectID
	if n := testing.AllocsPerRun(1000, func() {
		id[0]++
		k := KeyOf(id, 1<<40, 1<<30, 5)
		buf = h.Current().Owners(k, buf[:0])
		buf = h.EarlierOwners(k, buf[:0])
		h.Current().Acting(KeyOfName("head", "a", "b", "c"))
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
