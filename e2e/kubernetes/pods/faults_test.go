package pods_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shardwell/shardwell/e2e/kubernetes/kube"
	"github.com/shardwell/shardwell/e2e/origin"
)

// started is a Pod that was made.
type started struct{ pod }

// begin makes a Pod.
func begin(t *testing.T, p pod) started {
	t.Helper()
	apply(t, p.yaml())
	return started{p}
}

// waitEvent waits until something was said about the Pod that has all the words.
func (s started) waitEvent(t *testing.T, words ...string) {
	t.Helper()
	eventually(t, fmt.Sprintf("an event of pod %s with %q", s.name, words), func() bool {
		for line := range strings.Lines(events(t, s.name)) {
			all := true
			for _, word := range words {
				all = all && strings.Contains(line, word)
			}
			if all {
				return true
			}
		}
		return false
	})
}

// reader is a Pod that compares a dataset again and again, until it is told to end. Its log has a line a round.
type reader struct{ started }

// keepReading starts such a Pod, and returns when it has read everything once.
func keepReading(t *testing.T, name, prefix string, f files, attributes ...string) reader {
	t.Helper()
	return keepReadingAs(t, pod{name: name, volume: inline(prefix, attributes...)}, f)
}

// keepReadingAs is keepReading for any volume and identity of a Pod.
func keepReadingAs(t *testing.T, p pod, f files) reader {
	t.Helper()
	p.mount = "mountPath: /data, readOnly: true, mountPropagation: HostToContainer"
	p.mounts, p.volumes = "{name: tmp, mountPath: /tmp}", "{name: tmp, emptyDir: {}}"
	if p.script == "" {
		p.script = "until [ -e /tmp/end ]; do\n" + f.check("/data") + "cd /; sleep 0.2; done"
	}
	r := reader{begin(t, p)}
	waitReady(t, p)
	r.readMore(t)
	return r
}

// rounds returns how often the Pod has read everything.
func (r reader) rounds(t *testing.T) int {
	t.Helper()
	out, _ := run("", "kubectl", "-n", r.namespace(), "logs", r.name)
	return strings.Count(out, "all right")
}

// readMore waits until the Pod has read everything once more since now.
func (r reader) readMore(t *testing.T) {
	t.Helper()
	before := r.rounds(t)
	eventually(t, "pod "+r.name+" reads on", func() bool {
		if now := phase(t, r.pod); now == "Failed" {
			fail(t, "pod %s failed: %s", r.name, kubectl(t, "-n", r.namespace(), "logs", r.name))
		}
		return r.rounds(t) > before+1 // one round may have begun before
	})
}

// end has the Pod end after its round, which must be well.
func (r reader) end(t *testing.T) {
	t.Helper()
	kubectl(t, "-n", r.namespace(), "exec", r.name, "--", "touch", "/tmp/end")
	waitEnd(t, r.pod)
	if n := kubectl(t, "-n", r.namespace(), "get", "pod", r.name, "-o", "jsonpath={.status.containerStatuses[0].restartCount}"); n != "0" {
		t.Errorf("pod %s was restarted %s times", r.name, n)
	}
}

// uid returns the id by which the kubelet's folders name a Pod.
func (s started) uid(t *testing.T) string {
	t.Helper()
	return kubectl(t, "-n", s.namespace(), "get", "pod", s.name, "-o", "jsonpath={.metadata.uid}")
}

// gone waits until nothing of a Pod is mounted any more.
func gone(t *testing.T, uid string) {
	t.Helper()
	eventually(t, "the mounts of pod "+uid+" go", func() bool { return !strings.Contains(mounts(t), uid) })
}

// TestNoSuchBucket says what is wrong in an event, and mounts when the bucket is there.
func TestNoSuchBucket(t *testing.T) {
	p := begin(t, pod{name: "no-bucket", script: "true", volume: strings.Replace(inline("x"), "bucketName: "+bucket, "bucketName: later", 1)})
	p.waitEvent(t, "FailedMount", "no such bucket", "s3://later/x")
	if err := w.origin.MakeBucket(t.Context(), "later"); err != nil {
		t.Fatal(err)
	}
	if _, err := w.origin.PutBytes(t.Context(), "later", "x/y", []byte("z")); err != nil {
		t.Fatal(err)
	}
	waitEnd(t, p.pod)
}

