package handover

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newArea(t testing.TB, record string) *Area {
	t.Helper()
	a, err := NewArea([]byte(record))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.Close() })
	return a
}

// again opens an area as a successor does, whose predecessor was killed: it has unmapped nothing.
func again(t testing.TB, a *Area) *Area {
	t.Helper()
	fd, err := unix.FcntlInt(a.file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	b, err := OpenArea(fileOf(fd, "area"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b
}

func handlesOf(a *Area) []Handle {
	return slices.SortedFunc(slices.Values(a.Handles()), func(x, y Handle) int { return cmp.Compare(x.FH, y.FH) })
}

func TestAreaIsFoundAgain(t *testing.T) {
	a := newArea(t, "what it is")
	if req, _ := a.Init(); req != nil {
		t.Errorf("INIT of a new area: %q", req)
	}
	if err := a.SaveInit([]byte("request"), []byte("reply!")); err != nil {
		t.Fatal(err)
	}
	var want []Handle
	for i := range 100 {
		h := Handle{FH: a.NextHandle(), NodeID: uint64(i) << 32, Unique: uint64(1000 + i), Backing: int32(i % 3), Direct: i%5 == 0}
		if err := a.Put(h); err != nil {
			t.Fatal(err)
		}
		if i%2 == 0 {
			a.Drop(h.FH)
		} else {
			want = append(want, h)
		}
	}
	a.BackingOpened(7)
	a.ClosingBacking(5)
	for range 2 {
		a = again(t, a)
		if req, reply := a.Init(); string(req) != "request" || string(reply) != "reply!" {
			t.Errorf("INIT: %q, %q", req, reply)
		}
		if got := handlesOf(a); !slices.Equal(got, want) {
			t.Errorf("handles %v, want %v", got, want)
		}
		if string(a.Record()) != "what it is" || a.SetRecord([]byte("another")) != nil || string(again(t, a).Record()) != "another" || a.SetRecord([]byte("what it is")) != nil || a.LastBacking() != 7 || a.BackingClosing() != 5 {
			t.Errorf("%q, %d, %d", a.Record(), a.LastBacking(), a.BackingClosing())
		}
	}
	if fh := a.NextHandle(); fh != 101 {
		t.Errorf("next handle: %d", fh)
	}
	for _, h := range want {
		a.Drop(h.FH)
	}
	if err := a.Put(Handle{FH: 200}); err != nil || a.load32(offHandles) > 60 {
		t.Errorf("%v: slots are not used again: %d", err, a.load32(offHandles))
	}
}

// A process may be killed between any two stores. Here each store of a Put and a Drop is
// the last that happened, and an area is whole after it.
func TestAreaTornWrites(t *testing.T) {
	a := newArea(t, "r")
	for i := range 3 {
		if err := a.Put(Handle{FH: uint64(i + 1), NodeID: 9, Unique: 5, Backing: 1}); err != nil {
			t.Fatal(err)
		}
	}
	a.Drop(2)
	whole := handlesOf(a)
	before := bytes.Clone(a.mem[:handlesOffset+8*handleBytes])
	steps := []func(at int){ // as Put does them
		func(at int) { a.store64(at, 77) },
		func(at int) { a.store64(at+8, 88) },
		func(at int) { a.store64(at+16, 99) },
		func(at int) { a.store32(at+24, 4) },
	}
	for _, slot := range []uint32{1, 3} { // one that was used before, one at the end
		for n := range len(steps) + 1 {
			copy(a.mem, before)
			if slot == 3 {
				a.store32(offHandles, 4)
			}
			for _, step := range steps[:n] {
				step(handleAt(slot))
			}
			if got := handlesOf(again(t, a)); !slices.Equal(got, whole) {
				t.Errorf("slot %d after %d stores: %v, want %v", slot, n, got, whole)
			}
		}
		a.store32(handleAt(slot)+28, 1)
		if got := handlesOf(again(t, a)); len(got) != 3 || got[2] != (Handle{77, 88, 99, 4, false}) {
			t.Errorf("slot %d at the end: %v", slot, got)
		}
		copy(a.mem, before)
	}
}

func TestAreaOfAnotherVersion(t *testing.T) {
	for name, change := range map[string]func(*Area){
		"version": func(a *Area) { a.store32(offVersion, LayoutVersion+1) },
		"magic":   func(a *Area) { a.store64(offMagic, 1) },
		"handles": func(a *Area) { a.store32(offHandles, MaxHandles+1) },
		"record":  func(a *Area) { a.store32(offRecord, MaxRecordBytes+1) },
		"plans":   func(a *Area) { a.store32(offPlans, MaxPlansBytes+1) },
	} {
		a := newArea(t, "r")
		change(a)
		fd, _ := unix.Dup(int(a.file.Fd()))
		_, err := OpenArea(fileOf(fd, "area"))
		if err == nil || errors.Is(err, ErrVersion) != (name == "version") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", name, err)
		}
	}
	f, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := OpenArea(f); err == nil {
		t.Error("an empty file is an area")
	}
	if _, err := NewArea(make([]byte, MaxRecordBytes+1)); err == nil {
		t.Error("a record beyond the limit is taken")
	}
	if err := unix.Ftruncate(int(newArea(t, "").file.Fd()), 4096); !errors.Is(err, unix.EPERM) {
		t.Errorf("the file can be made shorter under who maps it: %v", err)
	}
}

// Plans are found again, the ones saved last that were complete, and take no handle's place.
func TestAreaKeepsPlans(t *testing.T) {
	a := newArea(t, "r")
	if p := a.Plans(); len(p) != 0 {
		t.Errorf("plans of a new area: %q", p)
	}
	for i := range 5 {
		want := bytes.Repeat([]byte{byte('a' + i)}, MaxPlansBytes-i)
		if err := a.SavePlans(want); err != nil {
			t.Fatal(err)
		}
		a = again(t, a)
		if got := a.Plans(); !bytes.Equal(got, want) {
			t.Errorf("%d bytes come back, want %d", len(got), len(want))
		}
		next, _ := plansAt(^a.load32(offPlans) & secondRecord)
		copy(a.mem[next:], "half of what comes next") // and then it was killed
		if got := a.Plans(); !bytes.Equal(got, want) {
			t.Error("plans that were not finished are taken")
		}
	}
	if err := a.SavePlans(make([]byte, MaxPlansBytes+1)); err == nil {
		t.Error("plans beyond the limit are taken")
	}
	if len(handlesOf(a)) != 0 || handleAt(MaxHandles) != plansOffset || plansOffset+2*MaxPlansBytes != areaBytes {
		t.Errorf("plans at %d, handles end at %d, the area at %d", plansOffset, handleAt(MaxHandles), areaBytes)
	}
}

// The request that was alone when its server ended is blamed for it, and no other.
func TestAreaBlamesTheDocked(t *testing.T) {
	a := newArea(t, "")
	for i := 1; i <= 5; i++ {
		for _, unique := range []uint64{10, 20} {
			if times, kills := a.Taken(unique); times != i || kills != max(0, i-1)*int(unique%20/10) {
				t.Errorf("round %d: %d came %d times, ended %d servers", i, unique, times, kills)
			}
		}
		a.Dock(10)
		a = again(t, a)
		a.Blame(1)
		a.Dock(0)
		a.Blame(1) // nobody
	}
	if a.Answered(10); !slices.Equal(a.Unanswered(), []uint64{20}) {
		t.Errorf("unanswered: %v", a.Unanswered())
	}
	a = again(t, a)
	if times, kills := a.Taken(10); times != 1 || kills != 0 {
		t.Errorf("answered, and known still: %d, %d", times, kills)
	}
}

// Requests that are gone do not take up room for ever.
func TestAreaForgetsRequestsThatAreGone(t *testing.T) {
	a := newArea(t, "")
	for i := range uint64(maxAgain) {
		a.Taken(i + 1)
	}
	if times, _ := a.Taken(1 << 40); times != 1 || len(a.Unanswered()) != maxAgain {
		t.Errorf("beyond the room: %d, %d", times, len(a.Unanswered()))
	}
	a = again(t, a)
	a.Taken(5)
	a.Taken(1 << 41)
	if left := a.Unanswered(); len(left) != 2 {
		t.Errorf("%d requests are known", len(left))
	}
	if times, _ := a.Taken(5); times != 3 {
		t.Errorf("came %d times", times)
	}
}

func TestAreaIsFull(t *testing.T) {
	a := newArea(t, "")
	a.store32(offHandles, MaxHandles)
	if err := a.Put(Handle{FH: 1}); !errors.Is(err, syscall.ENFILE) {
		t.Errorf("got %v", err)
	}
}

func FuzzDecode(f *testing.F) {
	m := message{op: opMount, n: 7, id: 9, texts: []string{"/data", "shardwell#x", ""}}
	b, err := m.encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add(binary.LittleEndian.AppendUint16(make([]byte, headerBytes), 9))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := decode(b)
		if err != nil {
			return
		}
		if again, err := m.encode(); err != nil || !bytes.Equal(again, b) {
			t.Errorf("%q: %q, %v", b, again, err)
		}
	})
}
