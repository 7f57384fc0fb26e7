package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/shardwell/shardwell/internal/config"
	"github.com/shardwell/shardwell/objstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeNode answers with what it is made of.
type fakeNode struct {
	status  Status
	entries []Entry
	err     error
	mounted MountRequest // the last one
	yielded int
	atWork  chan struct{} // when not nil, Mount closes it and waits for its ctx
}

func (f *fakeNode) Mount(ctx context.Context, req MountRequest) (MountReply, error) {
	f.mounted = req
	if f.atWork != nil {
		close(f.atWork)
		<-ctx.Done()
		return MountReply{}, ctx.Err()
	}
	return MountReply{Source: req.URI, Existing: true}, f.err
}
func (f *fakeNode) Umount(context.Context, string) error  { return f.err }
func (f *fakeNode) Release(context.Context, string) error { return f.err }
func (f *fakeNode) Usage(context.Context, string) (Usage, error) {
	return Usage{Objects: 3, Bytes: 5, LocalBytes: 4}, f.err
}
func (f *fakeNode) Status(context.Context) (Status, error)       { return f.status, f.err }
func (f *fakeNode) Refresh(context.Context, string) (int, error) { return 42, f.err }
func (f *fakeNode) Pin(_ context.Context, _ string, ttl time.Duration) (int64, int64, error) {
	return 2, int64(ttl), f.err
}
func (f *fakeNode) Drain(_ context.Context, tell func(DrainProgress) error) error {
	if err := tell(DrainProgress{DoneBytes: 1, TotalBytes: 3, FailedBytes: 2}); err != nil {
		return err
	}
	return f.err
}
func (f *fakeNode) List(_ context.Context, _ ListRequest, yield func(Entry) error) error {
	for _, e := range f.entries {
		f.yielded++
		if err := yield(e); err != nil {
			return err
		}
	}
	return f.err
}

func (f *fakeNode) Read(_ context.Context, req ReadRequest, begin func(Entry) error, write func([]byte) error) error {
	if err := begin(Entry{Name: req.Name, Size: int64(2 * len(req.URI)), ETag: "e"}); err != nil {
		return err
	}
	p := []byte(req.URI)
	for range 2 {
		if err := write(p); err != nil || f.err != nil {
			return errors.Join(err, f.err)
		}
	}
	return nil
}

// serve runs a server for node until the test ends.
func serve(t *testing.T, node Node) *Client {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "dir", "control.sock")
	l, err := Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- NewServer(node, "v1.2.3", nil).Run(ctx, l) }()
	c, err := Dial(t.Context(), socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Close()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("server: %v", err)
		}
		left, _ := os.ReadDir(filepath.Dir(socket))
		if len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	})
	return c
}

func TestRoundTrip(t *testing.T) {
	node := &fakeNode{status: Status{Node: "n1", Bytes: Bytes{Origin: 7}}}
	c := serve(t, node)
	reply, err := c.Mount(t.Context(), MountRequest{URI: "s3://b/p", Dir: "/data", Options: map[string]string{"uid": "7"}})
	if err != nil || reply != (MountReply{Source: "s3://b/p", Existing: true}) {
		t.Errorf("mount: got %+v, %v", reply, err)
	}
	want := Caller{UID: uint32(os.Getuid()), GID: uint32(os.Getgid()), PID: int32(os.Getpid())}
	if node.mounted.Caller != want || node.mounted.Options["uid"] != "7" || node.mounted.Dir != "/data" {
		t.Errorf("the node saw %+v, want the caller %+v", node.mounted, want)
	}
	if st, err := c.Status(t.Context()); err != nil || st.Node != "n1" || st.Bytes.Origin != 7 {
		t.Errorf("status: got %+v, %v", st, err)
	}
	if n, err := c.Refresh(t.Context(), "s3://b/"); err != nil || n != 42 {
		t.Errorf("refresh: got %d, %v, want 42", n, err)
	}
	if u, err := c.Usage(t.Context(), "/data"); err != nil || u != (Usage{Objects: 3, Bytes: 5, LocalBytes: 4}) {
		t.Errorf("usage: got %+v, %v", u, err)
	}
	if err := c.Release(t.Context(), "/data"); err != nil {
		t.Errorf("release: %v", err)
	}
	if err := c.Umount(t.Context(), "/data"); err != nil {
		t.Errorf("umount: %v", err)
	}
	if v, err := c.Version(t.Context()); err != nil || v != (Version{"v1.2.3", os.Getpid()}) {
		t.Errorf("version: got %+v, %v", v, err)
	}
}

