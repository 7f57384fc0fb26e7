package e2e_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/shardwell/shardwell/e2e/cluster"
	"github.com/shardwell/shardwell/e2e/dataset"
)

// shardOf makes a WebDataset shard of samples with two members each, in an order that is not that of names.
func shardOf(t *testing.T, samples int) (data []byte, names []string, members map[string][]byte) {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	members = make(map[string][]byte)
	for i := range samples {
		for _, part := range []struct {
			ext  string
			size int
		}{{"jpg", 90<<10 + 1111*i}, {"json", 200 + i}} {
			name := fmt.Sprintf("%06d.%s", samples-i, part.ext)
			body := dataset.Random{Seed: seed + uint64(i), Size: int64(part.size)}.Bytes()
			must(t, w.WriteHeader(&tar.Header{Name: name, Size: int64(len(body)), Mode: 0o644}))
			_, err := w.Write(body)
			must(t, err)
			names, members[name] = append(names, name), body
		}
	}
	must(t, w.Close())
	return b.Bytes(), names, members
}

// sparseShard has GNU tar pack a file with holes between two others.
func sparseShard(t *testing.T) []byte {
	t.Helper()
	dir := t.TempDir()
	out, err := command(t, toolWait, "bash", "-euc", `cd $1; echo before >a; echo behind >z; truncate -s 8M holes; printf data | dd of=holes bs=1M seek=5 conv=notrunc status=none
		tar -S -cf x.tar a holes z; tar -tvf x.tar >/dev/null`, "bash", dir)
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	data, err := os.ReadFile(filepath.Join(dir, "x.tar"))
	must(t, err)
	if len(data) > 1<<20 {
		t.Fatalf("the file with holes was packed whole: %d bytes", len(data))
	}
	return data
}

// evilShard makes a tar of members that mean harm, or nothing, beside good ones.
func evilShard(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for i, h := range []tar.Header{
		{Name: "../../x"}, {Name: "a/../../y"}, {Name: "/etc/passwd"}, {Name: "first"}, {Name: "twice"},
		{Name: "out", Typeflag: tar.TypeSymlink, Linkname: "../../../../etc/shadow"}, {Name: "hard", Typeflag: tar.TypeLink, Linkname: "/etc/shadow"},
		{Name: "null", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3}, {Name: "disk", Typeflag: tar.TypeBlock, Devmajor: 8}, {Name: "pipe", Typeflag: tar.TypeFifo},
		{Name: "twice"}, {Name: strings.Repeat("n", 300), Format: tar.FormatPAX}, {Name: "\x1b[31m\n"},
		{Name: "large", Format: tar.FormatPAX, PAXRecords: map[string]string{"VENDOR.x": strings.Repeat("x", 1<<20-4096)}}, {Name: "last"},
	} {
		h.Mode = 0o6777
		if h.Typeflag == 0 {
			h.Size = int64(i)
		}
		must(t, w.WriteHeader(&h))
		_, err := w.Write(bytes.Repeat([]byte{'0' + byte(i)}, int(h.Size)))
		must(t, err)
	}
	must(t, w.Close())
	return b.Bytes()
}

func gzipped(t *testing.T, data []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, err := z.Write(data)
	must(t, errors.Join(err, z.Close()))
	return b.Bytes()
}

// listed returns the names of a directory in its own order.
func listed(dir string) ([]string, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Readdirnames(-1)
}

// wantFiles compares files with what they should hold.
func wantFiles(t *testing.T, dir string, files map[string][]byte) {
	t.Helper()
	for name, want := range files {
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s in %s: %d bytes, want %d, %v", name, dir, len(got), len(want), err)
		}
	}
}

