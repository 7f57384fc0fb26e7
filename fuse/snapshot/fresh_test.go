package snapshot

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/shardwell/shardwell/fuse/tree"
)

func distrust(t *testing.T, d *Dir, prefix string) {
	t.Helper()
	if err := d.Distrust(prefix); err != nil {
		t.Fatal(err)
	}
}

// again opens the log that another process left, whose last words may be anywhere.
func again(t *testing.T, path string, s *Store, now time.Time) *Store {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s, err := Open(path, "mount", now, Spill{}, func(err error) { t.Error(err) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// What was known of names, and of which directory all are, a successor knows as well, and what a
// refresh made doubtful is doubtful to it.
func TestFreshnessIsFoundAgain(t *testing.T) {
	path, now := t.TempDir(), time.Now()
	s, err := Create(path, "mount", "", now, Spill{}, func(err error) { t.Error(err) })
	if err != nil {
		t.Fatal(err)
	}
	names := []string{"a", "ab", "b", "gone"}
	fill := func(d *Dir, at time.Time) {
		for _, name := range names {
			put(t, d, tree.Entry{Name: name, Kind: tree.File, Size: 1, ETag: "e"}, at)
		}
	}
	verified := func(d *Dir, name string) time.Time {
		i, ok := d.Find(name)
		if !ok {
			t.Fatalf("%s is not known", name)
		}
		return d.Verified(i)
	}
	root := s.Root()
	fill(root, now)
	if err := root.Remove("gone", now, root.Ask()); err != nil {
		t.Fatal(err)
	}
	asked := root.Ask()
	distrust(t, root, "a")
	if _, _, err := root.Put(tree.Entry{Name: "doubtful", Kind: tree.File, Size: 2, ETag: "f"}, now, asked); err != nil {
		t.Fatal(err)
	}
	s = again(t, path, s, now.Add(time.Minute))
	root = s.Root()
	for name, known := range map[string]bool{"a": false, "ab": false, "b": true, "doubtful": false, "gone": true} {
		if at := verified(root, name); at.IsZero() == known || at.After(now.Add(-300*24*time.Hour)) {
			t.Errorf("%s was verified at %v, want known %v and long ago", name, at, known)
		}
	}
	if at := root.Listed(); !at.IsZero() {
		t.Errorf("listed at %v, and it never was", at)
	}
	for _, ago := range []time.Duration{50 * time.Second, 10 * time.Second} { // the second overwrites the first
		if err := root.SetListed(now.Add(-ago)); err != nil {
			t.Fatal(err)
		}
	}
	put(t, root, tree.Entry{Name: "later", Kind: tree.File, Size: 1, ETag: "e"}, now)
	end := s.end
	s = again(t, path, s, now)
	root = s.Root()
	if at := root.Listed(); !at.Equal(time.Unix(0, now.Add(-10*time.Second).UnixNano())) || s.end != end {
		t.Errorf("listed at %v, %v before the restart", at, now.Sub(at))
	}
	for _, name := range append(names, "later") {
		if age := now.Sub(verified(root, name)); age < 9*time.Second || age > 11*time.Second {
			t.Errorf("%s was verified %v ago", name, age)
		}
	}
	distrust(t, root, "")
	s = again(t, path, s, now)
	root = s.Root()
	if at := verified(root, "b"); !at.IsZero() || !root.Listed().IsZero() {
		t.Errorf("trusted after a refresh: %v, %v", at, root.Listed())
	}
}

// A clock that was set back makes no listing one that never ages.
func TestListingFromTheFutureIsNone(t *testing.T) {
	path, now := t.TempDir(), time.Now()
	s, err := Create(path, "mount", "", now, Spill{}, func(err error) { t.Error(err) })
	if err != nil {
		t.Fatal(err)
	}
	put(t, s.Root(), tree.Entry{Name: "a", Kind: tree.File, Size: 1, ETag: "e"}, now)
	if err := s.Root().SetListed(now); err != nil {
		t.Fatal(err)
	}
	s = again(t, path, s, now.Add(-time.Hour))
	if at := s.Root().Listed(); !at.IsZero() {
		t.Errorf("listed at %v", at)
	}
	i, _ := s.Root().Find("a")
	if at := s.Root().Verified(i); at.IsZero() || at.After(now.Add(-300*24*time.Hour)) {
		t.Errorf("verified at %v", at)
	}
}

// A note about a directory that there is not is damage.
func TestNoteOfNoDirectoryIsDamage(t *testing.T) {
	path, now := t.TempDir(), time.Now()
	s, err := Create(path, "mount", "", now, Spill{}, func(err error) { t.Error(err) })
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Root().SetListed(now); err != nil {
		t.Fatal(err)
	}
	binary.LittleEndian.PutUint32(s.at(s.Root().listed)[offSerial:], 77)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if s, err := Open(path, "mount", now, Spill{}, func(err error) { t.Error(err) }); err == nil {
		t.Error("opened")
		_ = s.Close()
	}
}
