package node

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shardwell/shardwell/fuse/tarindex"
	"github.com/shardwell/shardwell/internal/config"
	"github.com/shardwell/shardwell/internal/control"
	"github.com/shardwell/shardwell/objstore"
)

// shard is a tar of members that were made up.
func shard(t *testing.T, count, size int) (data []byte, names []string, bodies map[string][]byte) {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	bodies = map[string][]byte{}
	for i := range count {
		name := fmt.Sprintf("%04d.bin", count-i)
		body := randomBytes(size+i, uint64(i))
		names, bodies[name] = append(names, name), body
		if err := errors.Join(w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(body))}), writeOut(w, body)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes(), names, bodies
}

func writeOut(w *tar.Writer, p []byte) error {
	_, err := w.Write(p)
	return err
}

// blocksOf adds the blocks in which the bytes [off, off+n) lie.
func blocksOf(set map[int64]bool, off, n, block int64) {
	for b := off / block; b <= (off+n-1)/block; b++ {
		set[b] = true
	}
}

func membersIn(t *testing.T, dir string) (names []string) {
	t.Helper()
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatalf("open %s: %v", dir, err)
	}
	defer unix.Close(fd)
	buf := make([]byte, 4096)
	for {
		n, err := unix.Getdents(fd, buf)
		if err != nil {
			t.Fatalf("read %s: %v", dir, err)
		}
		if n == 0 {
			return names
		}
		_, _, names = unix.ParseDirent(buf[:n], -1, names)
	}
}

func withTarView(_ int, cfg *config.Config) { cfg.TarView = true }

// SEMANTICS M4: A member is read by the blocks it lies in and no others; where members lie is found out once for the cluster, from headers alone or while the tar is read, and is known after a restart.
func TestTarMembersCostTheirBlocks(t *testing.T) {
	t.Parallel()
	needMounts(t)
	data, names, bodies := shard(t, 30, 700<<10)
	o := newOrigin(t, map[string][]byte{"d/x.tar": data})
	nodes := startCluster(t, o.URL(), 3, withTarView)
	var dirs []string
	for _, n := range nodes {
		dirs = append(dirs, n.mountOn(t, "s3://data/"))
	}
	want := map[int64]bool{}
	block := int64(nodes[0].cfg.BlockSize)
	places := map[string]int64{}
	off := int64(0)
	for _, name := range names {
		blocksOf(want, off, 512, block)
		places[name] = off + 512
		off += 512 + (int64(len(bodies[name]))+511)&^511
	}
	blocksOf(want, off, 512, block)
	bytesOf := func() (sum int64) {
		for b := range want {
			sum += min(block, int64(len(data))-b*block)
		}
		return sum
	}
	for _, dir := range dirs {
		if got := membersIn(t, filepath.Join(dir, "d/.tar/x.tar")); !slices.Equal(got, names) {
			t.Errorf("members: %q", got)
		}
	}
	if got := o.Counter.Bytes.Load(); got != bytesOf() {
		t.Errorf("the index cost %d bytes, the blocks with headers are %d of %d", got, bytesOf(), len(data))
	}
	var scans int64
	for _, n := range nodes {
		scans += n.tars.Stats().Scanned.Load()
	}
	if scans != 1 {
		t.Errorf("the tar was scanned %d times", scans)
	}
	for i, name := range []string{names[3], names[17], names[4], names[29], names[17]} {
		files := map[string][]byte{path.Join("d/.tar/x.tar", name): bodies[name]}
		if err := readAll(dirs[i%len(dirs)], files); err != nil {
			t.Error(err)
		}
		blocksOf(want, places[name], int64(len(bodies[name])), block)
		if got := o.Counter.Bytes.Load(); got != bytesOf() {
			t.Errorf("member %s: the origin gave %d bytes by now, its blocks are %d", name, got, bytesOf())
		}
	}
	before := o.Counter.Bytes.Load()
	for i, n := range nodes { // each knows it after a restart, without the others
		if err := n.stop(); err != nil {
			t.Fatal(err)
		}
		cfg := n.cfg
		cfg.Join = nil
		again := start(t, cfg)
		dir := again.mountOn(t, "s3://data/")
		if got := membersIn(t, filepath.Join(dir, "d/.tar/x.tar")); !slices.Equal(got, names) {
			t.Errorf("after a restart: %q", got)
		}
		if s := again.tars.Stats(); s.Loaded.Load() != 1 || s.Scanned.Load() != 0 {
			t.Errorf("node %d: %d loaded, %d scanned", i, s.Loaded.Load(), s.Scanned.Load())
		}
	}
	if got := o.Counter.Bytes.Load(); got != before {
		t.Errorf("after the restart the origin gave %d bytes", got-before)
	}
}

