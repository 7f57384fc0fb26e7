package ring

import (
	"testing"
	"time"

	"github.com/buraksezer/consistent"
	"github.com/cespare/xxhash/v2"
)

type libHasher struct{}

func (libHasher) Sum64(b []byte) uint64 { return xxhash.Sum64(b) }

type libMember string

func (m libMember) String() string { return string(m) }

// TestBesideConsistent prints what this package's comment says of the library that the
// design names first, and holds its reasons: what was measured must stay true, or the choice is open again.
func TestBesideConsistent(t *testing.T) {
	const n, parts = 200, 20_011
	names := someMembers(n)
	list := make([]consistent.Member, n)
	for i, m := range names {
		list[i] = libMember(m.ID)
	}
	cfg := consistent.Config{PartitionCount: parts, ReplicationFactor: 20, Load: LoadBound, Hasher: libHasher{}}
	start := time.Now()
	lib := consistent.New(list, cfg)
	t.Logf("New of %d members, %d partitions: %s", n, parts, time.Since(start))

	lost := names[n/2].ID
	before := make([]string, parts)
	acting := make([]string, parts) // the first successor by rendezvous hashing among the others
	place := mustBuild(t, nil, names)
	for p := range parts {
		before[p] = lib.GetPartitionOwner(p).String()
		for _, m := range place.Owners(keyIn(p), nil) {
			if m.ID != before[p] {
				acting[p] = m.ID
				break
			}
		}
	}
	start = time.Now()
	lib.Remove(lost)
	t.Logf("Remove: %s", time.Since(start))
	owned, same, others := 0, 0, 0
	for p := range parts {
		switch now := lib.GetPartitionOwner(p).String(); {
		case before[p] == lost:
			owned++
			if now == acting[p] {
				same++
			}
		case now != before[p]:
			others++
		}
	}
	t.Logf("of %d partitions lost %d go to who acted for them; %.4f of all move between others",
		owned, same, float64(others)/parts)

	after := mustBuild(t, place, append(someMembers(n / 2)[:n/2:n/2], names[n/2+1:]...))
	its, ourOthers := movement(place, after, lost)
	t.Logf("here: %.4f of all are the lost one's, %.4f move between others", float64(its)/Partitions, float64(ourOthers)/Partitions)
	if same*2 > owned {
		t.Error("the library's next owner is who acted for the lost one after all")
	}
	if float64(ourOthers)/Partitions > float64(others)/parts+0.002 {
		t.Error("the library moves less between others")
	}
}
