package node

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shardwell/shardwell/fuse"
	"github.com/shardwell/shardwell/fuse/handover"
	"github.com/shardwell/shardwell/internal/config"
	"github.com/shardwell/shardwell/internal/control"
)

// keeperOn runs a keeper until the test ends or stop is called.
func keeperOn(t *testing.T, socket string) (stop func()) {
	t.Helper()
	l, err := handover.Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	k := &handover.Keeper{GiveUp: time.Minute, StartWithin: time.Minute, Logf: func(format string, args ...any) { t.Logf("keeper: "+format, args...) }}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- k.Run(ctx, l) }()
	ended := false
	stop = func() {
		if !ended {
			ended = true
			cancel()
			if err := <-done; err != nil {
				t.Errorf("keeper: %v", err)
			}
		}
	}
	t.Cleanup(stop)
	return stop
}

// takeTurn starts a node that goes on with the mounts of a keeper.
func takeTurn(t *testing.T, cfg config.Config) *running {
	t.Helper()
	turn, err := AwaitTurn(t.Context(), cfg, TakeOverWait, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return startWith(t, cfg, turn)
}

// A node is stopped and another goes on with its mounts: names, open files and options are
// what they were, though the second was configured otherwise; a keeper that is replaced
// meanwhile changes nothing; and a node that is drained takes its mounts away.
func TestMountsOutliveTheNode(t *testing.T) {
	needMounts(t)
	o := newOrigin(t, map[string][]byte{"train/a": []byte("hello"), "train/b": []byte("world")})
	cfg := testConfig(t, o.URL())
	cfg.KeeperSocket = filepath.Join(t.TempDir(), "keeper.sock")
	stopKeeper := keeperOn(t, cfg.KeeperSocket)
	first := takeTurn(t, cfg)
	dir := mountpoint(t)
	mustMount(t, first, "s3://data/train", dir, map[string]string{"fileMode": "0400"})
	fd, err := unix.Open(filepath.Join(dir, "a"), unix.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	var before, after unix.Stat_t
	if err := unix.Stat(filepath.Join(dir, "b"), &before); err != nil {
		t.Fatal(err)
	}
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	if _, mounted := fuse.FindMount(dir); !mounted {
		t.Fatal("the mount went with the node")
	}

	cfg.VerifyReads, cfg.UID = "always", 1234 // of mounts to come
	second := takeTurn(t, cfg)
	p := make([]byte, 5)
	if n, err := unix.Pread(fd, p, 0); n != 5 || err != nil || string(p) != "hello" {
		t.Errorf("the file that was open: %q, %d, %v", p, n, err)
	}
	if err := unix.Stat(filepath.Join(dir, "b"), &after); err != nil || after.Ino != before.Ino || after.Uid != before.Uid || after.Mode&0o777 != 0o400 {
		t.Errorf("a name: %+v, before %+v, %v", after, before, err)
	}
	if reply := mustMount(t, second, "s3://data/train", dir, map[string]string{"fileMode": "0400", "verifyReads": "auto", "uid": "0"}); !reply.Existing {
		t.Errorf("the same mount again: %+v", reply)
	}
	if st, err := second.Status(t.Context()); err != nil || st.Keeper != "connected" || st.TakingOver != 0 || len(st.Mounts) != 1 {
		t.Errorf("status: %+v, %v", st, err)
	}

	stopKeeper()
	keeperOn(t, cfg.KeeperSocket)
	until(t, "the next keeper has the mount", func() bool { return strings.Contains(second.log.String(), "it holds the mounts from now on") })
	if err := second.stop(); err != nil {
		t.Fatal(err)
	}
	third := takeTurn(t, cfg)
	if n, err := unix.Pread(fd, p, 0); n != 5 || err != nil {
		t.Errorf("under the third node: %d, %v", n, err)
	}
	third.leave() // as drain does in the end
	until(t, "a node that was drained takes its mount away", func() bool {
		_, mounted := fuse.FindMount(dir)
		return !mounted
	})
}

// What this program cannot go on with is refused while the old node serves it.
func TestTurnIsRefused(t *testing.T) {
	cfg := config.Default()
	cfg.KeeperSocket, cfg.Endpoint = filepath.Join(t.TempDir(), "keeper.sock"), "http://127.0.0.1:1"
	log := slog.New(slog.DiscardHandler)
	if _, err := AwaitTurn(t.Context(), cfg, TakeOverCheck, log); !errors.Is(err, handover.ErrNoKeeper) {
		t.Errorf("a check without a keeper: %v", err)
	}
	if turn, err := AwaitTurn(t.Context(), cfg, TakeOverWait, log); err != nil || turn.current() != nil {
		t.Errorf("a start without a keeper: %+v, %v", turn, err)
	}
	keeperOn(t, cfg.KeeperSocket)
	m, err := planMount(cfg, control.MountRequest{URI: "s3://data/x", Dir: "/data"})
	if err != nil {
		t.Fatal(err)
	}
	good, err := recordFor(cfg, m, control.MountRequest{URI: "s3://data/x", Dir: "/data", Credentials: control.Credentials{AccessKey: "a", SecretKey: "b"}})
	if err != nil {
		t.Fatal(err)
	}
	other := cfg
	other.ControlSocket = "/run/other.sock"
	foreign, err := recordFor(other, m, control.MountRequest{URI: "s3://data/x", Dir: "/data"})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name    string
		record  []byte
		version byte
		want    string
	}{
		{"good", good, handover.LayoutVersion, ""},
		{"layout", good, handover.LayoutVersion + 1, "another version"},
		{"description", []byte(`{"version":2}`), handover.LayoutVersion, "description 2, not 1"},
		{"nonsense", []byte(`nonsense`), handover.LayoutVersion, "cannot be read"},
		{"foreign", foreign, handover.LayoutVersion, "belongs to the node behind /run/other.sock: give this node a keeper of its own"},
		{"option", []byte(strings.Replace(string(good), `"uid"`, `"color"`, 1)), handover.LayoutVersion, `unknown option "color"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			server, err := handover.Dial(cfg.KeeperSocket, "the old one")
			if err != nil {
				t.Fatal(err)
			}
			defer server.Close()
			if _, err := server.Claim(t.Context(), false); err != nil {
				t.Fatal(err)
			}
			area, err := handover.NewArea(c.record)
			if err != nil {
				t.Fatal(err)
			}
			defer area.Close()
			if _, err := area.File().WriteAt([]byte{c.version}, 8); err != nil {
				t.Fatal(err)
			}
			r, w, err := os.Pipe() // stands for the kernel's end
			if err != nil {
				t.Fatal(err)
			}
			defer w.Close()
			defer r.Close()
			id, err := server.Deposit(handover.Session{Dir: "/data", Device: "0:1", Dev: r, Area: area.File()})
			if err != nil {
				t.Fatal(err)
			}
			_, err = AwaitTurn(t.Context(), cfg, TakeOverCheck, log)
			if c.want == "" && err != nil {
				t.Errorf("refused: %v", err)
			} else if c.want != "" {
				oneGoodLine(t, err, "the mount on /data", c.want)
			}
			select {
			case <-server.Yield():
				t.Error("the old node was told to end")
			case <-server.Gone():
				t.Error("the old node lost its keeper")
			default:
			}
			if err := server.Drop(id); err != nil {
				t.Error(err)
			}
		})
	}
	r, err := recordOf(good, cfg)
	if err != nil || r.Credentials.SecretKey != "b" {
		t.Fatalf("%+v, %v", r, err)
	}
	again, err := planMount(cfg, r.request())
	if err != nil || !again.sameData(m) || !reflect.DeepEqual(again.options, m.options) {
		t.Errorf("the options of a mount: %+v, were %+v, %v", again.options, m.options, err)
	}
}

// A mount that a node cannot go on with does not keep it from others for ever: when the
// mount is gone, it is let go.
func TestMountThatCannotGoOn(t *testing.T) {
	needMounts(t)
	o := newOrigin(t, map[string][]byte{"a": []byte("x")})
	cfg := testConfig(t, o.URL())
	cfg.KeeperSocket = filepath.Join(t.TempDir(), "keeper.sock")
	keeperOn(t, cfg.KeeperSocket)
	first := takeTurn(t, cfg)
	dir := mountpoint(t)
	mustMount(t, first, "s3://data/", dir, nil)
	if err := first.mounts.all()[0].area.SetRecord([]byte("nonsense")); err != nil {
		t.Fatal(err)
	}
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	if _, err := AwaitTurn(t.Context(), cfg, TakeOverWait, slog.New(slog.DiscardHandler)); !errors.Is(err, handover.ErrVersion) {
		t.Errorf("the look at it: %v", err)
	}
	client, err := handover.Dial(cfg.KeeperSocket, "one that does not look")
	if err != nil {
		t.Fatal(err)
	}
	sessions, err := client.Claim(t.Context(), false)
	if err != nil || len(sessions) != 1 {
		t.Fatalf("%v, %v", sessions, err)
	}
	second := startWith(t, cfg, &Turn{client: client, from: client, sessions: sessions})
	until(t, "it was tried", func() bool { return strings.Contains(second.log.String(), "cannot go on with a mount") })
	if second.keeping.takingOver() != 1 {
		t.Error("a mount that is not served counts as one that is")
	}
	if err := unix.Unmount(dir, unix.MNT_FORCE|unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	until(t, "it was let go", func() bool { return second.keeping.takingOver() == 0 })
	mustMount(t, second, "s3://data/", dir, nil)
	if err := second.Umount(t.Context(), dir); err != nil {
		t.Error(err)
	}
}

// A mount that was detached while it was in use, and another on the same directory, each go on as what they were:
// the end of the first takes nothing from the second.
func TestDetachedMountIsNotTheNextOne(t *testing.T) {
	needMounts(t)
	o := newOrigin(t, map[string][]byte{"a/f": []byte("first"), "b/f": []byte("second")})
	cfg := testConfig(t, o.URL())
	cfg.KeeperSocket = filepath.Join(t.TempDir(), "keeper.sock")
	keeperOn(t, cfg.KeeperSocket)
	first := takeTurn(t, cfg)
	dir := mountpoint(t)
	open := func() int {
		fd, err := unix.Open(filepath.Join(dir, "f"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		return fd
	}
	read := func(fd int, want string) {
		t.Helper()
		b := make([]byte, 10)
		if n, err := unix.Pread(fd, b, 0); err != nil || string(b[:n]) != want {
			t.Errorf("read %q, %v, want %q", b[:max(n, 0)], err, want)
		}
	}
	mustMount(t, first, "s3://data/a", dir, nil)
	a := open()
	closeA := sync.OnceFunc(func() { _ = unix.Close(a) })
	defer closeA()
	if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	mustMount(t, first, "s3://data/b", dir, nil)
	b := open()
	closeB := sync.OnceFunc(func() { _ = unix.Close(b) })
	defer closeB()
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	second := takeTurn(t, cfg)
	<-second.keeping.adopted
	read(a, "first")
	read(b, "second")
	if all := second.mounts.all(); len(all) != 1 || all[0].uri != "s3://data/b" {
		t.Errorf("mounts: %v", all)
	}
	closeA()
	until(t, "the detached one has ended", func() bool { return len(second.mounts.running()) == 1 })
	read(b, "second")
	closeB()
	if err := second.Umount(t.Context(), dir); err != nil {
		t.Error(err)
	}
}

// A connection to the keeper may end though that lives: the node has its mounts kept again by what they are.
func TestNodeReturnsToItsKeeper(t *testing.T) {
	needMounts(t)
	o := newOrigin(t, map[string][]byte{"a": []byte("x")})
	cfg := testConfig(t, o.URL())
	cfg.KeeperSocket = filepath.Join(t.TempDir(), "keeper.sock")
	keeperOn(t, cfg.KeeperSocket)
	first := takeTurn(t, cfg)
	dir := mountpoint(t)
	mustMount(t, first, "s3://data/", dir, nil)
	m := first.mounts.all()[0]
	_, before := first.keeping.current()
	before.Close()
	until(t, "it is kept again", func() bool {
		_, now := first.keeping.current()
		return now != nil && now != before && m.keptBy(now) != 0
	})
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	second := takeTurn(t, cfg)
	<-second.keeping.adopted
	if all := second.mounts.all(); len(all) != 1 {
		t.Errorf("%d mounts", len(all))
	}
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(dir, "a"), &st); err != nil || st.Size != 1 {
		t.Errorf("%d bytes, %v", st.Size, err)
	}
	if err := second.Umount(t.Context(), dir); err != nil {
		t.Error(err)
	}
}
