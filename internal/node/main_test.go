package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/shardwell/shardwell/fuse"
	"github.com/shardwell/shardwell/internal/config"
	"github.com/shardwell/shardwell/internal/control"
	"github.com/shardwell/shardwell/objstore/s3/s3server"
)

// leakPatience is how long goroutines may take to end: memberlist's sit in a read
// or a ticker of some seconds after Shutdown.
const leakPatience = 30 * time.Second

func TestMain(m *testing.M) {
	code := m.Run()
	for end := time.Now().Add(leakPatience); code == 0; {
		err := goleak.Find() // waits a little itself
		if err == nil {
			break
		}
		if time.Now().After(end) {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// needMounts leaves a test out where FUSE mounts cannot be made, unless everything
// is to be tested.
func needMounts(t *testing.T) {
	t.Helper()
	f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err == nil {
		_ = f.Close()
	}
	if (err != nil || os.Geteuid() != 0) && os.Getenv("CI") != "true" {
		t.Skip("needs root and /dev/fuse")
	}
}

// newOrigin runs an S3 server with the bucket "data" until the test ends.
func newOrigin(t *testing.T, files map[string][]byte) *s3server.Server {
	t.Helper()
	s, err := s3server.New(s3server.Config{Dir: t.TempDir(), Buckets: []string{"data"}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("origin: %v", err)
		}
	})
	for key, data := range files {
		put(t, s, key, data)
	}
	return s
}

func put(t *testing.T, s *s3server.Server, key string, data []byte) {
	t.Helper()
	if _, err := s.PutBytes("data", key, data); err != nil {
		t.Fatal(err)
	}
}

// proxyTo returns a handler that passes requests on to an origin.
func proxyTo(t *testing.T, s *s3server.Server) *httputil.ReverseProxy {
	t.Helper()
	u, err := url.Parse(s.URL())
	if err != nil {
		t.Fatal(err)
	}
	p := httputil.NewSingleHostReverseProxy(u)
	p.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)
	return p
}

// randomBytes returns n bytes that are the same for a seed.
func randomBytes(n int, seed uint64) []byte {
	r := rand.New(rand.NewPCG(seed, seed))
	b := make([]byte, n)
	for i := 0; i+8 <= n; i += 8 {
		v := r.Uint64()
		for j := range 8 {
			b[i+j] = byte(v >> (8 * j))
		}
	}
	return b
}

// testConfig is a node on free ports of loopback with small chunks, which reads an
// endpoint without credentials.
func testConfig(t *testing.T, endpoint string) config.Config {
	t.Helper()
	cfg := config.Default()
	cfg.CacheDirs = []config.CacheDir{{Path: filepath.Join(t.TempDir(), "cache")}}
	cfg.Bind, cfg.PeerBind, cfg.MetricsBind = "127.0.0.1:0", "127.0.0.1:0", "off"
	cfg.ChunkSize, cfg.BlockSize, cfg.PlaceWhole = 1<<20, 128<<10, 2<<20
	cfg.Memory = 128 << 20
	cfg.MinFree = 1 << 20
	cfg.BackgroundFill = config.FillOff // tests that want it say so: others count what they cause themselves
	cfg.Endpoint, cfg.Region, cfg.Anonymous = endpoint, "us-east-1", true
	cfg.Consistency = config.Consistency{Mode: config.ConsistencyTTL, TTL: time.Hour}
	return cfg
}

// lines collects what a node logs.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// running is a node that runs.
type running struct {
	*Node
	cfg  config.Config
	log  *lines
	stop func() error // ends Run and returns its error; may be called again
}

// start runs a node until the test ends, and checks that it leaves nothing behind.
func start(t *testing.T, cfg config.Config) *running {
	t.Helper()
	return startWith(t, cfg, nil)
}

// startWith is start for a node that goes on with mounts.
func startWith(t *testing.T, cfg config.Config, turn *Turn) *running {
	t.Helper()
	log := new(lines)
	n, err := Resume(cfg, slog.New(slog.NewTextHandler(log, nil)), turn)
	if err != nil {
		t.Fatal(err)
	}
	r := &running{Node: n, cfg: cfg, log: log}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	r.stop = sync.OnceValue(func() error {
		cancel()
		defer turn.Close()
		return <-done
	})
	t.Cleanup(func() {
		mounts := n.mounts.all()
		if err := r.stop(); err != nil {
			t.Errorf("node %s: %v", cfg.Name, err)
		}
		for _, m := range mounts {
			if _, ok := fuse.FindMount(m.session.Dir()); ok {
				t.Errorf("node %s: the mount on %s stays behind", cfg.Name, m.session.Dir())
				_ = unix.Unmount(m.session.Dir(), unix.MNT_DETACH)
			}
		}
		n.Close() // once more does no harm
		if t.Failed() {
			t.Logf("log of %s:\n%s", cfg.Name, log)
		}
		for _, d := range cfg.CacheDirs {
			if _, err := os.Stat(filepath.Join(d.Path, sessionsName)); !os.IsNotExist(err) {
				t.Errorf("node %s: state of mounts stays behind: %v", cfg.Name, err)
			}
		}
	})
	return r
}

// cluster starts nodes that have found each other. change may adapt the configuration
// of the i-th.
func startCluster(t *testing.T, endpoint string, count int, change func(i int, cfg *config.Config)) []*running {
	t.Helper()
	var all []*running
	for i := range count {
		cfg := testConfig(t, endpoint)
		cfg.Name = fmt.Sprintf("n%d", i)
		if i > 0 {
			cfg.Join = []string{all[0].cluster.group.Addr().String()}
		}
		if change != nil {
			change(i, &cfg)
		}
		all = append(all, start(t, cfg))
	}
	agree(t, all...)
	return all
}

// agree waits until each node knows all of them, and no others.
func agree(t *testing.T, all ...*running) {
	t.Helper()
	for _, n := range all {
		until(t, "nodes agree", func() bool {
			table := n.cluster.ring.history.Current()
			for _, o := range all {
				if m := table.Member(o.id); m == nil || m.State != 0 {
					return false
				}
			}
			return table.Len() == len(all) && len(n.cluster.directory.All()) == len(all)
		})
	}
}

// until waits for something that gives no sign.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(30 * time.Second); !ok(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("not within 30 s: %s", what)
		}
	}
}

