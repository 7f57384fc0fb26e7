package pods_test

import (
	"encoding/json"
	"fmt"
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

// readOn waits until all have read everything once more.
func readOn(t *testing.T, readers []reader) {
	t.Helper()
	for _, r := range readers {
		r.readMore(t)
	}
}

// endAll has all end after their round, which must be well.
func endAll(t *testing.T, readers []reader) {
	t.Helper()
	for _, r := range readers {
		r.end(t)
	}
}

// status is what `shardwell status` says of the node.
type status struct {
	Version, Keeper string
	TakingOver      int
	Members         []struct{ Name, Address, Zone, Rack, State string }
	Mounts          []struct{ URI, Dir, Identity string }
}

// askStatus asks the node, which may be about to be replaced.
func askStatus() (s status, err error) {
	text, err := run("", "kubectl", "-n", system, "exec", "daemonset/shardwell", "-c", "node", "--", "shardwell", "status", "--json")
	if err != nil {
		return s, err
	}
	return s, json.Unmarshal([]byte(text), &s)
}

// waitStatus waits until the node is as it should be.
func waitStatus(t *testing.T, what string, is func(s status) bool) status {
	t.Helper()
	var last status
	eventually(t, what, func() bool {
		s, err := askStatus()
		last = s
		return err == nil && is(s)
	})
	return last
}

// podsOf returns a field of the Pods of a component of the product, in the words of jsonpath.
func podsOf(t *testing.T, component, field string) string {
	t.Helper()
	return kubectl(t, "-n", system, "get", "pods", "-l", "app.kubernetes.io/component="+component, "-o", "jsonpath={.items[*]."+field+"}")
}

// rollOut waits until the Pod of daemon and driver is as the DaemonSet says, and ready.
func rollOut(t *testing.T) {
	t.Helper()
	kubectl(t, "-n", system, "rollout", "status", "daemonset/shardwell", "--timeout="+patience.String())
	eventually(t, "the daemon's Pod is ready", func() bool { // the rollout may look at what was before
		return podsOf(t, "node", `status.conditions[?(@.type=="Ready")].status`) == "True"
	})
}

// replaceDriver deletes the Pod of daemon and driver, and waits until its successor is ready.
func replaceDriver(t *testing.T) {
	t.Helper()
	kubectl(t, "-n", system, "delete", "pods", "-l", "app.kubernetes.io/component=node", "--timeout=2m")
	rollOut(t)
}

// killContainer kills a container of the daemon's Pod, and waits until there is another in its place.
func killContainer(t *testing.T, name string) {
	t.Helper()
	id := func() string {
		one := fmt.Sprintf("[?(@.name==%q)].containerID}", name)
		return strings.TrimPrefix(kubectl(t, "-n", system, "get", "pods", "-l", "app.kubernetes.io/component=node", "-o",
			"jsonpath={.items[*].status.initContainerStatuses"+one+"{.items[*].status.containerStatuses"+one), "containerd://")
	}
	before := id()
	if _, err := run("", "ctr", "-n", "k8s.io", "tasks", "kill", "-s", "SIGKILL", before); err != nil {
		fail(t, "container %s: %v", name, err)
	}
	eventually(t, "another container "+name+" is there", func() bool { now := id(); return now != before && now != "" })
}

// TestDriverIsReplaced deletes the Pod of daemon and driver under readers again and again: they see no error, no wrong
// byte, and are not restarted.
func TestDriverIsReplaced(t *testing.T) {
	readers := twoReaders(t, "replaced")
	for range replacements {
		replaceDriver(t)
		readOn(t, readers)
	}
	endAll(t, readers)
}

// TestDaemonIsKilled kills the daemon's container under readers.
func TestDaemonIsKilled(t *testing.T) {
	readers := twoReaders(t, "killed")
	for range 3 { // the kubelet waits longer each time before it starts the container again
		killContainer(t, "node")
		readOn(t, readers)
	}
	endAll(t, readers)
}

// TestKeeperIsReplaced deletes the keeper's Pod under readers, and once the daemon says that the next one holds
// the mounts, the Pod of daemon and driver.
func TestKeeperIsReplaced(t *testing.T) {
	readers := twoReaders(t, "keeper")
	for range 3 {
		before := podsOf(t, "keeper", "metadata.uid")
		kubectl(t, "-n", system, "delete", "pods", "-l", "app.kubernetes.io/component=keeper", "--timeout=2m")
		eventually(t, "there is another keeper", func() bool {
			now := podsOf(t, "keeper", "metadata.uid")
			return now != "" && now != before
		})
		waitStatus(t, "the next keeper holds the mounts", func(s status) bool { return s.Keeper == "connected" })
		readOn(t, readers)
		replaceDriver(t)
		readOn(t, readers)
	}
	endAll(t, readers)
}

// TestSidecarKeeper has the keeper in the daemon's Pod: mounts outlive the daemon's container, and the keeper's, one at
// a time. When the Pod is replaced they end, and volumes are made again under the Pods that have them.
func TestSidecarKeeper(t *testing.T) {
	upgrade(t, "--set", "keeper.mode=Sidecar")
	t.Cleanup(func() { upgrade(t) })
	if got := podsOf(t, "keeper", "metadata.name"); got != "" {
		t.Errorf("there is a keeper in a Pod of its own, too: %s", got)
	}
	readers := twoReaders(t, "sidecar")
	for _, name := range []string{"node", "keeper", "node"} {
		killContainer(t, name)
		waitStatus(t, "the keeper holds the mounts", func(s status) bool { return s.Keeper == "connected" && s.TakingOver == 0 })
		readOn(t, readers)
	}
	endAll(t, readers)

	f := put(t, "sidecar-pod", 2, 1<<20)
	patient := keepReadingAs(t, pod{
		name: "sidecar-patient", volume: inline("sidecar-pod"),
		script: "cat > /tmp/check <<'CHECK'\n" + f.check("/data") + "CHECK\n" + "until [ -e /tmp/end ]; do sh /tmp/check 2>/dev/null || echo broken; sleep 0.2; done",
	}, f)
	replaceDriver(t)
	patient.readMore(t)
	patient.end(t)
}
