// Package pods_test runs the product as its users do: installed by Helm into a real
// Kubernetes, read by Pods.
//
// It promises that a test that passes has compared every byte that a Pod read with
// its source, by sums that were made before the bytes went to the bucket. The tests share one
// cluster and run one after the other. ../kube runs the cluster.
package pods_test

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shardwell/shardwell/e2e/cage"
	"github.com/shardwell/shardwell/e2e/cluster"
	"github.com/shardwell/shardwell/e2e/kubernetes/chart"
	"github.com/shardwell/shardwell/e2e/kubernetes/kube"
	"github.com/shardwell/shardwell/e2e/origin"
)

// bucket holds the data of all tests, each under a prefix of its own; private what only some accounts may read.
const (
	bucket  = "data"
	private = "private"
)

// accounts are those of the origin that own nothing, with their keys.
var accounts = map[string]string{
	"first": "key-of-first-0123456789", "second": "key-of-second-0123456789", "trainer": "key-of-trainer-0123456789",
}

// Namespaces: of the product, and of Pods under the restricted profile of Pod Security.
const (
	system = "shardwell"
	users  = "users"
)

// setUpTime bounds the start of the cluster and the installation.
const setUpTime = 15 * time.Minute

// world is what all tests share.
type world struct {
	cage   *cage.Cage
	origin *origin.Origin
	node   *kube.Node
	tools  cluster.Tools
	root   string // of the repository
	image  string // name and tag of the product's image
}

var w world

func TestMain(m *testing.M) {
	code, err := runAll(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func runAll(m *testing.M) (code int, err error) {
	if w.tools, err = cluster.Prepare(); err != nil {
		return 1, err
	}
	if w.root, err = chart.Root(); err != nil {
		return 1, err
	}
	setup := exec.Command(filepath.Join(w.root, "e2e", "kubernetes", "build.sh"))
	setup.Stdout, setup.Stderr = os.Stderr, os.Stderr
	if err := setup.Run(); err != nil {
		return 1, fmt.Errorf("e2e/kubernetes/build.sh: %w", err)
	}
	archive := os.Getenv("SHARDWELL_IMAGE")
	if archive == "" {
		return 1, errors.New("SHARDWELL_IMAGE names no archive: use `make e2e-kubernetes`")
	}
	if w.image, err = nameOf(archive); err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	if err := start(archive); err != nil {
		return 1, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), setUpTime)
	defer cancel()
	if err := install(ctx); err != nil {
		return 1, fmt.Errorf("%w\n%s", err, diagnosis())
	}
	return m.Run(), nil
}

// start starts the network, the origin and the node.
func start(archive string) (err error) {
	if w.cage, err = cage.New(); err != nil {
		return err
	}
	w.cage.KeepDir = os.Getenv("E2E_KEEP") != ""
	if w.origin, err = origin.Start(w.cage, origin.Options{Bin: w.tools.Versitygw, Users: accounts}); err != nil {
		return err
	}
	for _, name := range []string{bucket, private} {
		if err := w.origin.MakeBucket(context.Background(), name); err != nil {
			return err
		}
	}
	if w.node, err = kube.New(w.cage, archive); err != nil {
		return err
	}
	return w.node.Reach(w.origin.Host)
}

func stop() error {
	var errs []error
	if w.node != nil {
		errs = append(errs, w.node.Stop())
	}
	if w.origin != nil {
		errs = append(errs, w.origin.Close())
	}
	if w.cage != nil {
		errs = append(errs, w.cage.Close())
	}
	return errors.Join(errs...)
}

// nameOf returns the name of the image in an archive.
func nameOf(archive string) (string, error) {
	f, err := os.Open(archive)
	if err != nil {
		return "", err
	}
	defer f.Close()
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if err != nil {
			return "", fmt.Errorf("%s: no index: %w", archive, err)
		}
		if h.Name != "index.json" {
			continue
		}
		var index struct {
			Manifests []struct{ Annotations map[string]string }
		}
		if err := json.NewDecoder(r).Decode(&index); err != nil || len(index.Manifests) != 1 {
			return "", fmt.Errorf("%s: index: %w", archive, err)
		}
		return index.Manifests[0].Annotations["io.containerd.image.name"], nil
	}
}