// A tar that is read needs no byte beyond that for its index, also where nothing is kept.
func TestTarIndexComesWithTheTar(t *testing.T) {
	t.Parallel()
	needMounts(t)
	for _, policy := range []string{"epoch", "none"} {
		data, names, _ := shard(t, 400, 9000)
		o := newOrigin(t, map[string][]byte{"x.tar": data})
		n := startCluster(t, o.URL(), 1, func(_ int, cfg *config.Config) { cfg.TarView, cfg.CachePolicy = true, policy })[0]
		dir := n.mountOn(t, "s3://data/")
		if err := readAll(dir, map[string][]byte{"x.tar": data}); err != nil {
			t.Fatal(err)
		}
		until(t, "the index is there", func() bool { return n.tars.Stats().Streamed.Load() == 1 })
		if got := membersIn(t, filepath.Join(dir, ".tar/x.tar")); !slices.Equal(got, names) {
			t.Errorf("%s: %d members, want %d", policy, len(got), len(names))
		}
		if got := o.Counter.Bytes.Load(); got != int64(len(data)) || n.tars.Stats().Scanned.Load() != 0 {
			t.Errorf("%s: the origin gave %d bytes of %d, %d scans", policy, got, len(data), n.tars.Stats().Scanned.Load())
		}
	}
}

// A tar that has an owner for each chunk comes whole only to who reads it: the index that grows there is given to
// the owner of its first chunk, and no header is read for it by anybody.
func TestTarIndexOfALargeTarIsShared(t *testing.T) {
	t.Parallel()
	needMounts(t)
	data, names, bodies := shard(t, 40, 300<<10)
	const count = 4
	files := map[string][]byte{}
	for i := range count {
		files[fmt.Sprintf("%d.tar", i)] = data
	}
	o := newOrigin(t, files)
	nodes := startCluster(t, o.URL(), 3, withTarView)
	var dirs []string
	for _, n := range nodes {
		dirs = append(dirs, n.mountOn(t, "s3://data/"))
	}
	if err := readAll(dirs[0], files); err != nil {
		t.Fatal(err)
	}
	var lacking []string
	for i := range count {
		obj := objectOf(o.URL(), fmt.Sprintf("%d.tar", i))
		info, _, err := nodes[0].names.Head(t.Context(), objstore.Query{Bucket: objstore.Bucket{Origin: obj.Origin, Name: obj.Bucket}, MaxAge: time.Hour}, obj.Key)
		if err != nil {
			t.Fatal(err)
		}
		obj.ETag, obj.Size = info.ETag, info.Size
		for _, n := range nodes {
			if n.policy.Owns(obj, obj.ID(), 0) {
				until(t, "the owner has the index", func() bool { return !n.tars.Lacks(obj) })
			} else if n != nodes[0] {
				lacking = append(lacking, obj.Key)
			}
		}
	}
	before := o.Counter.Bytes.Load()
	for i, dir := range dirs {
		for key := range files {
			if got := membersIn(t, filepath.Join(dir, ".tar", key)); !slices.Equal(got, names) {
				t.Errorf("node %d: %s: %q", i, key, got)
			}
			member := names[(i*7+len(key))%len(names)]
			if err := readAll(dir, map[string][]byte{path.Join(".tar", key, member): bodies[member]}); err != nil {
				t.Error(err)
			}
		}
	}
	var asked, scanned int64
	for _, n := range nodes {
		asked, scanned = asked+n.tars.Stats().Asked.Load(), scanned+n.tars.Stats().Scanned.Load()
	}
	if asked != int64(len(lacking)) || scanned != 0 || o.Counter.Bytes.Load() != before || before != count*int64(len(data)) {
		t.Errorf("%d asked, %d lacked it, %d scans; the origin gave %d bytes, then %d more", asked, len(lacking), scanned, before, o.Counter.Bytes.Load()-before)
	}
}

// The owner of a tenant's tar cannot read it: the index that the first tenant's node makes is given to it, and who may read the
// tar has it from there. Who may not has nothing.
func TestTarIndexOfATenantIsShared(t *testing.T) {
	t.Parallel()
	needMounts(t)
	data, names, bodies := shard(t, 12, 300<<10)
	w := newTenants(t, map[string][]byte{"a/x.tar": data}, 3, withTarView)
	w.user("alice", mayRead("a/"))
	w.user("bob", mayRead("a/"))
	w.user("mallory", onlyList)
	scans := func() (made, given int64) {
		for _, n := range w.nodes {
			s := n.tars.Stats()
			made, given = made+s.Scanned.Load()+s.Streamed.Load(), given+s.Given.Load()
		}
		return made, given
	}
	for i, user := range []string{"alice", "bob", "alice"} {
		dir := w.mount(t, i, user, "s3://data/a")
		if got := membersIn(t, filepath.Join(dir, ".tar/x.tar")); !slices.Equal(got, names) {
			t.Errorf("%s on node %d: %q", user, i, got)
		}
		if i > 0 {
			continue
		}
		until(t, "the owner has the index", func() bool {
			made, given := scans()
			return made == 1 && (given == 1 || w.nodes[0].tars.Stats().Scanned.Load() == 1 && w.ownsTar(t, 0, "a/x.tar", int64(len(data))))
		})
	}
	if made, given := scans(); made != 1 || given > 1 {
		t.Errorf("the index was made %d times, and given %d times", made, given)
	}
	dir := w.mount(t, 1, "bob", "s3://data/a")
	if err := readAll(dir, map[string][]byte{path.Join(".tar/x.tar", names[3]): bodies[names[3]]}); err != nil {
		t.Error(err)
	}
	dir = w.mount(t, 2, "mallory", "s3://data/a")
	if got, err := namesIn(filepath.Join(dir, ".tar/x.tar")); err == nil {
		t.Errorf("who may not read the tar sees %q", got)
	}
}

