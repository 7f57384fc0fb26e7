package node

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/shardwell/shardwell/cache/disk"
	"github.com/shardwell/shardwell/cache/evict"
	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/internal/config"
	"github.com/shardwell/shardwell/internal/control"
	"github.com/shardwell/shardwell/objstore"
)

// objectOf names an object of the bucket, without its version.
func objectOf(endpoint, key string) chunk.Object {
	return chunk.Object{Origin: endpoint, Bucket: "data", Key: key}
}

// classAt returns what a node takes an object of the bucket to be worth.
func (r *running) classAt(o interface{ URL() string }, key string) evict.Class {
	obj := objectOf(o.URL(), key)
	class, _ := r.policy.Judge(obj, obj.ID())
	return class
}

// held adds up the blocks that a node's disks hold of objects that a test picks.
func (r *running) held(t *testing.T, pick func(disk.Entry) bool) (sum int64) {
	t.Helper()
	for _, d := range r.disks.dirs {
		err := d.Each(t.Context(), func(e disk.Entry) error {
			if pick(e) {
				f, err := d.Find(e.ID)
				if err != nil {
					return nil // gone meanwhile
				}
				sum += f.CachedBytes() // exact: the last block is shorter
				f.Release()
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return sum
}

// SEMANTICS K1: What the owners hold of a dataset that is mounted anywhere in the cluster is not evicted for other data, under the default `--cache-policy epoch`.
//
// TestUsesReachEveryNode has owners protect what is mounted elsewhere, until it is unmounted, and
// over a restart.
func TestUsesReachEveryNode(t *testing.T) {
	t.Parallel()
	needMounts(t)
	o := newOrigin(t, map[string][]byte{"a/1": []byte("x"), "b/1": []byte("y"), "c/1": []byte("z")})
	nodes := startCluster(t, o.URL(), 3, nil)
	dirs := map[string]string{"epoch": mountpoint(t), "lru": mountpoint(t), "none": mountpoint(t)}
	mustMount(t, nodes[0], "s3://data/a", dirs["epoch"], nil)
	mustMount(t, nodes[0], "s3://data/b", dirs["lru"], map[string]string{"cachePolicy": "lru"})
	mustMount(t, nodes[0], "s3://data/c", dirs["none"], map[string]string{"cachePolicy": "none"})
	for i, n := range nodes { // known when the mount is made, not some time later
		for key, want := range map[string]evict.Class{"a/1": evict.Protected, "b/1": evict.Recent, "c/1": evict.Unkept, "d/1": evict.Idle} {
			if got := n.classAt(o, key); got != want {
				t.Errorf("n%d: %s is %v, want %v", i, key, got, want)
			}
		}
	}
	again := newDatasets(nodes[1].Node.log, nodes[1].disks, nil)
	obj := objectOf(o.URL(), "a/1")
	if class, _ := again.now().Judge(obj, time.Now().UnixNano()); class != evict.Protected {
		t.Errorf("after a restart it is %v", class)
	}
	if err := nodes[0].Umount(t.Context(), dirs["epoch"]); err != nil {
		t.Fatal(err)
	}
	for _, n := range nodes {
		until(t, "the others hear that it was unmounted", func() bool { return n.classAt(o, "a/1") == evict.Idle })
	}
}

// SEMANTICS K2: A pin protects a dataset above all others until its time has passed; one that cannot fit beside the other pins is refused with the figure.
//
// TestPins pins by one node, and looks at another.
func TestPins(t *testing.T) {
	t.Parallel()
	files := map[string][]byte{"p/1": randomBytes(3<<20, 1), "p/2": randomBytes(3<<20, 2), "q/1": randomBytes(3<<20, 3), "r/1": []byte("r")}
	o := newOrigin(t, files)
	nodes := startCluster(t, o.URL(), 2, func(_ int, cfg *config.Config) { cfg.CacheDirs[0].Budget = 4 << 20 })
	objects, size, err := nodes[0].Pin(t.Context(), "s3://data/p", time.Hour)
	if err != nil || objects != 2 || size != 6<<20 {
		t.Fatalf("pin: %d objects, %d bytes, %v", objects, size, err)
	}
	until(t, "the other node knows the pin", func() bool { return nodes[1].classAt(o, "p/1") == evict.Pinned })
	_, _, err = nodes[1].Pin(t.Context(), "s3://data/q", time.Hour)
	var refused *evict.PinError
	if !errors.As(err, &refused) || refused.NeedBytes != 3<<20 || refused.FreeBytes <= 0 || refused.FreeBytes >= 2<<20 {
		t.Fatalf("a pin that does not fit: %v", err)
	}
	if !strings.Contains(err.Error(), fmt.Sprint(refused.FreeBytes)) {
		t.Errorf("the figure is not in %q", err)
	}
	if _, _, err := nodes[1].Pin(t.Context(), "s3://data/p", 0); err != nil {
		t.Fatal(err)
	}
	until(t, "the first node knows that the pin was taken back", func() bool { return nodes[0].classAt(o, "p/1") == evict.Idle })
	if _, _, err := nodes[0].Pin(t.Context(), "s3://data/q", time.Hour); err != nil {
		t.Error("after the first was taken back:", err)
	}
	if _, _, err := nodes[0].Pin(t.Context(), "s3://data/nothing", time.Hour); err == nil {
		t.Error("pinned nothing")
	}
}

// SEMANTICS K3: A dataset with a `--quota` takes no more of the caches of the whole cluster than that; beyond it reads stream through.
func TestQuota(t *testing.T) {
	t.Parallel()
	needMounts(t)
	files := make(map[string][]byte)
	for i := range 24 {
		files[fmt.Sprintf("d/%02d", i)] = randomBytes(512<<10, uint64(i))
	}
	o := newOrigin(t, files)
	nodes := startCluster(t, o.URL(), 2, func(i int, cfg *config.Config) { cfg.NoOwner = i == 1 })
	dir := mountpoint(t)
	mustMount(t, nodes[1], "s3://data/d", dir, map[string]string{"quota": "4Mi"})
	inDir := make(map[string][]byte)
	for key, data := range files {
		inDir[strings.TrimPrefix(key, "d/")] = data
	}
	if err := readAll(dir, inDir); err != nil {
		t.Fatal(err)
	}
	if got := nodes[0].held(t, func(disk.Entry) bool { return true }); got > 4<<20 || got < 3<<20 {
		t.Errorf("the owner holds %d bytes, quota %d", got, 4<<20)
	}
}

// TestQuotaRotates has a dataset that is kept by recency hold what was read last within its quota.
func TestQuotaRotates(t *testing.T) {
	t.Parallel()
	needMounts(t)
	files := make(map[string][]byte)
	for i := range 24 {
		files[fmt.Sprintf("d/%02d", i)] = randomBytes(512<<10, uint64(i))
	}
	o := newOrigin(t, files)
	nodes := startCluster(t, o.URL(), 2, func(i int, cfg *config.Config) { cfg.NoOwner = i == 1 })
	dir := mountpoint(t)
	mustMount(t, nodes[1], "s3://data/d", dir, map[string]string{"quota": "4Mi", "cachePolicy": "lru", "prefetchShards": "0"})
	held := func(from, to string) int64 {
		return nodes[0].held(t, func(e disk.Entry) bool { return from <= e.Object.Key && e.Object.Key <= to })
	}
	read := func(from, to int) {
		t.Helper()
		for i := from; i <= to; i++ {
			name := fmt.Sprintf("%02d", i)
			if err := readAll(dir, map[string][]byte{name: files["d/"+name]}); err != nil {
				t.Fatal(err)
			}
		}
	}
	read(0, 8) // one more than there is room for
	until(t, "the owner makes room", func() bool { return nodes[0].disks.dirs[0].Stats().EvictedObjects.Load() > 0 })
	until(t, "what was read last is held", func() bool {
		read(9, 10)
		return held("d/08", "d/10") > 0
	})
	if first := held("d/00", "d/07"); first >= 4<<20 {
		t.Errorf("%d bytes are held of what was read first", first)
	}
	if got := nodes[0].held(t, func(disk.Entry) bool { return true }); got > 4<<20 {
		t.Errorf("the owner holds %d bytes, quota %d", got, 4<<20)
	}
}

// SEMANTICS K4: `shardwell drain` hands what only the leaving node holds to its new owners: the epoch after it costs no origin byte.
func TestDrain(t *testing.T) {
	t.Parallel()
	needMounts(t)
	files := dataset()
	o := newOrigin(t, files)
	nodes := startCluster(t, o.URL(), 3, nil)
	reader := mountpoint(t)
	mustMount(t, nodes[2], "s3://data/", reader, nil)
	if err := readAll(reader, files); err != nil {
		t.Fatal(err)
	}
	owned := nodes[1].held(t, func(e disk.Entry) bool { return e.Owned })
	var last control.DrainProgress
	if err := nodes[1].Drain(t.Context(), func(p control.DrainProgress) error { last = p; return nil }); err != nil {
		t.Fatal(err)
	}
	if last.DoneBytes == 0 || last.DoneBytes != last.TotalBytes || last.FailedBytes != 0 || last.DoneBytes > owned {
		t.Errorf("handed on %+v of %d bytes", last, owned)
	}
	if err := nodes[1].stop(); err != nil { // it ends by itself
		t.Error(err)
	}
	agree(t, nodes[0], nodes[2])
	before := o.Counter.Bytes.Load()
	other := mountpoint(t)
	mustMount(t, nodes[0], "s3://data/", other, nil)
	if err := readAll(other, files); err != nil {
		t.Fatal(err)
	}
	if got := o.Counter.Bytes.Load() - before; got != 0 {
		t.Errorf("the epoch after the drain cost %d bytes", got)
	}
}

// TestMemoryOnlyNodes has nodes without disks keep what is pinned, count what they hold, and hand it on.
func TestMemoryOnlyNodes(t *testing.T) {
	t.Parallel()
	needMounts(t)
	files := make(map[string][]byte)
	for i := range 16 {
		files[fmt.Sprintf("p/%02d", i)] = randomBytes(512<<10, uint64(i))
	}
	o := newOrigin(t, files)
	nodes := startCluster(t, o.URL(), 3, func(_ int, cfg *config.Config) { cfg.CacheDirs = nil })
	for i, n := range nodes {
		share := n.cluster.ring.history.Current().OwnedShare(n.id)
		if n.capacityHere() <= 0 || share < 0.3 || share > 0.37 {
			t.Errorf("n%d has room for %d bytes and owns %.3f", i, n.capacityHere(), share)
		}
	}
	if _, size, err := nodes[0].Pin(t.Context(), "s3://data/p", time.Hour); err != nil || size != 8<<20 {
		t.Fatalf("pin: %d bytes, %v", size, err)
	}
	dir := mountpoint(t)
	mustMount(t, nodes[2], "s3://data/", dir, nil)
	if err := readAll(dir, files); err != nil {
		t.Fatal(err)
	}
	status, err := nodes[0].shares(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, owned := under(status, objstore.Bucket{Origin: o.URL(), Name: "data"}, "p/"); owned == 0 || owned%(512<<10) != 0 {
		t.Errorf("n0 counts %d bytes of what it owns", owned)
	}
	var last control.DrainProgress
	if err := nodes[1].Drain(t.Context(), func(p control.DrainProgress) error { last = p; return nil }); err != nil {
		t.Fatal(err)
	}
	if last.DoneBytes == 0 || last.FailedBytes != 0 {
		t.Errorf("handed on %+v", last)
	}
	agree(t, nodes[0], nodes[2])
	before := o.Counter.Bytes.Load()
	other := mountpoint(t)
	mustMount(t, nodes[0], "s3://data/", other, nil)
	if err := readAll(other, files); err != nil {
		t.Fatal(err)
	}
	if got := o.Counter.Bytes.Load() - before; got != 0 {
		t.Errorf("after the drain the origin sent %d bytes", got)
	}
}

// TestRingMoves has a new member get what it owns now, without anybody reading it, and no faster
// than was agreed.
func TestRingMoves(t *testing.T) {
	t.Parallel()
	needMounts(t)
	files := dataset()
	o := newOrigin(t, files)
	const rate = 1 << 20 // bytes a second
	first := startCluster(t, o.URL(), 1, func(_ int, cfg *config.Config) { cfg.MoveRate = rate })[0]
	dir := mountpoint(t)
	mustMount(t, first, "s3://data/", dir, nil)
	if err := readAll(dir, files); err != nil {
		t.Fatal(err)
	}
	cfg := testConfig(t, o.URL())
	cfg.Name, cfg.Join = "second", []string{first.cluster.group.Addr().String()}
	began := time.Now()
	second := start(t, cfg)
	agree(t, first, second)
	before := o.Counter.Bytes.Load()
	want, largest := int64(0), int64(0) // largest: of what it owns, the most in one object, which goes in one call
	for key, data := range files {
		obj := objectOf(o.URL(), key)
		obj.Size = int64(len(data))
		info, _, err := first.names.Head(t.Context(), objstore.Query{Bucket: objstore.Bucket{Origin: obj.Origin, Name: obj.Bucket}, MaxAge: time.Hour}, key)
		if err != nil {
			t.Fatal(err)
		}
		obj.ETag = info.ETag
		here := want
		for i := range second.geometry.Chunks(obj.Size) {
			if span := second.geometry.ChunkSpan(obj.Size, i); second.policy.Owns(obj, obj.ID(), span.First) {
				_, n := second.geometry.Bytes(obj.Size, span)
				want += n
			}
		}
		largest = max(largest, want-here)
	}
	if want == 0 {
		t.Fatal("the new member owns nothing")
	}
	until(t, "the new member holds what it owns", func() bool {
		return second.held(t, func(disk.Entry) bool { return true }) == want
	})
	if least := moveSettle + time.Duration(float64(want-largest)/rate*float64(time.Second)); time.Since(began) < least {
		t.Errorf("%d bytes moved within %v, at %d a second it takes %v", want, time.Since(began), rate, least)
	}
	if got := o.Counter.Bytes.Load() - before; got != 0 {
		t.Errorf("the move cost %d bytes of the origin", got)
	}
}

// SEMANTICS K5: The space of a version that was overwritten is given back on all nodes once the new version is known, on each when its last reader has closed the file and no mount there may show it any more (its ttl, ten minutes at most); until then that reader has the old bytes.
func TestOverwriteFrees(t *testing.T) {
	t.Parallel()
	needMounts(t)
	old, now := randomBytes(700<<10, 1), randomBytes(600<<10, 2)
	o := newOrigin(t, map[string][]byte{"k": old})
	nodes := startCluster(t, o.URL(), 2, nil)
	var files []mounted
	var dirs []string
	for _, n := range nodes {
		dir := mountpoint(t)
		mustMount(t, n, "s3://data/", dir, map[string]string{"consistency": "open"})
		f, err := openFile(dir + "/k")
		if err != nil {
			t.Fatal(err)
		}
		if got, err := f.readAll(); err != nil || !bytes.Equal(got, old) {
			t.Fatal("first version:", err)
		}
		files, dirs = append(files, f), append(dirs, dir)
	}
	isOld := func(e disk.Entry) bool { return e.Object.Size == int64(len(old)) }
	put(t, o, "k", now)
	files[0].close()
	if err := readAll(dirs[0], map[string][]byte{"k": now}); err != nil {
		t.Fatal(err)
	}
	until(t, "the node without a reader frees the old version", func() bool { return nodes[0].held(t, isOld) == 0 })
	if got := nodes[1].held(t, isOld); got != int64(len(old)) {
		t.Errorf("the node with a reader holds %d bytes of the old version", got)
	}
	files[1].close()
	until(t, "the other node frees it as well", func() bool { return nodes[1].held(t, isOld) == 0 })
}

// memoryNotes is a notebook in memory.
type memoryNotes map[string][]byte

func (m memoryNotes) readNote(name string, _ int64) ([]byte, error) {
	if data, ok := m[name]; ok {
		return data, nil
	}
	return nil, fs.ErrNotExist
}

func (m memoryNotes) writeNote(name string, data []byte) error {
	m[name] = data
	return nil
}

// hangingNotes writes when it is let go on.
type hangingNotes struct {
	memoryNotes
	writes, goOn chan struct{}
}

func (h hangingNotes) writeNote(string, []byte) error {
	h.writes <- struct{}{}
	<-h.goOn
	return disk.ErrHung
}

// TestDatasetsFileHangs asks what is known while the disk does not answer.
func TestDatasetsFileHangs(t *testing.T) {
	notes := hangingNotes{make(memoryNotes), make(chan struct{}, 9), make(chan struct{}, 9)}
	notes.goOn <- struct{}{}
	d := newDatasets(slog.New(slog.DiscardHandler), notes, nil)
	<-notes.writes
	done := make(chan struct{})
	go func() {
		defer close(done)
		d.add(claim{Dataset: evict.Dataset{Origin: "o", Bucket: "b"}})
	}()
	<-notes.writes // and hangs
	if class, _ := d.now().Judge(chunk.Object{Origin: "o", Bucket: "b", Key: "k"}, time.Now().UnixNano()); class != evict.Protected {
		t.Errorf("meanwhile it is %v", class)
	}
	if got := d.tell(time.Now()); len(got) != 1 {
		t.Errorf("meanwhile it tells %v", got)
	}
	notes.goOn <- struct{}{}
	<-done
}

// TestRefreshFrees frees versions of which only what was forgotten tells that they were there.
func TestRefreshFrees(t *testing.T) {
	t.Parallel()
	needMounts(t)
	old, now := randomBytes(700<<10, 1), randomBytes(600<<10, 2)
	o := newOrigin(t, map[string][]byte{"k": old})
	nodes := startCluster(t, o.URL(), 2, nil)
	dir := mountpoint(t)
	mustMount(t, nodes[1], "s3://data/", dir, map[string]string{"consistency": "open"})
	if err := readAll(dir, map[string][]byte{"k": old}); err != nil {
		t.Fatal(err)
	}
	if _, err := nodes[0].Refresh(t.Context(), "s3://data/"); err != nil {
		t.Fatal(err)
	}
	put(t, o, "k", now)
	if err := readAll(dir, map[string][]byte{"k": now}); err != nil {
		t.Fatal(err)
	}
	for i, n := range nodes {
		until(t, fmt.Sprintf("n%d frees the old version", i), func() bool {
			return n.held(t, func(e disk.Entry) bool { return e.Object.Size == int64(len(old)) }) == 0
		})
	}
}

// TestDatasetsFile survives what a disk may do to the file.
func TestDatasetsFile(t *testing.T) {
	notes := make(memoryNotes)
	ds := evict.Dataset{Origin: "https://o", Bucket: "b", Prefix: "p/"}
	d := newDatasets(slog.New(slog.DiscardHandler), notes, nil)
	end := d.add(claim{Dataset: ds, Policy: evict.Epoch})
	if err := d.pin(evict.Dataset{Origin: "https://o", Bucket: "b", Prefix: "q/"}, 5, 10, time.Now().Add(time.Hour), time.Now()); err != nil {
		t.Fatal(err)
	}
	d = newDatasets(slog.New(slog.DiscardHandler), notes, nil)
	for key, want := range map[string]evict.Class{"p/x": evict.Protected, "q/x": evict.Pinned, "r/x": evict.Idle} {
		if class, _ := d.now().Judge(chunk.Object{Origin: "https://o", Bucket: "b", Key: key}, time.Now().UnixNano()); class != want {
			t.Errorf("read back, %s is %v, want %v", key, class, want)
		}
	}
	end()
	for _, text := range []string{"", "{", `{"uses":7}`, "\x00\x01"} {
		notes[datasetsName] = []byte(text)
		if uses := newDatasets(slog.New(slog.DiscardHandler), notes, nil).now().Uses(); len(uses) != 0 {
			t.Errorf("%q: %+v", text, uses)
		}
	}
}

// TestStaleVersionsAreDue keeps an overwritten version as long as a mount may show it.
func TestStaleVersionsAreDue(t *testing.T) {
	var s staleVersions
	s.add(chunk.ObjectID{1}, 0)
	s.add(chunk.ObjectID{2}, time.Minute)
	s.add(chunk.ObjectID{3}, time.Hour)
	for id := range byte(4) {
		if got := s.has(chunk.ObjectID{id}); got != (id > 0) {
			t.Errorf("version %d is stale: %t", id, got)
		}
	}
	now := time.Now()
	for _, c := range []struct {
		after time.Duration
		want  int
	}{{0, 0}, {time.Minute + time.Second, 1}, {2 * time.Minute, 0}, {staleFor + time.Second, 1}, {time.Hour, 0}} {
		if got := s.due(now.Add(c.after)); len(got) != c.want {
			t.Errorf("after %v: %d versions are due, want %d", c.after, len(got), c.want)
		}
	}
}
