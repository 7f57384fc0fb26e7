package node

import (
	"errors"
	"fmt"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shardwell/shardwell/internal/config"
	"github.com/shardwell/shardwell/internal/control"
	"github.com/shardwell/shardwell/objstore"
	"github.com/shardwell/shardwell/objstore/objstoretest"
)

// tenants is a cluster whose own credentials read nothing, before an origin that checks who
// asks for what.
type tenants struct {
	*objstoretest.Guard
	url   string
	nodes []*running
}

// mayRead allows what lies under a prefix, and listings of what leads there.
func mayRead(prefix string) func(objstore.Op, string) bool {
	return func(op objstore.Op, name string) bool { return strings.HasPrefix(name, prefix) }
}

func newTenants(t *testing.T, files map[string][]byte, count int, change func(int, *config.Config)) *tenants {
	t.Helper()
	return newTenantsFor(t, files, count, func(i int, cfg *config.Config) {
		cfg.AuthTTL = config.Duration(time.Hour) // nothing expires unless a test wants it
		cfg.PrefetchShards = 0                   // only what the test reads is asked for
		if change != nil {
			change(i, cfg)
		}
	})
}

func newTenantsFor(t *testing.T, files map[string][]byte, count int, change func(int, *config.Config)) *tenants {
	t.Helper()
	g := objstoretest.NewGuard("data", proxyTo(t, newOrigin(t, files)))
	front := httptest.NewServer(g)
	t.Cleanup(front.Close)
	w := &tenants{Guard: g, url: front.URL}
	w.nodes = startCluster(t, front.URL, count, change)
	return w
}

// keysOf are credentials of a user of [tenants].
func keysOf(user string) control.Credentials {
	return control.Credentials{AccessKey: user, SecretKey: "secret of " + user}
}

// user makes a user known who may do what may says.
func (w *tenants) user(name string, may func(objstore.Op, string) bool) {
	w.Set(name, objstoretest.User{Secret: "secret of " + name, May: may})
}

// mount mounts the bucket on a node for a user.
func (w *tenants) mount(t *testing.T, node int, user, uri string) string {
	t.Helper()
	dir := mountpoint(t)
	if _, err := w.nodes[node].Mount(t.Context(), control.MountRequest{URI: uri, Dir: dir, Credentials: keysOf(user)}); err != nil {
		t.Fatalf("mount for %s on node %d: %v", user, node, err)
	}
	return dir
}

// denied checks that a file cannot be opened, though it is there.
func denied(t *testing.T, what, path string) {
	t.Helper()
	f, err := openFile(path)
	if err == nil {
		f.close()
	}
	if !errors.Is(err, syscall.EACCES) {
		t.Errorf("%s: open %s: %v, want EACCES", what, filepath.Base(path), err)
	}
}

// namesIn lists a directory of a mount by the bare system calls.
func namesIn(dir string) (found []string, err error) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	buf := make([]byte, 64<<10)
	for {
		n, err := unix.ReadDirent(fd, buf)
		if err != nil || n <= 0 {
			slices.Sort(found)
			return found, err
		}
		_, _, found = unix.ParseDirent(buf[:n], -1, found)
	}
}

