package pods_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shardwell/shardwell/e2e/dataset"
	"github.com/shardwell/shardwell/e2e/origin"
)

// TestInstalled looks at what an installation leaves: a ready node that knows its place, without the start-up taint.
func TestInstalled(t *testing.T) {
	eventually(t, "the start-up taint goes", func() bool {
		return !strings.Contains(kubectl(t, "get", "node", "node-1", "-o", "jsonpath={.spec.taints}"), "shardwell.io/not-ready")
	})
	s := waitStatus(t, "the keeper is there", func(s status) bool { return s.Keeper == "connected" })
	if m := s.Members; len(m) != 1 || m[0].Name != "node-1" || m[0].Zone != "zone-a" || m[0].Rack != "rack-1" || m[0].State != "alive" {
		t.Errorf("members are %+v", m)
	}
	if d := kubectl(t, "get", "csinode", "node-1", "-o", "jsonpath={.spec.drivers[*].name}"); d != "csi.shardwell.io" {
		t.Errorf("drivers of the node are %q", d)
	}
}

// TestWholeDataset has a Pod read a WebDataset through an inline volume: every sum is right, and the origin
// sends each byte once. The Pod has the restricted profile, and is not root.
func TestWholeDataset(t *testing.T) {
	dir := filepath.Join(w.cage.Dir, "wds")
	sizes, err := dataset.WebDataset(w.tools.Python, w.tools.Scripts, w.tools.Pictures, dir, 5, 400, 8)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.origin.PutTree(t.Context(), bucket, "wds/", dir); err != nil {
		t.Fatal(err)
	}
	f := files{}
	var bytes int64
	for name, size := range sizes {
		f[name] = sumOf(t, filepath.Join(dir, name))
		bytes += size
	}
	f["manifest.json"] = sumOf(t, filepath.Join(dir, "manifest.json"))
	w.origin.Reset()
	runPods(t, pod{name: "whole", script: f.check("/data"), volume: inline("wds")})
	got := w.origin.Requests().Of(origin.OpGet).Where(func(r origin.Request) bool { return strings.HasSuffix(r.Key, ".tar") }).Bytes()
	if got != bytes {
		t.Errorf("the origin sent %d bytes of tars, there are %d", got, bytes)
	}

	// The program that reads such datasets in earnest, from the folders of the machine.
	runPods(t, pod{
		name: "webdataset", ns: "default", volume: inline("wds"), security: "runAsUser: 1000",
		script: fmt.Sprintf("%s %s/epoch.py /data /data/manifest.json 2 2", w.tools.Python, w.tools.Scripts),
		mounts: fmt.Sprintf(`{name: usr, mountPath: /usr, readOnly: true}, {name: lib, mountPath: /lib, readOnly: true}, {name: lib64, mountPath: /lib64, readOnly: true},
			{name: etc, mountPath: /etc, readOnly: true}, {name: repo, mountPath: %s, readOnly: true}, {name: tmp, mountPath: /tmp}, {name: shm, mountPath: /dev/shm}`, w.root),
		volumes: fmt.Sprintf(`{name: usr, hostPath: {path: /usr}}, {name: lib, hostPath: {path: /usr/lib}}, {name: lib64, hostPath: {path: /usr/lib64}},
			{name: etc, hostPath: {path: /etc}}, {name: repo, hostPath: {path: %s}}, {name: tmp, emptyDir: {}}, {name: shm, emptyDir: {medium: Memory}}`, w.root),
	})
	w.origin.Reset()
	runPods(t, pod{name: "again", script: f.check("/data"), volume: inline("wds")})
	if n := w.origin.Requests().Of(origin.OpGet); len(n) > 0 {
		t.Errorf("a second reader of the same dataset cost the origin:\n%s", n)
	}
}

// TestTwoPodsShare has two Pods of one dataset on a node read through one mount: the origin is asked once.
func TestTwoPodsShare(t *testing.T) {
	f := put(t, "two", 6, 20<<20)
	w.origin.Reset()
	runPods(t,
		pod{name: "two-a", script: f.check("/data"), volume: inline("two")},
		pod{name: "two-b", script: f.check("/data"), volume: inline("two")},
	)
	if got, want := w.origin.Requests().Of(origin.OpGet).Bytes(), int64(6*20<<20); got != want {
		t.Errorf("the origin sent %d bytes, there are %d", got, want)
	}
	heads := map[string]int{}
	for _, r := range w.origin.Requests().Of(origin.OpHead) {
		if heads[r.Key]++; heads[r.Key] > 1 {
			t.Errorf("the origin was asked again about %s", r.Key)
		}
	}
}

// TestVolumeForms reads through what an inline volume may be besides: subPath, fsGroup, several volumes of one
// dataset, options of a mount.
func TestVolumeForms(t *testing.T) {
	f := put(t, "forms/deep/er", 3, 1<<20)
	owners := f.check("/data") + "stat -c '%u %g %a' /data/part-0000.bin /data"
	out := runPods(t,
		pod{name: "sub-path", script: f.check("/data"), volume: inline("forms"), mount: "mountPath: /data, subPath: deep/er, readOnly: true"},
		pod{name: "fs-group", script: owners, volume: inline("forms/deep/er", "fileMode: '0440'", "dirMode: '0550'"),
			security: "runAsNonRoot: true, runAsUser: 1000, fsGroup: 2000, seccompProfile: {type: RuntimeDefault}"},
		pod{name: "options", script: owners, volume: inline("forms/deep/er", "mountOptions: 'uid=1000,gid=3000,file-mode=0400,dir-mode=0500'")},
		pod{name: "several", script: f.check("/data") + f.check("/data2"), volume: inline("forms/deep/er"),
			mounts: "{name: data2, mountPath: /data2}", volumes: strings.Replace(inline("forms/deep/er"), "name: data", "name: data2", 1)},
	)
	if got := out["fs-group"]; got != "all right\n0 2000 440\n0 2000 550\n" {
		t.Errorf("owner, group and mode with fsGroup: %q", got)
	}
	if got := out["options"]; got != "all right\n1000 3000 400\n1000 3000 500\n" {
		t.Errorf("owner, group and mode with options: %q", got)
	}
}

// TestStaticVolume reads through a PersistentVolume, for many Pods at once.
func TestStaticVolume(t *testing.T) {
	f := put(t, "static", 3, 4<<20)
	apply(t, fmt.Sprintf(`
apiVersion: v1
kind: PersistentVolume
metadata: {name: static}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadOnlyMany]
  storageClassName: ""
  claimRef: {namespace: %s, name: static}
  mountOptions: [file-mode=0444]
  csi: {driver: csi.shardwell.io, volumeHandle: static, readOnly: true, volumeAttributes: {bucketName: %s, prefix: static}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: static, namespace: %s}
spec:
  accessModes: [ReadOnlyMany]
  storageClassName: ""
  volumeName: static
  resources: {requests: {storage: 1Gi}}
`, users, bucket, users))
	volume := "{name: data, persistentVolumeClaim: {claimName: static, readOnly: true}}"
	runPods(t, pod{name: "static-a", script: f.check("/data"), volume: volume}, pod{name: "static-b", script: f.check("/data"), volume: volume})
}

func sumOf(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	digest := sha256.Sum256(data)
	return hex.EncodeToString(digest[:])
}
