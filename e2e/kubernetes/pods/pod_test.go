package pods_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shardwell/shardwell/e2e/dataset"
)

// patience bounds every wait for something that is to happen.
const patience = 3 * time.Minute

// commandTime bounds one command. Commands do not end with the context of the test, as clean-up runs some, too.
const commandTime = 10 * time.Minute

// run runs a command in the node.
func run(in string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), commandTime)
	defer cancel()
	return w.node.Run(ctx, strings.NewReader(in), args...)
}

// kubectl runs kubectl, which must succeed.
func kubectl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := run("", append([]string{"kubectl"}, args...)...)
	if err != nil {
		fail(t, "%v", err)
	}
	return out
}

// apply makes objects, and has them deleted when the test is over.
func apply(t *testing.T, objects string) {
	t.Helper()
	if _, err := run(objects, "kubectl", "apply", "-f", "-"); err != nil {
		fail(t, "%v", err)
	}
	t.Cleanup(func() { remove(t, objects) })
}

func remove(t *testing.T, objects string) {
	t.Helper()
	_, err := run(objects, "kubectl", "delete", "--ignore-not-found", "--wait", "--timeout="+patience.String(), "-f", "-")
	if err != nil {
		t.Errorf("clean-up: %v", err)
	}
}

// fail ends the test with everything that helps to understand why.
func fail(t *testing.T, format string, args ...any) {
	t.Helper()
	t.Fatalf("%s\n%s", fmt.Sprintf(format, args...), diagnosis())
}

// eventually waits until a condition holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !holds(); {
		if time.Now().After(deadline) {
			fail(t, "gave up waiting: %s", what)
		}
		time.Sleep(250 * time.Millisecond)
	}
}

// pod is a Pod of one container. It has the restricted profile of Pod Security unless told otherwise.
type pod struct {
	name     string
	ns       string // "" for users
	script   string // of a shell
	volume   string // in YAML, as in a Pod; "" for none
	mount    string // of that volume, "" for "mountPath: /data, readOnly: true"
	mounts   string // further ones
	volumes  string
	security string // of the Pod, "" for a user who is not root
	account  string // service account, "" for default
}

func (p pod) namespace() string { return or(p.ns, users) }

func or(s, instead string) string {
	if s == "" {
		return instead
	}
	return s
}

// yaml returns the Pod as an object.
func (p pod) yaml() string {
	mounts, volumes := p.mounts, p.volumes
	if p.volume != "" {
		mounts = "{name: data, " + or(p.mount, "mountPath: /data, readOnly: true") + "}," + mounts
		volumes = p.volume + "," + volumes
	}
	return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: %s}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  serviceAccountName: %s
  securityContext: {%s}
  containers:
    - name: c
      image: busybox:1
      imagePullPolicy: Never
      command: [sh, -c, %q]
      securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
      volumeMounts: [%s]
  volumes: [%s]
`, p.name, p.namespace(), or(p.account, "default"), or(p.security, "runAsNonRoot: true, runAsUser: 1000, runAsGroup: 1000, seccompProfile: {type: RuntimeDefault}"),
		p.script, mounts, volumes)
}

// inline returns an inline volume of what lies under a prefix, with further attributes.
func inline(prefix string, attributes ...string) string {
	return fmt.Sprintf("{name: data, csi: {driver: csi.shardwell.io, readOnly: true, volumeAttributes: {%s}}}",
		strings.Join(append([]string{"bucketName: " + bucket, fmt.Sprintf("prefix: %q", prefix)}, attributes...), ", "))
}

// phase returns the phase of a Pod.
func phase(t *testing.T, p pod) string {
	t.Helper()
	return kubectl(t, "-n", p.namespace(), "get", "pod", p.name, "-o", "jsonpath={.status.phase}")
}

// runPods makes Pods and waits until all have ended well; it returns what each said.
func runPods(t *testing.T, pods ...pod) map[string]string {
	t.Helper()
	var objects []string
	for _, p := range pods {
		objects = append(objects, p.yaml())
	}
	apply(t, strings.Join(objects, "---"))
	out := map[string]string{}
	for _, p := range pods {
		waitEnd(t, p)
		out[p.name] = kubectl(t, "-n", p.namespace(), "logs", p.name)
	}
	return out
}

// waitEnd waits until a Pod has ended well.
func waitEnd(t *testing.T, p pod) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(250 * time.Millisecond) {
		now := phase(t, p)
		if now == "Succeeded" {
			return
		}
		if now == "Failed" || time.Now().After(deadline) {
			said, _ := run("", "kubectl", "-n", p.namespace(), "logs", p.name, "--all-containers", "--prefix")
			fail(t, "pod %s is %s. It said:\n%s", p.name, now, said)
		}
	}
}

// waitReady waits until a Pod is ready.
func waitReady(t *testing.T, p pod) {
	t.Helper()
	_, err := run("", "kubectl", "-n", p.namespace(), "wait", "--for=condition=Ready", "pod/"+p.name, "--timeout="+patience.String())
	if err != nil {
		fail(t, "%v", err)
	}
}

// files are objects with the sums of their bytes.
type files map[string]string // name below the prefix → SHA-256

// put writes objects of random bytes under a prefix.
func put(t *testing.T, prefix string, n int, size int64) files {
	t.Helper()
	return putIn(t, bucket, prefix, n, size)
}

// putIn is put for any bucket.
func putIn(t *testing.T, bucket, prefix string, n int, size int64) files {
	t.Helper()
	out := files{}
	for i := range n {
		name := fmt.Sprintf("part-%04d.bin", i)
		r := dataset.Random{Seed: uint64(len(prefix))*7919 + uint64(i) + uint64(prefix[0])<<32, Size: size}
		sum := sha256.New()
		if _, err := w.origin.Put(t.Context(), bucket, prefix+"/"+name, io.TeeReader(r.Reader(), sum), size); err != nil {
			t.Fatal(err)
		}
		out[name] = hex.EncodeToString(sum.Sum(nil))
	}
	return out
}

// check is a script that compares all files below a directory with their sums, and finds no other ones.
func (f files) check(dir string) string {
	var b strings.Builder
	b.WriteString("set -e; cd " + dir + "; sha256sum -c - <<'EOF' >/dev/null\n")
	for _, name := range slices.Sorted(maps.Keys(f)) {
		fmt.Fprintf(&b, "%s  %s\n", f[name], name)
	}
	fmt.Fprintf(&b, "EOF\n[ $(find . -type f | wc -l) = %d ]\necho all right\n", len(f))
	return b.String()
}

// events returns what was said about a Pod.
func events(t *testing.T, name string) string {
	t.Helper()
	return kubectl(t, "-n", users, "get", "events", "--field-selector", "involvedObject.name="+name, "-o",
		`jsonpath={range .items[*]}{.reason}: {.message}{"\n"}{end}`)
}

// mounts returns the mounts of the kubelet's tree in the node.
func mounts(t *testing.T) string {
	t.Helper()
	out, err := run("", "grep", " /var/lib/kubelet/", "/proc/1/mountinfo")
	if err != nil && out != "" {
		t.Fatal(err)
	}
	return out
}
