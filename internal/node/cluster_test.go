package node

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/shardwell/shardwell/internal/config"
)

// Three nodes read everything at once, small objects and one large one.
func TestOriginGivesOneCopy(t *testing.T) {
	t.Parallel()
	needMounts(t)
	files := dataset()
	o := newOrigin(t, files)
	nodes := startCluster(t, o.URL(), 3, func(_ int, cfg *config.Config) { cfg.PrefetchShards = 0 }) // names that are guessed cost listings, at any time
	var dirs []string
	for _, n := range nodes {
		dirs = append(dirs, n.mountOn(t, "s3://data/"))
	}
	var group errgroup.Group
	for _, dir := range dirs {
		group.Go(func() error { return readAll(dir, files) })
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	if got, want := o.Counter.Bytes.Load(), sizeOf(files); got != want {
		t.Errorf("the origin gave %d bytes, want %d, each once", got, want)
	}
	lists := o.Counter.Lists.Load()
	for range 2 { // by passthrough, and after the kernel has forgotten
		for _, dir := range dirs {
			if err := readAll(dir, files); err != nil {
				t.Error(err)
			}
		}
	}
	if got, want := o.Counter.Bytes.Load(), sizeOf(files); got != want || o.Counter.Lists.Load() != lists {
		t.Errorf("later epochs cost %d bytes and %d listings", got-want, o.Counter.Lists.Load()-lists)
	}
	checkDatasets(t, nodes, files)
}

// checkDatasets looks at the status of nodes that have all read all of s3://data/.
func checkDatasets(t *testing.T, nodes []*running, files map[string][]byte) {
	t.Helper()
	var share float64
	for _, n := range nodes {
		st, err := n.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(st.Datasets) != 1 || len(st.Mounts) != 1 || len(st.Disks) != 1 || len(st.Members) != len(nodes) {
			t.Fatalf("status: %+v", st)
		}
		d, total := st.Datasets[0], sizeOf(files)
		if d.URI != "s3://data/" || d.Objects != int64(len(files)) || d.Bytes != total || d.CachedBytes != total || d.LocalBytes != total {
			t.Errorf("%s: dataset %+v, want %d objects and %d bytes, all cached and here", st.Node, d, len(files), total)
		}
		if b := st.Bytes; b.FetchedFromOrigin+b.FetchedFromPeers != total || b.PassthroughOpens == 0 {
			t.Errorf("%s: bytes %+v, want %d fetched in all, and opens by passthrough", st.Node, b, total)
		}
		if disk := st.Disks[0]; disk.State != "normal" || disk.UsedBytes < total {
			t.Errorf("%s: disk %+v, want %d bytes and more", st.Node, disk, total)
		}
		for _, m := range st.Members {
			if m.State != "alive" {
				t.Errorf("%s: member %+v is not alive", st.Node, m)
			}
			if m.ID == n.id {
				share += m.OwnedShare
			}
		}
	}
	if share < 0.99 || share > 1.01 {
		t.Errorf("the nodes own %.3f of the ring together", share)
	}
}

// What a node holds counts by directory, owned or not, also before everything is there.
func TestStatusCountsPartsOfObjects(t *testing.T) {
	t.Parallel()
	needMounts(t)
	files := map[string][]byte{"a/small": randomBytes(1<<20, 1), "a/big": randomBytes(8<<20, 2), "b/other": randomBytes(1<<20, 3)}
	o := newOrigin(t, files)
	nodes := startCluster(t, o.URL(), 2, nil)
	dir := nodes[0].mountOn(t, "s3://data/a")
	if err := readAll(dir, map[string][]byte{"small": files["a/small"], "big": files["a/big"]}); err != nil {
		t.Fatal(err)
	}
	other := nodes[1].mountOn(t, "s3://data/b/")
	if err := readAll(other, map[string][]byte{"other": files["b/other"]}); err != nil {
		t.Fatal(err)
	}
	st, err := nodes[0].Status(t.Context())
	if err != nil || len(st.Datasets) != 1 {
		t.Fatalf("status: %+v, %v", st.Datasets, err)
	}
	if d := st.Datasets[0]; d.CachedBytes != 9<<20 || d.LocalBytes != 9<<20 || d.Bytes != 9<<20 || d.Objects != 2 {
		t.Errorf("dataset of the reader: %+v", d)
	}
	st, err = nodes[1].Status(t.Context())
	if err != nil || len(st.Datasets) != 1 {
		t.Fatalf("status: %+v, %v", st.Datasets, err)
	}
	if d := st.Datasets[0]; d.CachedBytes != 1<<20 || d.LocalBytes != 1<<20 {
		t.Errorf("dataset of the other: %+v", d)
	}
	// Each chunk of the big one was kept by its owner too, and only those.
	usage, err := nodes[1].shares(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range usage {
		if s.Dir == "a/" && (s.LocalBytes != s.OwnedBytes || s.LocalBytes%(1<<20) != 0) {
			t.Errorf("the node that only answers holds %+v", s)
		}
	}
}

// SEMANTICS C2: A rolling restart of all nodes costs no origin byte in the next epoch.
func TestRollingRestartUnderReaders(t *testing.T) {
	t.Parallel()
	needMounts(t)
	files := dataset()
	o := newOrigin(t, files)
	nodes := startCluster(t, o.URL(), 3, nil)
	for _, n := range nodes {
		if err := readAll(n.mountOn(t, "s3://data/"), files); err != nil {
			t.Fatal(err)
		}
	}
	for i := range nodes {
		reader := nodes[(i+1)%3]
		dir := reader.mountOn(t, "s3://data/")
		ctx, cancel := context.WithCancel(t.Context())
		epochs := make(chan error, 1)
		go func() {
			for ctx.Err() == nil {
				if err := readAll(dir, files); err != nil {
					epochs <- err
					return
				}
			}
			epochs <- nil
		}()
		if err := nodes[i].stop(); err != nil {
			t.Error(err)
		}
		cfg := nodes[i].cfg
		cfg.Join = []string{reader.cluster.group.Addr().String()}
		again := start(t, cfg)
		if again.id != nodes[i].id {
			t.Errorf("node %d came back as %s, was %s", i, again.id, nodes[i].id)
		}
		nodes[i] = again
		agree(t, nodes...)
		cancel()
		if err := <-epochs; err != nil {
			t.Errorf("reading while node %d restarts: %v", i, err)
		}
	}
	for _, n := range nodes {
		if err := readAll(n.mountOn(t, "s3://data/"), files); err != nil {
			t.Error(err)
		}
	}
	if got, want := o.Counter.Bytes.Load(), sizeOf(files); got != want {
		t.Errorf("the origin gave %d bytes, want %d, each once", got, want)
	}
}

// A member is closed without a word, while another reads what it owns for the first time.
func TestNodeDiesUnderReaders(t *testing.T) {
	t.Parallel()
	needMounts(t)
	files := dataset()
	o := newOrigin(t, files)
	nodes := startCluster(t, o.URL(), 3, nil)
	dir := nodes[0].mountOn(t, "s3://data/")
	read := make(chan error, 1)
	go func() { read <- readAll(dir, files) }()
	nodes[1].cluster.group.Close()  // no farewell,
	nodes[1].cluster.listen.Close() // and nobody answers
	if err := <-read; err != nil {
		t.Errorf("reading while a member dies: %v", err)
	}
	if err := nodes[1].stop(); err == nil {
		t.Error("a node whose peer port has failed went on")
	} else if !strings.Contains(err.Error(), "cluster") {
		t.Errorf("the error does not name the part that failed: %v", err)
	}
	nodes[1].stop = func() error { return nil } // known already
}

func TestReaderThatOwnsNothing(t *testing.T) {
	t.Parallel()
	needMounts(t)
	files := dataset()
	o := newOrigin(t, files)
	nodes := startCluster(t, o.URL(), 3, func(i int, cfg *config.Config) { cfg.NoOwner = i == 2 })
	if err := readAll(nodes[2].mountOn(t, "s3://data/"), files); err != nil {
		t.Fatal(err)
	}
	if got, want := o.Counter.Bytes.Load(), sizeOf(files); got != want {
		t.Errorf("the origin gave %d bytes, want %d", got, want)
	}
	st, err := nodes[2].Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if st.Bytes.FetchedFromOrigin != 0 {
		t.Errorf("a reader that owns nothing asked the origin for %d bytes", st.Bytes.FetchedFromOrigin)
	}
	for _, m := range st.Members {
		if (m.OwnedShare == 0) != (m.ID == nodes[2].id) {
			t.Errorf("%s owns %.3f", m.Name, m.OwnedShare)
		}
	}
	if d := st.Datasets[0]; d.CachedBytes != sizeOf(files) {
		t.Errorf("owners hold %d bytes, want %d", d.CachedBytes, sizeOf(files))
	}
}

// SEMANTICS F4: `shardwell refresh URI` makes every node forget what it knows of the names under URI; the next open asks the origin.
func TestRefreshReachesEveryNode(t *testing.T) {
	t.Parallel()
	needMounts(t)
	o := newOrigin(t, map[string][]byte{"a/k": []byte("old"), "b/k": []byte("old")})
	for _, mode := range []string{config.ConsistencyTTL, config.ConsistencyImmutable} {
		nodes := startCluster(t, o.URL(), 3, func(_ int, cfg *config.Config) { cfg.Consistency.Mode = mode })
		put(t, o, "a/k", []byte("old"))
		put(t, o, "b/k", []byte("old"))
		var dirs []string
		for _, n := range nodes {
			dir := n.mountOn(t, "s3://data/")
			if err := readAll(dir, map[string][]byte{"a/k": []byte("old"), "b/k": []byte("old")}); err != nil {
				t.Fatal(err)
			}
			dirs = append(dirs, dir)
		}
		put(t, o, "a/k", []byte("new and longer"))
		put(t, o, "b/k", []byte("new and longer"))
		put(t, o, "a/another", []byte("x"))
		defer o.Delete("data", "a/another")
		if n, err := nodes[1].Refresh(t.Context(), "s3://data/a/"); err != nil || n == 0 {
			t.Errorf("refresh: %d names forgotten, %v", n, err)
		}
		for i, dir := range dirs {
			if err := readAll(dir, map[string][]byte{"a/k": []byte("new and longer"), "a/another": []byte("x"), "b/k": []byte("old")}); err != nil {
				t.Errorf("%s: node %d after the refresh: %v", mode, i, err)
			}
		}
		for _, n := range nodes {
			if err := n.stop(); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestRefreshOfAnEndpointThatAMountBrought(t *testing.T) {
	needMounts(t)
	o := newOrigin(t, map[string][]byte{"k": []byte("old")})
	n := start(t, testConfig(t, "http://"+freeAddr(t)))
	dir := mountpoint(t)
	mustMount(t, n, "s3://data/", dir, map[string]string{"endpoint": o.URL()})
	if err := readAll(dir, map[string][]byte{"k": []byte("old")}); err != nil {
		t.Fatal(err)
	}
	put(t, o, "k", []byte("new!"))
	if _, err := n.Refresh(t.Context(), "s3://data/"); err != nil {
		t.Errorf("refresh: %v", err)
	}
	if err := readAll(dir, map[string][]byte{"k": []byte("new!")}); err != nil {
		t.Error(err)
	}
}

// The other members do not read the endpoint that a mount brought: the node of the mount asks
// it itself, each byte once. Nothing is fetched on a guess, which may be cut off before it is read.
func TestEndpointThatOnlyOneNodeReads(t *testing.T) {
	t.Parallel()
	needMounts(t)
	files := dataset()
	o := newOrigin(t, files)
	nodes := startCluster(t, "http://127.0.0.1:1", 3, nil)
	dir := mountpoint(t)
	mustMount(t, nodes[0], "s3://data/", dir, map[string]string{"endpoint": o.URL(), "prefetchShards": "0"})
	if err := readAll(dir, files); err != nil {
		t.Error(err)
	}
	if got, want := o.Counter.Bytes.Load(), sizeOf(files); got != want {
		t.Errorf("the origin gave %d bytes, want %d", got, want)
	}
}

// SEMANTICS C4: A member whose chunk or block size differs, or whose protocol range does not overlap, is refused with a line in the log of both sides.
func TestOtherSizesAreRefusedOnBothSides(t *testing.T) {
	a := start(t, testConfig(t, "http://127.0.0.1:1"))
	cfg := testConfig(t, "http://127.0.0.1:1")
	cfg.ChunkSize = 4 << 20
	cfg.Join = []string{a.cluster.group.Addr().String()}
	b := start(t, cfg)
	for _, n := range []*running{a, b} {
		until(t, "the other is refused", func() bool { return len(n.cluster.group.Refused()) == 1 })
		st, err := n.Status(t.Context())
		if err != nil || len(st.Refused) != 1 || !strings.Contains(st.Refused[0].Reason, "chunk") {
			t.Errorf("status: %+v, %v", st.Refused, err)
		}
		if !strings.Contains(n.log.String(), "refuse") || !strings.Contains(n.log.String(), "4194304") {
			t.Errorf("no line tells of the refusal and the sizes:\n%s", n.log)
		}
		if got := n.cluster.ring.history.Current().Len(); got != 1 {
			t.Errorf("the ring has %d members", got)
		}
	}
}

// SEMANTICS C5: A node does not listen beyond loopback without a secret unless told `--insecure`; members prove who they are with every request.
func TestNoStrangersWithoutASecret(t *testing.T) {
	t.Parallel()
	for _, change := range []func(*config.Config){
		func(c *config.Config) { c.Bind = "0.0.0.0:0" },
		func(c *config.Config) { c.PeerBind = "0.0.0.0:0" },
		func(c *config.Config) { c.PeerBind = "[::]:0" },
	} {
		cfg := testConfig(t, "http://127.0.0.1:1")
		change(&cfg)
		n, err := New(cfg, nil)
		if err == nil {
			n.Close()
		}
		oneGoodLine(t, err, "refuses to listen", "--secret-file")
	}
	secretFile := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secretFile, []byte(strings.Repeat("0123456789", 4)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	withSecret := func(_ int, cfg *config.Config) { cfg.SecretFile = secretFile }
	nodes := startCluster(t, "http://127.0.0.1:1", 2, withSecret)
	id := "00112233445566778899aabbccddeeff"
	for _, path := range []string{"/v1/blocks/" + id + "/0-0", "/", "/v1/status"} {
		resp, err := http.Get(fmt.Sprintf("http://%s%s", nodes[0].cluster.addr(), path))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode < 400 {
			t.Errorf("GET %s without a signature: status %d", path, resp.StatusCode)
		}
	}
	if _, err := nodes[0].cluster.peers.Statuses(t.Context()); err != nil {
		t.Errorf("members with the secret: %v", err)
	}
	stranger := testConfig(t, "http://127.0.0.1:1")
	stranger.Join = []string{nodes[0].cluster.group.Addr().String()}
	s := start(t, stranger)
	<-s.cluster.joined()
	if got := s.cluster.ring.history.Current().Len(); got != 1 {
		t.Errorf("a node without the secret sees %d members", got)
	}
}