// SEMANTICS T1: A mount with credentials of its own shows bytes, wherever they are cached, only of objects that these
// were allowed to read at the origin at most `--auth-ttl` (60 s) before the open; that they may list an object does not count as reading it.
//
// SEMANTICS T2: Names and sizes that its credentials may not list stay unknown to a mount, whoever else has listed them.
func TestTenantsAreApart(t *testing.T) {
	needMounts(t)
	files := map[string][]byte{"alice/large": randomBytes(6<<20+777, 5), "bob/x": randomBytes(300<<10, 7)}
	for i := range 6 {
		files[fmt.Sprintf("alice/%d", i)] = randomBytes(600<<10+i, uint64(i))
	}
	w := newTenants(t, files, 3, nil)
	w.user("alice", mayRead("alice/"))
	w.user("bob", mayRead("bob/"))
	w.user("carol", func(op objstore.Op, _ string) bool { return op == objstore.OpList }) // may list only
	alices := map[string][]byte{}
	for key, data := range files {
		if rest, ok := strings.CutPrefix(key, "alice/"); ok {
			alices[rest] = data
		}
	}
	// Alice reads all of it on two nodes: it is on the third as well, which owns a part.
	for node := range 2 {
		if err := readAll(w.mount(t, node, "alice", "s3://data/alice"), alices); err != nil {
			t.Fatal(err)
		}
	}
	w.onceBy(t, "alice", alices)
	for node := range 3 {
		carol := w.mount(t, node, "carol", "s3://data/")
		if got, err := namesIn(filepath.Join(carol, "alice")); err != nil || len(got) != len(alices) {
			t.Errorf("carol, who may list, sees %q, %v", got, err)
		}
		bob := w.mount(t, node, "bob", "s3://data/bob")
		if err := readAll(bob, map[string][]byte{"x": files["bob/x"]}); err != nil {
			t.Error(err)
		}
		dir := mountpoint(t)
		_, err := w.nodes[node].Mount(t.Context(), control.MountRequest{URI: "s3://data/alice", Dir: dir, Credentials: keysOf("bob")})
		if !errors.Is(err, objstore.ErrPermission) {
			t.Errorf("bob mounts what is alice's: %v", err)
		}
		for name := range alices {
			denied(t, "carol", filepath.Join(carol, "alice", name))
			uri := "s3://data/alice/" + name
			for _, who := range []string{"bob", "carol"} {
				err := w.nodes[node].Read(t.Context(), control.ReadRequest{URI: uri, Credentials: keysOf(who)},
					func(control.Entry) error { return errors.New("tells the size") }, func([]byte) error { return errors.New("gives bytes") })
				if !errors.Is(err, objstore.ErrPermission) {
					t.Errorf("%s reads %s: %v", who, uri, err)
				}
			}
		}
		err = w.nodes[node].List(t.Context(), control.ListRequest{URI: "s3://data/alice/", Credentials: keysOf("bob")},
			func(e control.Entry) error { return fmt.Errorf("names %s", e.Name) })
		if !errors.Is(err, objstore.ErrPermission) {
			t.Errorf("bob lists alice's: %v", err)
		}
		// Nor does the node itself, whose own credentials may do nothing, show any of it.
		err = w.nodes[node].List(t.Context(), control.ListRequest{URI: "s3://data/alice/"}, func(e control.Entry) error { return fmt.Errorf("names %s", e.Name) })
		if !errors.Is(err, objstore.ErrPermission) {
			t.Errorf("the node lists: %v", err)
		}
	}
	for _, n := range w.nodes {
		for _, secret := range []string{"secret of", "X-Amz-Signature", "X-Amz-Credential"} {
			if strings.Contains(n.log.String(), secret) {
				t.Errorf("the log of %s shows %q", n.name, secret)
			}
		}
	}
}

// onceBy checks that a user's objects left the origin once, each with his signature, and that
// some of it was asked for by a member that has a grant only.
func (w *tenants) onceBy(t *testing.T, user string, files map[string][]byte) {
	t.Helper()
	granted, sum := 0, int64(0)
	heads, seen := map[string]int{}, map[string]int{}
	for _, a := range w.Asked() {
		if a.User != user || a.Status != 200 {
			t.Errorf("%+v", a)
		}
		if a.Granted {
			granted++
		}
		switch a.Op {
		case objstore.OpHead:
			heads[a.Name]++
		case objstore.OpGet:
			var first, last int64
			if _, err := fmt.Sscanf(a.Range, "bytes=%d-%d", &first, &last); err != nil {
				t.Errorf("%+v: %v", a, err)
			}
			sum += last - first + 1
			if seen[a.Name+a.Range]++; seen[a.Name+a.Range] > 1 {
				t.Errorf("asked for twice: %+v", a)
			}
		}
	}
	if sum != sizeOf(files) {
		t.Errorf("%d bytes left the origin, of %d", sum, sizeOf(files))
	}
	for key := range files {
		if n := heads[user+"/"+key]; n != 1 {
			t.Errorf("%d proofs for %s", n, key)
		}
	}
	if granted == 0 {
		t.Error("no member asked by a grant")
	}
}
