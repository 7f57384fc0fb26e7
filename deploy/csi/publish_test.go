package csi

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/shardwell/shardwell/internal/control"
)

// SEMANTICS V1: A volume of a Pod shows its dataset read-only, and publishing it again ends no reader
// and asks the origin nothing.
//
// A volume shows the dataset, read-only, and volumes of one dataset share a mount underneath.
func TestPublishAndUnpublish(t *testing.T) {
	m := newMachine(t, map[string]string{"train/a.txt": "hello", "train/sub/b.txt": "below"})
	conn, _ := m.driver(nil)
	one, two := m.target("pod-1", "data"), m.target("pod-2", "data")
	attributes := map[string]string{"bucketName": "data", "prefix": "train"}
	publish(t, conn, inline("csi-1", one, attributes))
	publish(t, conn, inline("csi-1", one, attributes)) // again, as after a restart of the kubelet
	publish(t, conn, inline("csi-2", two, attributes))
	if got := read(t, one+"/a.txt") + read(t, two+"/sub/b.txt"); got != "hellobelow" {
		t.Errorf("read %q", got)
	}
	var devices []string
	for _, e := range m.mounted() {
		devices = append(devices, e.Device)
	}
	if len(devices) != 3 || devices[0] != devices[1] || devices[1] != devices[2] {
		t.Errorf("mounts underneath: got devices %v, want one mount and two copies of it", devices)
	}
	if err := unix.Mkdir(one+"/new", 0o755); err != unix.EROFS {
		t.Errorf("mkdir in a volume: got %v, want EROFS", err)
	}
	unpublish(t, conn, "csi-1", one)
	if got := read(t, two+"/a.txt"); got != "hello" {
		t.Errorf("after the other volume went: read %q", got)
	}
	unpublish(t, conn, "csi-1", one) // again
	unpublish(t, conn, "csi-2", two)
	unpublish(t, conn, "never-seen", m.target("pod-3", "data"))
	if log := m.log.String(); strings.Contains(log, "level=ERROR") {
		t.Errorf("errors were logged:\n%s", log)
	}
}

// Another gid is another mount: files belong to the Pod's fsGroup.
func TestFSGroup(t *testing.T) {
	m := newMachine(t, map[string]string{"a.txt": "hello"})
	conn, _ := m.driver(nil)
	req := inline("csi-1", m.target("pod-1", "data"), map[string]string{"bucketName": "data", "mountOptions": "uid=1000,file-mode=0440"})
	req.VolumeCapability.GetMount().VolumeMountGroup = "2000"
	publish(t, conn, req)
	var st unix.Stat_t
	if err := unix.Stat(req.GetTargetPath()+"/a.txt", &st); err != nil || st.Uid != 1000 || st.Gid != 2000 || st.Mode != unix.S_IFREG|0o440 {
		t.Errorf("stat: %d:%d %o, %v", st.Uid, st.Gid, st.Mode, err)
	}
	stats, err := csi.NewNodeClient(conn).NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: "csi-1", VolumePath: req.GetTargetPath()})
	if err != nil || len(stats.GetUsage()) != 2 || stats.GetUsage()[0].GetTotal() != 5 || stats.GetUsage()[0].GetAvailable() != 5 || stats.GetUsage()[1].GetTotal() != 1 {
		t.Errorf("stats: %v, %v", stats, err)
	}
	unpublish(t, conn, "csi-1", req.GetTargetPath())
}

