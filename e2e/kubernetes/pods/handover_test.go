package pods_test

import (
	"strings"
	"testing"
)

// replacements is how often the daemon goes under a reader in each of the tests.
const replacements = 20

// twoReaders are one whose complete files the kernel reads, and one that asks the daemon for every block.
func twoReaders(t *testing.T, name string) []reader {
	t.Helper()
	f := put(t, name, 4, 3<<20)
	return []reader{keepReading(t, name+"-kernel", name, f), keepReading(t, name+"-daemon", name, f, "verifyReads: always")}
}

// replaceDriver deletes the Pod of daemon and driver, and waits until its successor is ready.
func replaceDriver(t *testing.T) {
	t.Helper()
	kubectl(t, "-n", system, "delete", "pods", "-l", "app.kubernetes.io/component=node", "--timeout=2m")
	kubectl(t, "-n", system, "rollout", "status", "daemonset/shardwell", "--timeout=3m")
	eventually(t, "the successor is ready", func() bool { // the rollout may look at what was before
		return kubectl(t, "-n", system, "get", "pods", "-l", "app.kubernetes.io/component=node", "-o",
			`jsonpath={.items[*].status.conditions[?(@.type=="Ready")].status}`) == "True"
	})
}

// TestDriverIsReplaced deletes the Pod of daemon and driver under readers again and again: they see no error, no wrong
// byte, and are not restarted.
func TestDriverIsReplaced(t *testing.T) {
	readers := twoReaders(t, "replaced")
	for range replacements {
		replaceDriver(t)
		for _, r := range readers {
			r.readMore(t)
		}
	}
	for _, r := range readers {
		r.end(t)
	}
}

// TestDaemonIsKilled kills the daemon's container under readers.
func TestDaemonIsKilled(t *testing.T) {
	readers := twoReaders(t, "killed")
	id := func() string {
		out := kubectl(t, "-n", system, "get", "pods", "-l", "app.kubernetes.io/component=node", "-o",
			`jsonpath={.items[*].status.containerStatuses[?(@.name=="node")].containerID}`)
		return strings.TrimPrefix(out, "containerd://")
	}
	for range 3 { // the kubelet waits longer each time before it starts the container again
		before := id()
		if _, err := w.node.Run(t.Context(), nil, "ctr", "-n", "k8s.io", "tasks", "kill", "-s", "SIGKILL", before); err != nil {
			t.Fatal(err)
		}
		eventually(t, "another container is there", func() bool { now := id(); return now != before && now != "" })
		for _, r := range readers {
			r.readMore(t)
		}
	}
	for _, r := range readers {
		r.end(t)
	}
}