// TestUnknownAttribute names the attribute in an event.
func TestUnknownAttribute(t *testing.T) {
	p := begin(t, pod{name: "attribute", script: "true", volume: inline("x", "cachePolcy: lru")})
	p.waitEvent(t, "FailedMount", "cachePolcy")
}

// TestMissingDriver says in an event that there is none on the node, and mounts when there is.
func TestMissingDriver(t *testing.T) {
	f := put(t, "missing", 2, 1<<20)
	kubectl(t, "-n", system, "patch", "daemonset", "shardwell", "--type=merge", "-p", `{"spec":{"template":{"spec":{"nodeSelector":{"no":"such"}}}}}`)
	restore := func() {
		kubectl(t, "-n", system, "patch", "daemonset", "shardwell", "--type=json", "-p", `[{"op":"remove","path":"/spec/template/spec/nodeSelector"}]`)
		kubectl(t, "-n", system, "rollout", "status", "daemonset/shardwell", "--timeout=3m")
	}
	restored := false
	t.Cleanup(func() {
		if !restored {
			restore()
		}
	})
	eventually(t, "the driver's Pod goes", func() bool {
		return kubectl(t, "-n", system, "get", "pods", "-l", "app.kubernetes.io/component=node", "-o", "name") == ""
	})
	p := begin(t, pod{name: "no-driver", script: f.check("/data"), volume: inline("missing")})
	p.waitEvent(t, "FailedMount", "csi.shardwell.io")
	restore()
	restored = true
	waitEnd(t, p.pod)
}

// TestMissingDaemon says in an event that the daemon of the node does not answer, and mounts when it does: its options are
// wrong, which it says in one line.
func TestMissingDaemon(t *testing.T) {
	f := put(t, "daemon", 2, 1<<20)
	restore := sync.OnceFunc(func() { upgrade(t) })
	t.Cleanup(restore)
	if err := helm("upgrade", "--set", "config.consistency=sometimes"); err != nil {
		fail(t, "%v", err)
	}
	eventually(t, "the daemon says what is wrong", func() bool {
		said, _ := run("", "kubectl", "-n", system, "logs", "daemonset/shardwell", "-c", "node")
		return strings.Contains(said, "\"sometimes\" is none of") && strings.Count(strings.TrimSpace(said), "\n") == 0
	})
	p := begin(t, pod{name: "no-daemon", script: f.check("/data"), volume: inline("daemon")})
	p.waitEvent(t, "FailedMount", "daemon")
	restore()
	waitEnd(t, p.pod)
}

// TestOriginAway says in an event that the origin does not answer, and mounts when it does.
func TestOriginAway(t *testing.T) {
	f := put(t, "away", 2, 1<<20)
	if err := w.origin.Vanish(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.origin.Resume() })
	p := begin(t, pod{name: "origin-away", script: f.check("/data"), volume: inline("away")})
	p.waitEvent(t, "FailedMount", w.origin.Host.IP)
	if err := w.origin.Resume(); err != nil {
		t.Fatal(err)
	}
	waitEnd(t, p.pod)
}

// TestKubeletRestarts kills the kubelet under a reader, which sees nothing of it; what is deleted meanwhile goes afterwards.
func TestKubeletRestarts(t *testing.T) {
	f := put(t, "kubelet", 4, 2<<20)
	r, victim := keepReading(t, "kubelet-a", "kubelet", f), keepReading(t, "kubelet-b", "kubelet", f)
	uid := victim.uid(t)
	restart(t, func() {
		kubectl(t, "-n", users, "delete", "pod", victim.name, "--wait=false")
		r.readWithout(t, kube.Kubelet)
	}, kube.Kubelet)
	gone(t, uid)
	r.readMore(t)
	r.end(t)
}

