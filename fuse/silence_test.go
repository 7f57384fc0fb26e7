package fuse

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shardwell/shardwell/fuse/snapshot"
	"github.com/shardwell/shardwell/objstore"
)

// unmounted returns a session whose questions can be put without a kernel, in a bubble
// of synctest. They end with it.
func unmounted(t *testing.T, o *fakeOrigin, c Consistency) *Session {
	t.Helper()
	buffers := NewBuffers(8 << 20)
	s, err := New(Config{Bucket: fakeBucket, Names: o, Data: o, StateDir: t.TempDir(), Buffers: buffers, Consistency: c})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	s.runCtx = ctx
	s.serving.Add(1) // as a request
	t.Cleanup(func() {
		cancel()
		s.serving.Done()
		s.serving.Wait()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		buffers.Close()
	})
	return s
}

// asker puts questions as the kernel does, each within its budget.
type asker struct {
	*testing.T
	s *Session
}

func (c asker) dir(name string) *snapshot.Dir {
	c.Helper()
	f := c.look(c.s.store.Root(), name, 0)
	d, ok, err := c.s.directory(f.dir.NodeID(f.index))
	if err != nil || !ok {
		c.Fatalf("directory %s: %v", name, err)
	}
	return d
}

// in fails unless what began took wait, and half a second more at most.
func (c asker) in(what string, wait time.Duration, began time.Time) {
	c.Helper()
	if took := time.Since(began); took < wait || took > wait+nameGrace {
		c.Errorf("%s: took %v, want %v", what, took, wait)
	}
}

func (c asker) look(d *snapshot.Dir, name string, wait time.Duration) found {
	c.Helper()
	defer c.in("look up "+name, wait, time.Now())
	ctx, cancel := c.s.requestContext(c.Context(), opLookup)
	defer cancel()
	f, err := c.s.lookup(ctx, d, name)
	if err != nil {
		c.Errorf("look up %s: %v", name, err)
	}
	return f
}

func (c asker) lookFails(d *snapshot.Dir, name string, wait time.Duration) {
	c.Helper()
	defer c.in("look up "+name, wait, time.Now())
	ctx, cancel := c.s.requestContext(c.Context(), opLookup)
	defer cancel()
	if _, err := c.s.lookup(ctx, d, name); toErrno(err, atLookup) != syscall.EIO {
		c.Errorf("look up %s: %v, want EIO", name, err)
	}
}

func (c asker) open(f found, wait time.Duration) error {
	c.Helper()
	defer c.in("open", wait, time.Now())
	ctx, cancel := c.s.requestContext(c.Context(), opOpen)
	defer cancel()
	n, _ := c.s.node(f.dir.NodeID(f.index), true)
	return c.s.checkOpen(ctx, n)
}

// list reads a directory as a caller of readdir.
func (c asker) list(d *snapshot.Dir, wait time.Duration) (all []string, err error) {
	c.Helper()
	defer c.in("list "+d.Prefix, wait, time.Now())
	ctx, cancel := c.s.requestContext(c.Context(), opReaddir)
	defer cancel()
	dir := c.s.dirs.of(d)
	for i := uint32(0); ; i++ {
		if err := c.s.await(ctx, dir, i); err != nil {
			return all, err
		}
		dir.mu.Lock()
		for ; i < d.Len(); i++ {
			if current, v := dir.judge(i); v == show {
				all = append(all, string(d.View(current, false).Name))
				break
			} else if v == unsure {
				i--
				break
			}
		}
		end := i >= d.Len()
		dir.mu.Unlock()
		if end {
			return all, nil
		}
	}
}

func (c asker) wantList(d *snapshot.Dir, wait time.Duration, want ...string) {
	c.Helper()
	if got, err := c.list(d, wait); err != nil || !slices.Equal(got, want) {
		c.Errorf("listing of %s: %q, %v; want %q", d.Prefix, got, err, want)
	}
}

