package member

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// proc returns the n-th process of a ring id.
func proc(id string, n int, start uint64) process {
	return process{
		name: fmt.Sprintf("host-%s#%d", id, n),
		addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(n)}), 7946),
		rec:  Record{ID: id, Start: start, Weight: 1},
	}
}

func at(p process, t time.Time) process {
	p.since = t
	return p
}

func testView() *view {
	return newView(Record{ID: "self", Weight: 1}, "self#0", 5*time.Minute, &Stats{}, slog.New(slog.DiscardHandler))
}

func stateOf(v *view, id string, now time.Time) string {
	list, _ := v.snapshot(now)
	for _, m := range list {
		if m.ID == id {
			return m.State.String() + " " + m.Addr.Addr().String()
		}
	}
	return ""
}

// A machine whose clock went back restarts with an earlier start time than it had before.
func TestALivingProcessHoldsThePlaceWhateverTheClocksSay(t *testing.T) {
	v := testView()
	v.up(at(proc("a", 1, 1000), epoch))
	v.down(proc("a", 1, 1000), epoch.Add(time.Second))
	v.up(at(proc("a", 2, 10), epoch.Add(2*time.Second)))
	if got := stateOf(v, "a", epoch.Add(3*time.Second)); got != "alive 10.0.0.2" {
		t.Errorf("the place is %q", got)
	}
}

func TestAKilledMemberThatIsBackBeforeItsDeathIsKnown(t *testing.T) {
	v := testView()
	v.up(at(proc("a", 1, 1), epoch))
	v.up(at(proc("a", 2, 2), epoch.Add(time.Second)))
	if got := stateOf(v, "a", epoch.Add(2*time.Second)); got != "alive 10.0.0.1" {
		t.Errorf("before anybody was asked, the place is %q", got)
	}
	v.heard(proc("a", 1, 1), false)
	v.heard(proc("a", 2, 2), true)
	v.judgeRivals(v.rivals(""), epoch.Add(2*time.Second))
	if got := stateOf(v, "a", epoch.Add(2*time.Second)); got != "alive 10.0.0.2" {
		t.Errorf("the place is %q", got)
	}
	if r := v.refusals(epoch.Add(3 * time.Second)); len(r) != 0 {
		t.Errorf("refused: %v", r)
	}
	v.down(proc("a", 1, 1), epoch.Add(9*time.Second))
	if got := stateOf(v, "a", epoch.Add(10*time.Second)); got != "alive 10.0.0.2" {
		t.Errorf("once the death is known, the place is %q", got)
	}
}

func TestALaterProcessAtTheSameAddressTakesThePlaceAtOnce(t *testing.T) {
	v := testView()
	first, second := proc("a", 1, 1), proc("a", 2, 2)
	second.addr = first.addr
	for _, p := range []process{second, first} { // in the order in which one who joins may hear of them
		v.up(at(p, epoch))
	}
	if got := v.places["a"].last.name; got != second.name {
		t.Errorf("the place is %s's", got)
	}
	v.down(first, epoch.Add(time.Second))
	if got := stateOf(v, "a", epoch.Add(2*time.Second)); got != "alive 10.0.0.1" {
		t.Errorf("once the death is known, the place is %q", got)
	}
}

// The log has it once, however often the copy is started, and the first stays.
func TestACopyIsRefusedAndInTheLogOnce(t *testing.T) {
	var log bytes.Buffer
	v := testView()
	v.log = slog.New(slog.NewTextHandler(&log, nil))
	v.up(at(proc("a", 1, 1), epoch))
	for i := range 5 {
		twin := proc("a", 2, uint64(2+i))
		twin.name = fmt.Sprintf("copy#%d", i)
		v.up(at(twin, epoch))
		for _, p := range v.rivals("") {
			v.heard(p, true)
		}
		v.judgeRivals(v.rivals(""), epoch)
		v.judgeRivals(v.rivals(""), epoch)
		if got := stateOf(v, "a", epoch); got != "alive 10.0.0.1" {
			t.Errorf("the place is %q", got)
		}
		twin.rec.Restarting = true
		v.up(twin)
		v.down(twin, epoch)
	}
	if n := strings.Count(log.String(), "level=WARN"); n != 1 {
		t.Errorf("%d warnings, want 1:\n%s", n, log.String())
	}
	r := v.refusals(epoch)
	if len(r) != 1 || r[0].Name != "copy" || !strings.Contains(r[0].Reason, "Remove the file node-id") {
		t.Errorf("refused: %v", r)
	}
	// When the first stops, the copy has the place.
	v.up(at(proc("a", 2, 9), epoch))
	v.down(proc("a", 1, 1), epoch)
	if got := stateOf(v, "a", epoch); got != "alive 10.0.0.2" {
		t.Errorf("after the end of the first, the place is %q", got)
	}
}

