package pods_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shardwell/shardwell/e2e/origin"
)

// upgrade upgrades the release to the values of the tests and more, and waits until it runs.
func upgrade(t *testing.T, more ...string) {
	t.Helper()
	if err := helm("upgrade", more...); err != nil {
		fail(t, "%v", err)
	}
	rollOut(t)
}

// TestUpgradeKeepsTheSecret upgrades the release: the secret that nodes share stays the same, and the new Pods are ready.
func TestUpgradeKeepsTheSecret(t *testing.T) {
	secret := func() string {
		return kubectl(t, "-n", system, "get", "secret", "shardwell-keyring", "-o", "jsonpath={.data.secret}")
	}
	before, pods := secret(), podsOf(t, "node", "metadata.uid")
	upgrade(t, "--set", "podAnnotations.generation=two")
	if secret() != before || before == "" {
		t.Error("the secret changed")
	}
	if podsOf(t, "node", "metadata.uid") == pods {
		t.Error("no Pod was replaced")
	}
}

// TestUpgradeUnderLoad upgrades to another build and back under readers, twice: they see nothing, and the keeper stays.
func TestUpgradeUnderLoad(t *testing.T) {
	archive := os.Getenv("SHARDWELL_IMAGE_NEXT")
	if archive == "" {
		t.Fatal("SHARDWELL_IMAGE_NEXT names no archive: use `make e2e-kubernetes`")
	}
	name, err := nameOf(archive)
	if err != nil {
		t.Fatal(err)
	}
	if archive, err = filepath.Abs(archive); err != nil {
		t.Fatal(err)
	}
	if _, err := run("", "ctr", "-n", "k8s.io", "images", "import", archive); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { upgrade(t) })
	_, this, _ := strings.Cut(w.image, ":")
	_, next, _ := strings.Cut(name, ":")
	readers := twoReaders(t, "upgrade")
	keeper := podsOf(t, "keeper", "metadata.uid")
	for _, tag := range []string{next, this, next, this} {
		upgrade(t, "--set-string", "image.tag="+tag)
		waitStatus(t, "version "+tag+" serves", func(s status) bool { return s.Version == tag && s.TakingOver == 0 })
		readOn(t, readers)
	}
	if got := podsOf(t, "keeper", "metadata.uid"); got != keeper {
		t.Error("the keeper was replaced")
	}
	endAll(t, readers)
}

// TestPodNetwork moves the daemon from its host's network to that of Pods, and back, under readers.
func TestPodNetwork(t *testing.T) {
	readers := twoReaders(t, "network")
	t.Cleanup(func() { upgrade(t) })
	upgrade(t, "--set", "hostNetwork=false")
	waitStatus(t, "the node has an address of Pods", func(s status) bool {
		return len(s.Members) == 1 && strings.HasPrefix(s.Members[0].Address, "10.244.") && s.TakingOver == 0
	})
	readOn(t, readers)
	f := put(t, "from-pod-network", 3, 4<<20)
	runPods(t, pod{name: "pod-network", script: f.check("/data"), volume: inline("from-pod-network")})
	upgrade(t)
	readOn(t, readers)
	endAll(t, readers)
}

// TestRemoval removes the release while a Pod has a volume of it, and installs it again: the cache and the secret were
// kept, what the Pod left is cleaned up, and nothing else stays behind.
func TestRemoval(t *testing.T) {
	f := put(t, "removal", 3, 2<<20)
	secret := func() string {
		return kubectl(t, "-n", system, "get", "secret", "shardwell-keyring", "-o", "jsonpath={.data.secret}")
	}
	before := secret()
	stays := begin(t, pod{name: "removal-stays", script: f.check("/data") + "cd /; exec sleep 3600", volume: inline("removal")})
	waitReady(t, stays.pod)
	eventually(t, "the Pod has read", func() bool { return (reader{stays}).rounds(t) == 1 })
	uid := stays.uid(t)
	if err := helm("uninstall"); err != nil {
		fail(t, "%v", err)
	}
	eventually(t, "the kubelet forgets the driver", func() bool {
		return kubectl(t, "get", "csinode", "node-1", "-o", "jsonpath={.spec.drivers[*].name}") == ""
	})
	if got := kubectl(t, "-n", system, "get", "all,configmaps,serviceaccounts", "-l", "app.kubernetes.io/name=shardwell", "-o", "name"); got != "" {
		t.Errorf("left in the namespace:\n%s", got)
	}
	kubectl(t, "-n", users, "delete", "pod", stays.name, "--wait=false")
	if err := helm("install"); err != nil {
		fail(t, "%v", err)
	}
	rollOut(t)
	gone(t, uid)
	if secret() != before {
		t.Error("the secret changed")
	}
	w.origin.Reset()
	runPods(t, pod{name: "removal-again", script: f.check("/data"), volume: inline("removal")})
	if got := w.origin.Requests().Of(origin.OpGet).Bytes(); got != 0 {
		t.Errorf("the origin sent %d bytes again", got)
	}
}