// The members of tars of a real store are files of a real mount: in their order, by the bytes of their blocks,
// to every node by one index; what is no such tar is refused, and nothing else in the mount is different.
func TestMembersOfTars(t *testing.T) {
	data, names, members := shardOf(t, 40)
	sparse, plain := sparseShard(t), bytes.Repeat([]byte("text "), 1000)
	objects := map[string][]byte{
		"d/x.tar": data, "d/packed.tar.gz": gzipped(t, data[:100<<10]), "d/hidden.tar": gzipped(t, data[:100<<10]),
		"d/plain.tar": plain, "d/sparse.tar": sparse, "d/cut.tar": data[:len(data)/2], "d/evil.tar": evilShard(t),
		"own/.tar/x.tar": []byte("a key below a directory of that name"), "own/x.tar": data, "one/.tar": []byte("a key of that name"), "one/x.tar": data,
	}
	c := start(t, cluster.Options{Nodes: 3, Flags: []string{"--tar-view"}})
	for key, body := range objects {
		_, err := c.Origin.PutBytes(t.Context(), bucket, "t/"+key, body)
		must(t, err)
	}
	dirs := mount(t, c, "s3://"+bucket+"/t")
	first, second := dirs[c.Nodes[0]], dirs[c.Nodes[1]]

	t.Run("members", func(t *testing.T) { membersAreFiles(t, c, dirs, data, names, members) })
	t.Run("keys of that name", func(t *testing.T) {
		wantFiles(t, first, map[string][]byte{"own/.tar/x.tar": objects["own/.tar/x.tar"], "one/.tar": objects["one/.tar"]})
	})
	t.Run("refused", func(t *testing.T) {
		for name, want := range map[string]syscall.Errno{"packed.tar.gz": syscall.EOPNOTSUPP, "hidden.tar": syscall.EOPNOTSUPP, "plain.tar": syscall.ENOTDIR} {
			for _, dir := range []string{first, second} {
				if _, err := listed(filepath.Join(dir, "d/.tar", name)); !errors.Is(err, want) {
					t.Errorf("list %s: %v, want %v", name, err, want)
				}
			}
			if r, err := c.Nodes[2].Run("ls", "s3://"+bucket+"/t/d/"+name); err == nil || strings.Count(r.Stderr, "\n") != 1 || !strings.Contains(r.Stderr, name) {
				t.Errorf("ls %s: %d, %q", name, r.Code, r.Stderr)
			}
		}
	})
	t.Run("sparse", func(t *testing.T) {
		wantFiles(t, filepath.Join(second, "d/.tar/sparse.tar"), map[string][]byte{"a": []byte("before\n"), "z": []byte("behind\n")})
		if got, err := listed(filepath.Join(first, "d/.tar/sparse.tar")); err != nil || !slices.Equal(got, []string{"a", "z"}) {
			t.Errorf("members: %q, %v", got, err)
		}
		r, err := c.Nodes[2].Run("ls", "s3://"+bucket+"/t/d/sparse.tar")
		if err != nil || strings.Count(r.Stdout, "\n") != 2 || !strings.Contains(r.Stderr, "holes") || !strings.Contains(r.Stderr, "sparse") {
			t.Errorf("ls: %v, %q, %q", err, r.Stdout, r.Stderr)
		}
	})
	t.Run("evil", func(t *testing.T) {
		out, err := shell(t, "", filepath.Join(first, "d/.tar/evil.tar"), `cd $MNT && find . -mindepth 1 -printf '%y %m %P\n'`)
		want := []string{"d 555 etc", "f 444 etc/passwd", "f 444 first", "f 444 twice", "f 444 large", "f 444 last"}
		got := strings.Split(strings.TrimSpace(out), "\n")
		got = slices.DeleteFunc(got, func(line string) bool { return strings.Contains(line, "[31m") || line == "" }) // a name like others
		if slices.Sort(got); err != nil || !slices.Equal(got, slices.Sorted(slices.Values(want))) {
			t.Errorf("members: %q, %v", got, err)
		}
		wantFiles(t, filepath.Join(second, "d/.tar/evil.tar"), map[string][]byte{"etc/passwd": []byte("22"), "twice": bytes.Repeat([]byte(":"), 10), "last": bytes.Repeat([]byte(">"), 14)})
		r, err := c.Nodes[2].Run("ls", "s3://"+bucket+"/t/d/evil.tar")
		if n := strings.Count(r.Stderr, "left out"); err != nil || n != 8 || strings.Contains(r.Stdout+r.Stderr, "\x1b") {
			t.Errorf("ls: %v, %d left out, %q, %q", err, n, r.Stdout, r.Stderr)
		}
		if log := c.Nodes[0].Proc.Output() + c.Nodes[1].Proc.Output() + c.Nodes[2].Proc.Output(); !strings.Contains(log, "d/evil.tar") || !strings.Contains(log, "d/plain.tar") || strings.Contains(log, "\x1b") {
			t.Error("the logs do not tell of the tars with members that are not shown")
		}
	})
	t.Run("cut off", func(t *testing.T) {
		got, err := listed(filepath.Join(first, "d/.tar/cut.tar"))
		if err != nil || len(got) < 2 || len(got) >= len(names) || !slices.Equal(got, names[:len(got)]) {
			t.Errorf("members: %q, %v", got, err)
		}
		last := names[len(got)-1]
		wantFiles(t, filepath.Join(first, "d/.tar/cut.tar"), map[string][]byte{last: members[last]})
	})
	// After all of this a walk, and tools that copy, see the bucket and nothing else; every object is as it is.
	t.Run("walks", func(t *testing.T) {
		src := t.TempDir()
		for key, body := range objects {
			must(t, os.MkdirAll(filepath.Dir(filepath.Join(src, key)), 0o755))
			must(t, os.WriteFile(filepath.Join(src, key), body, 0o644))
		}
		for name, script := range map[string]string{
			"find":  `diff <(cd $SRC && find . -printf '%y %P\n' | sort) <(cd $MNT && find . -printf '%y %P\n' | sort)`,
			"cp":    `cp -r $MNT $TMP/out && diff -r $SRC $TMP/out`,
			"rsync": `rsync -r --checksum --dry-run --delete --itemize-changes $MNT/ $SRC/`,
		} {
			if out, err := shell(t, src, first, script); err != nil || out != "" {
				t.Errorf("%s: %v, %q", name, err, tail(out, 2000))
			}
		}
	})
}

