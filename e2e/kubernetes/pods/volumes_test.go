package pods_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
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
	seeds := kubectl(t, "-n", system, "get", "endpointslices", "-l", "kubernetes.io/service-name=shardwell-seeds", "-o", "jsonpath={.items[*].endpoints[*].addresses[*]}")
	if seeds != w.node.Host.IP {
		t.Errorf("seeds are %q", seeds)
	}
}

// TestRights looks at what the service account of the product may do, and at who has its token.
func TestRights(t *testing.T) {
	for ask, want := range map[string]string{
		"get nodes": "yes", "patch nodes": "yes", "get csinodes.storage.k8s.io": "yes",
		"list nodes": "no", "update nodes": "no", "delete nodes": "no", "get pods": "no", "list pods": "no", "get secrets": "no", "create pods": "no",
		"get configmaps": "no", "get persistentvolumes": "no", "create serviceaccounts/token": "no", "* *": "no",
	} {
		args := append([]string{"kubectl", "auth", "can-i"}, strings.Fields(ask)...)
		got, err := run("", append(args, "--as=system:serviceaccount:"+system+":shardwell", "-n", system)...)
		if got = strings.TrimSpace(got); got != want { // "no" is an error, too
			t.Errorf("%s: %q, %v", ask, got, err)
		}
	}
	const token = "/var/run/secrets/kubernetes.io/serviceaccount"
	for container, want := range map[string]bool{"node": false, "csi": true} {
		mounts := kubectl(t, "-n", system, "get", "daemonset", "shardwell", "-o",
			fmt.Sprintf("jsonpath={.spec.template.spec.containers[?(@.name==%q)].volumeMounts[*].mountPath}", container))
		if strings.Contains(mounts, token) != want {
			t.Errorf("container %s has a token: %v", container, !want)
		}
	}
}

// TestStatistics has the kubelet tell sizes of volumes: as metrics of a PersistentVolume, and in its summary of an inline one.
func TestStatistics(t *testing.T) {
	const n, size = 3, 1 << 20
	f := put(t, "statistics", n, size)
	apply(t, staticVolume("statistics"))
	reads := f.check("/data") + "cd /; exec sleep 3600"
	for _, p := range []pod{
		{name: "statistics-static", script: reads, volume: "{name: data, persistentVolumeClaim: {claimName: statistics, readOnly: true}}"},
		{name: "statistics-inline", script: reads, volume: inline("statistics")},
	} {
		waitReady(t, begin(t, p).pod)
	}
	for _, name := range []string{"capacity", "used"} {
		line := fmt.Sprintf(`kubelet_volume_stats_%s_bytes{namespace=%q,persistentvolumeclaim="statistics"} %.6e`, name, users, float64(n*size))
		eventually(t, "the kubelet has the metric "+line, func() bool {
			return strings.Contains(kubectl(t, "get", "--raw", "/api/v1/nodes/node-1/proxy/metrics"), line)
		})
	}
	var last string
	eventually(t, "the summary has the inline volume", func() bool {
		last = kubectl(t, "get", "--raw", "/api/v1/nodes/node-1/proxy/stats/summary")
		var summary struct {
			Pods []struct {
				PodRef struct{ Name string }
				Volume []struct {
					Name                     string
					CapacityBytes, UsedBytes int64
				}
			}
		}
		if err := json.Unmarshal([]byte(last), &summary); err != nil {
			t.Fatal(err)
		}
		for _, p := range summary.Pods {
			for _, v := range p.Volume {
				if p.PodRef.Name == "statistics-inline" && v.Name == "data" && v.CapacityBytes == n*size && v.UsedBytes == n*size {
					return true
				}
			}
		}
		return false
	})
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

// staticVolume returns a PersistentVolume of a prefix, and its claim.
func staticVolume(prefix string) string {
	return strings.NewReplacer("NAMESPACE", users, "BUCKET", bucket, "NAME", prefix).Replace(`
apiVersion: v1
kind: PersistentVolume
metadata: {name: NAME}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadOnlyMany]
  storageClassName: ""
  claimRef: {namespace: NAMESPACE, name: NAME}
  mountOptions: [file-mode=0444]
  csi: {driver: csi.shardwell.io, volumeHandle: NAME, readOnly: true, volumeAttributes: {bucketName: BUCKET, prefix: NAME}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: NAME, namespace: NAMESPACE}
spec:
  accessModes: [ReadOnlyMany]
  storageClassName: ""
  volumeName: NAME
  resources: {requests: {storage: 1Gi}}
`)
}

// TestStaticVolume reads through a PersistentVolume, for many Pods at once.
func TestStaticVolume(t *testing.T) {
	f := put(t, "static", 3, 4<<20)
	apply(t, staticVolume("static"))
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
