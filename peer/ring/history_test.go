package ring

import (
	"slices"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

// The model of a history is a list of tables, newest last.
func TestEarlierOwnersAreThoseOfAListOfTables(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		h := NewHistory(4)
		var tables []*Table
		for range rapid.IntRange(1, 7).Draw(rt, "pushes") {
			table, err := Build(h.Current(), anyMembers(rt, "members", 6))
			if err != nil {
				rt.Fatal(err)
			}
			h.Push(table)
			tables = slices.DeleteFunc(tables, func(old *Table) bool { return old.Fingerprint() == table.Fingerprint() })
			tables = append(tables, table)
		}
		now := tables[len(tables)-1]
		var past []*Table
		for _, old := range slices.Backward(tables[:len(tables)-1]) {
			if len(old.owners) > 0 && len(past) < 4 {
				past = append(past, old)
			}
		}
		for part := 0; part < Partitions; part += 501 {
			k := keyIn(part)
			var want []*Member
			for _, old := range past {
				m := now.Member(old.Owner(k).ID)
				if m != nil && m != now.Owner(k) && !slices.Contains(want, m) {
					want = append(want, m)
				}
			}
			if got := h.EarlierOwners(k, nil); !slices.Equal(got, want) {
				rt.Fatalf("partition %d: %s, want %s", part, ids(got), ids(want))
			}
		}
	})
}

func TestARestartTakesNoPlaceInTheHistory(t *testing.T) {
	h := NewHistory(2)
	members := someMembers(3)
	h.Push(mustBuild(t, nil, members))
	h.Push(mustBuild(t, h.Current(), someMembers(4)))
	for i := range 20 {
		next := someMembers(4)
		next[1].State = State(i % 2)
		h.Push(mustBuild(t, nil, next))
	}
	if n := len(h.now.Load().earlier); n != 1 {
		t.Errorf("%d placements remembered, want 1", n)
	}
}

func TestTablesThatWereNeverInUseHere(t *testing.T) {
	h := NewHistory(4)
	alone, others, all := mustBuild(t, nil, someMembers(5)[4:]), mustBuild(t, nil, someMembers(4)), mustBuild(t, nil, someMembers(5))
	h.Push(alone)
	h.Push(all, others)
	h.Push(all, others, all) // nothing new
	if n := len(h.now.Load().earlier); n != 2 {
		t.Errorf("%d placements remembered, want those of the others and of one alone", n)
	}
	if h.Current() != all {
		t.Error("another table than the pushed one is in use")
	}
	found := 0
	for part := 0; part < Partitions; part += 101 {
		k := keyIn(part)
		owner, before := all.Owner(k), others.Owner(k)
		if owner.ID == before.ID {
			continue
		}
		found++
		if got := h.EarlierOwners(k, nil); len(got) == 0 || got[0].ID != before.ID {
			t.Fatalf("partition %d: %s, want %s first", part, ids(got), before.ID)
		}
	}
	if found == 0 {
		t.Error("the fifth member owns nothing")
	}
}

func TestLookupsGoOnWhileTablesChange(t *testing.T) {
	h := NewHistory(3)
	var wait sync.WaitGroup
	stop := make(chan struct{})
	for range 2 {
		wait.Go(func() {
			buf := make([]*Member, 0, 8)
			for k := Key(0); ; k += 1 << 50 {
				select {
				case <-stop:
					return
				default:
					buf = h.EarlierOwners(k, h.Current().Owners(k, buf[:0]))
				}
			}
		})
	}
	for n := range 10 {
		h.Push(mustBuild(t, h.Current(), someMembers(1+n%5)))
	}
	close(stop)
	wait.Wait()
}