// restart kills components, does something, and starts them again in that order.
func restart(t *testing.T, meanwhile func(), components ...string) {
	t.Helper()
	for _, c := range components {
		if err := w.node.KillComponent(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	meanwhile()
	for _, c := range components {
		if err := w.node.StartComponent(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the node is ready", func() bool {
		out, err := run("", "kubectl", "get", "node", kube.NodeName, "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].status}`)
		return err == nil && out == "True"
	})
}

// readWithout waits until the Pod has read on while a component is away, without which its log can be read in the
// node's files only.
func (r reader) readWithout(t *testing.T, component string) {
	t.Helper()
	count := func() int {
		out, err := run("", "bash", "-c", fmt.Sprintf("cat /var/log/pods/%s_%s_*/c/*.log", r.namespace(), r.name))
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(out, "all right")
	}
	before := count()
	eventually(t, "pod "+r.name+" reads on without "+component, func() bool { return count() > before+1 })
}

// TestContainerdRestarts kills the container runtime under a reader, which sees nothing of it.
func TestContainerdRestarts(t *testing.T) {
	r := keepReading(t, "containerd", "containerd", put(t, "containerd", 4, 2<<20))
	restart(t, func() { time.Sleep(time.Second) }, kube.Containerd)
	r.readMore(t)
	r.end(t)
}

// TestControlPlaneRestarts kills etcd and the API server under a reader.
func TestControlPlaneRestarts(t *testing.T) {
	r := keepReading(t, "control-plane", "plane", put(t, "plane", 4, 2<<20))
	restart(t, func() { r.readWithout(t, kube.APIServer) }, kube.Etcd, kube.APIServer)
	r.readMore(t)
	r.end(t)
}

// TestDeletionDuringRead deletes a Pod whose read waits for an origin that does not answer: it goes all the same, and
// the node serves others.
func TestDeletionDuringRead(t *testing.T) {
	f := put(t, "stuck", 2, 8<<20)
	release := make(chan struct{})
	mend := sync.OnceFunc(func() {
		w.origin.SetFault(nil)
		close(release)
	})
	t.Cleanup(mend)
	w.origin.SetFault(func(r origin.Request) *origin.Fault {
		if r.Op == origin.OpGet && strings.HasPrefix(r.Key, "stuck/") {
			return &origin.Fault{Hang: release}
		}
		return nil
	})
	p := begin(t, pod{name: "stuck", script: f.check("/data"), volume: inline("stuck")})
	waitReady(t, p.pod)
	eventually(t, "the read waits for the origin", func() bool { return w.origin.Open() > 0 })
	uid := p.uid(t)
	kubectl(t, "-n", users, "delete", "pod", p.name, "--timeout=90s")
	gone(t, uid)
	mend()
	runPods(t, pod{name: "not-stuck", script: f.check("/data"), volume: inline("stuck")})
}

// TestFiftyPods makes fifty Pods of one dataset at once: the origin is asked as for one.
func TestFiftyPods(t *testing.T) {
	const n = 50
	f := put(t, "fifty", 4, 2<<20)
	w.origin.Reset()
	var pods []pod
	for i := range n {
		pods = append(pods, pod{name: fmt.Sprintf("fifty-%02d", i), script: f.check("/data"), volume: inline("fifty")})
	}
	at := time.Now()
	runPods(t, pods...)
	t.Logf("%d Pods read %d files each within %.1f s of being made", n, len(f), time.Since(at).Seconds())
	if got, want := w.origin.Requests().Of(origin.OpGet).Bytes(), int64(4*2<<20); got != want {
		t.Errorf("the origin sent %d bytes, there are %d", got, want)
	}
}

// TestNodeRestarts cuts the power of the node: afterwards every Pod is there again, and reads from what the node had
// cached.
func TestNodeRestarts(t *testing.T) {
	f := put(t, "power", 4, 4<<20)
	p := pod{name: "power", volume: inline("power"), script: "while :; do\n" + f.check("/data") + "cd /; sleep 0.2; done"}
	always := strings.Replace(p.yaml(), "restartPolicy: Never", "restartPolicy: Always", 1)
	apply(t, always)
	waitReady(t, p)
	r := reader{started{p}}
	r.readMore(t)
	if err := w.node.Stop(); err != nil {
		t.Fatal(err)
	}
	w.origin.Reset()
	if err := w.node.Start(); err != nil {
		t.Fatal(err)
	}
	if err := w.node.Reach(w.origin.Host); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the Pod runs again", func() bool {
		return kubectl(t, "-n", users, "get", "pod", p.name, "-o", "jsonpath={.status.containerStatuses[0].restartCount}") != "0" && r.rounds(t) > 1
	})
	if got := w.origin.Requests().Of(origin.OpGet).Bytes(); got != 0 {
		t.Errorf("the origin sent %d bytes again", got)
	}
	kubectl(t, "-n", system, "rollout", "status", "daemonset/shardwell", "--timeout=3m")
}