func TestListStreams(t *testing.T) {
	node := &fakeNode{}
	for i := range 1000 {
		node.entries = append(node.entries, Entry{Name: fmt.Sprintf("k%d\xff", i), Size: int64(i), ModTime: time.Unix(int64(i+1), 5), ETag: "e"})
	}
	node.entries = append(node.entries, Entry{Name: "dir/"})
	c := serve(t, node)
	var got []Entry
	if err := c.List(t.Context(), ListRequest{URI: "s3://b/"}, func(e Entry) error { got = append(got, e); return nil }); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, node.entries) {
		t.Errorf("got %d entries, want the %d that the node has", len(got), len(node.entries))
	}
	enough := errors.New("enough")
	if err := c.List(t.Context(), ListRequest{}, func(Entry) error { return enough }); !errors.Is(err, enough) {
		t.Errorf("an error of yield: got %v", err)
	}
}

func TestListTellsEntriesBeforeTheError(t *testing.T) {
	c := serve(t, &fakeNode{entries: []Entry{{Name: "a"}}, err: objstore.ErrPermission})
	var got int
	err := c.List(t.Context(), ListRequest{}, func(Entry) error { got++; return nil })
	if got != 1 || !errors.Is(err, objstore.ErrPermission) {
		t.Errorf("got %d entries and %v, want 1 and access denied", got, err)
	}
}

func TestErrorsKeepTextAndClass(t *testing.T) {
	for _, class := range classes {
		c := serve(t, &fakeNode{err: fmt.Errorf("head s3://b/k: %w", class.err)})
		err := c.Umount(t.Context(), "/data")
		if !errors.Is(err, class.err) {
			t.Errorf("%s: got %v, of another class", class.name, err)
		}
		if want := "head s3://b/k: " + class.err.Error(); err.Error() != want {
			t.Errorf("%s: got %q, want %q", class.name, err, want)
		}
	}
}

func TestErrorsOfTheNetworkAreUnreachable(t *testing.T) {
	_, dialErr := (&net.Dialer{}).DialContext(t.Context(), "tcp", "127.0.0.1:1")
	for _, in := range []error{dialErr, &net.DNSError{Err: "no such host", Name: "x", IsNotFound: true}} {
		err := fromWire(toWire(fmt.Errorf("list: %w", in)))
		if !errors.Is(err, ErrUnreachable) {
			t.Errorf("%v: got %v, want the class of what cannot be reached", in, err)
		}
	}
	if Classify(errors.New("x")) != nil || Classify(nil) != nil {
		t.Error("an error of no class has one")
	}
	if !errors.Is(fromWire(toWire(&config.Error{What: "x"})), ErrUsage) {
		t.Error("an error of the configuration is bad usage")
	}
}