// Whatever comes, in whatever order: a place is alive exactly when a process lives, memory is bounded, and
// without news it ends when the grace does.
func TestPlacesFollowTheirProcesses(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		v := testView()
		now := epoch
		live := map[string]bool{}
		for range rapid.IntRange(1, 60).Draw(rt, "events") {
			now = now.Add(time.Duration(rapid.IntRange(0, 90).Draw(rt, "seconds")) * time.Second)
			n := rapid.IntRange(1, 3).Draw(rt, "process")
			p := at(proc(rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "id"), n, uint64(n)), now)
			if rapid.Bool().Draw(rt, "up") {
				v.up(p)
				live[p.name] = true
			} else {
				v.down(p, now)
				delete(live, p.name)
			}
			list, next := v.snapshot(now)
			for _, id := range []string{"a", "b"} {
				lives := live["host-"+id+"#1"] || live["host-"+id+"#2"] || live["host-"+id+"#3"]
				isDown := false
				for _, m := range list {
					isDown = isDown || m.ID == id && m.State == Down
				}
				if got := stateOf(v, id, now); lives && (got == "" || isDown) || !lives && got != "" && !isDown {
					rt.Fatalf("%s lives: %v, its place is %q", id, lives, got)
				}
			}
			if !next.IsZero() && !next.After(now) {
				rt.Fatalf("the next change is at %s, now is %s", next, now)
			}
		}
		if len(live) == 0 {
			if list, next := v.snapshot(now.Add(5 * time.Minute)); len(list) != 0 || !next.IsZero() || len(v.places) != 0 {
				rt.Fatalf("after the grace: %v, next %s", list, next)
			}
		}
	})
}

func TestWhoLeftForGoodDoesNotComeBackByHearsay(t *testing.T) {
	v := testView()
	p := at(proc("a", 1, 1), epoch)
	v.up(p)
	gone := p
	gone.rec.Leaving = true
	v.up(gone)
	v.down(gone, epoch.Add(time.Minute))
	now := epoch.Add(2 * time.Minute)
	v.mergeAbsent([]absentMember{{process: p, left: 4 * time.Minute}}, now)
	if got := stateOf(v, "a", now); got != "" {
		t.Errorf("the place is %q", got)
	}
	// One that missed the word hears of it by the exchange.
	other := testView()
	other.up(p)
	other.down(p, now)
	list, err := parseAbsent(v.absent(now))
	if err != nil {
		t.Fatal(err)
	}
	other.mergeAbsent(list, now)
	if got := stateOf(other, "a", now); got != "" {
		t.Errorf("with another, the place is %q", got)
	}
}

func TestRefusalsAreBoundedAndInTheLogOnce(t *testing.T) {
	var log bytes.Buffer
	v := testView()
	v.log = slog.New(slog.NewTextHandler(&log, nil))
	for range 50 {
		v.refuse("odd#1", netip.MustParseAddrPort("10.0.0.9:7946"), "its chunk size is 1", epoch)
	}
	if n := strings.Count(log.String(), "member refused"); n != 1 {
		t.Errorf("%d lines, want 1", n)
	}
	for i := range 1000 {
		v.refuse(fmt.Sprint("flood#", i), netip.MustParseAddrPort("10.0.0.9:7946"), "x", epoch)
	}
	if n := len(v.refusals(epoch)); n != maxRefusals {
		t.Errorf("%d refusals are remembered, want %d", n, maxRefusals)
	}
	if n := len(v.refusals(epoch.Add(refusalAge + 1))); n != 0 {
		t.Errorf("%d refusals are remembered for too long", n)
	}
}

func TestAClosedViewHearsNothing(t *testing.T) {
	v := testView()
	v.close()
	v.up(proc("a", 1, 1))
	v.refuse("odd#1", netip.AddrPort{}, "x", epoch)
	if list, _ := v.snapshot(epoch); len(list) != 0 || len(v.refusals(epoch)) != 0 {
		t.Error("it heard something")
	}
}
