package e2e_test

import (
	"errors"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shardwell/shardwell/e2e/cluster"
	"github.com/shardwell/shardwell/e2e/load"
)

// begin makes a scene that ends with the test.
func begin(t *testing.T) *load.Scene {
	t.Helper()
	s, err := load.Begin(seed)
	t.Cleanup(func() {
		if t.Failed() && s.C != nil {
			t.Log("logs:\n" + s.C.Logs(25))
		}
		if err := s.Close(); err != nil {
			t.Errorf("clean-up: %v", err)
		}
	})
	must(t, err)
	return s
}

// finish ends the readers, who are to have noticed nothing.
func finish(t *testing.T, s *load.Scene) {
	t.Helper()
	r, err := s.End()
	must(t, err)
	if r.Failed > 0 || r.Ops < int64(10*len(s.Kills)) {
		t.Errorf("of %d calls over %d restarts %d failed: errors %q, wrong bytes %q", r.Ops, len(s.Kills), r.Failed, r.Errors, r.Wrong)
	}
	t.Logf("%d calls over %d restarts", r.Ops, len(s.Kills))
}

// Daemons are killed under readers of every kind, and their keeper once as well.
//
// SEMANTICS I4: When the daemon of a mount that a keeper holds is killed, restarted or replaced by another
// version, whoever uses the mount waits and goes on: no call fails, no byte is wrong, descriptors, mappings and
// directories read half-way stay what they were.
func TestDaemonsAreKilledUnderReaders(t *testing.T) {
	s := begin(t)
	for i := range 30 {
		if i == 15 {
			must(t, s.Node.ReplaceKeeper())
		}
		must(t, s.Kill(200*time.Millisecond))
	}
	finish(t, s)
}

// A service is restarted with another version and back, with and without a successor that stands by.
func TestUpgradesUnderReaders(t *testing.T) {
	s := begin(t)
	programs := []string{filepath.Join(t.TempDir(), "shardwell"), s.C.Tools.Shardwell}
	must(t, load.BuildNext(s.C.Tools, programs[0]))
	for i := range 6 {
		must(t, s.Upgrade(programs[i%2], i%3 == 1))
	}
	if r, err := s.Node.Run("status", "--json"); err != nil || strings.Contains(r.Stdout, `"version": "next"`) {
		t.Errorf("after an even number of upgrades: %v, %s", err, r.Stdout)
	}
	finish(t, s)
}

// Nobody comes back: readers get errors, none hangs, and what is dead is no obstacle.
//
// SEMANTICS I5: When no daemon has served such a mount for the keeper's `--give-up` (60 s by default), its
// readers get errors, and none waits for ever.
func TestDaemonThatDoesNotComeBack(t *testing.T) {
	const giveUp = 2 * time.Second
	c := start(t, cluster.Options{Nodes: 1, Keeper: true})
	n := c.Nodes[0]
	must(t, n.ReplaceKeeper("--give-up", giveUp.String()))
	objects := put(t, c, "d/", 2, 3<<20)
	dir := mountOn(t, n, "s3://"+bucket+"/d")
	must(t, n.End())
	var st unix.Stat_t
	began := time.Now()
	err := unix.Stat(filepath.Join(dir, "0000"), &st)
	if took := time.Since(began); !errors.Is(err, syscall.ECONNABORTED) && !errors.Is(err, syscall.ENOTCONN) || took > 30*time.Second {
		t.Errorf("got %v after %v", err, took)
	}
	must(t, n.Start())
	again := mountOn(t, n, "s3://"+bucket+"/d")
	must(t, readAll(map[int]string{0: again}, "d/", objects))
	must(t, n.Umount(again))
	if _, err := n.Run("umount", dir); err != nil {
		t.Errorf("the dead mount cannot be taken away: %v", err)
	}
	if _, err := n.Run("mount", "s3://"+bucket+"/d", dir); err != nil {
		t.Errorf("nor mounted on: %v", err)
	}
	must(t, n.Umount(dir))
}
