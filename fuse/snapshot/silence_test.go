package snapshot

import (
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shardwell/shardwell/fuse/tree"
)

var errSilent = errors.New("no answer")

// A disk that stops answering, at whichever call, holds nobody up: the log goes on in memory, and a successor
// finds every name under the id that it was shown with.
func TestSilentDisk(t *testing.T) {
	now := time.Now()
	const each = 6_000 // names in a generation, more than a segment
	run := func(silentFrom int) (calls int) {
		fd, err := unix.MemfdCreate("spill", unix.MFD_CLOEXEC)
		if err != nil {
			t.Fatal(err)
		}
		memory := os.NewFile(uintptr(fd), "spill")
		defer memory.Close()
		told := 0
		spill := Spill{File: memory, InTime: func(what string, call func() error, _ func()) error {
			if calls++; silentFrom > 0 && calls >= silentFrom {
				return errSilent
			}
			return call()
		}}
		path := t.TempDir()
		lost := func(error) { told++ }
		s, err := Create(path, "mount", "", now, spill, lost)
		if err != nil {
			t.Fatal(err)
		}
		for generation := range 2 {
			for i := range each {
				s.touchedAt = time.Time{} // time passes
				put(t, s.Root(), tree.Entry{Name: fmt.Sprintf("%0200d", generation*each+i), Kind: tree.File, ETag: "e"}, now)
			}
			var log *os.File
			if f := s.File(); f != nil {
				again, err := unix.Dup(int(f.Fd()))
				if err != nil {
					t.Fatal(err)
				}
				log = os.NewFile(uintptr(again), f.Name())
			}
			if err := s.Close(); err != nil && !errors.Is(err, errSilent) {
				t.Fatal(err)
			}
			if s, err = OpenFile(log, "mount", now, spill, lost); err != nil {
				t.Fatalf("silent from call %d: %v", silentFrom, err)
			}
			if n := int(s.Root().Len()); n != (generation+1)*each {
				t.Fatalf("silent from call %d: %d names of %d", silentFrom, n, (generation+1)*each)
			}
			for i := range (generation + 1) * each {
				if e, _ := s.Root().Entry(uint32(i)); e.Name != fmt.Sprintf("%0200d", i) {
					t.Fatalf("silent from call %d: entry %d is %q", silentFrom, i, e.Name)
				}
			}
		}
		_ = s.Close()
		if want := min(silentFrom, 1); told != want {
			t.Errorf("silent from call %d of %d: told %d times", silentFrom, calls, told)
		}
		return calls
	}
	all := run(0)
	for _, from := range []int{1, 2, 3, 4, 5, 1000, 5000, each - 1, each + 1, all / 2, all - 10} {
		run(from)
	}
}

// Memory that is written for the first time goes through InTime, page by page, and names cost few such calls.
func TestWritesAskTheDiskOnceAPage(t *testing.T) {
	calls := 0
	s, err := Create(t.TempDir(), "mount", "", time.Now(), Spill{InTime: func(_ string, call func() error, _ func()) error {
		calls++
		return call()
	}}, func(err error) { t.Error(err) })
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for i := range 1000 {
		s.touchedAt = time.Now() // no time passes
		put(t, s.Root(), tree.Entry{Name: fmt.Sprint(i), Kind: tree.File, ETag: "e"}, time.Now())
	}
	if pages := int(s.end/pageBytes) + 1; calls < pages || calls > 2*pages+10 {
		t.Errorf("%d calls for %d pages", calls, pages)
	}
}