// A PersistentVolume is one volume at several places: each Pod of the machine has it, by the options of
// mount(8), and one for a single Pod only is refused a second place.
func TestPersistentVolume(t *testing.T) {
	m := newMachine(t, map[string]string{"a.txt": "hello", "sub/b.txt": "below"})
	conn, _ := m.driver(nil)
	request := func(pod string, mode csi.VolumeCapability_AccessMode_Mode) *csi.NodePublishVolumeRequest {
		return &csi.NodePublishVolumeRequest{
			VolumeId: "imagenet", TargetPath: m.target(pod, "pv"), VolumeContext: map[string]string{"bucketName": "data"},
			VolumeCapability: &csi.VolumeCapability{
				AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{MountFlags: []string{"ro", "file-mode=0400", "uid=65534"}}},
				AccessMode: &csi.VolumeCapability_AccessMode{Mode: mode},
			},
		}
	}
	const rox, rwx, rwop = csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY, csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER, csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
	publish(t, conn, request("a", rox))
	publish(t, conn, request("b", rwx))
	var st unix.Stat_t
	if err := unix.Stat(m.target("b", "pv")+"/a.txt", &st); err != nil || st.Uid != 65534 || st.Mode != unix.S_IFREG|0o400 {
		t.Errorf("stat: uid %d, mode %o, %v", st.Uid, st.Mode, err)
	}
	if _, err := csi.NewNodeClient(conn).NodePublishVolume(t.Context(), request("c", rwop)); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("a second place for one Pod only: got %v", err)
	}
	// As the kubelet does for subPath: a directory of the volume, bound elsewhere, outlives neither.
	sub := m.target("a", "pv-subpath")
	if err := os.Mkdir(sub, 0o750); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(m.target("a", "pv")+"/sub", sub, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	if got := read(t, sub+"/b.txt"); got != "below" {
		t.Errorf("read %q by subPath", got)
	}
	if err := unix.Mkdir(sub+"/new", 0o755); err != unix.EROFS {
		t.Errorf("mkdir by subPath: got %v, want EROFS", err)
	}
	if err := unix.Unmount(sub, unix.UMOUNT_NOFOLLOW); err != nil {
		t.Fatal(err)
	}
	unpublish(t, conn, "imagenet", m.target("a", "pv"))
	unpublish(t, conn, "imagenet", m.target("b", "pv"))
}

// A volume whose mount has ended says so, and is shown the next one by its Pod's next publish.
func TestHealth(t *testing.T) {
	f := newFake()
	s, _ := fakeDriver(t, f, Policy{})
	req := inline("a", s.at("a"), map[string]string{"bucketName": "data"})
	health := func() (reasons []string) {
		t.Helper()
		reply, err := s.NodeGetVolumeHealth(t.Context(), &csi.NodeGetVolumeHealthRequest{VolumeId: "a", VolumePublishPath: s.at("a")})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range reply.GetVolumeHealth().GetHealthStatuses() {
			reasons = append(reasons, e.GetReason())
		}
		return reasons
	}
	if _, err := s.NodeGetVolumeHealth(t.Context(), &csi.NodeGetVolumeHealthRequest{VolumeId: "a"}); status.Code(err) != codes.NotFound {
		t.Errorf("health of what is not published: %v", err)
	}
	s.mustPublish(t, req)
	if r := health(); len(r) != 0 {
		t.Errorf("health of a volume: %v", r)
	}
	f.die()
	f.set(func() { f.down = control.ErrNoNode })
	if r := health(); !slices.Equal(r, []string{"MountEnded", "DaemonUnreachable"}) {
		t.Errorf("health without a daemon: %v", r)
	}
	f.set(func() { f.down = nil })
	s.mustPublish(t, req)
	if r := health(); len(r) != 0 || !f.alive(s.at("a")) {
		t.Errorf("health after the daemon came back: %v", r)
	}
	s.mustUnpublish(t, "a", s.at("a"))
}

// The kubelet's directory may be a link to another disk; nothing below it may be.
func TestKubeletDirIsALink(t *testing.T) {
	m := newMachine(t, map[string]string{"a.txt": "hello"})
	link := filepath.Join(t.TempDir(), "kubelet")
	if err := os.Symlink(m.kubelet, link); err != nil {
		t.Fatal(err)
	}
	conn, _ := m.driver(func(c *Config) { c.KubeletDir = link })
	target := link + strings.TrimPrefix(m.target("pod", "data"), m.kubelet)
	publish(t, conn, inline("a", target, map[string]string{"bucketName": "data"}))
	publish(t, conn, inline("a", target, map[string]string{"bucketName": "data"}))
	if got := read(t, m.target("pod", "data")+"/a.txt"); got != "hello" || len(m.mounted()) != 2 {
		t.Errorf("read %q, mounted %v", got, m.mounted())
	}
	unpublish(t, conn, "a", target)
}
