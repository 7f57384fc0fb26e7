package handover

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// run starts a keeper on a socket until the test ends or stop is called.
func run(t *testing.T, socket string) (stop func()) {
	t.Helper()
	l, err := Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	k := &Keeper{GiveUp: time.Minute, StartWithin: time.Minute, Logf: func(format string, args ...any) { t.Logf("keeper: "+format, args...) }}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- k.Run(ctx, l) }()
	ended := false
	stop = func() {
		if ended {
			return
		}
		ended = true
		cancel()
		if err := <-done; err != nil {
			t.Errorf("keeper: %v", err)
		}
		if len(k.sessions)+len(k.conns) > 0 {
			t.Errorf("left: %v, %v", k.sessions, k.conns)
		}
	}
	t.Cleanup(stop)
	return stop
}

func dial(t *testing.T, socket, name string) *Client {
	t.Helper()
	c, err := Dial(socket, name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func claim(t *testing.T, c *Client) []Session {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	all, err := c.Claim(ctx, false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, s := range all {
			_ = s.Close()
		}
	})
	return all
}

// session makes one whose kernel's end is a pipe.
func session(t *testing.T, name string, listings bool) Session {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close() })
	s := Session{Dir: "/data/" + name, Device: "0:1", Dev: r, Area: newArea(t, name).file}
	if listings {
		if s.Listings, err = os.Create(filepath.Join(t.TempDir(), "names.log")); err != nil {
			t.Fatal(err)
		}
		_, _ = s.Listings.WriteString("of " + name)
	}
	t.Cleanup(func() { _ = s.Dev.Close() })
	return s
}

func recordOf(t *testing.T, s Session) string {
	t.Helper()
	a, err := OpenArea(s.Area)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	return string(a.Record())
}

func TestSessionsGoFromServerToServer(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "dir", "keeper.sock")
	run(t, socket)
	first := dial(t, socket, "first")
	if got := claim(t, first); len(got) != 0 {
		t.Errorf("a new keeper has %v", got)
	}
	var ids []uint64
	for i := range 40 { // a message is lost when the other end does not read
		id, err := first.Deposit(session(t, fmt.Sprint(i), i%2 == 0))
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	if err := errors.Join(first.Serving(ids[0]), first.Drop(ids[39]), first.Drop(77)); err != nil {
		t.Error(err)
	}
	next := dial(t, socket, "next")
	seen, err := next.Look()
	if err != nil || len(seen) != 39 || seen[0].Dev != nil {
		t.Fatalf("looked: %d, %v", len(seen), err)
	}
	for _, s := range seen {
		if "/data/"+recordOf(t, s) != s.Dir {
			t.Errorf("%s has another's area", s.Dir)
		}
		_ = s.Close()
	}
	if _, err := next.Deposit(session(t, "x", false)); err == nil || !strings.Contains(err.Error(), "another server") {
		t.Errorf("who is not the server deposits: %v", err)
	}
	waiting := make(chan []Session, 1)
	go func() {
		all, err := next.Claim(context.Background(), true)
		if err != nil {
			t.Error(err)
		}
		waiting <- all
	}()
	<-first.Yield() // it was asked to
	select {
	case <-waiting:
		t.Fatal("two servers at a time")
	default:
	}
	first.Close()
	got := <-waiting
	slices.SortFunc(got, func(a, b Session) int { return int(a.ID) - int(b.ID) })
	if len(got) != 39 || got[0].ID != ids[0] || got[0].Device != "0:1" || got[1].Listings != nil {
		t.Fatalf("%d sessions: %+v", len(got), got)
	}
	b := make([]byte, 20)
	if n, _ := got[0].Listings.ReadAt(b, 0); string(b[:n]) != "of 0" {
		t.Errorf("listings: %q", b[:n])
	}
	for i := range got {
		_ = got[i].Close()
	}
}

// A server outlives its keeper and deposits with the next.
func TestKeeperEnds(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "keeper.sock")
	stop := run(t, socket)
	server := dial(t, socket, "server")
	claim(t, server)
	s := session(t, "a", true)
	if _, err := server.Deposit(s); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(socket); err == nil || !strings.Contains(err.Error(), "another keeper") {
		t.Errorf("a second keeper: %v", err)
	}
	stop()
	<-server.Gone()
	if _, err := server.Deposit(s); err == nil {
		t.Error("deposited with nobody")
	}
	if _, err := Dial(socket, "server"); !errors.Is(err, ErrNoKeeper) {
		t.Errorf("no keeper: %v", err)
	}
	run(t, socket)
	server = dial(t, socket, "server")
	if got := claim(t, server); len(got) != 0 {
		t.Errorf("the next keeper has %v", got)
	}
	if _, err := server.Deposit(s); err != nil {
		t.Fatal(err)
	}
	next := dial(t, socket, "next")
	server.Close()
	if got := claim(t, next); len(got) != 1 || got[0].Dir != "/data/a" || recordOf(t, got[0]) != "a" {
		t.Errorf("got %v", got)
	}
}