func TestStatusHasItsPromisedNames(t *testing.T) {
	doc, err := json.Marshal(Status{
		Members: []Member{{}}, Datasets: []Dataset{{}}, Broadcasts: []Broadcast{{}}, Disks: []Disk{{}},
	}.normal())
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"node":`, `"members":[{"id":"","name":"","address":"","zone":"","rack":"","state":"","ownedShare":0}]`,
		`"datasets":[{"uri":"","objects":0,"bytes":0,"cachedBytes":0,"localBytes":0,"pinnedUntil":null}]`,
		`"seeds":{"asked":0,"answered":0}`, `"broadcasts":[{"object":"","nodesDone":0,"nodesReceiving":0,"bytesPerSecond":0,"originCopies":0,"maxOverMeanSent":0}]`,
		`"bytes":{"origin":0,"peer":0,"disk":0,"memory":0,"passthroughOpens":0,"sentToPeers":0,"fetchedFromOrigin":0,"fetchedFromPeers":0}`,
		`"disks":[{"path":"","state":"","usedBytes":0,"budgetBytes":0}]`, `"skippedKeys":[]`,
	} {
		if !strings.Contains(string(doc), want) {
			t.Errorf("status lacks %s: %s", want, doc)
		}
	}
}

func TestDirsThatAreNotCleanAreBadUsage(t *testing.T) {
	c := serve(t, &fakeNode{})
	for _, dir := range []string{"", "data", "/data/", "/data/../etc"} {
		if _, err := c.Mount(t.Context(), MountRequest{Dir: dir}); !errors.Is(err, ErrUsage) {
			t.Errorf("mount on %q: got %v, want bad usage", dir, err)
		}
	}
}

func TestStopCutsWhatDoesNotEnd(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "c.sock")
	l, err := Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan error, 1)
	node := &fakeNode{atWork: make(chan struct{})}
	server := NewServer(node, "", nil)
	server.patience = time.Millisecond
	go func() { done <- server.Run(ctx, l) }()
	c, err := Dial(t.Context(), socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	mounted := make(chan error, 1)
	go func() {
		_, err := c.Mount(t.Context(), MountRequest{Dir: "/x"})
		mounted <- err
	}()
	<-node.atWork
	cancel()
	if err := <-done; err != nil {
		t.Errorf("server: %v", err)
	}
	if err := <-mounted; err == nil {
		t.Error("mount: no error, although the server stopped")
	}
}

func TestListen(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "control.sock")
	// A socket that a killed node left behind.
	stale, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	stale.SetUnlinkOnClose(false)
	_ = stale.Close()
	if _, err := Dial(t.Context(), socket); !errors.Is(err, ErrNoNode) {
		t.Errorf("dial what a dead node left: got %v, want that no node is running", err)
	}
	l, err := Listen(socket)
	if err != nil {
		t.Fatalf("over a dead node's socket: %v", err)
	}
	if st, err := os.Stat(socket); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("mode: got %v, %v, want 0600", st.Mode(), err)
	}
	if _, err := Listen(socket); !errors.Is(err, errLocked) {
		t.Errorf("beside a living node: got %v", err)
	}
	_ = l.Close()
	if _, err := os.Stat(socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after close: got %v, want no socket", err)
	}
	if _, err := Dial(t.Context(), socket); !errors.Is(err, ErrNoNode) {
		t.Errorf("dial nothing: got %v", err)
	}
	taken := filepath.Join(t.TempDir(), "control.sock")
	if err := os.MkdirAll(filepath.Join(taken, "directory"), 0o700); err != nil {
		t.Fatal(err)
	}
	if l, err := Listen(taken); err == nil {
		_ = l.Close()
		t.Error("where a directory has the name: no error")
	} else if left, _ := os.ReadDir(filepath.Dir(taken)); len(left) != 1 {
		t.Errorf("where a directory has the name: left behind %v", left)
	}
	if _, err := Listen("/proc/none/control.sock"); err == nil || !errors.Is(err, syscall.ENOENT) {
		t.Errorf("where nothing can be made: got %v", err)
	}
}

func TestAuthorize(t *testing.T) {
	all := []Operation{OpMount, OpUmount, OpStatus, OpRefresh, OpList, OpVersion}
	const self = 500
	for _, op := range all {
		for _, uid := range []uint32{0, self} {
			if err := Authorize(Caller{UID: uid}, self, op); err != nil {
				t.Errorf("%s by %d: got %v, want it allowed", op, uid, err)
			}
		}
		err := Authorize(Caller{UID: 501}, self, op)
		if harmless := op == OpStatus || op == OpVersion; harmless != (err == nil) {
			t.Errorf("%s by another user: got %v", op, err)
		}
		if err != nil && !errors.Is(err, ErrRefused) {
			t.Errorf("%s: got %v, of another class", op, err)
		}
	}
}

func TestRead(t *testing.T) {
	node := &fakeNode{}
	c := serve(t, node)
	var got []byte
	var what Entry
	begin := func(e Entry) error { what = e; return nil }
	write := func(p []byte) error { got = append(got, p...); return nil }
	if err := c.Read(t.Context(), ReadRequest{URI: "s3://b/", Name: "n"}, begin, write); err != nil {
		t.Fatal(err)
	}
	if string(got) != "s3://b/s3://b/" || what != (Entry{Name: "n", Size: 14, ETag: "e"}) {
		t.Errorf("%q of %+v", got, what)
	}
	full := errors.New("disk full")
	if err := c.Read(t.Context(), ReadRequest{URI: "x"}, begin, func([]byte) error { return full }); !errors.Is(err, full) {
		t.Errorf("the writer's error came back as %v", err)
	}
	node.err = objstore.ErrChanged
	if err := c.Read(t.Context(), ReadRequest{URI: "x"}, begin, write); !errors.Is(err, objstore.ErrChanged) {
		t.Errorf("the node's error came back as %v", err)
	}
}
