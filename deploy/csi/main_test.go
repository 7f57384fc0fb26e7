package csi

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/shardwell/shardwell/fuse"
	"github.com/shardwell/shardwell/internal/config"
	"github.com/shardwell/shardwell/internal/control"
	"github.com/shardwell/shardwell/internal/node"
	"github.com/shardwell/shardwell/objstore/s3/s3server"
)

// leakPatience is how long goroutines may take to end: memberlist's sit in a read or a ticker of some seconds.
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

// needMounts leaves a test out where FUSE mounts cannot be made, unless everything is to be tested.
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

// lines collects what is logged.
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

// newOrigin runs an S3 server with the bucket "data" until the test ends.
func newOrigin(t *testing.T, files map[string]string) *s3server.Server {
	t.Helper()
	s, err := s3server.New(s3server.Config{Dir: t.TempDir(), Buckets: []string{"data"}})
	if err != nil {
		t.Fatal(err)
	}
	background(t, s.Run)
	for key, text := range files {
		if _, err := s.PutBytes("data", key, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// background runs something until the test ends, or stop is called.
func background(t *testing.T, run func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("ended with: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// machine is a node daemon and a kubelet's directory.
type machine struct {
	t       *testing.T
	origin  *s3server.Server
	front   string // URL of what stands before the origin
	log     *lines
	kubelet string
	socket  string
	cache   string
	stop    func() // of the daemon
}

func newMachine(t *testing.T, files map[string]string) *machine {
	t.Helper()
	return newMachineBehind(t, files, nil)
}

// newMachineBehind has something stand before the origin, whose URL before returns.
func newMachineBehind(t *testing.T, files map[string]string, before func(origin string) string) *machine {
	t.Helper()
	needMounts(t)
	m := &machine{t: t, origin: newOrigin(t, files), log: &lines{}, kubelet: fuse.Canonical(t.TempDir()), cache: t.TempDir()}
	m.front = m.origin.URL()
	if before != nil {
		m.front = before(m.origin.URL())
	}
	m.socket = filepath.Join(t.TempDir(), "control.sock")
	m.startDaemon()
	t.Cleanup(func() { m.nothingMounted() })
	return m
}

// startDaemon runs the daemon until the test ends or m.stop is called.
func (m *machine) startDaemon() {
	m.t.Helper()
	cfg := config.Default()
	cfg.CacheDirs = []config.CacheDir{{Path: m.cache, Budget: 1 << 30}}
	cfg.Bind, cfg.PeerBind, cfg.MetricsBind = "127.0.0.1:0", "127.0.0.1:0", "off"
	cfg.ChunkSize, cfg.BlockSize, cfg.PlaceWhole = 1<<20, 128<<10, 2<<20
	cfg.Memory, cfg.MinFree = 128<<20, 1<<20
	cfg.Endpoint, cfg.Region, cfg.Anonymous = m.front, "us-east-1", true
	log := slog.New(slog.NewTextHandler(m.log, nil))
	n, err := node.New(cfg, log)
	if err != nil {
		m.t.Fatal(err)
	}
	l, err := control.Listen(m.socket)
	if err != nil {
		m.t.Fatal(err)
	}
	server := background(m.t, func(ctx context.Context) error { return control.NewServer(n, "test", log).Run(ctx, l) })
	served := background(m.t, n.Run)
	m.stop = func() { served(); server() }
}

// driver runs a driver until the test ends or stop is called.
func (m *machine) driver(change func(*Config)) (_ *grpc.ClientConn, stop func()) {
	m.t.Helper()
	socket := filepath.Join(m.t.TempDir(), "csi.sock")
	cfg := Config{Endpoint: "unix://" + socket, NodeID: "node-1", KubeletDir: m.kubelet, Daemon: Socket(m.socket), Version: "v1.2.3",
		Logger: slog.New(slog.NewTextHandler(m.log, &slog.HandlerOptions{Level: slog.LevelDebug}))}
	if change != nil {
		change(&cfg)
	}
	d, err := New(cfg)
	if err != nil {
		m.t.Fatal(err)
	}
	stop = background(m.t, d.Run)
	return dial(m.t, socket), stop
}

func dial(t *testing.T, socket string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///csi", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// target is where the kubelet wants a volume of a Pod.
func (m *machine) target(pod, volume string) string {
	m.t.Helper()
	dir := filepath.Join(m.kubelet, "pods", pod, "volumes", "kubernetes.io~csi", volume)
	if err := os.MkdirAll(dir, 0o750); err != nil {
		m.t.Fatal(err)
	}
	return filepath.Join(dir, "mount")
}

// inline is a publish of an inline volume as the kubelet sends it.
func inline(id, target string, attributes map[string]string) *csi.NodePublishVolumeRequest {
	context := map[string]string{
		"csi.storage.k8s.io/ephemeral": "true", "csi.storage.k8s.io/pod.name": "pod", "csi.storage.k8s.io/pod.namespace": "team",
		"csi.storage.k8s.io/pod.uid": "uid", "csi.storage.k8s.io/serviceAccount.name": "default",
	}
	for k, v := range attributes {
		context[k] = v
	}
	return &csi.NodePublishVolumeRequest{
		VolumeId: id, TargetPath: target, Readonly: true, VolumeContext: context,
		VolumeCapability: &csi.VolumeCapability{
			AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		},
	}
}

func publish(t *testing.T, conn *grpc.ClientConn, req *csi.NodePublishVolumeRequest) {
	t.Helper()
	if _, err := csi.NewNodeClient(conn).NodePublishVolume(t.Context(), req); err != nil {
		t.Fatalf("publish %s: %v", req.GetVolumeId(), err)
	}
}

func unpublish(t *testing.T, conn *grpc.ClientConn, id, target string) {
	t.Helper()
	req := &csi.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: target}
	if _, err := csi.NewNodeClient(conn).NodeUnpublishVolume(t.Context(), req); err != nil {
		t.Fatalf("unpublish %s: %v", id, err)
	}
	if _, err := os.Lstat(target); err == nil {
		t.Errorf("%s is still there", target)
	}
}

// read returns what another process reads: this one may not open files of its own mounts.
func read(t *testing.T, path string) string {
	t.Helper()
	out, err := exec.Command("cat", path).CombinedOutput()
	if err != nil {
		t.Fatalf("read %s: %v: %s", path, err, out)
	}
	return string(out)
}

// mounted returns what is mounted below a directory.
func (m *machine) mounted() (all []fuse.MountEntry) {
	m.t.Helper()
	table, err := fuse.Mounts()
	if err != nil {
		m.t.Fatal(err)
	}
	for _, e := range table {
		if strings.HasPrefix(e.Dir, m.kubelet+"/") {
			all = append(all, e)
		}
	}
	return all
}

// nothingMounted fails when something is left behind, and takes it away.
func (m *machine) nothingMounted() {
	m.t.Helper()
	for _, e := range m.mounted() {
		m.t.Errorf("%s is left mounted", e.Dir)
		_ = unix.Unmount(e.Dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	}
	for _, d := range []string{"mounts", "volumes", "ca"} {
		left, _ := os.ReadDir(filepath.Join(m.kubelet, "plugins", DriverName, d))
		for _, e := range left {
			m.t.Errorf("%s/%s is left behind", d, e.Name())
		}
	}
}
