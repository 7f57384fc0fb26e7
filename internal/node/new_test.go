package node

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"golang.org/x/sys/unix"

	"github.com/shardwell/shardwell/internal/config"
)

// What keeps a node from starting is said in one line, and everything that was opened
// before is closed again.
func TestNodesThatCannotStart(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("short\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	port := taken.Addr().String()
	other := start(t, testConfig(t, "http://127.0.0.1:1"))
	type change func(*config.Config)
	cases := []struct {
		name   string
		change change
		want   []string
	}{
		{"peer port taken", func(c *config.Config) { c.PeerBind = port }, []string{"peer port: cannot listen on " + port + ": address already in use: choose another --peer-bind"}},
		{"gossip port taken", func(c *config.Config) { c.Bind = port }, []string{"gossip: cannot listen on " + port + ": address already in use: choose another --bind"}},
		{"metrics port taken", func(c *config.Config) { c.MetricsBind = port }, []string{"metrics: cannot listen on " + port + ": address already in use: choose another --metrics-bind, or off"}},
		{"address of another machine", func(c *config.Config) { c.PeerBind, c.Insecure = "192.0.2.1:0", true }, []string{"peer port: cannot listen on 192.0.2.1:0: cannot assign requested address"}},
		{"cache in use", func(c *config.Config) { c.CacheDirs = other.cfg.CacheDirs }, []string{"cache directory " + other.cfg.CacheDirs[0].Path, "in use by another process", fmt.Sprint("pid ", os.Getpid())}},
		{"second cache in use", func(c *config.Config) { c.CacheDirs = append(c.CacheDirs, other.cfg.CacheDirs[0]) }, []string{"in use by another process"}},
		{"cache under a file", func(c *config.Config) { c.CacheDirs[0].Path = filepath.Join(file, "cache") }, []string{"not a directory"}},
		{"cache without a parent", func(c *config.Config) { c.CacheDirs[0].Path = filepath.Join(file+"-none", "cache") }, []string{"neither does its parent: make it first"}},
		{"no such secret", func(c *config.Config) { c.SecretFile = file + "-none" }, []string{file + "-none", "no such file"}},
		{"short secret", func(c *config.Config) { c.SecretFile = file }, []string{file, "32"}},
		{"a name to advertise", func(c *config.Config) { c.Advertise = "nowhere.invalid" }, []string{`"nowhere.invalid" is not an IP address`}},
		{"wrong sizes", func(c *config.Config) { c.BlockSize = 100 }, []string{"block size"}},
	}
	if os.Geteuid() == 0 {
		readOnly := t.TempDir()
		if err := unix.Mount("none", readOnly, "tmpfs", unix.MS_RDONLY, ""); err != nil {
			t.Fatal(err)
		}
		defer unix.Unmount(readOnly, unix.MNT_DETACH)
		cases = append(cases, struct {
			name   string
			change change
			want   []string
		}{"read-only cache", func(c *config.Config) { c.CacheDirs[0].Path = filepath.Join(readOnly, "cache") }, []string{"on a read-only file system"}})
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			cfg := testConfig(t, "http://127.0.0.1:1")
			good := cfg
			good.CacheDirs = append([]config.CacheDir(nil), cfg.CacheDirs...)
			good.Bind, good.PeerBind, good.MetricsBind = freeAddr(t), freeAddr(t), freeAddr(t)
			cfg.Bind, cfg.PeerBind, cfg.MetricsBind = good.Bind, good.PeerBind, good.MetricsBind
			c.change(&cfg)
			n, err := New(cfg, nil)
			if err == nil {
				n.Close()
			}
			oneGoodLine(t, err, c.want...)
			// What it had opened is free again.
			n, err = New(good, nil)
			if err != nil {
				t.Fatalf("something stays behind: %v", err)
			}
			n.Close()
			n.Close()
		})
	}
}

func TestStateOfKilledMountsIsSweptUp(t *testing.T) {
	cfg := testConfig(t, "http://127.0.0.1:1")
	n, err := New(cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	n.Close()
	left := filepath.Join(cfg.CacheDirs[0].Path, sessionsName, "mount-1", "names")
	if err := os.MkdirAll(left, 0o700); err != nil {
		t.Fatal(err)
	}
	start(t, cfg) // its end checks that nothing is left
	if _, err := os.Stat(left); !os.IsNotExist(err) {
		t.Errorf("what a killed node left: %v", err)
	}
}

func TestStateOfMountsWithoutADisk(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	d := &disks{log: slog.New(slog.DiscardHandler)}
	a, errA := d.sessionDir()
	b, errB := d.sessionDir()
	if errA != nil || errB != nil || a == b || !strings.HasPrefix(a, tmp) {
		t.Errorf("got %q and %q, %v, %v", a, b, errA, errB)
	}
	d.Close()
	if left, _ := os.ReadDir(tmp); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// A part that fails ends the node, which says which one it was.
func TestPartsThatFail(t *testing.T) {
	for name, fail := range map[string]func(*Node) error{
		"metrics": func(n *Node) error { return n.watch.listen.Close() },
		"cluster": func(n *Node) error { return n.cluster.listen.Close() },
	} {
		cfg := testConfig(t, "http://127.0.0.1:1")
		cfg.MetricsBind = "127.0.0.1:0"
		n, err := New(cfg, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := fail(n); err != nil {
			t.Fatal(err)
		}
		if err := n.Run(t.Context()); err == nil || !strings.HasPrefix(err.Error(), name+": ") {
			t.Errorf("%s fails: the node ends with %v", name, err)
		}
	}
	if err := part(t.Context(), "x", func(context.Context) error { return nil }); err == nil || err.Error() != "x: ended by itself" {
		t.Errorf("a part that ends: %v", err)
	}
}

func TestRequestsEndBeforeTheNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRequests()
		entered, ended := make(chan struct{}), make(chan error, 2)
		go func() {
			ended <- r.do(context.Background(), func(ctx context.Context) error {
				close(entered)
				<-ctx.Done()
				time.Sleep(time.Second) // goes on for a while
				return ctx.Err()
			})
		}()
		<-entered
		r.begin(func(ctx context.Context) {
			<-ctx.Done()
			time.Sleep(2 * time.Second)
		})
		began := time.Now()
		r.close()
		if took := time.Since(began); took != 2*time.Second {
			t.Errorf("close waited %v for what took 2 s", took)
		}
		if err := <-ended; err != ErrStopping {
			t.Errorf("a request under way: %v", err)
		}
		if err := r.do(context.Background(), func(context.Context) error { panic("begun") }); err != ErrStopping {
			t.Errorf("a request after the end: %v", err)
		}
		if r.begin(func(context.Context) { panic("begun") }) {
			t.Error("something began after the end")
		}
	})
}

