package pods_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/shardwell/shardwell/e2e/kubernetes/chart"
)

// monitors lets the API server know ServiceMonitors, as far as their name goes.
const monitors = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: servicemonitors.monitoring.coreos.com}
spec:
  group: monitoring.coreos.com
  scope: Namespaced
  names: {plural: servicemonitors, singular: servicemonitor, kind: ServiceMonitor}
  versions:
    - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
`

// TestChartIsAccepted has Helm judge the chart, and the API server what it makes of many values, and the plain manifest.
func TestChartIsAccepted(t *testing.T) {
	apply(t, monitors)
	kubectl(t, "wait", "--for=condition=Established", "crd/servicemonitors.monitoring.coreos.com", "--timeout=60s")
	dir := filepath.Join(w.root, "deploy", "helm", "shardwell")
	if _, err := run("", "helm", "lint", "--strict", dir); err != nil {
		t.Error(err)
	}
	for name, text := range map[string]string{
		"defaults": "{}",
		"everything": `{hostNetwork: false, networkPolicy: {enabled: true}, serviceMonitor: {enabled: true}, topology: {rackLabel: example.com/rack},
			cache: [{path: /nvme0/c, size: 1Ti}, {path: /nvme1/c}], origin: {endpoint: "https://s3", credentialsSecret: a, caConfigMap: b, dirs: [/lustre]},
			config: {maxOriginRate: 2Gi}, csi: {config: {maxVolumes: 10}}, updateStrategy: {type: OnDelete, rollingUpdate: null},
			serviceAccount: {name: other, annotations: {a: b}}, imagePullSecrets: [{name: p}], nodeSelector: {a: b}, podLabels: {c: d}, keeper: {mode: Sidecar}}`,
		"least": `{registrar: {enabled: false}, livenessProbe: {enabled: false}, startupTaint: {enabled: false}, topology: {zoneLabel: ""},
			keyring: {existingSecret: mine}, csiDriver: {tokenRequests: []}, keeper: {mode: None}}`,
	} {
		var values map[string]any
		if err := yaml.Unmarshal([]byte(text), &values); err != nil {
			t.Fatal(err)
		}
		r, err := chart.Render(chart.Options{Dir: dir, Release: "dry", Namespace: system, Values: values})
		if err != nil {
			t.Fatal(err)
		}
		var all []string
		for _, m := range r.Manifests {
			if m.Kind != "CSIDriver" { // there can be one only, which is installed
				all = append(all, m.Text)
			}
		}
		accepted(t, "the chart with "+name, strings.Join(all, "---\n"))
	}
	plain, err := chart.Plain(dir)
	if err != nil {
		t.Fatal(err)
	}
	accepted(t, "the plain manifest", string(plain))
}

// accepted has the API server judge objects, strictly, without making them.
func accepted(t *testing.T, what, objects string) {
	t.Helper()
	_, err := run(objects, "kubectl", "apply", "--dry-run=server", "--validate=strict", "-f", "-")
	if err != nil {
		t.Errorf("%s: %v", what, err)
	}
}

// TestExamples has the API server judge every example, and runs those that a cluster without GPUs can.
func TestExamples(t *testing.T) {
	const size, n = 1 << 20, 3
	put(t, "examples", n, size)
	apply(t, fmt.Sprintf("apiVersion: v1\nkind: Secret\nmetadata: {name: origin, namespace: default}\nstringData:\n  credentials: |\n"+
		"    [default]\n    aws_access_key_id = %s\n    aws_secret_access_key = %s\n", w.origin.AccessKey, w.origin.SecretKey))
	paths, err := filepath.Glob(filepath.Join(w.root, "deploy", "examples", "*.yaml"))
	if err != nil || len(paths) == 0 {
		t.Fatal("no examples", err)
	}
	running := map[string]bool{"reader": true, "persistent-volume": true, "sidecar": true, "copy": true, "get": true, "warm": true, "credentials": true}
	for _, path := range paths {
		name := strings.TrimSuffix(filepath.Base(path), ".yaml")
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			accepted(t, name, string(text))
			if !running[name] {
				return
			}
			apply(t, strings.NewReplacer(
				"ghcr.io/shardwell/shardwell:0.1.0", w.image,
				"bucketName: datasets", "bucketName: "+bucket, "prefix: imagenet", "prefix: examples",
				"s3://datasets/imagenet", "s3://"+bucket+"/examples", "https://s3.example.com", w.origin.Endpoint(),
				"AKIAEXAMPLE", w.origin.AccessKey, "replace-me", w.origin.SecretKey,
			).Replace(string(text)))
			if name == "warm" {
				kubectl(t, "wait", "--for=condition=Complete", "job/warm", "--timeout="+patience.String())
				return
			}
			p := pod{name: name, ns: "default"}
			waitEnd(t, p)
			if got := strings.TrimSpace(kubectl(t, "-n", p.ns, "logs", name)); got != fmt.Sprint(n*size) {
				t.Errorf("it read %s bytes of %d", got, n*size)
			}
		})
	}
}

// TestCriticalPods wants the cluster to be one that admits Pods of the system's priority classes by a quota only, as GKE is: then
// the installation shows that the chart brings one.
func TestCriticalPods(t *testing.T) {
	p := pod{name: "critical", ns: "default", script: "true"}
	critical := strings.Replace(p.yaml(), "restartPolicy: Never", "restartPolicy: Never\n  priorityClassName: system-node-critical", 1)
	_, err := run(critical, "kubectl", "apply", "--dry-run=server", "-f", "-")
	if err == nil || !strings.Contains(err.Error(), "insufficient quota") {
		t.Errorf("a critical Pod without a quota: %v", err)
	}
}