// values are those of the installation.
func values() string {
	repository, tag, _ := strings.Cut(w.image, ":")
	return fmt.Sprintf(`
image: {repository: %s, tag: %q, pullPolicy: Never}
origin: {endpoint: %q, region: %s, credentialsSecret: origin}
cache: [{path: /var/lib/shardwell/cache, size: 4Gi}]
# Who reads with credentials of its own is soon told that it may not any more.
config: {minFree: 64Mi, originTimeout: 20s, authTtl: 3s}
csi: {config: {stsEndpoint: "http://%s:%d"}}
topology: {rackLabel: example.com/rack}
resources: {requests: {cpu: 50m, memory: 128Mi}, limits: {memory: 1Gi}}
# Images that no registry is there for; the driver registers itself.
registrar: {enabled: false}
livenessProbe: {enabled: false}
# There is no kube-proxy, through which the API server would have the address that Pods are told.
extraEnv: [{name: KUBERNETES_SERVICE_HOST, value: %q}, {name: KUBERNETES_SERVICE_PORT, value: "6443"}]
`, repository, tag, w.origin.Endpoint(), origin.Region, w.origin.Host.IP, stsPort, w.node.Host.IP)
}

// install installs the chart as its readers would.
func install(ctx context.Context) error {
	objects := fmt.Sprintf(`
apiVersion: v1
kind: Namespace
metadata: {name: %s, labels: {pod-security.kubernetes.io/enforce: privileged}}
---
apiVersion: v1
kind: Namespace
metadata: {name: %s, labels: {pod-security.kubernetes.io/enforce: restricted}}
---
apiVersion: v1
kind: Secret
metadata: {name: origin, namespace: %s}
stringData:
  credentials: |
    [default]
    aws_access_key_id = %s
    aws_secret_access_key = %s
`, system, users, system, w.origin.AccessKey, w.origin.SecretKey)
	if _, err := w.node.Run(ctx, strings.NewReader(objects), "kubectl", "apply", "-f", "-"); err != nil {
		return err
	}
	for _, ns := range []string{system, users} {
		for {
			_, err := w.node.Run(ctx, nil, "kubectl", "-n", ns, "get", "serviceaccount", "default")
			if err == nil {
				break
			}
			if ctx.Err() != nil {
				return err
			}
			time.Sleep(200 * time.Millisecond)
		}
	}
	return helm("install")
}

// helm installs, upgrades or removes the release, and waits as docs/OPERATIONS.md says: an upgrade leaves the keeper's
// Pods as they are, for which Helm 4's own way of waiting would wait in vain.
func helm(verb string, more ...string) error {
	args := []string{"helm", verb, "shardwell", "--namespace", system, "--timeout", "5m"}
	if verb == "upgrade" {
		args = append(args, "--wait=legacy")
	} else {
		args = append(args, "--wait")
	}
	if verb != "uninstall" {
		file := filepath.Join(w.cage.Dir, "values.yaml")
		if err := os.WriteFile(file, []byte(values()), 0o600); err != nil {
			return err
		}
		args = append(args, "--values", file, filepath.Join(w.root, "deploy", "helm", "shardwell"))
	}
	_, err := run("", append(args, more...)...)
	return err
}

// diagnosis is what helps to understand a failure.
func diagnosis() string {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var out strings.Builder
	for _, args := range [][]string{
		{"get", "pods", "-A", "-o", "wide"}, {"get", "events", "-A", "--sort-by=.lastTimestamp"},
		{"-n", system, "describe", "pods"},
		{"-n", system, "logs", "daemonset/shardwell", "--all-containers", "--prefix", "--tail=60"},
	} {
		text, err := w.node.Run(ctx, nil, append([]string{"kubectl"}, args...)...)
		fmt.Fprintf(&out, "==> kubectl %s (%v)\n%s\n", strings.Join(args, " "), err, tail(text, 60))
	}
	out.WriteString(w.node.Logs(5))
	return out.String()
}

// tail returns the last lines of a text, without what is always said here: there is no DNS in the cluster.
func tail(text string, lines int) string {
	all := slices.DeleteFunc(strings.Split(strings.TrimRight(text, "\n"), "\n"), func(line string) bool {
		return strings.Contains(line, "resolve a name to join")
	})
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
