package fuse

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/shardwell/shardwell/objstore"
)

func content(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Errorf("read: %v", err)
	}
	return string(b)
}

// An object that is overwritten under an open handle: the handle gets ESTALE, never
// new bytes; a new open gets the new version.
//
// SEMANTICS B1: A handle reads one version of an object: the one that its open saw.
//
// SEMANTICS B2: When an object is overwritten or deleted under an open handle, a read returns the old
// bytes where they are still held, else ESTALE; never a mix of versions, never zeros, never a short
// read before the end.
//
// SEMANTICS F1: With `ttl=60s` (the default; any duration) an open sees a version that was current at most that long ago, or that was the last one known while the origin is silent (O5).
//
// SEMANTICS F2: With `open`, an open sees a version that was current after the call began; a name that
// was gone by then is ENOENT.
func TestOverwrittenWhileOpen(t *testing.T) {
	for mode, c := range map[string]Consistency{"open": {Mode: ModeOpen}, "ttl": {TTL: time.Millisecond}} {
		t.Run(mode, func(t *testing.T) {
			o := newOrigin()
			o.put("d/f", []byte("old bytes"))
			m := mount(t, o, func(cfg *Config) { cfg.Consistency = c })
			names(t, m.path("d"))
			f, err := os.Open(m.path("d/f"))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			o.put("d/f", []byte("newer and longer bytes"))
			if c.TTL > 0 {
				<-time.After(2 * tickOfSnapshots) // the promise is that old
			}
			if got := content(t, m.path("d/f")); got != "newer and longer bytes" {
				t.Errorf("a new open reads %q", got)
			}
			if _, err := f.ReadAt(make([]byte, 100), 0); !errors.Is(err, syscall.ESTALE) {
				t.Errorf("the open handle: %v", err)
			}
			if info, err := f.Stat(); err != nil || info.Size() != 9 {
				t.Errorf("fstat of the open handle: %v, %v", info, err)
			}
			if info, err := os.Stat(m.path("d/f")); err != nil || info.Size() != 22 {
				t.Errorf("stat: %v, %v", info, err)
			}
			if n := m.Stats().StaleOpens.Load(); n == 0 && mode == "open" {
				t.Error("no open was sent back")
			}
		})
	}
}

const tickOfSnapshots = time.Second / 16

