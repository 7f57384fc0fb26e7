package node

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/shardwell/shardwell/internal/config"
	"github.com/shardwell/shardwell/peer/member"
	"github.com/shardwell/shardwell/peer/ring"
)

// A capacity is told when it has changed for good, not when a disk fails for a while or others fill it for a moment.
func TestOfferChangesForGood(t *testing.T) {
	const gib = 1 << 30
	start := time.Unix(1e9, 0)
	var o offer
	for i, step := range []struct {
		at    time.Duration
		bytes int64
		told  bool
		now   int64
	}{
		{0, 1000 * gib, true, 992 * gib},               // the first figure at once, five bits of it
		{time.Minute, 1100 * gib, false, 992 * gib},    // a little more
		{2 * time.Minute, 500 * gib, false, 0},         // one of two disks fails
		{11 * time.Minute, 500 * gib, false, 0},        // not yet
		{11*time.Minute + 1, 1000 * gib, false, 0},     // and comes back
		{12 * time.Minute, 500 * gib, false, 0},        // to fail again:
		{21 * time.Minute, 400 * gib, false, 0},        // the time begins anew,
		{22 * time.Minute, 500 * gib, true, 496 * gib}, // and then is up
		{90 * time.Minute, 520 * gib, false, 496 * gib},
		{91 * time.Minute, 0, false, 0}, // all fail
		{102 * time.Minute, 0, true, 1},
	} {
		if told := o.look(start.Add(step.at), step.bytes); told != step.told || step.now != 0 && o.told != step.now {
			t.Errorf("step %d: told %t, %d bytes", i, told, o.told)
		}
	}
}

// Weights are what users say times what there is room for.
func TestPlacementWeighsCapacities(t *testing.T) {
	all := []member.Member{
		{ID: "a", Weight: 1, CapacityBytes: 1 << 40},
		{ID: "b", Weight: 1, CapacityBytes: 3 << 40},
		{ID: "c", Weight: 2, CapacityBytes: 1 << 40},
		{ID: "old", Weight: 1},
		{ID: "reader", Weight: 1, CapacityBytes: 1 << 20, NoOwner: true},
		{ID: "huge", Weight: member.MaxWeight, CapacityBytes: math.MaxInt64},
	}
	table := tableOf(t, all[:5])
	for id, want := range map[string]float64{"a": 1. / 7, "b": 3. / 7, "c": 2. / 7, "old": 1. / 7, "reader": 0} {
		if got := table.OwnedShare(id); math.Abs(got-want) > 0.01 {
			t.Errorf("%s owns %.3f, want about %.3f", id, got, want)
		}
	}
	if got := weightOf(all[5], 1); got != ring.MaxWeight {
		t.Errorf("the largest weight is %d", got)
	}
	for i := range all {
		all[i].CapacityBytes = 0
	}
	if got := tableOf(t, all[:2]).OwnedShare("a"); math.Abs(got-0.5) > 0.01 {
		t.Errorf("when nobody tells, one of two owns %.3f", got)
	}
}

// TestUnequalDisksAreOneCache reads twice as much as three nodes of unequal sizes hold, and counts at the origin.
func TestUnequalDisksAreOneCache(t *testing.T) {
	t.Parallel()
	needMounts(t)
	const objects, objectBytes = 224, 256 << 10 // 56 MiB
	sizes := []int64{4 << 20, 8 << 20, 16 << 20}
	files := make(map[string][]byte)
	for i := range objects {
		files[fmt.Sprintf("d/%03d", i)] = randomBytes(objectBytes, uint64(i))
	}
	o := newOrigin(t, files)
	nodes := startCluster(t, o.URL(), len(sizes), func(i int, cfg *config.Config) {
		cfg.CacheDirs[0].Budget, cfg.Memory = config.Bytes(sizes[i]), 64<<20
		cfg.VerifyReads = "always"
	})
	total := 0.0
	for i, n := range nodes {
		share := n.cluster.ring.history.Current().OwnedShare(n.id)
		if want := float64(sizes[i]) / (28 << 20); math.Abs(share-want) > 0.03 {
			t.Errorf("n%d with %d bytes owns %.3f, want about %.3f", i, sizes[i], share, want)
		}
		total += float64(n.capacityHere())
	}
	dirs := make([]string, len(nodes))
	for i, n := range nodes {
		dirs[i] = n.mountOn(t, "s3://data/d")
	}
	inDir := make(map[string][]byte)
	epoch := func(shift int) { // so that no kernel has read a file before
		for i := range objects {
			clear(inDir)
			name := fmt.Sprintf("%03d", (i*97)%objects)
			inDir[name] = files["d/"+name]
			if err := readAll(dirs[(i+shift)%len(dirs)], inDir); err != nil {
				t.Fatal(err)
			}
		}
	}
	epoch(0)
	inMemory := 0.0
	for _, n := range nodes {
		inMemory += float64(n.cache.Stats().MemoryBlocks.Load() * n.geometry.BlockBytes)
	}
	before := o.Counter.Bytes.Load()
	epoch(1)
	hits := 1 - float64(o.Counter.Bytes.Load()-before)/(objects*objectBytes)
	// What lies in memory at the beginning is hit as well, and there is a sidecar to each object.
	least, most := total/(objects*objectBytes)-0.06, (total+inMemory)/(objects*objectBytes)+0.02
	t.Logf("hit ratio %.3f, capacity %.3f, with memory %.3f", hits, total/(objects*objectBytes), (total+inMemory)/(objects*objectBytes))
	if hits < least || hits > most {
		t.Errorf("hit ratio %.3f, want %.3f to %.3f", hits, least, most)
	}
}
