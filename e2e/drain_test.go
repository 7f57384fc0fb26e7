package e2e_test

import (
	"strings"
	"testing"
	"time"

	"github.com/shardwell/shardwell/e2e/cage"
	"github.com/shardwell/shardwell/e2e/cluster"
	"github.com/shardwell/shardwell/e2e/faulty"
)

// A node is killed while it hands on what it holds, and is what it was before when it is started again; a drain that ends
// leaves nothing that only it had; a drain of a node whose disk fails ends as well, and says what is not handed on. None costs a
// reader more than what was really lost.
func TestDrainIsKilledAndDrainWithABadDisk(t *testing.T) {
	const size = 5 << 20
	c := start(t, cluster.Options{Nodes: 3, NodeLink: cage.Link{RateMbit: 50}})
	objects := put(t, c, "d/", 18, size)
	epoch := func(what string, most int64, nodes ...*cluster.Node) {
		t.Helper()
		dirs := make(map[*cluster.Node]string)
		for _, n := range nodes {
			dirs[n] = mountOn(t, n, "s3://"+bucket+"/d", "--prefetch-shards", "0")
		}
		c.Origin.Reset()
		if err := readAll(dirs, "d/", objects); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		wantOriginAtMost(t, c.Origin, most, what)
		for n, dir := range dirs {
			must(t, n.Umount(dir))
		}
	}
	first, leaver, bad := c.Nodes[0], c.Nodes[1], c.Nodes[2]
	epoch("the first epoch", sizeOf(objects), leaver) // so that the others have nothing but what they own

	m, err := leaver.Metrics()
	must(t, err)
	before := m.Sum("shardwell_peer_sent_bytes_total")
	drained := make(chan error, 1)
	go func() {
		_, err := leaver.Run("drain")
		drained <- err
	}()
	eventually(t, 30*time.Second, "the drain has begun", func() (bool, string) {
		s, err := first.Status()
		if err != nil {
			return false, err.Error()
		}
		for _, m := range s.Members {
			if m.State == "draining" {
				return true, ""
			}
		}
		return false, "no member drains"
	})
	eventually(t, 60*time.Second, "it hands on", func() (bool, string) {
		m, err := leaver.Metrics()
		must(t, err)
		return m.Sum("shardwell_peer_sent_bytes_total") > before+size/2, "it has sent nothing"
	})
	must(t, leaver.Kill())
	if err := <-drained; err == nil {
		t.Error("the drain was over before the kill")
	}
	must(t, leaver.Start())
	must(t, c.WaitMembers(3))
	epoch("after a drain that was killed", 0, leaver)

	r, err := leaver.Run("drain")
	if err != nil || !strings.Contains(r.Stderr, "handed on") {
		t.Errorf("drain: %d, %v, %q", r.Code, err, r.Stderr)
	}
	if code, err := leaver.Proc.Wait(30 * time.Second); err != nil || code != 0 {
		t.Errorf("the node that was drained ended with %d, %v", code, err)
	}
	epoch("after a drain", 0, first)

	must(t, bad.Stop())
	disk := faultyCache(t, c, bad)
	must(t, bad.Start())
	must(t, c.WaitMembers(2))
	epoch("on a new disk", sizeOf(objects), bad)
	must(t, disk.Set(faulty.EIO, 1))
	r, err = bad.Run("drain")
	if r.Code != 3 {
		t.Errorf("drain of a disk that fails: %d, %v, %q", r.Code, err, r.Stderr)
	}
	if code, err := bad.Proc.Wait(60 * time.Second); err != nil || code != 0 {
		t.Errorf("the node with the bad disk ended with %d, %v", code, err)
	}
	must(t, disk.Set(faulty.None, 0))
	epoch("after a drain of a disk that fails", sizeOf(objects), first)
}