// What was read before stays readable from the kernel's pages; only what is not
// there gives ESTALE.
func TestDeletedWhileOpen(t *testing.T) {
	o := newOrigin()
	o.putSized("f", 4<<20)
	m := mount(t, o, func(c *Config) { c.Consistency.Mode = ModeOpen })
	f, err := os.Open(m.path("f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	p := make([]byte, 4096)
	if _, err := f.ReadAt(p, 0); err != nil {
		t.Fatal(err)
	}
	o.delete("f")
	if _, err := f.ReadAt(p, 0); err != nil {
		t.Errorf("what was read: %v", err)
	}
	if _, err := f.ReadAt(p, 3<<20); !errors.Is(err, syscall.ESTALE) {
		t.Errorf("what was not: %v", err)
	}
	if _, err := os.Open(m.path("f")); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("a new open: %v", err)
	}
	if got := names(t, m.dir); len(got) != 0 {
		t.Errorf("still listed: %q", got)
	}
}

// With ModeOpen a name that is gone is ENOENT, also where answers of up to a second ago
// say otherwise: the look-up that follows a stale open takes those.
func TestGoneBehindOldAnswers(t *testing.T) {
	o, old := newOrigin(), newOrigin()
	o.put("f", []byte("x"))
	old.put("f", []byte("x"))
	m := mount(t, o, func(c *Config) { c.Consistency.Mode = ModeOpen })
	if got := content(t, m.path("f")); got != "x" {
		t.Fatal(got)
	}
	o.mu.Lock()
	o.old, o.oldAge = old, 500*time.Millisecond
	o.mu.Unlock()
	o.delete("f")
	for range 3 {
		if _, err := os.Open(m.path("f")); !errors.Is(err, syscall.ENOENT) {
			t.Errorf("a new open: %v", err)
		}
	}
}

// A name that is not there is asked for anew with ModeOpen: an open sees what was
// written before it.
func TestNewBehindOldAnswers(t *testing.T) {
	o, old := newOrigin(), newOrigin()
	o.put("d/other", nil)
	m := mount(t, o, func(c *Config) { c.Consistency.Mode = ModeOpen })
	names(t, m.path("d"))
	if _, err := os.Stat(m.path("d/f")); !os.IsNotExist(err) {
		t.Fatal(err)
	}
	o.mu.Lock()
	o.old, o.oldAge = old, 500*time.Millisecond
	o.mu.Unlock()
	o.put("d/f", []byte("x"))
	if got := content(t, m.path("d/f")); got != "x" {
		t.Errorf("read: %q", got)
	}
}

// What was asked before a Forget and answered after it does not count as fresh.
func TestForgetWhileAsking(t *testing.T) {
	o := newOrigin()
	o.put("f", []byte("one"))
	var session atomic.Pointer[testMount]
	once := sync.OnceFunc(func() {
		o.put("f", []byte("two!"))
		if err := session.Load().Forget(t.Context(), ""); err != nil {
			t.Error(err)
		}
	})
	o.answered = func(string) { once() }
	m := mount(t, o, nil)
	session.Store(m)
	if _, err := os.Stat(m.path("f")); err != nil {
		t.Fatal(err)
	}
	if got := content(t, m.path("f")); got != "two!" {
		t.Errorf("read: %q", got)
	}
}

// A file that becomes a directory, and back.
func TestFileBecomesDirectory(t *testing.T) {
	o := newOrigin()
	o.put("n", []byte("file"))
	m := mount(t, o, func(c *Config) { c.Consistency.Mode = ModeOpen })
	if got := content(t, m.path("n")); got != "file" {
		t.Errorf("n: %q", got)
	}
	o.delete("n")
	o.put("n/x", []byte("below"))
	if _, err := os.Open(m.path("n")); err != nil {
		t.Errorf("open of what is a directory now: %v", err)
	}
	if got := content(t, m.path("n/x")); got != "below" {
		t.Errorf("n/x: %q", got)
	}
	o.delete("n/x")
	o.put("n", []byte("file again"))
	m.Forget(t.Context(), "n")
	if got := content(t, m.path("n")); got != "file again" {
		t.Errorf("n: %q", got)
	}
}

// Within the TTL, listed names are opened and looked at without a request.
//
// SEMANTICS F1: With `ttl=60s` (the default; any duration) an open sees a version that was current at most that long ago, or that was the last one known while the origin is silent (O5).
func TestNoRequestsWithinTTL(t *testing.T) {
	o := newOrigin()
	const count = 2000
	for i := range count {
		o.put(fmt.Sprintf("shards/s-%05d.tar", i), []byte("x"))
	}
	m := mount(t, o, nil)
	if got := len(names(t, m.path("shards"))); got != count {
		t.Fatalf("%d names", got)
	}
	if lists := o.lists.Load(); lists > count/1000+2 {
		t.Errorf("%d LIST requests for %d names", lists, count)
	}
	before := o.requests()
	for i := range count {
		name := m.path(fmt.Sprintf("shards/s-%05d.tar", i))
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		if info, err := f.Stat(); err != nil || info.Size() != 1 {
			t.Fatal(info, err)
		}
		f.Close()
		if _, err := os.Stat(name + ".idx"); !os.IsNotExist(err) {
			t.Fatal(err)
		}
	}
	names(t, m.path("shards"))
	if n := o.requests() - before; n != 0 {
		t.Errorf("%d requests for opens, stats, names that are not there and a second listing", n)
	}
}

// SEMANTICS F3: With `immutable`, a name that was found and a directory that was listed are not asked
// for again until `refresh`; a name that was not there is asked for again after 60 s.
func TestImmutable(t *testing.T) {
	o := newOrigin()
	o.put("d/f", []byte("one"))
	m := mount(t, o, func(c *Config) { c.Consistency.Mode = ModeImmutable })
	if got := content(t, m.path("d/f")); got != "one" {
		t.Error(got)
	}
	before := o.requests()
	m.dropEntries(t.Context(), "")
	for range 3 {
		if got := content(t, m.path("d/f")); got != "one" {
			t.Error(got)
		}
	}
	if n := o.requests() - before; n != 0 {
		t.Errorf("%d requests", n)
	}
}

// Names that no listing showed cost one HEAD and one LIST each, once, also when there
// is none.
func TestLookupUnlisted(t *testing.T) {
	o := newOrigin()
	o.put("d/f", []byte("x"))
	m := mount(t, o, nil)
	for range 5 {
		if _, err := os.Stat(m.path("d/f")); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(m.path("d/none")); !os.IsNotExist(err) {
			t.Fatal(err)
		}
	}
	if h, l := o.heads.Load(), o.lists.Load(); h != 3 || l != 3 {
		t.Errorf("%d HEADs and %d LISTs for d, d/f and d/none", h, l)
	}
}

// The age of an answer counts: what the names say of 59 s ago holds for a second.
func TestAgeOfAnswers(t *testing.T) {
	o := newOrigin()
	o.put("f", []byte("x"))
	o.age = 59 * time.Second
	m := mount(t, o, nil)
	if _, err := os.Stat(m.path("f")); err != nil {
		t.Fatal(err)
	}
	root := m.store.Root()
	i, ok := root.Find("f")
	if age := time.Since(root.Verified(i)); !ok || age < 59*time.Second || age > 61*time.Second {
		t.Errorf("taken for %v old", age)
	}
	f, err := m.lookup(t.Context(), root, "f")
	if err != nil || f.holds > time.Second {
		t.Errorf("the kernel may keep it for %v, %v", f.holds, err)
	}
}

func TestForget(t *testing.T) {
	for _, way := range []string{"epoch", "entries"} {
		t.Run(way, func(t *testing.T) {
			o := newOrigin()
			o.put("d/f", []byte("one"))
			o.put("d/gone", []byte("one"))
			o.put("e/f", []byte("one"))
			m := mount(t, o, func(c *Config) { c.Consistency.Mode = ModeImmutable })
			m.epochs.Store(way == "epoch")
			names(t, m.path("d"))
			if _, err := os.Stat(m.path("d/new")); !os.IsNotExist(err) {
				t.Fatal(err)
			}
			for _, n := range []string{"d/f", "e/f"} {
				if got := content(t, m.path(n)); got != "one" {
					t.Fatal(got)
				}
			}
			o.put("d/f", []byte("two!"))
			o.delete("d/gone")
			o.put("d/new", []byte("two!"))
			if info, err := os.Stat(m.path("d/f")); err != nil || info.Size() != 3 {
				t.Errorf("before: %v, %v", info, err)
			}
			if err := m.Forget(t.Context(), "d/"); err != nil {
				t.Fatal(err)
			}
			if got := content(t, m.path("d/f")); got != "two!" {
				t.Errorf("after: %q", got)
			}
			if got := content(t, m.path("d/new")); got != "two!" {
				t.Errorf("new: %q", got)
			}
			if _, err := os.Stat(m.path("d/gone")); !os.IsNotExist(err) {
				t.Errorf("gone: %v", err)
			}
			if got := fmt.Sprint(names(t, m.path("d"))); got != "[f new]" {
				t.Errorf("listing: %s", got)
			}
		})
	}
}

// A directory that changes between two listings shows each name once.
func TestRelisting(t *testing.T) {
	o := newOrigin()
	o.pageSize = 10
	for i := range 100 {
		o.put(fmt.Sprintf("d/%03d", i), []byte("x"))
	}
	m := mount(t, o, func(c *Config) { c.Consistency.TTL = time.Millisecond })
	if got := len(names(t, m.path("d"))); got != 100 {
		t.Fatalf("%d names", got)
	}
	for i := range 100 {
		switch key := fmt.Sprintf("d/%03d", i); i % 4 {
		case 0:
			o.delete(key)
		case 1:
			o.put(key, []byte("changed"))
		case 2:
			o.put(key+"new", []byte("x"))
		}
	}
	<-time.After(2 * tickOfSnapshots)
	got := names(t, m.path("d"))
	if len(got) != 100 || got[0] != "001" || got[1] != "002" || got[2] != "002new" {
		t.Errorf("%d names: %q", len(got), got)
	}
	for _, n := range got {
		info, err := os.Stat(m.path("d/" + n))
		want := int64(1)
		var i int
		if fmt.Sscanf(n, "%03d", &i); i%4 == 1 {
			want = 7
		}
		if err != nil || info.Size() != want {
			t.Errorf("%s: %v, %v", n, info, err)
		}
	}
}

// SEMANTICS E1: Not found is ENOENT at open; denied is EACCES; changed or deleted under an open handle
// is ESTALE; everything transient is retried inside a budget (60 s by default), one for each call however much it asks, and then EIO.
func TestErrors(t *testing.T) {
	o := newOrigin()
	o.put("d/f", []byte("x"))
	m := mount(t, o, func(c *Config) { c.Consistency.Mode = ModeOpen })
	names(t, m.path("d"))
	set := func(err error) {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.headErr, o.listErr = err, err
	}
	for _, c := range []struct {
		err  error
		want syscall.Errno
	}{
		{fmt.Errorf("head: %w", objstore.ErrPermission), syscall.EACCES},
		{fmt.Errorf("head: %w", objstore.ErrCredentials), syscall.EACCES},
		{fmt.Errorf("head: %w", objstore.ErrThrottled), syscall.EIO},
		{io.ErrUnexpectedEOF, syscall.EIO},
		{fmt.Errorf("dial: %w", syscall.ECONNREFUSED), syscall.EIO},
		{fmt.Errorf("head: %w", objstore.ErrNoBucket), syscall.ENOENT},
		{fmt.Errorf("no answer of S3: %w", objstore.ErrInvalid), syscall.EIO},
	} {
		set(c.err)
		if _, err := os.Open(m.path("d/f")); !errors.Is(err, c.want) {
			t.Errorf("open, %v: %v", c.err, err)
		}
		if _, err := os.Stat(m.path("other")); !errors.Is(err, c.want) {
			t.Errorf("look-up, %v: %v", c.err, err)
		}
		m.Forget(t.Context(), "")
		if _, err := os.ReadDir(m.dir); !errors.Is(err, c.want) {
			t.Errorf("list, %v: %v", c.err, err)
		}
		set(nil)
		if got := content(t, m.path("d/f")); got != "x" {
			t.Errorf("after %v: %q", c.err, got)
		}
	}
}

// A key that the origin refuses for its length is not there; that is no failure of the origin.
func TestKeyTooLongForOrigin(t *testing.T) {
	o := newOrigin()
	deep := strings.Repeat(strings.Repeat("d", 250)+"/", 5)
	o.put(deep+"f", nil)
	m := mount(t, o, nil)
	if _, err := os.Stat(m.path(deep + "f")); err != nil {
		t.Fatal(err)
	}
	o.mu.Lock()
	o.headErr, o.listErr = objstore.ErrInvalid, objstore.ErrInvalid
	o.mu.Unlock()
	if _, err := os.Stat(m.path(deep + "none")); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("stat: %v", err)
	}
}

