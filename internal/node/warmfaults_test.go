package node

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shardwell/shardwell/cache/evict"
	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/internal/config"
	"github.com/shardwell/shardwell/internal/control"
	"github.com/shardwell/shardwell/warm"
)

// soon makes nodes try again soon what is missing.
func soon(nodes ...*running) {
	for _, n := range nodes {
		n.jobs.roundPause = 10 * time.Millisecond
	}
}

// A copy on each node is to be on those as well that are away: they keep their place, and lack it when they are back.
func TestWarmUpOfEveryNodeOneOfWhichIsAway(t *testing.T) {
	t.Parallel()
	files := dataset()
	o := newOrigin(t, files)
	nodes := startCluster(t, o.URL(), 3, nil)
	soon(nodes...)
	if err := nodes[2].stop(); err != nil {
		t.Fatal(err)
	}
	until(t, "n2 is away", func() bool {
		return len(nodes[0].cluster.directory.All()) == 2 && len(nodes[1].cluster.directory.All()) == 2
	})
	spec := all()
	spec.EveryNode = true
	rec := nodes[0].warmUp(t, spec)
	if rec.State != warm.Partly || rec.Counts[warm.NodeLost] != int64(len(files)) || rec.Lost() != int64(len(files)) || rec.Progress.DoneBytes != 2*sizeOf(files) {
		t.Errorf("%+v", rec)
	}
	for _, m := range rec.Missing {
		if m.Node != "n2" {
			t.Errorf("missing at %q", m.Node)
		}
	}
	sum, missing := nodes[1].look(t, control.WarmCheck, spec)
	if sum.Counts[warm.NodeLost] != int64(len(files)) || len(missing) != len(files) {
		t.Errorf("check: %+v", sum)
	}
	if rec := nodes[1].warmUp(t, all()); rec.State != warm.Done {
		t.Errorf("without copies the others act for n2: %+v", rec)
	}
	if _, _, err := nodes[0].StartWarm(t.Context(), control.WarmRequest{Spec: warm.Spec{Sources: []string{"s3://data/"}, Nodes: []string{"n2"}}}); err == nil || !strings.Contains(err.Error(), "n2 is away") {
		t.Errorf("the share of who is away: %v", err)
	}
}

// Copies that are pinned stay each node's own, whoever warms the same up without a pin.
func TestPinnedCopiesStayOwn(t *testing.T) {
	t.Parallel()
	files := dataset()
	o := newOrigin(t, files)
	nodes := startCluster(t, o.URL(), 2, nil)
	spec := all()
	spec.EveryNode, spec.Pin = true, 10*time.Hour
	nodes[0].look(t, control.WarmPlan, spec)
	if st, err := nodes[0].Status(t.Context()); err != nil || len(st.Pins) != 0 {
		t.Errorf("a plan has pinned something: %+v, %v", st.Pins, err)
	}
	first := nodes[0].warmUp(t, spec)
	spec.Pin = 0
	again := nodes[1].warmUp(t, spec)
	spec.Pin = time.Hour
	shorter := nodes[1].warmUp(t, spec)
	late := time.Now().Add(9 * time.Hour)
	for _, rec := range []warm.Record{first, again, shorter} {
		if rec.State != warm.Done || rec.PinnedUntil < late.UnixNano() {
			t.Errorf("%s, pinned until %v", rec.State, time.Unix(0, rec.PinnedUntil))
		}
	}
	for _, n := range nodes {
		key := slices.Sorted(maps.Keys(files))[0]
		if obj := (chunk.Object{Origin: nodes[0].uses.now().Uses()[0].Origin, Bucket: "data", Key: key}); !n.policy.held.covers(obj, late) {
			t.Errorf("%s does not hold its copies any more", n.name)
		}
	}
}

