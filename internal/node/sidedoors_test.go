package node

import (
	"errors"
	"fmt"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/shardwell/shardwell/fuse"
	"github.com/shardwell/shardwell/internal/config"
	"github.com/shardwell/shardwell/internal/control"
	"github.com/shardwell/shardwell/objstore"
)

// Who may list a tar that another tenant has read learns nothing of what is in it, nor how much of it is cached: not by
// the view of its members, by attributes, by a plan that names it, by the commands, or by their errors.
func TestSideDoorsAreShut(t *testing.T) {
	needMounts(t)
	data, names, bodies := shard(t, 40, 3000)
	w := newTenants(t, map[string][]byte{"d/x.tar": data}, 2, func(_ int, cfg *config.Config) {
		cfg.TarView = true
		cfg.PrefetchShards = 2
	})
	w.user("alice", nil)
	w.user("carol", onlyList)
	for node := range w.nodes {
		alices := w.mount(t, node, "alice", "s3://data/")
		if got := membersIn(t, filepath.Join(alices, "d/.tar/x.tar")); len(got) != len(names) {
			t.Fatalf("alice sees %d members of %d", len(got), len(names))
		}
		if err := readAll(filepath.Join(alices, "d/.tar/x.tar"), bodies); err != nil {
			t.Fatal(err)
		}
		if err := readAll(alices, map[string][]byte{"d/x.tar": data}); err != nil {
			t.Fatal(err)
		}
		carols := w.mount(t, node, "carol", "s3://data/")
		if got, err := namesIn(filepath.Join(carols, "d")); err != nil || len(got) != 1 {
			t.Fatalf("carol, who may list, sees %q, %v", got, err)
		}
		givePlan(t, carols, "d/x.tar")
		denied(t, "carol", filepath.Join(carols, "d/x.tar"))
		denied(t, "carol", filepath.Join(carols, "d/.tar/x.tar", names[0]))
		if got, err := namesIn(filepath.Join(carols, "d/.tar/x.tar")); err == nil || len(got) > 0 {
			t.Errorf("carol sees the members %q", got)
		}
		var st unix.Stat_t
		if err := unix.Stat(filepath.Join(carols, "d/.tar/x.tar", names[0]), &st); !errors.Is(err, syscall.EACCES) {
			t.Errorf("carol looks at a member: %v, %d bytes", err, st.Size)
		}
		if err := unix.Stat(filepath.Join(carols, "d/.tar/x.tar/none"), &st); !errors.Is(err, syscall.EACCES) {
			t.Errorf("carol looks for a member that is not there: %v, as of one that is", err)
		}
		buf := make([]byte, 256)
		for _, attr := range []string{"user.shardwell.cached", "user.shardwell.cached_bytes"} {
			if n, err := unix.Getxattr(filepath.Join(carols, "d/x.tar"), attr, buf); !errors.Is(err, syscall.EACCES) {
				t.Errorf("carol reads %s: %q, %v", attr, buf[:max(0, n)], err)
			}
		}
		err := w.nodes[node].List(t.Context(), control.ListRequest{URI: "s3://data/d/x.tar", Credentials: keysOf("carol"), Members: true},
			func(e control.Entry) error { return fmt.Errorf("names %s", e.Name) })
		if !errors.Is(err, objstore.ErrPermission) {
			t.Errorf("carol lists the members: %v", err)
		}
	}
	if got := w.nodes[0].cache.Stats().Refusals.Load(); got != 0 {
		t.Errorf("%d fetches began with carol's rights", got)
	}
}

// givePlan gives a mount a plan as any process does that may open its directory.
func givePlan(t *testing.T, dir string, names ...string) {
	t.Helper()
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := (fuse.Plan{Names: names}).Give(fd); err != nil {
		t.Fatal(err)
	}
}