// mountOn mounts s3://data/ of a node on a new directory, which it returns.
func (r *running) mountOn(t *testing.T, uri string) string {
	t.Helper()
	dir := mountpoint(t)
	if _, err := r.Mount(t.Context(), control.MountRequest{URI: uri, Dir: dir}); err != nil {
		t.Fatalf("mount %s: %v", uri, err)
	}
	return dir
}

// mountpoint returns a new directory.
func mountpoint(t *testing.T) string {
	t.Helper()
	return t.TempDir()
}

// readAll compares all files under a mount with what they should be.
func readAll(dir string, files map[string][]byte) error {
	for key, want := range files {
		f, err := openFile(filepath.Join(dir, key))
		if err != nil {
			return err
		}
		got, err := f.readAll()
		f.close()
		if err != nil {
			return err
		}
		if !bytes.Equal(got, want) {
			return fmt.Errorf("%s: %d bytes differ from the %d of the source", key, len(got), len(want))
		}
	}
	return nil
}

// mounted is a file of a mount of this process. It is opened by the bare system call: an
// *os.File has the runtime ask the file system whether the file can be polled, with a
// lock held that the runtime needs to run the goroutine that is to answer.
type mounted struct{ fd int }

func openFile(path string) (mounted, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return mounted{-1}, fmt.Errorf("open %s: %w", path, err)
	}
	return mounted{fd}, nil
}

func (f mounted) readAll() ([]byte, error) {
	var all []byte
	p := make([]byte, 1<<20)
	for {
		n, err := unix.Read(f.fd, p)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return all, fmt.Errorf("read: %w", err)
		case n == 0:
			return all, nil
		default:
			all = append(all, p[:n]...)
		}
	}
}

func (f mounted) close() { _ = unix.Close(f.fd) }

func sizeOf(files map[string][]byte) (sum int64) {
	for _, data := range files {
		sum += int64(len(data))
	}
	return sum
}

// dataset returns small objects that have one owner each, and one that has several.
func dataset() map[string][]byte {
	files := map[string][]byte{"ckpt/model.bin": randomBytes(6<<20+4321, 99)}
	for i := range 8 {
		files[fmt.Sprintf("train/%06d.tar", i)] = randomBytes(700<<10+i, uint64(i))
	}
	return files
}

// freeAddr returns an address on loopback on which nobody listens.
func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// oneGoodLine checks an error that a user sees.
func oneGoodLine(t *testing.T, err error, want ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("no error, want one with %q", want)
		return
	}
	text := err.Error()
	if strings.ContainsAny(text, "\n\r") {
		t.Errorf("several lines: %q", text)
	}
	for _, w := range want {
		if !strings.Contains(text, w) {
			t.Errorf("error %q, want one with %q", text, w)
		}
	}
	parts := strings.Split(text, ": ")
	for i, p := range parts {
		if slices.Contains(parts[:i], p) {
			t.Errorf("error %q says %q twice", text, p)
		}
	}
}