// Names in many directories are looked up by one listing.
func TestNamesInManyDirectories(t *testing.T) {
	t.Parallel()
	files := map[string][]byte{}
	list := ""
	for i := range 120 {
		key := fmt.Sprintf("d/%03d/%d/f", i/2, i)
		files[key] = randomBytes(5000, uint64(i))
		list += "s3://data/" + key + "\n"
	}
	list += "s3://data/d/007/none\n"
	o := newOrigin(t, files)
	nodes := startCluster(t, o.URL(), 2, nil)
	text := zip(t, list)
	sum := sha256.Sum256(text)
	lists, heads := o.Counter.Lists.Load(), o.Counter.Heads.Load()
	rec, _, err := nodes[0].StartWarm(t.Context(), control.WarmRequest{Spec: warm.Spec{ListSum: hex.EncodeToString(sum[:]), ListBytes: int64(len(text))}, List: text})
	if err != nil {
		t.Fatal(err)
	}
	rec = nodes[1].follow(t, rec.ID)
	if rec.State != warm.Partly || rec.Lost() != 1 || rec.Missing[0].URI != "s3://data/d/007/none" || rec.Progress.DoneBytes != sizeOf(files) {
		t.Errorf("%+v", rec)
	}
	if lists, heads = o.Counter.Lists.Load()-lists, o.Counter.Heads.Load()-heads; lists > 3 || heads > 2 {
		t.Errorf("%d listings and %d questions about single names", lists, heads)
	}
}

// What is in use is waited for together, and told.
func TestEvictWhatIsInUse(t *testing.T) {
	t.Parallel()
	const count = 20
	files := map[string][]byte{}
	for i := range count {
		files[fmt.Sprintf("f%02d", i)] = randomBytes(1000, uint64(i))
	}
	o := newOrigin(t, files)
	n := start(t, testConfig(t, o.URL()))
	if rec := n.warmUp(t, all()); rec.State != warm.Done {
		t.Fatalf("%+v", rec)
	}
	found, err := n.resolve(t.Context(), all(), nil, func(m warm.Missing) { t.Errorf("%+v", m) })
	if err != nil {
		t.Fatal(err)
	}
	var release []func()
	for _, obj := range found.manifest.All() {
		f, err := n.disks.Find(obj.ID())
		if err != nil {
			t.Fatal(err)
		}
		release = append(release, f.Release)
	}
	began := time.Now()
	sum, missing := n.look(t, control.WarmEvict, all())
	took := time.Since(began)
	for _, f := range release {
		f()
	}
	t.Logf("%d of %d are in use, after %v", sum.Missing, count, took)
	if sum.Missing != int64(len(missing)) || sum.Missing != 0 && sum.Missing != count {
		t.Errorf("%+v, of which %d are named", sum, len(missing))
	}
	if took > count*dropPatience/2 {
		t.Errorf("took %v: one after the other", took)
	}
	until(t, "all is gone", func() bool {
		sum, _ := n.look(t, control.WarmCheck, all())
		return sum.HeldBytes == 0
	})
	if rec := n.warmUp(t, all()); rec.State != warm.Done {
		t.Errorf("again: %+v", rec)
	}
}