// Many callers of one directory share one listing.
func TestSharedListing(t *testing.T) {
	o := newOrigin()
	o.pageSize = 50
	for i := range 2000 {
		o.put(fmt.Sprintf("d/%05d", i), nil)
	}
	m := mount(t, o, nil)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if got := len(names(t, m.path("d"))); got != 2000 {
				t.Errorf("%d names", got)
			}
		})
	}
	wg.Wait()
	if n := o.lists.Load(); n > 2000/50+2 {
		t.Errorf("%d LISTs", n)
	}
}

// What exists is counted, not what ever did: of a directory that vanishes, all below it goes.
func TestCountsFollowTheOrigin(t *testing.T) {
	o := newOrigin()
	for i := range 20 {
		o.put(fmt.Sprintf("old/%d/f", i), []byte("0123456789"))
	}
	m := mount(t, o, nil)
	look := func() {
		t.Helper()
		for _, d := range names(t, m.dir) {
			for _, sub := range names(t, m.path(d)) {
				names(t, m.path(d+"/"+sub))
			}
		}
	}
	want := func(files, bytes int64, inodes uint64) {
		t.Helper()
		var st syscall.Statfs_t
		if err := syscall.Statfs(m.dir, &st); err != nil {
			t.Fatal(err)
		}
		if f, b := m.Listed(); f != files || b != bytes || st.Files != inodes {
			t.Errorf("%d files of %d bytes, %d inodes; want %d of %d, %d", f, b, st.Files, files, bytes, inodes)
		}
	}
	look()
	want(20, 200, 1+1+20+20)
	for i := range 20 {
		o.delete(fmt.Sprintf("old/%d/f", i))
	}
	for i := range 13 {
		o.put(fmt.Sprintf("new/%d/f", i), []byte("012"))
	}
	m.Forget(t.Context(), "")
	look()
	want(13, 39, 1+1+13+13)
	o.delete("new/1/f")
	o.put("new/2/f", []byte("changed"))
	m.Forget(t.Context(), "new/")
	look()
	want(12, 11*3+7, 1+1+12+12)
}
