package node

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shardwell/shardwell/cache/evict"
	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/internal/config"
	"github.com/shardwell/shardwell/internal/control"
	"github.com/shardwell/shardwell/warm"
)

// warmUp runs a warm-up to its end.
func (r *running) warmUp(t *testing.T, spec warm.Spec) warm.Record {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	rec, _, err := r.StartWarm(ctx, control.WarmRequest{Spec: spec})
	if err != nil {
		t.Fatal(err)
	}
	return r.follow(t, rec.ID)
}

func (r *running) follow(t *testing.T, id string) (last warm.Record) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if err := r.FollowWarm(ctx, id, func(rec warm.Record) error {
		last = rec
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return last
}

// look does a look and returns its sum and what is missing.
func (r *running) look(t *testing.T, do control.WarmLook, spec warm.Spec) (sum control.WarmSum, missing []warm.Missing) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	err := r.LookWarm(ctx, control.WarmRequest{Spec: spec}, do, func(f control.WarmFound) error {
		if f.Missing != nil {
			missing = append(missing, *f.Missing)
		}
		if f.Sum != nil {
			sum = *f.Sum
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return sum, missing
}

func all() warm.Spec { return warm.Spec{Sources: []string{"s3://data/"}} }

// SEMANTICS W1: `shardwell warm` ends with 0 only when every byte asked for was seen present at the end, where it should be;
// otherwise it names what is missing, where, and why.
func TestWarmUpBringsEachByteOnce(t *testing.T) {
	t.Parallel()
	files := dataset()
	o := newOrigin(t, files)
	nodes := startCluster(t, o.URL(), 3, nil)
	sum, missing := nodes[1].look(t, control.WarmCheck, all())
	if sum.HeldBytes != 0 || sum.Missing == 0 || len(missing) == 0 || missing[0].Reason != warm.NotCached {
		t.Errorf("before: %+v, %+v", sum, missing)
	}
	rec := nodes[0].warmUp(t, all())
	if rec.State != warm.Done || rec.Progress.DoneBytes != sizeOf(files) || rec.Lost() != 0 || rec.Progress.Objects != int64(len(files)) {
		t.Errorf("%+v", rec)
	}
	if got := o.Counter.Bytes.Load(); got != sizeOf(files) {
		t.Errorf("the origin gave %d bytes, want %d", got, sizeOf(files))
	}
	if sum, missing = nodes[2].look(t, control.WarmCheck, all()); sum.HeldBytes != sizeOf(files) || sum.Missing != 0 || len(missing) != 0 {
		t.Errorf("after: %+v, %+v", sum, missing)
	}
	var owned int64
	for _, n := range nodes {
		shares, err := n.shares(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range shares {
			owned += s.OwnedBytes
		}
	}
	if owned < sizeOf(files) {
		t.Logf("shares are older than the warm-up: %d", owned)
	}
	// Again: nothing to do.
	if rec := nodes[1].warmUp(t, all()); rec.State != warm.Done || rec.Progress.FetchedBytes != 0 || o.Counter.Bytes.Load() != sizeOf(files) {
		t.Errorf("again: %+v", rec)
	}
	// And gone.
	for range 2 {
		nodes[2].look(t, control.WarmEvict, all())
		if sum, _ = nodes[0].look(t, control.WarmCheck, all()); sum.HeldBytes != 0 {
			t.Errorf("%d bytes are there after they were evicted", sum.HeldBytes)
		}
	}
}

func TestWarmUpOnEveryNode(t *testing.T) {
	t.Parallel()
	files := dataset()
	o := newOrigin(t, files)
	nodes := startCluster(t, o.URL(), 3, nil)
	spec := all()
	spec.EveryNode, spec.Pin = true, time.Hour
	rec := nodes[0].warmUp(t, spec)
	if rec.State != warm.Done || rec.Progress.DoneBytes != 3*sizeOf(files) {
		t.Errorf("%+v", rec)
	}
	if got := o.Counter.Bytes.Load(); got != sizeOf(files) {
		t.Errorf("the origin gave %d bytes, want %d", got, sizeOf(files))
	}
	for _, n := range nodes {
		before := n.cache.Stats().FetchedBytes[0].Load() + n.cache.Stats().FetchedBytes[1].Load()
		for key, data := range files {
			if got, err := n.read(t.Context(), "s3://data/"+key); err != nil || got != int64(len(data)) {
				t.Errorf("%s: %d bytes, %v", key, got, err)
			}
		}
		if after := n.cache.Stats().FetchedBytes[0].Load() + n.cache.Stats().FetchedBytes[1].Load(); after != before {
			t.Errorf("%s fetched %d bytes to read what it holds", n.name, after-before)
		}
		for _, d := range n.disks.dirs {
			if owned, _ := d.Capacity(); owned < sizeOf(files) {
				t.Errorf("%s counts %d bytes as its own, want %d: copies would be displaced", n.name, owned, sizeOf(files))
			}
		}
	}
	if one := nodes[1].warmUp(t, warm.Spec{Sources: spec.Sources, EveryNode: true, Nodes: []string{"n1"}}); one.Progress.Bytes != sizeOf(files) {
		t.Errorf("one node: %+v", one.Progress)
	}
}

func TestWarmUpSaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	files := dataset()
	o := newOrigin(t, files)
	nodes := startCluster(t, o.URL(), 3, nil)
	rec := nodes[1].warmUp(t, warm.Spec{Sources: []string{"s3://data/train/{000000..000009}.tar", "s3://data/ckpt", "s3://data/none/*", "s3://data/absent"}})
	if rec.State != warm.Partly || rec.Counts[warm.NotFound] != 4 || len(rec.Missing) != 4 || rec.Progress.DoneBytes != sizeOf(files) {
		t.Errorf("%+v", rec)
	}
	var names []string
	for _, m := range rec.Missing {
		names = append(names, m.URI)
	}
	slices.Sort(names)
	want := []string{"s3://data/absent", "s3://data/none/*", "s3://data/train/000008.tar", "s3://data/train/000009.tar"}
	if !slices.Equal(names, want) {
		t.Errorf("missing %q, want %q", names, want)
	}
}

// SEMANTICS W2: What does not fit beside what is mounted or pinned is refused before anything is fetched, unless `--force` is given; then
// what found no room is named, and nothing that was warmed up makes room for the rest.
func TestWarmUpThatDoesNotFit(t *testing.T) {
	t.Parallel()
	files := map[string][]byte{}
	for i := range 60 {
		files[fmt.Sprintf("f%02d", i)] = randomBytes(2<<20, uint64(i))
	}
	o := newOrigin(t, files)
	nodes := startCluster(t, o.URL(), 2, func(_ int, cfg *config.Config) { cfg.CacheDirs[0].Budget = 16 << 20 })
	rec := nodes[0].warmUp(t, all())
	if rec.State != warm.Failed || o.Counter.Bytes.Load() != 0 {
		t.Errorf("%+v, %d bytes fetched", rec, o.Counter.Bytes.Load())
	}
	plan, _ := nodes[1].look(t, control.WarmPlan, all())
	if len(plan.Short) != 2 || plan.Bytes != sizeOf(files) || len(plan.Nodes) != 2 {
		t.Errorf("plan: %+v", plan)
	}
	spec := all()
	spec.Force = true
	rec = nodes[0].warmUp(t, spec)
	if rec.State != warm.Partly || 2*rec.Counts[warm.NoRoom] <= rec.Lost() || rec.Progress.DoneBytes < 16<<20 {
		t.Errorf("%+v", rec)
	}
	// What is under way when a node is full comes for nothing, and a chunk a second after that.
	if got := o.Counter.Bytes.Load(); got > rec.Progress.DoneBytes+40<<20 {
		t.Errorf("%d bytes were fetched to keep %d", got, rec.Progress.DoneBytes)
	}
}

func TestPinnedWarmUp(t *testing.T) {
	t.Parallel()
	files := dataset()
	o := newOrigin(t, files)
	nodes := startCluster(t, o.URL(), 2, nil)
	spec := warm.Spec{Sources: []string{"s3://data/train/"}, Pin: time.Hour}
	if rec := nodes[0].warmUp(t, spec); rec.State != warm.Done {
		t.Fatalf("%+v", rec)
	}
	until(t, "both nodes know of the pin", func() bool {
		for _, n := range nodes {
			st, err := n.Status(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if len(st.Pins) != 1 || st.Pins[0].URI != "s3://data/train/" || st.Pins[0].Bytes != sizeOf(files)-int64(len(files["ckpt/model.bin"])) {
				return false
			}
		}
		return true
	})
	nodes[1].look(t, control.WarmEvict, warm.Spec{Sources: spec.Sources})
	until(t, "both nodes know that there is no pin", func() bool {
		for _, n := range nodes {
			if st, err := n.Status(t.Context()); err != nil || len(st.Pins) != 0 {
				return false
			}
		}
		return true
	})
}

// zip compresses a list.
func zip(t *testing.T, list string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write([]byte(list)); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// SEMANTICS W3: A warm-up survives the node that runs it: another carries on from what is present. The same warm-up again joins the one
// that is under way.
func TestWarmUpSurvivesItsNode(t *testing.T) {
	t.Parallel()
	files := map[string][]byte{}
	for i := range 40 {
		files[fmt.Sprintf("f%02d", i)] = randomBytes(1<<20, uint64(i))
	}
	o := newOrigin(t, files)
	nodes := startCluster(t, o.URL(), 4, func(_ int, cfg *config.Config) { cfg.MaxOriginRate = 6 << 20 })
	spec := all()
	keepers := nodes[0].jobs.keepers(spec.ID())
	runner := slices.IndexFunc(nodes, func(n *running) bool { return n.id == keepers[0] })
	asker := nodes[(runner+1)%4]
	first, joined, err := asker.StartWarm(t.Context(), control.WarmRequest{Spec: spec})
	if err != nil || joined {
		t.Fatalf("joined %v, %v", joined, err)
	}
	other, joined, err := nodes[(runner+2)%4].StartWarm(t.Context(), control.WarmRequest{Spec: spec})
	if err != nil || !joined || other.ID != first.ID || other.Started != first.Started {
		t.Fatalf("joined %v: %+v, %v", joined, other, err)
	}
	until(t, "something was fetched", func() bool { return o.Counter.Bytes.Load() > 4<<20 })
	if err := nodes[runner].stop(); err != nil {
		t.Error(err)
	}
	rec := asker.follow(t, first.ID)
	if rec.State != warm.Done || rec.Runner == nodes[runner].name || rec.Progress.DoneBytes != sizeOf(files) {
		t.Errorf("%+v", rec)
	}
	if sum, _ := asker.look(t, control.WarmCheck, spec); sum.Missing != 0 {
		t.Errorf("%+v", sum)
	}
	recs, err := asker.WarmJobs(t.Context())
	if err != nil || len(recs) != 1 || recs[0].State != warm.Done {
		t.Errorf("jobs: %+v, %v", recs, err)
	}
}

func TestWarmUpIsCanceled(t *testing.T) {
	t.Parallel()
	files := map[string][]byte{}
	for i := range 20 {
		files[fmt.Sprintf("f%02d", i)] = randomBytes(1<<20, uint64(i))
	}
	o := newOrigin(t, files)
	nodes := startCluster(t, o.URL(), 3, func(_ int, cfg *config.Config) { cfg.MaxOriginRate = 2 << 20 })
	rec, _, err := nodes[0].StartWarm(t.Context(), control.WarmRequest{Spec: all()})
	if err != nil {
		t.Fatal(err)
	}
	until(t, "something was fetched", func() bool { return o.Counter.Bytes.Load() > 0 })
	if err := nodes[1].CancelWarm(t.Context(), rec.ID); err != nil {
		t.Fatal(err)
	}
	if rec := nodes[2].follow(t, rec.ID); rec.State != warm.Canceled {
		t.Errorf("%+v", rec)
	}
	until(t, "nobody runs it", func() bool {
		for _, n := range nodes {
			n.jobs.mu.Lock()
			x := n.jobs.known[rec.ID]
			busy := x != nil && x.stop != nil
			n.jobs.mu.Unlock()
			if busy {
				return false
			}
		}
		return true
	})
	if err := nodes[0].CancelWarm(t.Context(), rec.ID); err != nil {
		t.Errorf("a second time: %v", err)
	}
	if err := nodes[0].CancelWarm(t.Context(), "0123456789abcdef"); err == nil {
		t.Error("what nobody knows of is canceled")
	}
}

func TestWarmUpOfAList(t *testing.T) {
	t.Parallel()
	files := map[string][]byte{}
	list := "# some\n\n"
	for i := range 30 {
		key := fmt.Sprintf("d%d/f{%02d}*", i%2, i)
		files[key] = randomBytes(10<<10, uint64(i))
		if i != 7 {
			list += "s3://data/" + key + "\n"
		}
	}
	list += "s3://data/d0/none\n"
	o := newOrigin(t, files)
	nodes := startCluster(t, o.URL(), 3, nil)
	text := zip(t, list)
	sum := sha256.Sum256(text)
	spec := warm.Spec{ListSum: hex.EncodeToString(sum[:]), ListBytes: int64(len(text))}
	rec, _, err := nodes[0].StartWarm(t.Context(), control.WarmRequest{Spec: spec, List: text})
	if err != nil {
		t.Fatal(err)
	}
	rec = nodes[1].follow(t, rec.ID)
	if rec.State != warm.Partly || rec.Lost() != 1 || rec.Progress.DoneObjects != 29 || rec.Missing[0].URI != "s3://data/d0/none" {
		t.Errorf("%+v", rec)
	}
	if heads := o.Counter.Heads.Load(); heads > 4 {
		t.Errorf("%d questions about single names", heads)
	}
}

// A rate of the warm-up's own holds for all nodes together.
func TestWarmUpAtARate(t *testing.T) {
	t.Parallel()
	const rate = 6 << 20
	files := map[string][]byte{}
	for i := range 18 {
		files[fmt.Sprintf("f%02d", i)] = randomBytes(1<<20, uint64(i))
	}
	o := newOrigin(t, files)
	nodes := startCluster(t, o.URL(), 3, nil)
	spec := all()
	spec.OriginRate = rate
	began := time.Now()
	if rec := nodes[0].warmUp(t, spec); rec.State != warm.Done {
		t.Fatalf("%+v", rec)
	}
	if took, least := time.Since(began), 2*time.Second; took < least { // 18 MiB take 3 s; owners may differ in their shares
		t.Errorf("18 MiB came within %v, at 6 MiB a second", took)
	}
}

// What each node is to hold survives a restart, is no object's of others, and ends.
func TestHoldings(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	notes := &memoryNotes{}
	var h holdings
	h.open(slog.New(slog.DiscardHandler), notes, now)
	model := evict.Dataset{Origin: "https://o", Bucket: "b", Prefix: "model/"}
	in, out := chunk.Object{Origin: "https://o", Bucket: "b", Key: "model/x"}, chunk.Object{Origin: "https://o", Bucket: "b", Key: "other"}
	if h.covers(in, now) {
		t.Error("something is held from the start")
	}
	h.hold([]evict.Dataset{model}, now.Add(time.Hour), now)
	var again holdings
	again.open(slog.New(slog.DiscardHandler), notes, now.Add(time.Minute))
	for name, x := range map[string]*holdings{"first": &h, "after a restart": &again} {
		if !x.covers(in, now.Add(59*time.Minute)) || x.covers(out, now) || x.covers(in, now.Add(2*time.Hour)) {
			t.Errorf("%s: wrong objects are held, or for a wrong time", name)
		}
	}
	h.hold([]evict.Dataset{model}, now, now)
	if h.covers(in, now) {
		t.Error("it does not end")
	}
	again = holdings{}
	again.open(slog.New(slog.DiscardHandler), notes, now)
	if again.covers(in, now) {
		t.Error("it is back after a restart")
	}
}

// Who may not list, but read, gets what it names one by one; what it may neither is forbidden.
func TestWarmUpWithoutTheRightToList(t *testing.T) {
	t.Parallel()
	files := map[string][]byte{}
	for i := range 8 {
		files[fmt.Sprintf("d/f%d", i)] = randomBytes(100<<10, uint64(i))
	}
	o := newOrigin(t, files)
	proxy := proxyTo(t, o)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if key := strings.TrimPrefix(r.URL.Path, "/data"); key == "" || key == "/" || key == "/d/f3" {
			w.Header().Set("Content-Type", "application/xml")
			w.WriteHeader(http.StatusForbidden)
			_, _ = w.Write([]byte("<Error><Code>AccessDenied</Code></Error>"))
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(front.Close)
	nodes := startCluster(t, front.URL, 2, nil)
	rec := nodes[0].warmUp(t, warm.Spec{Sources: []string{"s3://data/d/f{0..7}"}})
	if rec.State != warm.Partly || len(rec.Missing) != 1 || rec.Missing[0].URI != "s3://data/d/f3" || rec.Missing[0].Reason != warm.Forbidden {
		t.Errorf("%+v", rec)
	}
	if want := sizeOf(files) - 100<<10; rec.Progress.DoneBytes != want {
		t.Errorf("%d bytes, want %d", rec.Progress.DoneBytes, want)
	}
	if rec := nodes[1].warmUp(t, warm.Spec{Sources: []string{"s3://data/d/"}}); rec.State != warm.Partly || rec.Counts[warm.Forbidden] != 1 {
		t.Errorf("a prefix: %+v", rec)
	}
}
