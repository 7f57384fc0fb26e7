package snapshot

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/shardwell/shardwell/fuse/tree"
	"golang.org/x/sys/unix"
)

func create(t testing.TB, dir string, now time.Time) *Store {
	t.Helper()
	s, err := Create(dir, "mount", "p/", now, Spill{}, func(err error) { t.Error(err) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func put(t testing.TB, d *Dir, e tree.Entry, at time.Time) (uint32, bool) {
	t.Helper()
	index, changed, err := d.Put(e, at, d.Ask())
	if err != nil {
		t.Fatal(err)
	}
	return index, changed
}

func TestVersions(t *testing.T) {
	now := time.Now()
	s := create(t, t.TempDir(), now)
	d := s.Root()
	if d.Prefix != "p/" || d.ID != RootID {
		t.Fatalf("root: %+v", d)
	}
	one := tree.Entry{Name: "f", Kind: tree.File, Size: 10, ETag: "e1", ModTime: time.Unix(5, 6)}
	i, changed := put(t, d, one, now)
	if !changed || d.NodeID(i) != 1<<32 {
		t.Fatalf("first: %d, %v, id %x", i, changed, d.NodeID(i))
	}
	if j, changed := put(t, d, one, now.Add(time.Second)); j != i || changed {
		t.Errorf("the same again: %d, %v", j, changed)
	}
	if at := d.Verified(i); at.After(now.Add(time.Second)) || at.Before(now.Add(time.Second-tick)) {
		t.Errorf("verified %v after the start", at.Sub(now))
	}
	two := one
	two.ETag, two.Size = "e2", 20
	if j, changed := put(t, d, two, now); j != i || changed {
		t.Errorf("old news: %d, %v", j, changed)
	}
	j, changed := put(t, d, two, now.Add(2*time.Second))
	if !changed || j == i || d.Current(i) != j || !d.View(j, true).Replaces || s.Counts() != (Counts{Files: 1, Bytes: 20}) {
		t.Errorf("new version: %d, %v, current %d, %+v", j, changed, d.Current(i), s.Counts())
	}
	if e, _ := d.Entry(i); e != one {
		t.Errorf("the old record is %+v", e)
	}
	if err := d.Remove("f", now.Add(time.Second), d.Ask()); err != nil || d.Current(i) != j {
		t.Errorf("removed by old news: %v", err)
	}
	if err := d.Remove("f", now.Add(3*time.Second), d.Ask()); err != nil {
		t.Fatal(err)
	}
	if k, ok := d.Find("f"); !ok || !d.View(k, false).Gone || s.Counts() != (Counts{}) {
		t.Errorf("gone: %d, %v", k, ok)
	}
	if err := d.Remove("never", now, d.Ask()); err != nil || d.Len() != 3 {
		t.Errorf("removal of the unknown: %v, %d records", err, d.Len())
	}
	if k, changed := put(t, d, one, now.Add(4*time.Second)); !changed || d.Current(i) != k {
		t.Errorf("back again: %d, %v", k, changed)
	}
	distrust(t, d, "f")
	if k, _ := d.Find("f"); !d.Verified(k).IsZero() {
		t.Error("still trusted")
	}
	asked := d.Ask()
	distrust(t, d, "other")
	if _, _, err := d.Put(one, now.Add(5*time.Second), asked); err != nil || !d.Verified(d.Current(i)).IsZero() {
		t.Errorf("trusted on an answer to what was asked before: %v", err)
	}
	if _, _, err := d.Put(one, now.Add(5*time.Second), d.Ask()); err != nil || d.Verified(d.Current(i)).IsZero() {
		t.Errorf("not trusted: %v", err)
	}
}

// toyDir is what a Dir should hold.
type toyDir struct {
	entries []tree.Entry
	gone    []bool
	newest  map[string]uint32
}

// Random changes of some directories, compared with a toy, through closing and
// opening again, as after the end of the process that wrote.
func TestRandomReopen(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	path, now := t.TempDir(), time.Now()
	s := create(t, path, now)
	toys := map[uint64]*toyDir{RootID: {newest: map[string]uint32{}}}
	ids := []uint64{RootID}
	for step := range 20000 {
		id := ids[r.IntN(len(ids))]
		toy, d := toys[id], s.Known(id)
		now = now.Add(tick)
		e := tree.Entry{Name: fmt.Sprintf("%d%s", r.IntN(200), strings.Repeat("x", r.IntN(2)*r.IntN(240))), Kind: tree.File, Size: r.Int64N(3),
			ETag: []string{"", "0123456789abcdef0123456789abcdef", "0123456789ABCDEF0123456789abcdef", "multi-3"}[r.IntN(4)]}
		switch old, known := toy.newest[e.Name]; {
		case r.IntN(4) == 0:
			if err := d.Remove(e.Name, now, d.Ask()); err != nil {
				t.Fatal(err)
			}
			if known && !toy.gone[old] {
				toy.newest[e.Name] = uint32(len(toy.entries))
				toy.entries, toy.gone = append(toy.entries, tree.Entry{Name: e.Name}), append(toy.gone, true)
			}
		default:
			if r.IntN(10) == 0 {
				e = tree.Entry{Name: e.Name, Kind: tree.Dir}
			}
			index, changed := put(t, d, e, now)
			if same := known && !toy.gone[old] && toy.entries[old].SameVersion(e); changed == same {
				t.Fatalf("step %d: changed %v, known %v", step, changed, known)
			} else if !same {
				toy.newest[e.Name] = uint32(len(toy.entries))
				toy.entries, toy.gone = append(toy.entries, e), append(toy.gone, false)
			}
			if index != toy.newest[e.Name] {
				t.Fatalf("step %d: index %d, want %d", step, index, toy.newest[e.Name])
			}
			if r.IntN(2) == 0 { // perhaps one that has vanished, which somebody is still in
				index = uint32(r.IntN(len(toy.entries)))
				e = toy.entries[index]
			}
			if e.Kind == tree.Dir && len(ids) < 60 && r.IntN(9) == 0 && toys[d.NodeID(index)] == nil {
				sub, err := s.DirOf(d.NodeID(index), d.Prefix+e.Name+"/")
				if err != nil {
					t.Fatal(err)
				}
				ids = append(ids, sub.ID)
				toys[sub.ID] = &toyDir{newest: map[string]uint32{}}
			}
		}
		if step%100 != 0 {
		} else if want := existing(s, toys, RootID); s.Counts() != want {
			t.Fatalf("step %d: counts %+v, want %+v", step, s.Counts(), want)
		}
		if step%7000 == 6999 {
			created, counts, records := s.Created(), s.Counts(), s.Records()
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			var err error
			if s, err = Open(path, "mount", now, Spill{}, func(err error) { t.Error(err) }); err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			if !s.Created().Equal(created) || s.Counts() != counts || s.Records() != records {
				t.Errorf("reopened: created %v, %+v, %d records; want %v, %+v, %d", s.Created(), s.Counts(), s.Records(), created, counts, records)
			}
			compare(t, s, toys)
		}
	}
	compare(t, s, toys)
}

// existing counts what is in a directory and below it.
func existing(s *Store, toys map[uint64]*toyDir, id uint64) (c Counts) {
	toy := toys[id]
	if toy == nil {
		return Counts{}
	}
	for _, i := range toy.newest {
		switch e := toy.entries[i]; {
		case toy.gone[i]:
		case e.Kind == tree.Dir:
			c.Dirs++
			c.add(existing(s, toys, s.Known(id).NodeID(i)), 1)
		default:
			c.add(Counts{Files: 1, Bytes: e.Size}, 1)
		}
	}
	return c
}

func compare(t *testing.T, s *Store, toys map[uint64]*toyDir) {
	t.Helper()
	for id, toy := range toys {
		d := s.Known(id)
		if d == nil {
			t.Fatalf("directory %x is lost", id)
		}
		if int(d.Len()) != len(toy.entries) {
			t.Fatalf("%d records, want %d", d.Len(), len(toy.entries))
		}
		first := map[string]bool{}
		for i, want := range toy.entries {
			got, gone := d.Entry(uint32(i))
			if gone != toy.gone[i] || got.Name != want.Name || !gone && got != want {
				t.Fatalf("record %d: %+v, gone %v; want %+v", i, got, gone, want)
			}
			if v := d.View(uint32(i), false); v.Replaces != first[want.Name] {
				t.Fatalf("record %d of %q: replaces %v", i, want.Name, v.Replaces)
			}
			first[want.Name] = true
			if c := d.Current(uint32(i)); c != toy.newest[want.Name] {
				t.Fatalf("newest of %q: %d, want %d", want.Name, c, toy.newest[want.Name])
			}
			if owner, index := s.Owner(d.NodeID(uint32(i))); owner != d || index != uint32(i) {
				t.Fatalf("node id %x leads elsewhere", d.NodeID(uint32(i)))
			}
		}
	}
}

func TestOpenErrors(t *testing.T) {
	now := time.Now()
	if _, err := Open(t.TempDir(), "mount", now, Spill{}, func(err error) { t.Error(err) }); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("nothing there: %v", err)
	}
	path := t.TempDir()
	s := create(t, path, now)
	put(t, s.Root(), tree.Entry{Name: "f", Kind: tree.File}, now)
	if _, err := Open(path, "another", now, Spill{}, func(err error) { t.Error(err) }); !errors.Is(err, ErrForeign) {
		t.Errorf("another mount's: %v", err)
	}
	if owner, _ := s.Owner(1<<32 | 77); owner != nil {
		t.Error("an id that was never given out has an owner")
	}
	if owner, _ := s.Owner(99 << 32); owner != nil {
		t.Error("a serial that was never given out has an owner")
	}
}

// A disk that takes no more does not keep names from being shown.
func TestFullDisk(t *testing.T) {
	now := time.Now()
	full := filepath.Join(t.TempDir(), "full")
	if err := os.Mkdir(full, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", full, "tmpfs", 0, "size=1500k"); err != nil {
		skip(t, fmt.Sprintf("mount tmpfs: %v", err))
	}
	t.Cleanup(func() { _ = unix.Unmount(full, unix.MNT_DETACH) })
	for name, dir := range map[string]string{"filled": full, "no directory": "/proc/none"} {
		t.Run(name, func(t *testing.T) {
			var lost []error
			s, err := Create(dir, "mount", "", now, Spill{}, func(err error) { lost = append(lost, err) })
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			d := s.Root()
			const count = 50_000
			for i := range count {
				put(t, d, tree.Entry{Name: fmt.Sprint(i), Kind: tree.File, ETag: "0123456789abcdef0123456789abcdef"}, now)
			}
			for i := range count {
				if e, _ := d.Entry(uint32(i)); e.Name != fmt.Sprint(i) {
					t.Fatalf("entry %d: %+v", i, e)
				}
			}
			if len(lost) != 1 {
				t.Errorf("told %d times: %v", len(lost), lost)
			}
		})
	}
}

// A process may be killed at any store: whatever bytes of the last record are
// there, the records before it are read, and writing goes on.
func TestKilledWhileWriting(t *testing.T) {
	now := time.Now()
	path := t.TempDir()
	s := create(t, path, now)
	for i := range 10 {
		put(t, s.Root(), tree.Entry{Name: fmt.Sprint("file", i), Kind: tree.File, ETag: "e"}, now)
	}
	copy(s.at(s.end)[4:], strings.Repeat("\xff", 100)) // all but the length
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		s, err := Open(path, "mount", now, Spill{}, func(err error) { t.Error(err) })
		if err != nil {
			t.Fatal(err)
		}
		if n := s.Root().Len(); n < 10 {
			t.Errorf("%d records", n)
		}
		put(t, s.Root(), tree.Entry{Name: "after", Kind: tree.File}, now)
		if e, gone := s.Root().Entry(10); e.Name != "after" || gone || e.ETag != "" {
			t.Errorf("record after: %+v", e)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func FuzzOpen(f *testing.F) {
	dir := f.TempDir()
	s, err := Create(dir, "m", "", time.Now(), Spill{}, func(err error) { f.Error(err) })
	if err != nil {
		f.Fatal(err)
	}
	id := s.Root().NodeID(0)
	_, _, _ = s.Root().Put(tree.Entry{Name: "d", Kind: tree.Dir}, time.Now(), 0)
	sub, _ := s.DirOf(id, "d/")
	_, _, _ = sub.Put(tree.Entry{Name: "f", Kind: tree.File, ETag: "0123456789abcdef0123456789abcdef"}, time.Now(), 0)
	seed := append([]byte(nil), s.at(0)[:s.end]...)
	_ = s.Close()
	f.Add(seed, uint16(0), byte(0))
	f.Fuzz(func(t *testing.T, log []byte, at uint16, with byte) {
		if len(log) > 1<<16 || len(log) == 0 {
			return
		}
		log = append([]byte(nil), log...)
		log[int(at)%len(log)] ^= with
		path := t.TempDir()
		name := filepath.Join(path, "names.log")
		if err := errors.Join(os.WriteFile(name, log, 0o600), os.Truncate(name, segmentBytes)); err != nil {
			t.Fatal(err)
		}
		s, err := Open(path, "m", time.Now(), Spill{}, func(err error) { t.Error(err) })
		if err != nil {
			return
		}
		defer s.Close()
		s.Dirs(func(d *Dir) bool {
			for i := range d.Len() {
				e, _ := d.Entry(i)
				if _, ok := d.Find(e.Name); !ok {
					t.Fatalf("%q is not found", e.Name)
				}
				d.Current(i)
			}
			return true
		})
		if _, _, err := s.Root().Put(tree.Entry{Name: "new", Kind: tree.File}, time.Now(), 0); err != nil {
			t.Fatal(err)
		}
	})
}

// The memory of a name, beside its record in the page cache.
func BenchmarkMillionNames(b *testing.B) {
	for b.Loop() {
		now := time.Now()
		s := create(b, b.TempDir(), now)
		runtime.GC()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for i := range 1_000_000 {
			put(b, s.Root(), tree.Entry{Name: fmt.Sprintf("train-%09d.tar", i), Kind: tree.File, Size: 1 << 30, ETag: "0123456789abcdef0123456789abcdef"}, now)
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/1e6, "heap-B/name")
		b.ReportMetric(float64(s.end)/1e6, "log-B/name")
		_ = s.Close()
	}
}

// What a full disk did not take is found by a successor, from the same files.
func TestSpilledLogIsReadAgain(t *testing.T) {
	now := time.Now()
	full := filepath.Join(t.TempDir(), "full")
	if err := os.Mkdir(full, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", full, "tmpfs", 0, "size=1500k"); err != nil {
		skip(t, fmt.Sprintf("mount tmpfs: %v", err))
	}
	t.Cleanup(func() { _ = unix.Unmount(full, unix.MNT_DETACH) })
	for name, dir := range map[string]string{"filled": full, "no directory": "/proc/none"} {
		t.Run(name, func(t *testing.T) {
			fd, err := unix.MemfdCreate("spill", unix.MFD_CLOEXEC)
			if err != nil {
				t.Fatal(err)
			}
			memory := os.NewFile(uintptr(fd), "spill")
			defer memory.Close()
			spill := Spill{File: memory, Offset: 8192}
			if err := memory.Truncate(spill.Offset); err != nil {
				t.Fatal(err)
			}
			told := 0
			s, err := Create(dir, "mount", "", now, spill, func(error) { told++ })
			if err != nil {
				t.Fatal(err)
			}
			const each = 30_000
			for generation := range 3 {
				for i := range each {
					put(t, s.Root(), tree.Entry{Name: fmt.Sprint(generation*each + i), Kind: tree.File, ETag: "e"}, now)
				}
				var log *os.File
				if f := s.File(); f != nil {
					again, err := unix.Dup(int(f.Fd()))
					if err != nil {
						t.Fatal(err)
					}
					log = os.NewFile(uintptr(again), f.Name())
				}
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				if s, err = OpenFile(log, "mount", now, spill, func(err error) { t.Error(err) }); err != nil {
					t.Fatal(err)
				}
				if n := s.Root().Len(); n != uint32(each*(generation+1)) {
					t.Fatalf("generation %d: %d records", generation, n)
				}
			}
			for i := range 3 * each {
				if e, _ := s.Root().Entry(uint32(i)); e.Name != fmt.Sprint(i) {
					t.Fatalf("entry %d: %+v", i, e)
				}
			}
			if told != 1 {
				t.Errorf("told %d times", told)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// skip ends a test that this machine cannot run; on CI it fails.
func skip(t *testing.T, why string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatal(why)
	}
	t.Skip(why)
}