// While the origin is silent, the first caller waits for patience and nobody after it;
// what was never known waits for the budget, also after a Forget.
//
// SEMANTICS F1: With `ttl=60s` (the default; any duration) an open sees a version that was current at most that long ago, or that was the last one known while the origin is silent (O5).
func TestSilentOriginLeavesWhatIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOrigin()
		for _, k := range []string{"d/f", "d/g", "e/f", "e/sub/x"} {
			o.put(k, []byte(k))
		}
		s := unmounted(t, o, Consistency{TTL: 10 * time.Second})
		c := asker{t, s}
		d, e := c.dir("d"), c.dir("e")
		c.wantList(d, 0, "f", "g")
		f := c.look(d, "f", 0)
		if c.look(e, "f", 0).absent || !c.look(e, "none", 0).absent {
			t.Error("e/f and e/none are wrong before")
		}
		time.Sleep(11 * time.Second)
		speak := o.hush()
		o.delete("d/g")
		o.put("d/new", []byte("x"))

		c.look(d, "f", patience) // the first
		for range 3 {
			if got := c.look(d, "f", 0); got.index != f.index || got.holds > staleHolds {
				t.Errorf("d/f: %+v", got)
			}
			if err := c.open(f, 0); err != nil {
				t.Errorf("open: %v", err)
			}
			c.wantList(d, 0, "f", "g")
			if !c.look(d, "new", 0).absent || !c.look(e, "none", 0).absent || c.look(e, "f", 0).absent {
				t.Error("what is there is not as it was known")
			}
			time.Sleep(time.Minute) // an outage may be long
		}
		c.lookFails(e, "other", s.cfg.NameBudget)
		if _, err := c.list(e, s.cfg.NameBudget); toErrno(err, atLookup) != syscall.EIO {
			t.Errorf("listing that was never complete: %v", err)
		}
		if n := o.asked.Load(); n > 70 { // a probe takes 10 s and its pause; 5 minutes
			t.Errorf("a silent origin was asked %d times", n)
		}
		if n := s.stats.Silences.Load(); n != 1 {
			t.Errorf("fell silent %d times", n)
		}

		speak()
		time.Sleep(2*probePause + staleHolds)
		if s.silence.on.Load() {
			t.Error("still silent")
		}
		c.wantList(d, 0, "f", "new")
		if c.look(d, "new", 0).absent || !c.look(d, "g", 0).absent {
			t.Error("news are not seen")
		}

		root := s.store.Root()
		if !c.look(root, "none", 0).absent {
			t.Error("none is there")
		}
		time.Sleep(11 * time.Second)
		defer o.hush()()
		c.look(d, "f", patience)
		if !c.look(root, "none", 0).absent {
			t.Error("none is there in silence")
		}
		if err := s.Forget(t.Context(), "d/"); err != nil {
			t.Error(err)
		}
		c.lookFails(d, "f", s.cfg.NameBudget)
		c.lookFails(root, "none", s.cfg.NameBudget) // more is forgotten than was asked for
		c.look(e, "f", 0)
		if _, err := c.list(d, s.cfg.NameBudget); toErrno(err, atLookup) != syscall.EIO {
			t.Errorf("listing of what was forgotten: %v", err)
		}
	})
}

// The first to ask may be one that opens, or lists; they all end their wait together.
func TestFirstCallersOfSilentOrigin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOrigin()
		o.pageSize = 10
		var want []string
		for i := range 100 {
			want = append(want, fmt.Sprintf("%03d", i))
			o.put("d/"+want[i], []byte("x"))
		}
		s := unmounted(t, o, Consistency{TTL: 10 * time.Second})
		c := asker{t, s}
		d := c.dir("d")
		c.wantList(d, 0, want...)
		f := c.look(d, "000", 0)
		time.Sleep(11 * time.Second)
		defer o.hush()()
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() {
				if err := c.open(f, patience); err != nil {
					t.Error(err)
				}
			})
			wg.Go(func() { c.wantList(d, patience, want...) })
			wg.Go(func() { c.look(d, "050", patience) })
		}
		wg.Go(func() { // comes late, and waits no longer than the others
			time.Sleep(time.Second)
			c.look(d, "060", patience-time.Second)
		})
		wg.Wait()
	})
}

// An origin that refuses, or says that there is none, is not silent.
func TestRefusalIsNoSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOrigin()
		o.put("f", []byte("x"))
		s := unmounted(t, o, Consistency{TTL: 10 * time.Second})
		c := asker{t, s}
		c.look(s.store.Root(), "f", 0)
		time.Sleep(11 * time.Second)
		o.refuse(objstore.ErrPermission)
		if _, err := s.lookup(t.Context(), s.store.Root(), "f"); !errors.Is(err, objstore.ErrPermission) {
			t.Errorf("denied: %v", err)
		}
		o.refuse(objstore.ErrThrottled)
		c.look(s.store.Root(), "f", 0)
		o.refuse(objstore.ErrPermission)
		time.Sleep(2 * probePause)
		if _, err := s.lookup(t.Context(), s.store.Root(), "f"); !errors.Is(err, objstore.ErrPermission) {
			t.Errorf("denied after silence: %v", err)
		}
	})
}

