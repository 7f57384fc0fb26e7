// Package chart renders the chart of deploy/helm as Helm does, with Helm's own
// module, and takes the result apart for tests and for the plain manifest.
//
// It promises that values pass the chart's schema first, and that objects come in the
// order in which they are to be made. Nothing here talks to a cluster: what the
// chart looks up there is not found.
package chart

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	release "helm.sh/helm/v4/pkg/release/v1"
	order "helm.sh/helm/v4/pkg/release/v1/util"
	"sigs.k8s.io/yaml"
)

// Options say what is rendered.
type Options struct {
	Dir       string         // of the chart
	Release   string         // name of the release, "" for "shardwell"
	Namespace string         // "" for "shardwell"
	Values    map[string]any // over those of the chart
	Upgrade   bool           // of a release that is there
	APIs      []string       // groups that the cluster has besides Kubernetes' own, as monitoring.coreos.com/v1
}

// Rendered is a chart as text.
type Rendered struct {
	Manifests []Manifest // in the order of their installation
	Notes     string
}

// Manifest is one object.
type Manifest struct {
	File string // of the chart
	Text string // YAML, comments included
	Object
}

// Object is what is known of every object.
type Object struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name        string            `json:"name"`
		Namespace   string            `json:"namespace"`
		Labels      map[string]string `json:"labels"`
		Annotations map[string]string `json:"annotations"`
	} `json:"metadata"`
}

// Root returns the folder of the repository, seen from a folder within it.
func Root() (string, error) {
	dir, err := os.Getwd()
	for err == nil {
		if _, err := os.Stat(filepath.Join(dir, "deploy", "helm")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New("chart: not within the repository")
		}
		dir = filepath.Dir(dir)
	}
	return "", err
}

// Render renders a chart. Values that the schema refuses are an error that names them.
func Render(o Options) (Rendered, error) {
	c, err := loader.LoadDir(o.Dir)
	if err != nil {
		return Rendered{}, fmt.Errorf("chart: load %s: %w", o.Dir, err)
	}
	rel := common.ReleaseOptions{Name: o.Release, Namespace: o.Namespace, Revision: 1, IsInstall: !o.Upgrade, IsUpgrade: o.Upgrade}
	if rel.Name == "" {
		rel.Name = "shardwell"
	}
	if rel.Namespace == "" {
		rel.Namespace = "shardwell"
	}
	caps := *common.DefaultCapabilities
	caps.APIVersions = append(append(common.VersionSet{}, caps.APIVersions...), o.APIs...)
	values, err := util.ToRenderValues(c, o.Values, rel, &caps)
	if err != nil {
		return Rendered{}, fmt.Errorf("chart: values: %w", err)
	}
	files, err := engine.Engine{Strict: true}.Render(c, values)
	if err != nil {
		return Rendered{}, fmt.Errorf("chart: %w", err)
	}
	var out Rendered
	for name, text := range files {
		if strings.HasSuffix(name, "NOTES.txt") {
			out.Notes = text
			delete(files, name)
		}
	}
	hooks, sorted, err := order.SortManifests(files, caps.APIVersions, order.InstallOrder)
	if err != nil {
		return Rendered{}, fmt.Errorf("chart: %w", err)
	}
	if len(hooks) > 0 {
		return Rendered{}, fmt.Errorf("chart: %s is a hook, which plain manifests cannot have", hookNames(hooks))
	}
	for _, m := range sorted {
		one := Manifest{File: m.Name, Text: strings.TrimSpace(m.Content) + "\n"}
		if err := yaml.Unmarshal([]byte(m.Content), &one.Object); err != nil {
			return Rendered{}, fmt.Errorf("chart: %s: %w", m.Name, err)
		}
		out.Manifests = append(out.Manifests, one)
	}
	return out, nil
}

func hookNames(hooks []*release.Hook) string {
	var names []string
	for _, h := range hooks {
		names = append(names, h.Name)
	}
	return strings.Join(names, ", ")
}

// header opens the plain manifest.
const header = `# Shardwell without Helm: what the chart of deploy/helm/shardwell makes with its default values.
# Made by "make manifests"; do not edit. Give it the secret that nodes share first, and your bucket's endpoint:
#   kubectl create namespace shardwell --save-config
#   kubectl -n shardwell create secret generic shardwell-keyring --from-literal=secret="$(openssl rand -hex 32)"
#   kubectl apply -f shardwell.yaml
`

// namespace allows what a node needs: privileged Pods.
const namespace = `apiVersion: v1
kind: Namespace
metadata:
  name: shardwell
  labels:
    pod-security.kubernetes.io/enforce: privileged
`

// Plain returns the manifest for people without Helm: default values, without a
// secret, which must not be one that everybody can read.
func Plain(dir string) ([]byte, error) {
	r, err := Render(Options{Dir: dir, Values: map[string]any{"keyring": map[string]any{"existingSecret": "shardwell-keyring"}}})
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	_, _ = io.WriteString(&out, header+"---\n"+namespace)
	for _, m := range r.Manifests {
		_, _ = io.WriteString(&out, "---\n")
		for line := range strings.Lines(m.Text) {
			// Said of Helm only.
			if strings.Contains(line, "app.kubernetes.io/managed-by: Helm") || strings.Contains(line, "helm.sh/chart:") || strings.HasPrefix(line, "# Source: ") {
				continue
			}
			out.WriteString(line)
		}
	}
	return out.Bytes(), nil
}
