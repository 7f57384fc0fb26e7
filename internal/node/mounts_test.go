package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shardwell/shardwell/fuse"
	"github.com/shardwell/shardwell/internal/config"
	"github.com/shardwell/shardwell/internal/control"
	"github.com/shardwell/shardwell/objstore"
)

func mustMount(t *testing.T, n *running, uri, dir string, options map[string]string) control.MountReply {
	t.Helper()
	reply, err := n.Mount(t.Context(), control.MountRequest{URI: uri, Dir: dir, Options: options})
	if err != nil {
		t.Fatalf("mount %s on %s: %v", uri, dir, err)
	}
	return reply
}

// refuseWith runs a server that refuses everything.
func refuseWith(t *testing.T, status int, code string) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/xml")
		w.WriteHeader(status)
		fmt.Fprintf(w, "<Error><Code>%s</Code><Message>said the\nserver</Message></Error>", code)
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// deaf runs a server that takes connections and says nothing.
func deaf(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return "http://" + l.Addr().String()
}

// promptEnough bounds what a user waits for a mount that cannot be made.
const promptEnough = askPatience + probeTimeout + 2*time.Second

// Each mount that cannot be made says why in one line, soon, and leaves nothing behind.
func TestMountsThatCannotBeMade(t *testing.T) {
	needMounts(t)
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	t.Setenv("HOME", t.TempDir())
	for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_SHARED_CREDENTIALS_FILE"} {
		t.Setenv(name, "")
	}
	o := newOrigin(t, map[string][]byte{"train/a.tar": []byte("hello")})
	n := start(t, testConfig(t, o.URL()))
	dir := mountpoint(t)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	busy := mountpoint(t)
	if err := unix.Mount("nothing", busy, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(busy, unix.MNT_DETACH)
	taken := start(t, testConfig(t, o.URL())).mountOn(t, "s3://data/")
	from := func(endpoint string) map[string]string { return map[string]string{"endpoint": endpoint} }
	for _, c := range []struct {
		name, uri, dir string
		options        map[string]string
		class          error // nil for none
		want           []string
	}{
		{"not a URI", "data", dir, nil, nil, []string{`"data" is not a URI`}},
		{"unknown option", "s3://data/", dir, map[string]string{"color": "red"}, nil, []string{`unknown option "color"`}},
		{"option of the node", "s3://data/", dir, map[string]string{"cacheDir": "/x"}, nil, []string{`option "cacheDir" is the node's`}},
		{"timeout of the node", "s3://data/", dir, map[string]string{"originTimeout": "1s"}, nil, []string{"set --origin-timeout where the node is started"}},
		{"relative", "s3://data/", "data", nil, nil, []string{`"data" is not an absolute path`}},
		{"missing", "s3://data/", filepath.Join(dir, "none"), nil, nil, []string{"none: no such directory: make it first"}},
		{"a file", "s3://data/", file, nil, nil, []string{"file: not a directory: name one"}},
		{"under a file", "s3://data/", filepath.Join(file, "x"), nil, nil, []string{"not a directory"}},
		{"busy", "s3://data/", busy, nil, nil, []string{"busy: nothing (tmpfs) is mounted there: choose another directory"}},
		{"of another process", "s3://data/", taken, nil, nil, []string{"s3://data/ is mounted there by another process: unmount it first"}},
		{"a file's name", "s3://data/train/a.tar", dir, nil, objstore.ErrInvalid, []string{"s3://data/train/a.tar names an object, not a directory"}},
		{"nothing there", "s3://data/test/", dir, nil, objstore.ErrNotExist, []string{`s3://data/test/: nothing in the bucket begins with "test/"`}},
		{"no bucket", "s3://other/", dir, nil, objstore.ErrNoBucket, []string{"s3://other/"}},
		{"other options of the node's endpoint", "s3://data/", dir, map[string]string{"region": "eu-west-1"}, nil, []string{"with other options already: give the same"}},
		{"not an origin", "file:///etc", dir, nil, nil, []string{"file:///etc", "--origin-dir /etc"}},
		{"nobody listens", "s3://data/", dir, from("http://" + freeAddr(t)), control.ErrUnreachable, []string{"connection refused"}},
		{"unknown host", "s3://data/", dir, from("http://nowhere.invalid"), control.ErrUnreachable, []string{"nowhere.invalid"}},
		{"deaf", "s3://data/", dir, from(deaf(t)), control.ErrUnreachable, []string{"no answer within"}},
		{"not S3", "s3://data/", dir, from(refuseWith(t, 404, "")), objstore.ErrInvalid, []string{"not S3's; is the endpoint right?"}},
		{"denied", "s3://data/", dir, from(refuseWith(t, 403, "AccessDenied")), objstore.ErrPermission, []string{"AccessDenied: said the server"}},
		{"skewed", "s3://data/", dir, from(refuseWith(t, 403, "RequestTimeTooSkewed")), objstore.ErrClockSkew, []string{"clock differs"}},
		{"busy origin", "s3://data/", dir, from(refuseWith(t, 503, "SlowDown")), objstore.ErrThrottled, []string{"SlowDown"}},
		{"no credentials", "s3://data/", dir, map[string]string{"endpoint": o.URL() + "/", "anonymous": "false"}, nil, []string{"no usable credentials"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			began := time.Now()
			_, err := n.Mount(t.Context(), control.MountRequest{URI: c.uri, Dir: c.dir, Options: c.options})
			if took := time.Since(began); took > promptEnough {
				t.Errorf("the user waited %v", took)
			}
			oneGoodLine(t, err, c.want...)
			if got := control.Classify(err); got != c.class && c.class != nil {
				t.Errorf("%v: class %v, want %v", err, got, c.class)
			}
			if len(n.mounts.byDir)+len(n.mounts.live) > 0 {
				t.Errorf("mounts stay behind: %v, %v", n.mounts.byDir, n.mounts.live)
			}
			if left, _ := os.ReadDir(filepath.Join(n.cfg.CacheDirs[0].Path, sessionsName)); len(left) > 0 {
				t.Errorf("state stays behind: %v", left)
			}
			if m, ok := fuse.FindMount(dir); ok {
				t.Errorf("a mount stays behind: %+v", m)
			}
			for origin, e := range n.origins.endpoints {
				if e.users != 0 {
					t.Errorf("%s has %d users", origin, e.users)
				}
			}
		})
	}
	mustMount(t, n, "s3://data/", dir, nil) // it is none the worse
}