// scrape reads the metrics of a node as Prometheus does.
func scrape(t *testing.T, n *running) map[string]*dto.MetricFamily {
	t.Helper()
	resp, err := http.Get("http://" + n.watch.listen.Addr().String() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	parser := expfmt.NewTextParser(model.LegacyValidation)
	all, err := parser.TextToMetricFamilies(resp.Body)
	if err != nil {
		t.Fatalf("metrics do not parse: %v", err)
	}
	return all
}

// value returns a sample by its name and the values of its labels.
func value(all map[string]*dto.MetricFamily, name string, labels ...string) float64 {
	for _, m := range all[name].GetMetric() {
		fits := len(m.Label) == len(labels)
		for _, l := range m.Label {
			found := false
			for _, want := range labels {
				found = found || l.GetValue() == want
			}
			fits = fits && found
		}
		if fits {
			return m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return -1
}

func TestMetrics(t *testing.T) {
	needMounts(t)
	files := map[string][]byte{"k": randomBytes(3<<20, 1)}
	o := newOrigin(t, files)
	cfg := testConfig(t, o.URL())
	cfg.MetricsBind = "127.0.0.1:0"
	cfg.VerifyReads = "always"
	n := start(t, cfg)
	base := "http://" + n.watch.listen.Addr().String()
	until(t, "the node is ready", func() bool {
		resp, err := http.Get(base + "/readyz")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	before := scrape(t, n)
	dir := n.mountOn(t, "s3://data/")
	for range 2 {
		if err := readAll(dir, files); err != nil {
			t.Fatal(err)
		}
	}
	after := scrape(t, n)
	path := cfg.CacheDirs[0].Path
	for _, c := range []struct {
		name   string
		labels []string
		least  float64
	}{
		{"shardwell_origin_bytes_total", nil, 3 << 20},
		{"shardwell_origin_requests_total", []string{"get", "ok"}, 3},
		{"shardwell_origin_requests_total", []string{"list", "ok"}, 1},
		{"shardwell_cache_bytes", []string{"disk"}, 3 << 20},
		{"shardwell_disk_used_bytes", []string{path}, 3 << 20},
		{"shardwell_mounts", nil, 1},
		{"shardwell_fuse_op_seconds", []string{"read"}, 1},
		{"shardwell_fuse_op_seconds", []string{"lookup"}, 1},
	} {
		got, was := value(after, c.name, c.labels...), value(before, c.name, c.labels...)
		if was < 0 || got-was < c.least {
			t.Errorf("%s %v went from %v to %v, want %v more", c.name, c.labels, was, got, c.least)
		}
	}
	var read float64
	for _, source := range []string{"origin", "peer", "disk", "memory"} {
		read += value(after, "shardwell_read_bytes_total", source)
	}
	if read < 3<<20 {
		t.Errorf("readers got %v bytes, says the node", read)
	}
	for state, want := range map[string]float64{"normal": 1, "unstable": 0, "down": 0} {
		if got := value(after, "shardwell_disk_state", path, state); got != want {
			t.Errorf("disk state %s: %v, want %v", state, got, want)
		}
	}
	if got := value(after, "shardwell_ring_members"); got != 1 {
		t.Errorf("%v ring members", got)
	}
	if err := n.Umount(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	last := scrape(t, n)
	if was, got := value(after, "shardwell_fuse_op_seconds", "read"), value(last, "shardwell_fuse_op_seconds", "read"); got < was {
		t.Errorf("reads fell from %v to %v with the mount", was, got)
	}
	documented(t, last)
}

// documented checks that docs/OPERATIONS.md names no metric that there is not.
func documented(t *testing.T, all map[string]*dto.MetricFamily) {
	t.Helper()
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "OPERATIONS.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, word := range strings.FieldsFunc(string(page), func(r rune) bool { return r != '_' && (r < 'a' || r > 'z') }) {
		if strings.HasPrefix(word, "shardwell_") && all[word] == nil {
			t.Errorf("docs/OPERATIONS.md: there is no metric %s", word)
		}
	}
}

func TestHealthAnswersWhileTheNodeLives(t *testing.T) {
	cfg := testConfig(t, "http://127.0.0.1:1")
	cfg.MetricsBind = "127.0.0.1:0"
	n := start(t, cfg)
	resp, err := http.Get("http://" + n.watch.listen.Addr().String() + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err != nil || string(body) != "ok\n" {
		t.Errorf("healthz: %q, %v", body, err)
	}
}
