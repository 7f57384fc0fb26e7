package e2e_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shardwell/shardwell/e2e/cluster"
	"github.com/shardwell/shardwell/e2e/dataset"
)

// With verifyReads "always", a flipped byte in a cache file is found by the read,
// the block is fetched again, and the reader sees right bytes.
func TestFlippedByteIsFetchedAgain(t *testing.T) {
	const mib = 32
	// Little memory: a checked copy of the block that stayed there would be read instead.
	c := start(t, cluster.Options{Nodes: 1, Flags: []string{"--memory", "64Mi"}})
	fioFile(t, c, "fio/file", mib)
	n := c.Nodes[0]
	dir := mountOn(t, n, "s3://"+bucket+"/fio", "--verify-reads", "always")
	path := filepath.Join(dir, "file")
	must(t, fioVerify(t, path, mib))

	flip(t, cacheFile(t, n, mib<<20), 10<<20+12345)
	dropCaches(t)
	c.Origin.Reset()
	if err := fioVerify(t, path, mib); err != nil {
		t.Errorf("read of a damaged block with --verify-reads always: %v", err)
	}
	if got := c.Origin.Requests().Bytes(); got == 0 || got > 8<<20 {
		t.Errorf("the damaged block cost %d bytes of the origin, want one block to one chunk", got)
	}
	m, err := n.Metrics()
	must(t, err)
	if m.Sum("shardwell_corrupt_blocks_total") < 1 {
		t.Error("shardwell_corrupt_blocks_total has not moved")
	}
	s, err := n.Status()
	must(t, err)
	if s.Bytes.PassthroughOpens != 0 {
		t.Errorf("%d passthrough opens with --verify-reads always, want 0", s.Bytes.PassthroughOpens)
	}
}

// With passthrough the kernel reads the cache file itself: the damage is found by
// the reader's own checksum, and `shardwell verify` names the file.
func TestFlippedByteUnderPassthroughIsNamedByVerify(t *testing.T) {
	const mib = 32
	c := start(t, cluster.Options{Nodes: 1})
	fioFile(t, c, "fio/file", mib)
	n := c.Nodes[0]
	dir := mountOn(t, n, "s3://"+bucket+"/fio")
	path := filepath.Join(dir, "file")
	for range 2 { // the second open finds the complete file
		must(t, fioVerify(t, path, mib))
	}
	s, err := n.Status()
	must(t, err)
	if s.Bytes.PassthroughOpens == 0 {
		t.Fatal("the open of a complete file was not a passthrough one")
	}

	damaged := cacheFile(t, n, mib<<20)
	flip(t, damaged, 10<<20+12345)
	dropCaches(t)
	if err := fioVerify(t, path, mib); err == nil {
		t.Error("fio has not found the damage in a passthrough file; is it read by the kernel?")
	}
	must(t, n.Stop())
	r, err := n.Verify()
	id := strings.TrimSuffix(filepath.Base(damaged), ".data")
	if err == nil || r.Code == 0 || !strings.Contains(r.Stdout+r.Stderr, id) {
		t.Errorf("shardwell verify ended with %d and said %q; want a failure that names %s", r.Code, r.Stdout+r.Stderr, id)
	}
	if r, err := n.Verify("--repair"); r.Code != 1 || !strings.Contains(r.Stdout+r.Stderr, id) {
		t.Errorf("shardwell verify --repair: %v, %q; want code 1, for there was damage", err, r.Stdout+r.Stderr)
	}
	if r, err := n.Verify(); err != nil {
		t.Errorf("shardwell verify after --repair: %v, %q", err, r.Stdout+r.Stderr)
	}
	must(t, n.Start())
	dir = mountOn(t, n, "s3://"+bucket+"/fio")
	if err := fioVerify(t, filepath.Join(dir, "file"), mib); err != nil {
		t.Errorf("after verify --repair: %v", err)
	}
}

// A block that is damaged on its owner's disk is found where it arrives, dropped by the
// owner and fetched again; it costs that block.
func TestDamagedBlockOfAPeerIsNotBelieved(t *testing.T) {
	const size = 24 << 20
	c := start(t, cluster.Options{Nodes: 1})
	objects := put(t, c, "d/", 1, size)
	owner := c.Nodes[0]
	must(t, readAll(map[int]string{0: mountOn(t, owner, "s3://"+bucket+"/d")}, "d/", objects))
	reader, err := c.AddNode("--no-owner")
	must(t, err)
	must(t, c.WaitMembers(2))
	flip(t, cacheFile(t, owner, size), 9<<20+77)
	dropCaches(t)
	c.Origin.Reset()
	if err := readAll(map[int]string{0: mountOn(t, reader, "s3://"+bucket+"/d")}, "d/", objects); err != nil {
		t.Error(err)
	}
	wantOriginAtMost(t, c.Origin, 256<<10, "one damaged block")
	for _, n := range c.Nodes {
		m, err := n.Metrics()
		must(t, err)
		t.Logf("node %s: corrupt blocks %v", n.Name, m.Sum("shardwell_corrupt_blocks_total"))
	}
}

// Files of the cache that were truncated, swapped, zeroed or whose sidecar was
// damaged while the node was down are misses, never wrong bytes.
func TestDamagedFilesAreMisses(t *testing.T) {
	const size = 9 << 20
	c := start(t, cluster.Options{Nodes: 1})
	objects := put(t, c, "d/", 6, size)
	n := c.Nodes[0]
	must(t, readAll(map[int]string{0: mountOn(t, n, "s3://"+bucket+"/d")}, "d/", objects))
	must(t, n.Kill())
	data, err := filepath.Glob(filepath.Join(n.CacheDir, "objects", "*", "*.data"))
	must(t, err)
	meta, err := filepath.Glob(filepath.Join(n.CacheDir, "objects", "*", "*.meta"))
	must(t, err)
	if len(data) != 6 || len(meta) != 6 {
		t.Fatalf("%d data files and %d sidecars, want 6 each", len(data), len(meta))
	}
	must(t, os.Truncate(data[0], size/2))
	must(t, os.Rename(data[1], data[1]+".x"))
	must(t, os.Rename(data[2], data[1]))
	must(t, os.Rename(data[1]+".x", data[2]))
	f, err := os.OpenFile(data[3], os.O_RDWR, 0)
	must(t, err)
	_, err = f.WriteAt(make([]byte, 4096), 3<<20)
	must(t, err)
	must(t, f.Close())
	flip(t, meta[4], 4) // in the header
	info, err := os.Stat(meta[5])
	must(t, err)
	flip(t, meta[5], info.Size()-4) // in the checksums
	dropCaches(t)

	must(t, n.Start())
	dir := mountOn(t, n, "s3://"+bucket+"/d", "--verify-reads", "always")
	for key, want := range objects {
		if err := dataset.CompareFile(filepath.Join(dir, strings.TrimPrefix(key, "d/")), want); err != nil {
			t.Errorf("after damage: %v", err)
		}
	}
}