// Without credentials, a node says so; and a mount that failed for its options does not
// bind the next one to them.
func TestOptionsOfAFailedMountAreForgotten(t *testing.T) {
	needMounts(t)
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	t.Setenv("HOME", t.TempDir())
	o := newOrigin(t, map[string][]byte{"k": []byte("hello")})
	n := start(t, testConfig(t, "http://"+freeAddr(t)))
	dir := mountpoint(t)
	_, err := n.Mount(t.Context(), control.MountRequest{URI: "s3://data/", Dir: dir, Options: map[string]string{"endpoint": o.URL(), "anonymous": "false"}})
	oneGoodLine(t, err, "no usable credentials")
	if !errors.Is(err, objstore.ErrCredentials) {
		t.Errorf("class of %v", err)
	}
	anonymous := map[string]string{"endpoint": o.URL()}
	mustMount(t, n, "s3://data/", dir, anonymous)
	if err := readAll(dir, map[string][]byte{"k": []byte("hello")}); err != nil {
		t.Error(err)
	}
	// While it is mounted, others use it alike.
	other := map[string]string{"endpoint": o.URL(), "region": "eu-west-1"}
	_, err = n.Mount(t.Context(), control.MountRequest{URI: "s3://data/", Dir: mountpoint(t), Options: other})
	oneGoodLine(t, err, "with other options already")
	if err := n.Umount(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	mustMount(t, n, "s3://data/", dir, other)
}

func TestEndpointsAreBounded(t *testing.T) {
	o := newOrigins(config.Default(), nil)
	defer o.Close()
	var releases []func()
	admit := func(i int) error {
		cfg := config.Default()
		cfg.Endpoint = fmt.Sprintf("http://host-%d", i)
		release, err := o.admit(cfg, objstore.Bucket{Origin: cfg.Endpoint, Name: "b"})
		if err == nil {
			releases = append(releases, release)
		}
		return err
	}
	for i := range maxEndpoints {
		if err := admit(i); err != nil {
			t.Fatal(err)
		}
	}
	oneGoodLine(t, admit(maxEndpoints), "64 endpoints are in use")
	releases[7]()
	releases[7]() // once is once
	if err := admit(maxEndpoints); err != nil {
		t.Errorf("one was given back: %v", err)
	}
	if _, ok := o.endpoints["http://host-7"]; ok || len(o.endpoints) != maxEndpoints {
		t.Errorf("%d endpoints are known, the one given back: %v", len(o.endpoints), ok)
	}
}

func TestTheSameMountTwice(t *testing.T) {
	needMounts(t)
	o := newOrigin(t, map[string][]byte{"train/a": []byte("hello"), "test/b": []byte("x")})
	n := start(t, testConfig(t, o.URL()))
	dir := mountpoint(t)
	if reply := mustMount(t, n, "s3://data/train", dir, nil); reply.Existing || reply.Source != "s3://data/train" {
		t.Errorf("the first: %+v", reply)
	}
	if reply := mustMount(t, n, "s3://data/train/", dir, nil); !reply.Existing || reply.Source != "s3://data/train" {
		t.Errorf("the second: %+v", reply)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	if reply := mustMount(t, n, "s3://data/train", link, nil); !reply.Existing {
		t.Errorf("by a link: %+v", reply)
	}
	for _, c := range []struct {
		uri     string
		options map[string]string
		want    string
	}{
		{"s3://data/test", nil, "s3://data/train is mounted there already: unmount it first"},
		{"s3://data/train", map[string]string{"fileMode": "0400"}, "with other options: unmount it first"},
		{"s3://data/train", map[string]string{"region": "eu-west-1"}, "with other options: unmount it first"},
		{"s3://data/train", map[string]string{"uid": "77"}, "with other options: unmount it first"},
	} {
		_, err := n.Mount(t.Context(), control.MountRequest{URI: c.uri, Dir: dir, Options: c.options})
		oneGoodLine(t, err, c.want)
	}
	if err := n.Umount(t.Context(), link); err != nil {
		t.Errorf("unmount by a link: %v", err)
	}
	oneGoodLine(t, n.Umount(t.Context(), dir), "nothing of this node is mounted there")
	if reply := mustMount(t, n, "s3://data/test", link, nil); reply.Existing {
		t.Errorf("after the unmount: %+v", reply)
	}
	if m, ok := fuse.FindMount(dir); !ok || m.URI() != "s3://data/test" {
		t.Errorf("mounted by a link: %+v", m)
	}
}

func TestUmountOfWhatIsInUse(t *testing.T) {
	needMounts(t)
	o := newOrigin(t, map[string][]byte{"k": []byte("hello")})
	n := start(t, testConfig(t, o.URL()))
	dir := n.mountOn(t, "s3://data/")
	f, err := openFile(filepath.Join(dir, "k"))
	if err != nil {
		t.Fatal(err)
	}
	oneGoodLine(t, n.Umount(t.Context(), dir), "busy")
	if got, err := f.readAll(); err != nil || string(got) != "hello" {
		t.Errorf("the open file: %q, %v", got, err)
	}
	f.close()
	if err := n.Umount(t.Context(), dir); err != nil {
		t.Errorf("when nobody uses it any more: %v", err)
	}
}

// Somebody unmounts behind the node's back, while a file is open.
func TestMountOnWhatWasDetached(t *testing.T) {
	needMounts(t)
	data := randomBytes(3<<20, 1)
	o := newOrigin(t, map[string][]byte{"k": data})
	n := start(t, testConfig(t, o.URL()))
	dir := n.mountOn(t, "s3://data/")
	f, err := openFile(filepath.Join(dir, "k"))
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	if reply := mustMount(t, n, "s3://data/", dir, nil); reply.Existing {
		t.Error("what was detached counts as mounted")
	}
	if err := readAll(dir, map[string][]byte{"k": data}); err != nil {
		t.Error(err)
	}
	before := n.mounts.totals()
	if got, err := f.readAll(); err != nil || !bytes.Equal(got, data) {
		t.Errorf("the file that was open: %d bytes, %v", len(got), err)
	}
	f.close()
	until(t, "the detached session ends", func() bool {
		n.mounts.mu.Lock()
		defer n.mounts.mu.Unlock()
		return len(n.mounts.live) == 1
	})
	if err := readAll(dir, map[string][]byte{"k": data}); err != nil {
		t.Errorf("the new mount, after the old session's end: %v", err)
	}
	after := n.mounts.totals()
	for op := range before.ops {
		if after.ops[op].count < before.ops[op].count {
			t.Errorf("the count of operation %d fell from %d to %d", op, before.ops[op].count, after.ops[op].count)
		}
	}
	if err := unix.Unmount(dir, 0); err != nil {
		t.Fatal(err)
	}
	err = n.Umount(t.Context(), dir) // it may have noticed, or not
	oneGoodLine(t, err, "mounted there")
}

// A node ends promptly while readers wait for an origin that does not answer, and they get an error.
func TestStopWhileReadersWait(t *testing.T) {
	needMounts(t)
	o := newOrigin(t, map[string][]byte{"k": randomBytes(1<<20, 1)})
	asked := make(chan struct{}, 100)
	proxy := proxyTo(t, o)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/k") {
			asked <- struct{}{}
			<-r.Context().Done()
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	defer front.Close()
	n := start(t, testConfig(t, front.URL))
	dir := n.mountOn(t, "s3://data/")
	read := make(chan error, 1)
	go func() {
		read <- readAll(dir, map[string][]byte{"k": nil})
	}()
	<-asked
	began := time.Now()
	if err := n.stop(); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("stopping took %v", took)
	}
	if err := <-read; err == nil {
		t.Error("the reader got bytes from nowhere")
	}
	if _, ok := fuse.FindMount(dir); ok {
		t.Error("the mount stays behind")
	}
	if _, err := n.Mount(t.Context(), control.MountRequest{URI: "s3://data/", Dir: dir}); !errors.Is(err, ErrStopping) {
		t.Errorf("mount on a node that has ended: %v", err)
	}
	if _, err := n.Status(t.Context()); !errors.Is(err, ErrStopping) {
		t.Errorf("status of a node that has ended: %v", err)
	}
}

// Mounts and unmounts race one another and the end of the node.
func TestMountsRaceTheEnd(t *testing.T) {
	needMounts(t)
	o := newOrigin(t, map[string][]byte{"k": []byte("hello")})
	n := start(t, testConfig(t, o.URL()))
	dir := mountpoint(t)
	mustMount(t, n, "s3://data/", dir, nil)
	done := make(chan struct{})
	const callers = 8
	for i := range callers {
		go func() {
			defer func() { done <- struct{}{} }()
			for {
				var err error
				if i%2 == 0 {
					_, err = n.Mount(context.Background(), control.MountRequest{URI: "s3://data/", Dir: dir})
				} else {
					err = n.Umount(context.Background(), dir)
				}
				if errors.Is(err, ErrStopping) {
					return
				}
			}
		}()
	}
	until(t, "some mounts were made", func() bool { return o.Counter.Lists.Load() > 0 })
	if err := n.stop(); err != nil {
		t.Error(err)
	}
	for range callers {
		<-done
	}
	if m, ok := fuse.FindMount(dir); ok {
		t.Errorf("a mount stays behind: %+v", m)
	}
}

// A caller that goes away while its mount is being made takes it along.
func TestMountThatIsGivenUp(t *testing.T) {
	needMounts(t)
	n := start(t, testConfig(t, deaf(t)))
	dir := mountpoint(t)
	ctx, cancel := context.WithCancel(t.Context())
	asked := make(chan error, 1)
	go func() {
		_, err := n.Mount(ctx, control.MountRequest{URI: "s3://data/", Dir: dir})
		asked <- err
	}()
	until(t, "the directory is reserved", func() bool {
		n.mounts.mu.Lock()
		defer n.mounts.mu.Unlock()
		_, ok := n.mounts.byDir[dir]
		return ok
	})
	_, err := n.Mount(t.Context(), control.MountRequest{URI: "s3://data/", Dir: dir})
	oneGoodLine(t, err, "is being mounted by another request right now")
	oneGoodLine(t, n.Umount(t.Context(), dir), "is being mounted right now")
	cancel()
	if err := <-asked; !errors.Is(err, context.Canceled) {
		t.Errorf("mount that was given up: %v", err)
	}
	if len(n.mounts.byDir) > 0 {
		t.Error("the directory stays reserved")
	}
}

// A directory of its own file system serves as an origin too.
func TestDirectoryOrigin(t *testing.T) {
	needMounts(t)
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "train"), 0o755); err != nil {
		t.Fatal(err)
	}
	data := randomBytes(1<<20, 5)
	if err := os.WriteFile(filepath.Join(root, "train", "a"), data, 0o644); err != nil {
		t.Fatal(err)
	}
	cfg := testConfig(t, "http://127.0.0.1:1")
	cfg.OriginDirs = []string{root}
	n := start(t, cfg)
	dir := mountpoint(t)
	mustMount(t, n, "file://"+root+"/train", dir, nil)
	if err := readAll(dir, map[string][]byte{"a": data}); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "b"), nil, 0o600); !errors.Is(err, syscall.EROFS) {
		t.Errorf("writing: %v", err)
	}
}

func TestDetachTakesMountsAwayThatAreInUse(t *testing.T) {
	t.Parallel()
	needMounts(t)
	files := dataset()
	n := startCluster(t, newOrigin(t, files).URL(), 1, nil)[0]
	dir := n.mountOn(t, "s3://data/")
	in, err := os.Open(dir) // busy
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	n.Detach()
	if e, ok := fuse.FindMount(dir); ok {
		t.Errorf("left: %v", e)
	}
	n.Detach() // nothing to do
}
