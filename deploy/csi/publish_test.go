package csi

import (
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
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
	if err != nil || len(stats.GetUsage()) != 2 || stats.GetUsage()[0].GetTotal() != 5 || stats.GetUsage()[1].GetTotal() != 1 {
		t.Errorf("stats: %v, %v", stats, err)
	}
	unpublish(t, conn, "csi-1", req.GetTargetPath())
}
