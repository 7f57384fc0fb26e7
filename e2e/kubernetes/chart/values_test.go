package chart_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	"sigs.k8s.io/yaml"

	"github.com/shardwell/shardwell/e2e/kubernetes/chart"
)

// others has another value than that of values.yaml, in YAML, for each value of the schema that is neither a switch nor
// one of a few words. Those of config and csi.config are judged by the binary, elsewhere.
var others = map[string]string{
	"image.repository": "registry.example.com/x", "image.tag": "v9", "image.digest": "sha256:" + strings.Repeat("0", 64),
	"imagePullSecrets": "[{name: p}]", "cache": "[{path: /c, size: 1Gi}]",
	"origin.endpoint": "https://s3.example.com", "origin.region": "eu-1", "origin.credentialsSecret": "s", "origin.caConfigMap": "c", "origin.dirs": "[/lustre]",
	"config": "{maxOriginRate: 1000000000}", "topology.zoneLabel": `""`, "topology.rackLabel": "example.com/rack",
	"keyring.existingSecret": "mine", "ports.gossip": "17946", "ports.peer": "17947", "ports.metrics": "19400",
	"kubeletDir": "/var/lib/k0s/kubelet", "runDir": "/var/run/shardwell", "csiDriver.tokenRequests": "[{audience: a}]",
	"registrar.image": "r", "livenessProbe.image": "l", "livenessProbe.port": "9809", "csi.config": "{maxVolumes: 10, authSources: [secret]}",
	"resources": "{limits: {memory: 8Gi}}", "registrar.resources": "{limits: {memory: 8Gi}}", "livenessProbe.resources": "{limits: {memory: 8Gi}}",
	"csi.resources": "{limits: {memory: 8Gi}}", "keeper.resources": "{limits: {memory: 8Gi}}", "keeper.giveUp": "2m", "keeper.tag": "v8",
	"serviceAccount.name": "a", "serviceAccount.annotations": "{a: b}", "priorityClassName": "p",
	"updateStrategy": "{rollingUpdate: {maxUnavailable: 10%}}", "terminationGracePeriodSeconds": "60",
	"nodeSelector": "{a: b}", "affinity": "{nodeAffinity: {}}", "tolerations": "[{key: gpu, operator: Exists}]",
	"podAnnotations": "{a: b}", "podLabels": "{a: b}", "extraEnv": "[{name: A, value: b}]",
	"serviceMonitor.interval": "10s", "serviceMonitor.labels": "{a: b}", "nameOverride": "other", "fullnameOverride": "other",
}

// schema is what is looked at of a JSON schema.
type schema struct {
	Type       any               `json:"type"`
	Enum       []any             `json:"enum"`
	Properties map[string]schema `json:"properties"`
}

// visit calls f for each value of the chart, with its path and what it may be instead.
func visit(t *testing.T, s schema, path string, f func(path string, values ...string)) {
	t.Helper()
	if v, ok := others[path]; ok {
		f(path, v)
		return
	}
	switch {
	case path == "global": // Helm's
	case s.Type == "boolean":
		f(path, "true", "false")
	case len(s.Enum) > 0:
		var values []string
		for _, v := range s.Enum {
			values = append(values, fmt.Sprintf("%q", v))
		}
		f(path, values...)
	case len(s.Properties) > 0:
		for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
			visit(t, s.Properties[name], strings.TrimPrefix(path+"."+name, "."), f)
		}
	default:
		t.Errorf("nobody tries the value %s: add one to others", path)
	}
}

// nest returns a value at a path, in YAML.
func nest(path, value string) string {
	parts := strings.Split(path, ".")
	return strings.Join(parts, ": {") + ": " + value + strings.Repeat("}", len(parts)-1)
}

// text returns everything that a chart makes but the keyring, which differs each time.
func text(r chart.Rendered) string {
	var all strings.Builder
	for _, m := range r.Manifests {
		if m.Kind != "Secret" {
			all.WriteString(m.Text)
		}
	}
	return all.String()
}

// TestEveryValueCounts changes each value of the schema alone: what it makes is valid, and one of the values makes
// something else than values.yaml does, be it where all else is turned on.
func TestEveryValueCounts(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join(dir(t), "values.schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	var top schema
	if err := json.Unmarshal(raw, &top); err != nil {
		t.Fatal(err)
	}
	tried := 0
	visit(t, top, "", func(path string, values ...string) {
		counts := false
		for _, on := range []string{"", "serviceMonitor: {enabled: true}", "serviceMonitor: {enabled: true}\nnetworkPolicy: {enabled: true}\nhostNetwork: false"} {
			base := render(t, on)
			for _, v := range values {
				given := parse(t, on)
				merge(&given, parse(t, nest(path, v)))
				r, err := chart.Render(chart.Options{Dir: dir(t), Values: given})
				if err != nil {
					t.Errorf("%s: %s: %v", path, v, err)
					continue
				}
				strict(t, path+": "+v, r)
				counts = counts || text(r) != text(base)
				tried++
			}
		}
		if !counts {
			t.Errorf("%s: none of %q changes anything", path, values)
		}
	})
	if tried < 150 {
		t.Errorf("only %d values were tried", tried)
	}
}

// merge adds values to others.
func merge(to *map[string]any, from map[string]any) {
	if *to == nil {
		*to = map[string]any{}
	}
	for k, v := range from {
		if sub, ok := v.(map[string]any); ok {
			if have, ok := (*to)[k].(map[string]any); ok {
				merge(&have, sub)
				continue
			}
		}
		(*to)[k] = v
	}
}

// strict fails for fields that Kubernetes does not know, and for those that are given twice.
func strict(t *testing.T, what string, r chart.Rendered) {
	t.Helper()
	for _, m := range r.Manifests {
		var into any
		switch m.Kind {
		case "DaemonSet":
			into = new(appsv1.DaemonSet)
		case "Secret":
			into = new(corev1.Secret)
		case "ConfigMap":
			into = new(corev1.ConfigMap)
		case "Service":
			into = new(corev1.Service)
		case "ResourceQuota":
			into = new(corev1.ResourceQuota)
		case "ServiceAccount":
			into = new(corev1.ServiceAccount)
		case "ClusterRole":
			into = new(rbacv1.ClusterRole)
		case "ClusterRoleBinding":
			into = new(rbacv1.ClusterRoleBinding)
		case "NetworkPolicy":
			into = new(networkingv1.NetworkPolicy)
		case "CSIDriver":
			into = new(storagev1.CSIDriver)
		case "ServiceMonitor":
			into = new(monitoringv1.ServiceMonitor)
		default:
			t.Errorf("%s: nobody knows what a %s is", what, m.Kind)
			continue
		}
		if err := yaml.UnmarshalStrict([]byte(m.Text), into); err != nil {
			t.Errorf("%s: %s %s: %v", what, m.Kind, m.Metadata.Name, err)
		}
	}
}
