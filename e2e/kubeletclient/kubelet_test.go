package kubeletclient_test

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"testing"

	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	"k8s.io/kubernetes/pkg/kubelet/config"
	"k8s.io/kubernetes/pkg/kubelet/pluginmanager"
	"k8s.io/kubernetes/pkg/volume"
	"k8s.io/kubernetes/pkg/volume/csi"
	volumetest "k8s.io/kubernetes/pkg/volume/testing"
	"k8s.io/mount-utils"

	"github.com/shardwell/shardwell/e2e/cluster"
	e2ecsi "github.com/shardwell/shardwell/e2e/csi"
)

// Names that the tests go by.
const (
	driverName = "csi.shardwell.io"
	nodeName   = "node-of-the-test"
	namespace  = "team"
)

// fakeHost is what the plugin asks the kubelet for, of a kubelet without Pods.
type fakeHost interface {
	volumetest.FakeVolumeHost
	volume.KubeletVolumeHost
	WaitForKubeletErrNil() error
}

// host is a fake host with the machine's own mount table.
type host struct {
	fakeHost
	mounter mount.Interface
}

func (h *host) GetMounter() mount.Interface { return h.mounter }

// kubelet is the part of a kubelet that deals with volumes of CSI.
type kubelet struct {
	t      *testing.T
	driver *e2ecsi.Driver
	api    *fake.Clientset
	plugin volume.VolumePlugin
	stop   func()
}

// newKubelet runs a driver beside the node, and a kubelet that finds it. Both end with the test, and leave nothing.
func newKubelet(t *testing.T, c *cluster.Cluster, flags ...string) *kubelet {
	t.Helper()
	d, err := e2ecsi.Start(c, c.Nodes[0], append([]string{"--self-register"}, flags...)...)
	if d != nil {
		t.Cleanup(func() {
			if err := d.Close(); err != nil {
				t.Errorf("clean-up: %v", err)
			}
		})
	}
	must(t, err)
	k := &kubelet{t: t, driver: d, api: fake.NewSimpleClientset(
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}}, driverObject(t),
	)}
	k.api.PrependReactor("create", "serviceaccounts", func(a ktesting.Action) (bool, runtime.Object, error) {
		if a.GetSubresource() != "token" {
			return false, nil, nil
		}
		return true, &authv1.TokenRequest{Status: authv1.TokenRequestStatus{Token: "token-of-the-api-server"}}, nil
	})
	k.start()
	t.Cleanup(func() { k.stop() })
	return k
}

// driverObject is the CSIDriver object of the plain manifest, as the API server completes it.
func driverObject(t *testing.T) *storagev1.CSIDriver {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "deploy", "manifests", "shardwell.yaml"))
	must(t, err)
	docs := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096)
	for {
		var o storagev1.CSIDriver
		switch err := docs.Decode(&o); {
		case errors.Is(err, io.EOF):
			t.Fatal("deploy/manifests/shardwell.yaml has no CSIDriver")
		case err == nil && o.Kind == "CSIDriver":
			return &o
		}
	}
}

// start begins a kubelet that knows nothing of one before, as after a restart.
func (k *kubelet) start() {
	k.t.Helper()
	stop := make(chan struct{})
	factory := informers.NewSharedInformerFactory(k.api, csi.CsiResyncPeriod)
	lister := factory.Storage().V1().CSIDrivers().Lister()
	factory.Start(stop)
	factory.WaitForCacheSync(stop)
	h := &host{volumetest.NewFakeKubeletVolumeHostWithCSINodeName(k.t, k.driver.Dir, k.api, nil, nodeName, lister, nil), mount.New("")}
	var plugins volume.VolumePluginMgr
	must(k.t, plugins.InitPlugins(csi.ProbeVolumePlugins(), nil, h))
	must(k.t, h.WaitForKubeletErrNil())
	plugin, err := plugins.FindPluginByName(csi.CSIPluginName)
	must(k.t, err)
	k.plugin = plugin
	manager := pluginmanager.NewPluginManager(filepath.Join(k.driver.Dir, "plugins_registry"), record.NewFakeRecorder(100))
	manager.AddHandler(registerapi.CSIPlugin, csi.PluginHandler)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		manager.Run(config.NewSourcesReady(func(sets.Set[string]) bool { return true }), stop)
	}()
	k.stop = func() {
		close(stop)
		<-ended
		csi.PluginHandler.DeRegisterPlugin(driverName, "") // it is a variable of the package
		factory.Shutdown()
		k.stop = func() {}
	}
	k.untilRegistered(true)
}

// untilRegistered waits until the API server knows that the driver is on this node, or is no more.
func (k *kubelet) untilRegistered(want bool) {
	k.t.Helper()
	eventually(k.t, "the kubelet knows of the driver", func() bool {
		n, err := k.api.StorageV1().CSINodes().Get(k.t.Context(), nodeName, metav1.GetOptions{})
		found := false
		if err == nil {
			for _, d := range n.Spec.Drivers {
				found = found || d.Name == driverName
			}
		}
		return found == want
	})
}

// pod is one that runs on the node.
func pod(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, UID: types.UID("uid-of-" + name)},
		Spec:       corev1.PodSpec{ServiceAccountName: "default"},
	}
}

// inline is an inline volume named "data". The plugin adds to the attributes of what it is given.
func inline(attributes map[string]string, secret string) *volume.Spec {
	source := &corev1.CSIVolumeSource{Driver: driverName, VolumeAttributes: maps.Clone(attributes)}
	if secret != "" {
		source.NodePublishSecretRef = &corev1.LocalObjectReference{Name: secret}
	}
	return volume.NewSpecFromVolume(&corev1.Volume{Name: "data", VolumeSource: corev1.VolumeSource{CSI: source}})
}

// mounter is what the kubelet makes for a Pod's volume.
func (k *kubelet) mounter(spec *volume.Spec, p *corev1.Pod) volume.Mounter {
	k.t.Helper()
	m, err := k.plugin.NewMounter(spec, p)
	must(k.t, err)
	return m
}

// tearDown takes a volume away in the way of a kubelet that was restarted: by what lies in the Pod's directory.
func (k *kubelet) tearDown(name string, p *corev1.Pod) {
	k.t.Helper()
	u, err := k.plugin.NewUnmounter(name, p.UID)
	must(k.t, err)
	must(k.t, u.TearDown())
	k.nothingIn(p)
}

// nothingIn fails the test if anything of the driver is left in a Pod's directory.
func (k *kubelet) nothingIn(p *corev1.Pod) {
	k.t.Helper()
	left, err := os.ReadDir(filepath.Join(k.driver.Dir, "pods", string(p.UID), "volumes", "kubernetes.io~csi"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		k.t.Error(err)
	}
	for _, e := range left {
		k.t.Errorf("%s is left in the directory of the Pod %s", e.Name(), p.Name)
	}
}

// reads fails the test unless a volume shows the dataset.
func reads(t *testing.T, m volume.Mounter) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(m.GetPath(), "a.txt"))
	if err != nil || string(text) != "hello" {
		t.Errorf("the volume reads %q, %v", text, err)
	}
}
