package ring

import (
	"fmt"
	"testing"
)

func someMembers(n int) []Member {
	list := make([]Member, n)
	for i := range list {
		list[i] = Member{ID: fmt.Sprintf("node-%05d", i)}
	}
	return list
}

func mustBuild(t testing.TB, prev *Table, members []Member) *Table {
	t.Helper()
	table, err := Build(prev, members)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// BenchmarkLookup is ring_lookup_ns: owner and successors of a key.
func BenchmarkLookup(b *testing.B) {
	for _, n := range []int{3, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			table := mustBuild(b, nil, someMembers(n))
			buf := make([]*Member, 0, 1+Successors)
			k := Key(1)
			b.ReportAllocs()
			for b.Loop() {
				k = k*6364136223846793005 + 1442695040888963407
				buf = table.Owners(k, buf[:0])
			}
		})
	}
}

// BenchmarkRebuild is ring_rebuild_ms_1000 ("fresh/1000"), and what a change costs.
func BenchmarkRebuild(b *testing.B) {
	for _, n := range []int{3, 100, 1000, 10000} {
		members := someMembers(n)
		b.Run(fmt.Sprintf("fresh/%d", n), func(b *testing.B) {
			for b.Loop() {
				mustBuild(b, nil, members)
			}
		})
		prev := mustBuild(b, nil, members)
		for what, next := range map[string][]Member{"leave": members[1:], "join": append(someMembers(n), Member{ID: "new"})} {
			b.Run(fmt.Sprintf("%s/%d", what, n), func(b *testing.B) {
				for b.Loop() {
					mustBuild(b, prev, next)
				}
			})
		}
	}
}