// membersAreFiles reads members of t/d/x.tar, cold, then warm.
func membersAreFiles(t *testing.T, c *cluster.Cluster, dirs map[*cluster.Node]string, data []byte, names []string, members map[string][]byte) {
	const block = 256 << 10
	c.Origin.Reset()
	for _, dir := range dirs {
		got, err := listed(filepath.Join(dir, "d/.tar/x.tar"))
		if err != nil || !slices.Equal(got, names) {
			t.Errorf("members: %q, %v, want %q", got, err, names)
		}
	}
	r, err := c.Nodes[2].Run("ls", "s3://"+bucket+"/t/d/x.tar")
	if lines := strings.Split(strings.TrimSpace(r.Stdout), "\n"); err != nil || len(lines) != len(names) || !strings.HasSuffix(lines[0], names[0]) {
		t.Errorf("ls: %v, %q", err, tail(r.Stdout, 300))
	}
	// Random members, by random nodes: each right, and no block from the origin twice.
	rng := rand.New(rand.NewPCG(seed, 31))
	nodes := slices.Collect(maps.Values(dirs))
	for range 60 {
		name := names[rng.IntN(len(names))]
		dir := filepath.Join(nodes[rng.IntN(len(nodes))], "d/.tar/x.tar")
		wantFiles(t, dir, map[string][]byte{name: members[name]})
		f, err := os.Open(filepath.Join(dir, name))
		must(t, err)
		from := rng.Int64N(int64(len(members[name])))
		got := make([]byte, min(4096, int64(len(members[name]))-from))
		if _, err := f.ReadAt(got, from); err != nil && err != io.EOF || !bytes.Equal(got, members[name][from:from+int64(len(got))]) {
			t.Errorf("%s at %d: wrong, %v", name, from, err)
		}
		must(t, f.Close())
	}
	wantOriginAtMost(t, c.Origin, (int64(len(data))+block-1)/block*block, "members of one tar by three nodes")
	if twice := c.Origin.Requests().Twice(); len(twice) > 0 {
		t.Errorf("from the origin twice: %q", head(twice, 5))
	}
	scans := 0.0
	for _, n := range c.Nodes {
		m, err := n.Metrics()
		must(t, err)
		scans += m[`shardwell_tar_indexes_total{how="scanned"}`] + m[`shardwell_tar_indexes_total{how="streamed"}`]
	}
	if scans != 1 {
		t.Errorf("the index was made %.0f times", scans)
	}
	for _, dir := range dirs { // the whole of it is as it is, too
		wantFiles(t, dir, map[string][]byte{"d/x.tar": data})
	}
	wantOriginAtMost(t, c.Origin, int64(len(data)), "and the whole tar")
}

// The daemon of a mount is restarted, and killed: its successor goes on with plans where their reader is, and with
// open members.
func TestPlansAndMembersSurviveTheDaemon(t *testing.T) {
	c := start(t, cluster.Options{Nodes: 1, Keeper: true, Flags: []string{"--tar-view"}})
	objects := put(t, c, "p/s-", 6, 3<<20)
	data, names, members := shardOf(t, 8)
	_, err := c.Origin.PutBytes(t.Context(), bucket, "p/x.tar", data)
	must(t, err)
	n := c.Nodes[0]
	dir := mountOn(t, n, "s3://"+bucket+"/p", "--prefetch-shards", "1")
	_, err = n.Command("plan", dir, "--rank", "3", "s-0004", "s-0001", "s-0005")
	must(t, err)
	must(t, dataset.CompareFile(filepath.Join(dir, "s-0004"), objects["p/s-0004"]))
	member, err := os.Open(filepath.Join(dir, ".tar/x.tar", names[2]))
	must(t, err)
	defer member.Close()
	plans := func(want string) {
		t.Helper()
		eventually(t, pythonWait, "the plan is "+want, func() (bool, string) {
			r, err := n.Command("plan", dir)
			return err == nil && r.Stdout == want, r.Stdout + r.Stderr
		})
	}
	plans("3: 1 of 3 opened, next s-0001\n")
	arrived := func(name string) {
		t.Helper()
		eventually(t, pythonWait, name+" is fetched before it is opened", func() (bool, string) {
			share := cachedShare(t, filepath.Join(dir, name))
			return share == "1.0000", share
		})
	}
	arrived("s-0001")
	must(t, n.Stop())
	must(t, n.Start())
	plans("3: 1 of 3 opened, next s-0001\n")
	if got, err := io.ReadAll(member); err != nil || !bytes.Equal(got, members[names[2]]) {
		t.Errorf("an open member: %d bytes, want %d, %v", len(got), len(members[names[2]]), err)
	}
	must(t, dataset.CompareFile(filepath.Join(dir, "s-0001"), objects["p/s-0001"]))
	arrived("s-0005")
	plans("3: 2 of 3 opened, next s-0005\n")
	must(t, n.End()) // what was opened in the last moment may be forgotten, the plan is not
	must(t, n.Start())
	r, err := n.Command("plan", dir)
	if must(t, err); !strings.HasPrefix(r.Stdout, "3: ") || !strings.Contains(r.Stdout, " of 3 opened") {
		t.Errorf("after a kill: %q", r.Stdout)
	}
}
