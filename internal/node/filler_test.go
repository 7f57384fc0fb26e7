package node

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shardwell/shardwell/cache"
	"github.com/shardwell/shardwell/cache/disk"
	"github.com/shardwell/shardwell/cache/evict"
	"github.com/shardwell/shardwell/internal/config"
	"github.com/shardwell/shardwell/peer"
	"github.com/shardwell/shardwell/peer/ring"
)

// anyObject picks all.
func anyObject(disk.Entry) bool { return true }

// TestFillBringsWhatIsOwned has three nodes fill a dataset that nobody reads: each fetches its share, each
// byte once, and nothing else of the bucket.
func TestFillBringsWhatIsOwned(t *testing.T) {
	t.Parallel()
	files := map[string][]byte{"other/x": randomBytes(300<<10, 99)}
	var total int64
	for i := range 12 {
		data := randomBytes(200<<10+i*100<<10, uint64(i))
		total += int64(len(data))
		files[fmt.Sprintf("ds/%02d/%d.tar", i%3, i)] = data
	}
	large := randomBytes(5<<20, 77) // owned chunk by chunk
	files["ds/large"] = large
	total += int64(len(large))
	o := newOrigin(t, files)
	nodes := startCluster(t, o.URL(), 3, nil)
	ds := evict.Dataset{Origin: o.URL(), Bucket: "data", Prefix: "ds/"}
	pass := func() {
		t.Helper()
		for _, n := range nodes {
			if err := n.fill(t.Context(), ds); err != nil {
				t.Fatalf("%s: %v", n.name, err)
			}
		}
	}
	until(t, "all is brought", func() bool { // shares of the ring may change meanwhile
		pass()
		var held int64
		for _, n := range nodes {
			held += n.held(t, anyObject)
		}
		return held >= total
	})
	pass() // finds nothing to do
	if got := o.Counter.Bytes.Load(); got != total {
		t.Errorf("the origin gave %d bytes, want %d", got, total)
	}
	var brought int64
	for _, n := range nodes {
		brought += n.fills.bytes.Load()
	}
	if brought < total {
		t.Errorf("the nodes say that they brought %d bytes of %d", brought, total)
	}
}

// TestFillStopsAtCapacity: what is owned and in use is not dropped for what nobody asked for.
func TestFillStopsAtCapacity(t *testing.T) {
	t.Parallel()
	files := make(map[string][]byte)
	for i := range 20 {
		files[fmt.Sprintf("ds/%02d", i)] = randomBytes(1<<20, uint64(i))
	}
	o := newOrigin(t, files)
	cfg := testConfig(t, o.URL())
	cfg.CacheDirs[0].Budget = 8 << 20
	n := start(t, cfg)
	until(t, "the node is alone", func() bool { return n.cluster.ring.history.Current().Len() == 1 })
	ds := evict.Dataset{Origin: o.URL(), Bucket: "data", Prefix: "ds/"}
	end := n.uses.add(claim{Dataset: ds, Policy: evict.Epoch})
	defer end()
	if err := n.fill(t.Context(), ds); !errors.Is(err, cache.ErrNoRoom) {
		t.Errorf("fill: %v, want no room", err)
	}
	first := o.Counter.Bytes.Load()
	held := n.held(t, anyObject)
	if held < 3<<20 || held > 8<<20 || held < first {
		t.Errorf("holds %d bytes of a budget of 8 MiB, the origin gave %d", held, first)
	}
	if err := n.fill(t.Context(), ds); !errors.Is(err, cache.ErrNoRoom) {
		t.Errorf("fill again: %v, want no room", err)
	}
	if again := o.Counter.Bytes.Load() - first; again != 0 || n.held(t, anyObject) != held {
		t.Errorf("a second pass took %d bytes, and %d are held of %d", again, n.held(t, anyObject), held)
	}
}

// TestFillIsWantedByMounts: mounts whose files are read in order want it, or those that were told to, and
// all members hear of it, until the mount ends.
func TestFillIsWantedByMounts(t *testing.T) {
	t.Parallel()
	needMounts(t)
	o := newOrigin(t, map[string][]byte{"on/x": randomBytes(100, 1), "auto/x": randomBytes(12<<20, 2), "off/x": randomBytes(12<<20, 3)})
	nodes := startCluster(t, o.URL(), 2, nil)
	dirs := make(map[string]string)
	for _, mode := range []string{config.FillOn, config.FillAuto, config.FillOff} {
		dirs[mode] = mountpoint(t)
		mustMount(t, nodes[0], "s3://data/"+mode, dirs[mode], map[string]string{"backgroundFill": mode})
	}
	wants := func(n *running, want string) func() bool {
		return func() bool {
			var got []string
			for _, ds := range n.fills.due(time.Now().Add(fillAfter), nil) {
				got = append(got, ds.Prefix)
			}
			slices.Sort(got)
			return strings.Join(got, " ") == want
		}
	}
	for _, n := range nodes {
		until(t, n.name+" fills what it was told to", func() bool { _ = n.fills.due(time.Now(), nil); return wants(n, "on/")() })
	}
	for _, mode := range []string{config.FillAuto, config.FillOff} {
		f, err := openFile(dirs[mode] + "/x")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.readAll(); err != nil {
			t.Fatal(err)
		}
		f.close()
	}
	for _, n := range nodes {
		until(t, n.name+" fills what is read in order", func() bool { _ = n.fills.due(time.Now(), nil); return wants(n, "auto/ on/")() })
	}
	if err := nodes[0].Umount(t.Context(), dirs[config.FillOn]); err != nil {
		t.Fatal(err)
	}
	until(t, "a mount that has ended wants nothing", wants(nodes[0], "auto/"))
}

// TestPassesAreDue looks at when the next one is.
func TestPassesAreDue(t *testing.T) {
	var f fills
	ds := evict.Dataset{Origin: "o", Bucket: "b", Prefix: "p/"}
	one, two := new(ring.Table), new(ring.Table)
	now := time.Now()
	due := func(after time.Duration, table *ring.Table, want int) {
		t.Helper()
		if got := len(f.due(now.Add(after), table)); got != want {
			t.Errorf("after %v: %d due, want %d", after, got, want)
		}
	}
	due(0, one, 0)
	end := f.add(ds)
	due(0, one, 0)
	due(fillAfter-1, one, 0)
	due(fillAfter, one, 1)
	f.passed(ds, now.Add(time.Hour), one)
	due(fillAfter+time.Minute, one, 0)
	due(fillAfter+time.Minute, two, 1) // it owns others now
	due(2*time.Hour, one, 1)
	end()
	end()
	due(2*time.Hour, one, 0)
	f.hear("m", []peer.DatasetUse{{Prefix: "q/", Fill: true}, {Prefix: "r/", Used: true}}, time.Hour)
	due(0, one, 0)
	due(fillAfter, one, 1)
	due(2*time.Hour, one, 0) // it was not said again
	for i := range 2 * maxFills {
		f.add(evict.Dataset{Prefix: fmt.Sprint(i)})
	}
	due(0, one, 0)
	if len(f.passes) > maxFills {
		t.Errorf("%d datasets are remembered", len(f.passes))
	}
}
