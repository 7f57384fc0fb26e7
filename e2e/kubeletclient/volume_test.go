package kubeletclient_test

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubernetes/pkg/volume"
	volumetypes "k8s.io/kubernetes/pkg/volume/util/types"

	"github.com/shardwell/shardwell/e2e/cluster"
	"github.com/shardwell/shardwell/e2e/origin"
)

var attributes = map[string]string{"bucketName": bucket}

// An inline volume comes, is published again by many at once as a kubelet does that has fallen behind, and goes.
func TestInlineVolume(t *testing.T) {
	c := start(t, cluster.Options{})
	k := newKubelet(t, c, "--max-volumes", "77")
	n, err := k.api.StorageV1().CSINodes().Get(t.Context(), nodeName, metav1.GetOptions{})
	must(t, err)
	if d := n.Spec.Drivers[0]; d.NodeID != c.Nodes[0].Name || d.Allocatable == nil || *d.Allocatable.Count != 77 {
		t.Errorf("the API server knows of %+v", d)
	}
	options := map[string]string{"bucketName": bucket, "mountOptions": "uid=1000,file-mode=0440"}
	p, group := pod("a"), int64(2000)
	m := k.mounter(inline(options, ""), p)
	if !k.plugin.RequiresRemount(inline(options, "")) {
		t.Error("the kubelet would not publish again")
	}
	must(t, m.SetUp(volume.MounterArgs{FsGroup: &group}))
	reads(t, m)
	var st syscall.Stat_t
	if err := syscall.Stat(filepath.Join(m.GetPath(), "a.txt"), &st); err != nil || st.Uid != 1000 || st.Gid != 2000 || st.Mode&0o7777 != 0o440 {
		t.Errorf("a.txt is of %d:%d, mode %o, %v", st.Uid, st.Gid, st.Mode, err)
	}
	if err := os.WriteFile(filepath.Join(m.GetPath(), "b.txt"), nil, 0o600); !errors.Is(err, syscall.EROFS) {
		t.Errorf("a file is written: %v, want EROFS", err)
	}
	c.Origin.Reset()
	var all sync.WaitGroup
	for range 20 {
		again := k.mounter(inline(options, ""), p)
		all.Go(func() {
			if err := again.SetUp(volume.MounterArgs{FsGroup: &group}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if asked := c.Origin.Requests(); len(asked) > 0 {
		t.Errorf("publishing again asked the origin:\n%v", asked)
	}
	reads(t, m)
	metrics, err := m.GetMetrics()
	if err != nil || metrics.Capacity.Value() != 5 || metrics.Used.Value() != 5 || metrics.Available.Value() != 5 || metrics.Inodes.Value() != 1 {
		t.Errorf("statistics: %+v, %v", metrics, err)
	}
	k.tearDown("data", p)
}

// A publish that fails is final for the kubelet, says what is wrong, and leaves nothing in the Pod's directory; the
// next one works when it is mended.
func TestPublishThatFails(t *testing.T) {
	c := start(t, cluster.Options{})
	k := newKubelet(t, c)
	for name, change := range map[string]struct {
		attributes map[string]string
		says       string
	}{
		"no such bucket":       {map[string]string{"bucketName": "later"}, "no such bucket"},
		"nothing there":        {map[string]string{"bucketName": bucket, "prefix": "none"}, "none"},
		"an unknown attribute": {map[string]string{"bucketName": bucket, "colour": "blue"}, `"colour"`},
		"a local endpoint":     {map[string]string{"bucketName": bucket, "endpoint": "http://169.254.169.254"}, "administrator allows"},
		"a long attribute":     {map[string]string{"bucketName": bucket, "prefix": strings.Repeat("x", 4096)}, ""},
		"a NUL":                {map[string]string{"bucketName": bucket, "prefix": "a\x00b"}, "control character"},
		"a NUL in an option":   {map[string]string{"bucketName": bucket, "region": "a\x00b"}, "region"},
	} {
		p := pod("a")
		err := k.mounter(inline(change.attributes, ""), p).SetUp(volume.MounterArgs{})
		if err == nil || !strings.Contains(err.Error(), change.says) || !volumetypes.IsOperationFinishedError(err) || strings.ContainsAny(err.Error(), "\n\x00") {
			t.Errorf("%s: %v, want a final error that says %q", name, err, change.says)
		}
		k.nothingIn(p)
	}
	if left := k.driver.Mounts(); len(left) > 0 {
		t.Errorf("left mounted: %v", left)
	}
	must(t, c.Origin.MakeBucket(t.Context(), "later"))
	_, err := c.Origin.Put(t.Context(), "later", "a.txt", strings.NewReader("hello"), 5)
	must(t, err)
	m := k.mounter(inline(map[string]string{"bucketName": "later"}, ""), pod("a"))
	must(t, m.SetUp(volume.MounterArgs{}))
	reads(t, m)
	k.tearDown("data", pod("a"))
}

// A Secret that is spoilt under a volume, or goes, costs the Pod nothing: the kubelet is told to try again, and
// what is mounted stays.
func TestSecretIsSpoilt(t *testing.T) {
	users := map[string]string{"alice": "alices-secret-key-0123456789"}
	c := start(t, cluster.Options{Origin: origin.Options{Users: users}, Flags: []string{"--anonymous"}})
	must(t, c.Origin.SetPolicy(t.Context(), bucket, fmt.Sprintf(`{"Version":"2012-10-17","Statement":[
		{"Effect":"Allow","Principal":{"AWS":["alice"]},"Action":["s3:ListBucket"],"Resource":["arn:aws:s3:::%[1]s"]},
		{"Effect":"Allow","Principal":{"AWS":["alice"]},"Action":["s3:GetObject"],"Resource":["arn:aws:s3:::%[1]s/*"]}]}`, bucket)))
	k := newKubelet(t, c)
	p := pod("a")
	m := k.mounter(inline(attributes, "keys"), p)
	if err := m.SetUp(volume.MounterArgs{}); err == nil || volumetypes.IsOperationFinishedError(err) {
		t.Errorf("without the Secret: %v, want one that is tried again", err)
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "keys", Namespace: namespace}, Data: map[string][]byte{
		"AWS_ACCESS_KEY_ID": []byte("alice"), "AWS_SECRET_ACCESS_KEY": []byte(users["alice"] + "\n"), "odd.key": []byte("{\x01}"),
	}}
	_, err := k.api.CoreV1().Secrets(namespace).Create(t.Context(), secret, metav1.CreateOptions{})
	must(t, err)
	update := func() {
		t.Helper()
		_, err := k.api.CoreV1().Secrets(namespace).Update(t.Context(), secret, metav1.UpdateOptions{})
		must(t, err)
	}
	must(t, m.SetUp(volume.MounterArgs{}))
	reads(t, m)
	for name, spoil := range map[string]func(){
		"no key":          func() { delete(secret.Data, "AWS_SECRET_ACCESS_KEY") },
		"a local server":  func() { secret.Data["endpoint"] = []byte("http://127.0.0.1:9000") },
		"no certificates": func() { secret.Data["ca.crt"] = []byte("nothing") },
	} {
		was := secret.DeepCopy()
		spoil()
		update()
		if err := m.SetUp(volume.MounterArgs{}); err == nil || volumetypes.IsOperationFinishedError(err) {
			t.Errorf("%s: %v, want one that is tried again", name, err)
		}
		reads(t, m)
		secret = was
		update()
		must(t, m.SetUp(volume.MounterArgs{}))
	}
	k.tearDown("data", p)
}

// A kubelet that was restarted finds the driver and its volumes again: it publishes what is mounted once more, and
// takes away what went meanwhile.
func TestKubeletRestarts(t *testing.T) {
	k := newKubelet(t, start(t, cluster.Options{}))
	stays, goes := k.mounter(inline(attributes, ""), pod("stays")), k.mounter(inline(attributes, ""), pod("goes"))
	must(t, stays.SetUp(volume.MounterArgs{}))
	must(t, goes.SetUp(volume.MounterArgs{}))
	open, err := os.Open(filepath.Join(stays.GetPath(), "a.txt"))
	must(t, err)
	defer open.Close()
	k.stop()
	k.start()
	k.tearDown("data", pod("goes"))
	found, err := k.plugin.ConstructVolumeSpec("data", filepath.Dir(stays.GetPath()))
	must(t, err)
	if found.Spec.Name() != "data" || found.Spec.Volume == nil || found.Spec.Volume.CSI.Driver != driverName {
		t.Errorf("the kubelet finds %+v", found.Spec)
	}
	again := k.mounter(inline(attributes, ""), pod("stays"))
	must(t, again.SetUp(volume.MounterArgs{}))
	reads(t, again)
	var text [5]byte
	if _, err := open.ReadAt(text[:], 0); err != nil || string(text[:]) != "hello" {
		t.Errorf("a file that was open reads %q, %v", text, err)
	}
	k.tearDown("data", pod("stays"))
}

// While the driver is away nothing is final; what it published stays, and the next one goes on with it.
func TestDriverIsAway(t *testing.T) {
	k := newKubelet(t, start(t, cluster.Options{}))
	m, other := k.mounter(inline(attributes, ""), pod("a")), k.mounter(inline(attributes, ""), pod("b"))
	must(t, m.SetUp(volume.MounterArgs{}))
	_, err := k.driver.Proc.Stop(wait)
	must(t, err)
	k.untilRegistered(false)
	for name, one := range map[string]volume.Mounter{"published": m, "new": other} {
		if err := one.SetUp(volume.MounterArgs{}); err == nil || volumetypes.IsOperationFinishedError(err) {
			t.Errorf("%s: %v, want one that is tried again", name, err)
		}
	}
	reads(t, m)
	must(t, k.driver.Launch())
	k.untilRegistered(true)
	must(t, m.SetUp(volume.MounterArgs{}))
	must(t, other.SetUp(volume.MounterArgs{}))
	reads(t, m)
	reads(t, other)
	k.tearDown("data", pod("a"))
	k.tearDown("data", pod("b"))
}

// While the daemon is away a first publish is tried again and leaves nothing, and a Pod can be deleted.
func TestDaemonIsAway(t *testing.T) {
	c := start(t, cluster.Options{})
	k := newKubelet(t, c)
	m, other := k.mounter(inline(attributes, ""), pod("a")), k.mounter(inline(attributes, ""), pod("b"))
	must(t, m.SetUp(volume.MounterArgs{}))
	must(t, c.Nodes[0].Kill())
	for name, one := range map[string]volume.Mounter{"published": m, "new": other} {
		if err := one.SetUp(volume.MounterArgs{}); err == nil || volumetypes.IsOperationFinishedError(err) || !strings.Contains(err.Error(), "daemon") {
			t.Errorf("%s: %v, want one that is tried again", name, err)
		}
	}
	k.tearDown("data", pod("a"))
	must(t, c.Nodes[0].Start())
	must(t, other.SetUp(volume.MounterArgs{}))
	reads(t, other)
	k.tearDown("data", pod("b"))
}

// A PersistentVolume needs no attaching and no staging, and two Pods have it with its mount options.
func TestPersistentVolume(t *testing.T) {
	k := newKubelet(t, start(t, cluster.Options{}))
	spec := volume.NewSpecFromPersistentVolume(&corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "imagenet"},
		Spec: corev1.PersistentVolumeSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany}, MountOptions: []string{"ro", "file-mode=0400", "uid=65534"},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: driverName, VolumeHandle: "../imagenet", ReadOnly: true, VolumeAttributes: maps.Clone(attributes),
			}},
		},
	}, true)
	if attach, err := k.plugin.(volume.AttachableVolumePlugin).CanAttach(spec); err != nil || attach {
		t.Errorf("it is to be attached: %v, %v", attach, err)
	}
	device, err := k.plugin.(volume.DeviceMountableVolumePlugin).NewDeviceMounter()
	must(t, err)
	path, err := device.GetDeviceMountPath(spec)
	must(t, err)
	must(t, device.MountDevice(spec, "", path, volume.DeviceMounterArgs{}))
	for _, name := range []string{"a", "b"} {
		m := k.mounter(spec, pod(name))
		must(t, m.SetUp(volume.MounterArgs{}))
		must(t, m.SetUp(volume.MounterArgs{}))
		reads(t, m)
		var st syscall.Stat_t
		if err := syscall.Stat(filepath.Join(m.GetPath(), "a.txt"), &st); err != nil || st.Uid != 65534 || st.Mode&0o7777 != 0o400 {
			t.Errorf("a.txt is of %d, mode %o, %v", st.Uid, st.Mode, err)
		}
	}
	k.tearDown("imagenet", pod("a"))
	k.tearDown("imagenet", pod("b"))
}
