package handover

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// started is run with the keeper itself.
func started(t *testing.T, socket string) *Keeper {
	t.Helper()
	l, err := Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	k := &Keeper{GiveUp: time.Minute, StartWithin: time.Minute, Logf: func(string, ...any) {}}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- k.Run(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("keeper: %v", err)
		}
	})
	return k
}

func (k *Keeper) count() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.sessions)
}

// An answer for which nobody waits any more is no answer to what is asked next, nor a reason to part:
// the keeper would take that for the end of the server. What it did for nobody is undone.
func TestLateAnswers(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "keeper.sock")
	k := started(t, socket)
	c := dial(t, socket, "server")
	claim(t, c)
	s := session(t, "a", true)
	files, err := s.descriptors()
	if err != nil {
		t.Fatal(err)
	}
	k.mu.Lock() // it does not answer now
	for _, m := range []message{{op: opDeposit, texts: []string{s.Dir, s.Device}, files: files}, {op: opLook}} {
		q, err := c.put(m)
		if err != nil {
			t.Fatal(err)
		}
		close(q.quit)
	}
	k.mu.Unlock()
	id, err := c.Deposit(s)
	if err != nil || id != 2 {
		t.Errorf("the next deposit: %d, %v", id, err)
	}
	if err := c.Serving(id); err != nil {
		t.Error(err)
	}
	if seen, err := c.Look(); err != nil || len(seen) != 1 || seen[0].ID != 2 {
		t.Errorf("kept: %v, %v", seen, err)
	} else {
		_ = seen[0].Close()
	}
	select {
	case <-c.Gone():
		t.Error("parted")
	default:
	}
}

// A server stays the server whatever it says, and when its files do not arrive.
func TestKeeperPartsWithNoServer(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "keeper.sock")
	k := started(t, socket)
	c := dial(t, socket, "server")
	claim(t, c)
	id, err := c.Deposit(session(t, "a", true))
	if err != nil {
		t.Fatal(err)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	many := make([]int, 8)
	for i := range many {
		many[i] = int(null.Fd())
	}
	for text, m := range map[string]message{
		"did not arrive":   {op: opDeposit, files: many},
		"claimed twice":    {op: opClaim},
		"another protocol": {op: 99},
	} {
		if _, err := c.call(m); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v", text, err)
		}
	}
	next := dial(t, socket, "next")
	if _, err := next.put(message{op: opClaim}); err != nil {
		t.Fatal(err)
	}
	if err := c.Serving(id); err != nil || k.count() != 1 {
		t.Errorf("it is not the server any more: %v", err)
	}
}

// A mount whose server hangs is given up, but not one whose server never said twice that it serves (it
// is of a version that does not), nor one of which the keeper heard nothing because it was stopped itself.
func TestLookAtServed(t *testing.T) {
	const within = time.Minute
	for name, c := range map[string]struct {
		says    int
		stopped time.Duration // the keeper
		hangs   time.Duration // the server
		kept    int
	}{
		"serves":                  {2, 0, within - time.Second, 1},
		"hangs":                   {2, 0, within + time.Second, 0},
		"says so once":            {1, 0, time.Hour, 1},
		"the keeper was stopped":  {2, time.Hour, within - time.Second, 1},
		"stopped, and hangs then": {2, time.Hour, within + time.Second, 0},
	} {
		k := &Keeper{GiveUp: within, StartWithin: within, Logf: t.Logf, sessions: map[uint64]*held{}, conns: map[*conn]struct{}{}}
		server := &conn{name: "server"}
		k.server = server
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		dev, err := unix.FcntlInt(r.Fd(), unix.F_DUPFD_CLOEXEC, 0)
		if err == nil {
			err = k.add(server, &held{device: "none", dev: dev})
		}
		if err != nil {
			t.Fatal(err)
		}
		for range c.says {
			if err := k.served(server, 1); err != nil {
				t.Fatal(err)
			}
		}
		now := time.Now().Add(c.stopped)
		k.looked = now.Add(-c.stopped)
		for at := time.Duration(0); at <= c.hangs; at += lookEvery {
			k.look(now.Add(at))
		}
		if k.count() != c.kept {
			t.Errorf("%s: %d kept, want %d", name, k.count(), c.kept)
		}
		k.release()
		_, _ = r.Close(), w.Close()
	}
}

// A keeper that does not come to take a connection is one all the same: who took it for none would
// start without the mounts that it holds.
func TestDialWaitsForABusyKeeper(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "keeper.sock")
	l, err := Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	var waiting []int
	for { // until there is no more room
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			t.Fatal(err)
		}
		waiting = append(waiting, fd)
		if err := unix.Connect(fd, &unix.SockaddrUnix{Name: socket}); err == unix.EAGAIN {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	dialled := make(chan error, 1)
	go func() {
		c, err := Dial(socket, "late")
		if err == nil {
			c.Close()
		}
		dialled <- err
	}()
	k := &Keeper{GiveUp: time.Minute, StartWithin: time.Minute, Logf: func(string, ...any) {}}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	for i, fd := range waiting {
		if i < len(waiting)-1 { // the last one found no room
			if c, err := accept(l.f); err != nil || c.f.Close() != nil {
				t.Fatal(err)
			}
		}
		_ = unix.Close(fd)
	}
	go func() { done <- k.Run(ctx, l) }()
	if err := <-dialled; err != nil {
		t.Error(err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
