package handover

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// fuzzBytes is what is changed of an area: all but the most of the room for handles.
const fuzzBytes = handlesOffset + 4*handleBytes

// An area that is damaged is refused, or used without a fault: nothing in it is an index before it was looked at.
func FuzzArea(f *testing.F) {
	a := newArea(f, "record")
	_ = a.SaveInit([]byte("request"), []byte("reply"))
	for i := range uint64(3) {
		_ = a.Put(Handle{FH: a.NextHandle(), NodeID: i, Unique: i, Backing: 1})
		a.Taken(i + 1)
	}
	a.Dock(2)
	f.Add([]byte{}, uint32(0))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff}, uint32(offRecord))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff}, uint32(offInit))
	f.Add([]byte{0xff, 0xff, 0x0f, 0x00}, uint32(offHandles))
	f.Add([]byte{9, 9, 9, 9, 9, 9, 9, 9}, uint32(againOffset))
	f.Add([]byte{1, 0, 0, 0, 0, 0, 0, 0}, uint32(handlesOffset+handleBytes))
	whole := append([]byte(nil), a.mem[:fuzzBytes]...)
	f.Fuzz(func(t *testing.T, change []byte, at uint32) {
		fd, err := unix.MemfdCreate("area", unix.MFD_CLOEXEC)
		if err != nil {
			t.Fatal(err)
		}
		file := os.NewFile(uintptr(fd), "area")
		if err := file.Truncate(areaBytes); err != nil {
			t.Fatal(err)
		}
		if _, err := file.WriteAt(whole, 0); err != nil {
			t.Fatal(err)
		}
		if len(change) > 0 {
			_, _ = file.WriteAt(change[:min(len(change), fuzzBytes)], int64(at%fuzzBytes))
		}
		a, err := OpenArea(file)
		if err != nil {
			return
		}
		defer a.Close()
		a.Record()
		a.Init()
		a.Blame(1)
		handles := a.Handles()
		for _, h := range handles[:min(len(handles), 5)] {
			a.Drop(h.FH)
		}
		if err := a.Put(Handle{FH: a.NextHandle()}); err == nil && len(a.Handles()) == 0 {
			t.Error("a handle is lost")
		}
		a.Taken(77)
		a.Answered(77)
		a.Unanswered()
		if err := a.SetRecord([]byte("next")); err != nil || string(a.Record()) != "next" {
			t.Errorf("record %q, %v", a.Record(), err)
		}
	})
}