// When the origin does not answer, each round tries a few and gives up, instead of waiting for each.
func TestWarmUpOfASilentOrigin(t *testing.T) {
	t.Parallel()
	const count = 400
	files := map[string][]byte{}
	for i := range count {
		files[fmt.Sprintf("f%03d", i)] = randomBytes(1000, uint64(i))
	}
	o := newOrigin(t, files)
	proxy := proxyTo(t, o)
	var mu sync.Mutex
	tried := map[string]bool{}
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if key := strings.TrimPrefix(r.URL.Path, "/data/"); r.Method == http.MethodGet && key != "" {
			mu.Lock()
			tried[key] = true
			mu.Unlock()
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(front.Close)
	nodes := startCluster(t, front.URL, 2, func(_ int, cfg *config.Config) { cfg.OriginTimeout = config.Duration(3 * time.Second) })
	soon(nodes...)
	rec := nodes[0].warmUp(t, all())
	if rec.State != warm.Partly || rec.Counts[warm.Unavailable] != count || rec.Lost() != count || rec.Progress.DoneBytes != 0 {
		t.Errorf("%s, counts %v, %d bytes", rec.State, rec.Counts, rec.Progress.DoneBytes)
	}
	mu.Lock()
	defer mu.Unlock()
	if most := maxRounds * 2 * bringAtOnce; len(tried) == 0 || len(tried) > most {
		t.Errorf("%d objects were tried, want %d at most", len(tried), most)
	}
}

// Pins that protect nothing any more make room for those that do; when all protect something, one more is refused.
func TestPinsAreBounded(t *testing.T) {
	t.Parallel()
	o := newOrigin(t, nil)
	n := start(t, testConfig(t, o.URL()))
	d, now := n.uses, time.Now()
	ds := func(kind string, i int) evict.Dataset {
		return evict.Dataset{Origin: "https://o", Bucket: "b", Prefix: fmt.Sprintf("%s%d/", kind, i)}
	}
	for i := range maxPins + 10 {
		if err := d.pin(ds("gone", i), 0, 0, time.Time{}, now); err != nil {
			t.Fatalf("take back what was not pinned: %v", err)
		}
	}
	for i := range maxPins {
		if err := d.pin(ds("kept", i), 1, 1<<40, now.Add(time.Hour), now); err != nil {
			t.Fatalf("pin %d: %v", i, err)
		}
	}
	if err := d.pin(ds("more", 0), 1, 1<<40, now.Add(time.Hour), now); err == nil || !strings.Contains(err.Error(), "the most there may be") {
		t.Errorf("one more: %v", err)
	}
	if err := d.pin(ds("kept", 3), 1, 1<<40, now.Add(2*time.Hour), now); err != nil {
		t.Errorf("one of them for longer: %v", err)
	}
	if len(d.pins) > maxPins {
		t.Errorf("%d pins are known", len(d.pins))
	}
}

// What nobody can hold is named, and does not look like a lack of room.
func TestWarmUpThatNobodyHolds(t *testing.T) {
	t.Parallel()
	files := dataset()
	o := newOrigin(t, files)
	nodes := startCluster(t, o.URL(), 2, func(i int, cfg *config.Config) { cfg.NoOwner = i == 1 })
	soon(nodes...)
	if err := nodes[0].stop(); err != nil {
		t.Fatal(err)
	}
	until(t, "n0 is away", func() bool { return len(nodes[1].cluster.directory.All()) == 1 })
	rec := nodes[1].warmUp(t, all())
	if rec.State != warm.Partly || rec.Counts[warm.NodeLost] != rec.Lost() || rec.Lost() < int64(len(files)) || !strings.Contains(rec.Missing[0].Detail, "its owner is away") {
		t.Errorf("%+v", rec)
	}
	alone := testConfig(t, o.URL())
	alone.NoOwner = true
	if rec := start(t, alone).warmUp(t, all()); rec.State != warm.Failed || !strings.Contains(rec.Why, "no member owns anything") {
		t.Errorf("where nobody owns: %s, %q", rec.State, rec.Why)
	}
}

// A plan says what the warm-up would: that its pin is refused beside another.
func TestPlanOfAPinThatCannotFit(t *testing.T) {
	t.Parallel()
	files := map[string][]byte{}
	for i := range 10 {
		files[fmt.Sprintf("%d/f", i%2)+fmt.Sprint(i)] = randomBytes(2<<20, uint64(i))
	}
	o := newOrigin(t, files)
	n := start(t, func() config.Config {
		cfg := testConfig(t, o.URL())
		cfg.CacheDirs[0].Budget = 16 << 20
		return cfg
	}())
	if rec := n.warmUp(t, warm.Spec{Sources: []string{"s3://data/0/"}, Pin: time.Hour}); rec.State != warm.Done {
		t.Fatalf("%+v", rec)
	}
	spec := warm.Spec{Sources: []string{"s3://data/1/"}, Pin: time.Hour}
	refused := func(spec warm.Spec) error { // what there is beside the pin is counted a little later
		s, err := n.survey(t.Context(), spec, nil, func(m warm.Missing) { t.Errorf("%+v", m) })
		if err != nil {
			t.Fatal(err)
		}
		return s.tryPin(t.Context(), spec.Pin)
	}
	if full := new(evict.PinError); !errors.As(refused(spec), &full) {
		t.Error("a pin that cannot fit would not be refused")
	}
	if err := refused(warm.Spec{Sources: []string{"s3://data/1/f1"}, Pin: time.Hour}); err != nil {
		t.Errorf("one that fits: %v", err)
	}
	var sum control.WarmSum
	err := n.LookWarm(t.Context(), control.WarmRequest{Spec: spec}, control.WarmPlan, func(f control.WarmFound) error {
		sum = *f.Sum
		return nil
	})
	if err == nil && len(sum.Short) == 0 {
		t.Error("the plan says that it fits")
	}
	if rec := n.warmUp(t, spec); rec.State != warm.Failed {
		t.Errorf("the warm-up itself: %+v", rec)
	}
}