// ownsTar reports whether a node owns the first chunk of a tar.
func (w *tenants) ownsTar(t *testing.T, node int, key string, size int64) bool {
	t.Helper()
	var etag string
	for _, m := range w.nodes[node].mounts.all() {
		info, _, err := asking{w.nodes[node].names, m.who}.Head(t.Context(), objstore.Query{Bucket: m.bucket, MaxAge: time.Hour}, key)
		if err != nil {
			t.Fatal(err)
		}
		etag = info.ETag
	}
	obj := objectOf(w.url, key)
	obj.ETag, obj.Size = etag, size
	return w.nodes[node].policy.Owns(obj, obj.ID(), 0)
}

// members lists a tar as `shardwell ls` does.
func members(t *testing.T, uri string, list func(control.ListRequest, func(control.Entry) error) error) (names []string, err error) {
	t.Helper()
	err = list(control.ListRequest{URI: uri, Members: true}, func(e control.Entry) error {
		names = append(names, fmt.Sprint(e.Name, " ", e.Size, " ", e.LeftOut))
		return nil
	})
	return names, err
}

func TestListMembers(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range []tar.Header{{Name: "b", Size: 3}, {Name: "sub/a", Size: 0}, {Name: "empty/", Typeflag: tar.TypeDir},
		{Name: "link", Typeflag: tar.TypeSymlink, Linkname: "/etc/shadow"}} {
		if err := errors.Join(w.WriteHeader(&h), writeOut(w, make([]byte, h.Size))); err != nil {
			t.Fatal(err)
		}
	}
	_ = w.Close()
	o := newOrigin(t, map[string][]byte{"d/x.tar": b.Bytes(), "d/x.tar.gz": []byte("\x1f\x8b\x08"), "gz.tar": append([]byte("\x1f\x8b\x08"), make([]byte, 999)...),
		"dir.tar/y": nil, "d/x.tarry": nil})
	n := startCluster(t, o.URL(), 1, nil)[0]
	for name, list := range listers(t, n) {
		got, err := members(t, "s3://data/d/x.tar", list)
		want := []string{"b 3 ", "sub/a 0 ", "empty/ 0 ", "link 0 symbolic links are not shown"}
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
		for _, uri := range []string{"s3://data/d/x.tar.gz", "s3://data/gz.tar"} {
			_, err := members(t, uri, list)
			oneGoodLine(t, err, uri, "gzip", "compressed")
			if !errors.Is(err, tarindex.ErrCompressed) {
				t.Errorf("%s: %s: %v", name, uri, err)
			}
		}
		for uri, want := range map[string]string{"s3://data/dir.tar": "dir.tar/", "s3://data/d/": "x.tar", "s3://data/dir.tar/": "y"} {
			if got, err := members(t, uri, list); err != nil || !strings.HasPrefix(strings.Join(got, ","), want) {
				t.Errorf("%s: %s: %q, %v", name, uri, got, err)
			}
		}
		if _, err := members(t, "s3://data/none.tar", list); !errors.Is(err, objstore.ErrNotExist) {
			t.Errorf("%s: none: %v", name, err)
		}
	}
}

// A directory is listed without a node too, and a tar in it.
func TestListMembersOfADirectory(t *testing.T) {
	t.Parallel()
	data, names, _ := shard(t, 3, 100)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "x.tar"), data, 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := members(t, "file://"+dir+"/x.tar", func(r control.ListRequest, yield func(control.Entry) error) error {
		return ListOrigin(t.Context(), config.Default(), r, yield)
	})
	if err != nil || len(got) != len(names) || !strings.HasPrefix(got[0], names[0]+" ") {
		t.Errorf("got %q, %v", got, err)
	}
}

// listers are the two ways to list.
func listers(t *testing.T, n *running) map[string]func(control.ListRequest, func(control.Entry) error) error {
	return map[string]func(control.ListRequest, func(control.Entry) error) error{
		"node": func(r control.ListRequest, yield func(control.Entry) error) error {
			return n.List(t.Context(), r, yield)
		},
		"origin": func(r control.ListRequest, yield func(control.Entry) error) error {
			return ListOrigin(t.Context(), n.cfg, r, yield)
		},
	}
}