// An open that promised to ask the origin fails when that is silent. What takes more than
// one question takes one budget.
//
// SEMANTICS F2: With `open`, an open sees a version that was current after the call began; a name that was gone by then is ENOENT.
func TestOpenModeAsksSilentOrigin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOrigin()
		o.put("f", []byte("x"))
		s := unmounted(t, o, Consistency{Mode: ModeOpen})
		c := asker{t, s}
		f := c.look(s.store.Root(), "f", 0)
		time.Sleep(2 * openModeAge)
		speak := o.hush()
		if err := c.open(f, s.cfg.NameBudget); toErrno(err, atLookup) != syscall.EIO {
			t.Errorf("open: %v", err)
		}
		c.lookFails(s.store.Root(), "f", s.cfg.NameBudget)
		// The HEAD is answered late, that there is none; the rest is not.
		o.delete("f")
		time.AfterFunc(s.cfg.NameBudget/2, speak)
		o.answered = func(string) { o.hush() }
		c.lookFails(s.store.Root(), "f", s.cfg.NameBudget)
	})
}

// The kernel looks a name up twice when the first answer is an error; its caller waits once.
func TestRepeatedLookupWaitsOnce(t *testing.T) {
	const budget = 2 * time.Second
	o := newOrigin()
	o.put("f", []byte("x"))
	m := mount(t, o, func(c *Config) { c.Consistency.Mode, c.NameBudget = ModeOpen, budget })
	if _, err := os.Stat(m.path("f")); err != nil {
		t.Fatal(err)
	}
	<-time.After(2 * openModeAge)
	defer o.hush()()
	began := time.Now()
	_, err := os.Stat(m.path("f"))
	if took := time.Since(began); !errors.Is(err, syscall.EIO) || took < budget || took > budget+1500*time.Millisecond {
		t.Errorf("%v after %v, want EIO after %v", err, took, budget)
	}
}

// Through the kernel: what is complete reads on by name.
//
// SEMANTICS O5: With `ttl=…` and `immutable`, an origin is silent for a mount once it has kept a question about known names waiting for 2 s; from then until it answers (it is asked every few seconds), look-ups, opens and listings that were complete once are answered at once with what was known last, "there is none" included. What was never known, or was forgotten by `refresh`, waits for the budget (E1), and so does all that `open` asks.
func TestSilentOriginThroughTheKernel(t *testing.T) {
	const budget = 3 * time.Second
	o := newOrigin()
	o.put("d/f", []byte("cached"))
	m := mount(t, o, func(c *Config) { c.Consistency.TTL, c.NameBudget = 200*time.Millisecond, budget })
	names(t, m.path("d"))
	if _, err := os.Stat(m.path("d/none")); !os.IsNotExist(err) {
		t.Fatal(err)
	}
	<-time.After(400 * time.Millisecond)
	speak := o.hush()
	defer speak()
	quick := func(limit time.Duration) {
		began := time.Now()
		if got := content(t, m.path("d/f")); got != "cached" {
			t.Errorf("d/f: %q", got)
		}
		if got := fmt.Sprint(names(t, m.path("d"))); got != "[f]" {
			t.Errorf("listing: %s", got)
		}
		if _, err := os.Stat(m.path("d/none")); !os.IsNotExist(err) {
			t.Errorf("none: %v", err)
		}
		if took := time.Since(began); took > limit {
			t.Errorf("took %v", took)
		}
	}
	quick(patience + time.Second)
	quick(time.Second)
	<-time.After(2 * staleHolds)
	quick(time.Second)
	if err := m.Forget(t.Context(), "d/f"); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	_, err := os.Stat(m.path("d/f"))
	if took := time.Since(began); !errors.Is(err, syscall.EIO) || took < budget || took > budget+1500*time.Millisecond {
		t.Errorf("forgotten: %v after %v, want EIO after %v", err, took, budget)
	}
	o.put("d/new", []byte("new"))
	speak()
	<-time.After(2*probePause + staleHolds)
	if got := content(t, m.path("d/new")); got != "new" {
		t.Errorf("d/new: %q", got)
	}
}
