package e2e_test

import (
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shardwell/shardwell/e2e/cage"
	"github.com/shardwell/shardwell/e2e/cluster"
	"github.com/shardwell/shardwell/e2e/dataset"
)

// castLink makes a broadcast last long enough for something to happen in it.
var castLink = cage.Link{RateMbit: 100, QueueMS: 50}

// A node is killed at half of a broadcast, another one begins then: everybody has the
// right bytes, and the origin sends little more than one copy.
func TestBroadcastWithAKillAndALateJoiner(t *testing.T) {
	const size = 96 << 20
	c := start(t, cluster.Options{Nodes: 5, OriginLink: castLink, NodeLink: castLink, Flags: []string{"--place-whole", "16Mi"}})
	objects := put(t, c, "cast/", 1, size)
	dirs := mount(t, c, "s3://"+bucket+"/cast")
	victim, late := c.Nodes[3], c.Nodes[4]
	c.Origin.Reset()
	before, _, err := c.Nodes[0].Host.Bytes()
	must(t, err)

	key := "cast/0000"
	read := func(n *cluster.Node) error {
		return dataset.CompareFile(filepath.Join(dirs[n], strings.TrimPrefix(key, "cast/")), objects[key])
	}
	var wg sync.WaitGroup
	for _, n := range c.Nodes[:4] {
		wg.Go(func() {
			if err := read(n); err != nil && n != victim {
				t.Errorf("%s: %v", n.Name, err)
			}
		})
	}
	eventually(t, time.Minute, "half of the object", func() (bool, string) {
		now, _, err := c.Nodes[0].Host.Bytes()
		return err == nil && now-before > size/2, "too few bytes"
	})
	must(t, victim.Kill())
	if err := read(late); err != nil {
		t.Errorf("%s: %v", late.Name, err)
	}
	wg.Wait()
	wantOriginAtMost(t, c.Origin, size*5/4, "a node killed, one late")
	s, err := late.Status()
	must(t, err)
	if len(s.Broadcasts) != 1 {
		t.Errorf("the status shows %d broadcasts: %+v", len(s.Broadcasts), s.Broadcasts)
	}
}

// `shardwell get` in all nodes at once is a broadcast as well, and needs no mount.
func TestGetInAllNodes(t *testing.T) {
	const size = 40 << 20
	c := start(t, cluster.Options{Nodes: 3})
	objects := put(t, c, "models/ckpt/", 2, size)
	c.Origin.Reset()
	var wg sync.WaitGroup
	for _, n := range c.Nodes {
		wg.Go(func() {
			dir := filepath.Join(c.Cage.Dir, n.Name, "got")
			if _, err := n.Run("get", "s3://"+bucket+"/models/ckpt", dir); err != nil {
				t.Error(err)
				return
			}
			for key, want := range objects {
				if err := dataset.CompareFile(filepath.Join(dir, filepath.Base(key)), want); err != nil {
					t.Errorf("%s: %v", n.Name, err)
				}
			}
		})
	}
	wg.Wait()
	wantOrigin(t, c.Origin, 2*size, "three nodes get the same")
}

// SEMANTICS K8: Full caches carry a broadcast: an object for which no node has room, and which is larger than any transit area, still leaves the origin once when all nodes read it at once, as long as a transit area holds what they have under way (some chunks each).
//
// TestFullCachesCarryABroadcast fills all nodes with shards that are in use, so that nothing may go for the checkpoint.
func TestFullCachesCarryABroadcast(t *testing.T) {
	const (
		keptBytes = 64 << 20 // of each node, beside a transit area of as much
		shards    = 300
		size      = 128 << 20
	)
	c := start(t, cluster.Options{Nodes: 4, CacheSize: "128Mi",
		Flags: []string{"--transit", "64Mi", "--place-whole", "16Mi", "--memory", "64Mi"}})
	inUse := put(t, c, "shards/", shards, 1<<20)
	objects := put(t, c, "cast/", 1, size)
	must(t, readAll(mount(t, c, "s3://"+bucket+"/shards"), "shards/", inUse))
	for _, n := range c.Nodes {
		s, err := n.Status()
		must(t, err)
		if used := s.Disks[0].UsedBytes; used < keptBytes*9/10 {
			t.Fatalf("%s is not full: %d bytes", n.Name, used)
		}
		must(t, n.Host.Shape(castLink))
	}
	must(t, c.Origin.Host.Shape(castLink))
	dirs := mount(t, c, "s3://"+bucket+"/cast")
	c.Origin.Reset()
	must(t, readAll(dirs, "cast/", objects))
	// A stream of the origin that stands still is made anew, which costs a little on a busy machine. An
	// owner that keeps nothing costs 1.4 copies and more.
	wantOriginAtMost(t, c.Origin, size*11/10, "four full nodes restore at once")
}