// What is no message of the protocol ends the connection, and nothing else.
func TestKeeperRefusesNonsense(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "keeper.sock")
	run(t, socket)
	for _, b := range [][]byte{{0}, make([]byte, headerBytes), append([]byte{wireVersion}, make([]byte, headerBytes)...)} {
		c := dial(t, socket, "nonsense")
		raw, _ := c.f.SyscallConn()
		_ = raw.Control(func(fd uintptr) { _ = unix.Sendmsg(int(fd), b, unix.UnixRights(0, 1), nil, 0) })
		<-c.Gone()
	}
	c := dial(t, socket, "server")
	for _, m := range []message{{op: opMount}, {op: opDeposit, files: []int{0}}, {op: 99}, {op: opServing, id: 3}} {
		if _, err := c.call(m); err == nil {
			t.Errorf("%+v: no error", m)
		}
	}
	claim(t, c)
	if _, _, err := c.Mount("/nowhere/at/all", "shardwell#x", "rootmode=40000,user_id=0,group_id=0", 0, newArea(t, "").file, nil); err == nil {
		t.Error("mounted on nothing")
	}
}

// A service manager is given each file by its name, and passes them on.
func TestManager(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "notify")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrUnix{Name: socket})
	}
	if err != nil {
		t.Fatal(err)
	}
	manager := packets{fileOf(fd, "manager")}
	defer manager.f.Close()
	var heard []string
	told, once := make(chan struct{}), sync.Once{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			b, oob := make([]byte, 1024), make([]byte, unix.CmsgSpace(4))
			var n, oobn int
			raw, _ := manager.f.SyscallConn()
			var recvErr error
			err := raw.Read(func(fd uintptr) bool {
				n, oobn, _, _, recvErr = unix.Recvmsg(int(fd), b, oob, 0)
				return recvErr != unix.EAGAIN
			})
			if err != nil || recvErr != nil {
				return
			}
			files, _ := filesOf(oob[:oobn])
			if string(b[:n]) == "WATCHDOG=1" { // as often as it likes
				once.Do(func() { close(told) })
				continue
			}
			heard = append(heard, fmt.Sprintf("%s %d", strings.ReplaceAll(string(b[:n]), "\n", " "), len(files)))
			for _, fd := range files {
				_ = unix.Close(fd)
			}
			if strings.HasPrefix(heard[len(heard)-1], "STOPPING") {
				return
			}
		}
	}()
	t.Setenv("NOTIFY_SOCKET", socket)
	m, kept, err := OpenManager()
	if err != nil || len(kept) != 0 {
		t.Fatalf("%v, %v", kept, err)
	}
	id, err := m.Deposit(session(t, "a", true))
	if err == nil {
		err = errors.Join(m.Drop(id), m.Serving(id))
	}
	t.Setenv("WATCHDOG_USEC", "20000")
	well := make(chan struct{})
	var telling sync.WaitGroup
	telling.Go(func() { KeepNotifying(well) })
	<-told
	close(well)
	telling.Wait()
	t.Setenv("WATCHDOG_PID", "1") // it is not this process that is watched
	KeepNotifying(well)
	err = errors.Join(err, Notify("STOPPING=1"))
	if err != nil {
		t.Fatal(err)
	}
	<-done
	want := []string{"FDSTORE=1 FDPOLL=0 FDNAME=shardwell-1-dev 1", "FDSTORE=1 FDPOLL=0 FDNAME=shardwell-1-area 1", "FDSTORE=1 FDPOLL=0 FDNAME=shardwell-1-names 1",
		"BARRIER=1 1", "FDSTOREREMOVE=1 FDNAME=shardwell-1-dev 0", "FDSTOREREMOVE=1 FDNAME=shardwell-1-area 0", "FDSTOREREMOVE=1 FDNAME=shardwell-1-names 0", "STOPPING=1 0"}
	if !slices.Equal(heard, want) {
		t.Errorf("heard\n%q, want\n%q", heard, want)
	}
}
