package chart_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/shardwell/shardwell/e2e/kubernetes/chart"
)

func dir(t *testing.T) string {
	t.Helper()
	root, err := chart.Root()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(root, "deploy", "helm", "shardwell")
}

// everything are values that turn on whatever can be.
const everything = `
image: {tag: v1, digest: "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"}
imagePullSecrets: [{name: pull}]
cache: [{path: /nvme0/shardwell, size: 2Ti}, {path: /nvme1/shardwell}]
origin: {endpoint: "https://s3.example.com", region: eu-1, credentialsSecret: keys, caConfigMap: ca, dirs: [/lustre/data]}
config: {maxOriginRate: 10000000000, maxUpload: 1.5Gi, consistency: ttl=30s, weight: 2, noOwner: false, fileMode: '0440', uid: 1000}
topology: {rackLabel: example.com/rack}
csi: {config: {allowEndpoint: ["https://a.example.com", "https://b.example.com"], maxVolumes: 200}}
serviceAccount: {name: other, annotations: {eks.amazonaws.com/role-arn: "arn:aws:iam::1:role/x"}}
updateStrategy: {type: OnDelete, rollingUpdate: null}
nodeSelector: {gpu: "true"}
affinity: {nodeAffinity: {}}
podAnnotations: {a: b}
podLabels: {c: d}
extraEnv: [{name: HTTPS_PROXY, value: "http://proxy:3128"}]
serviceMonitor: {enabled: true, labels: {release: prometheus}}
networkPolicy: {enabled: true}
hostNetwork: false
keeper: {mode: Sidecar, giveUp: 2m, tag: v8}
listen: "::"
`

// least are values that turn off whatever can be.
const least = `
topology: {zoneLabel: "", rackLabel: ""}
registrar: {enabled: false}
livenessProbe: {enabled: false}
startupTaint: {enabled: false}
csiDriver: {tokenRequests: []}
keyring: {existingSecret: mine}
keeper: {mode: None}
tolerations: []
`

// render renders the chart with values in YAML.
func render(t *testing.T, values string) chart.Rendered {
	t.Helper()
	r, err := chart.Render(chart.Options{Dir: dir(t), Values: parse(t, values)})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func parse(t *testing.T, text string) map[string]any {
	t.Helper()
	var out map[string]any
	if err := yaml.Unmarshal([]byte(text), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// kinds returns the objects of a chart as KIND/NAME.
func kinds(r chart.Rendered) []string {
	var out []string
	for _, m := range r.Manifests {
		out = append(out, m.Kind+"/"+m.Metadata.Name)
	}
	return out
}

// TestObjects says which objects there are.
func TestObjects(t *testing.T) {
	for _, c := range []struct {
		name, values, want string
	}{
		{"by default", "", "ResourceQuota/shardwell ServiceAccount/shardwell Secret/shardwell-keyring ConfigMap/shardwell ClusterRole/shardwell " +
			"ClusterRoleBinding/shardwell Service/shardwell-seeds DaemonSet/shardwell DaemonSet/shardwell-keeper CSIDriver/csi.shardwell.io"},
		{"everything", everything, "ResourceQuota/shardwell NetworkPolicy/shardwell ServiceAccount/other Secret/shardwell-keyring ConfigMap/shardwell " +
			"ClusterRole/shardwell ClusterRoleBinding/shardwell Service/shardwell-seeds DaemonSet/shardwell CSIDriver/csi.shardwell.io ServiceMonitor/shardwell"},
		{"another priority", least + "priorityClassName: mine", "ServiceAccount/shardwell ConfigMap/shardwell Service/shardwell-seeds DaemonSet/shardwell CSIDriver/csi.shardwell.io"},
		{"the least", least, "ResourceQuota/shardwell ServiceAccount/shardwell ConfigMap/shardwell Service/shardwell-seeds DaemonSet/shardwell CSIDriver/csi.shardwell.io"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := kinds(render(t, c.values))
			want := strings.Fields(c.want)
			slices.Sort(got)
			slices.Sort(want)
			if !slices.Equal(got, want) {
				t.Errorf("objects are %v, want %v", got, want)
			}
		})
	}
}

// TestNames follow the release, and stay short enough for what is derived from them.
func TestNames(t *testing.T) {
	for release, want := range map[string]string{"shardwell": "shardwell", "a": "a-shardwell", "my-shardwell": "my-shardwell", strings.Repeat("x", 53): strings.Repeat("x", 52)} {
		r, err := chart.Render(chart.Options{Dir: dir(t), Release: release, Namespace: "other"})
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range r.Manifests {
			if m.Kind == "CSIDriver" {
				continue
			}
			if !strings.HasPrefix(m.Metadata.Name, want) || len(m.Metadata.Name) > 63 {
				t.Errorf("release %s: %s is called %s", release, m.Kind, m.Metadata.Name)
			}
			if m.Metadata.Namespace != "other" && m.Kind != "ClusterRole" && m.Kind != "ClusterRoleBinding" {
				t.Errorf("release %s: %s is in namespace %q", release, m.Kind, m.Metadata.Namespace)
			}
		}
	}
}

// TestSchemaRefuses gives values that cannot work; the error names each.
func TestSchemaRefuses(t *testing.T) {
	for _, c := range []struct{ values, says string }{
		{`cache: []`, "cache"},
		{`cache: [{path: relative}]`, "path"},
		{`cache: [{path: /a, size: lots}]`, "size"},
		{`cache: [{path: "/a:b"}]`, "path"},
		{`cache: [{size: 1Gi}]`, "path"},
		{`chache: []`, "chache"},
		{`origin: {endpoint: s3.example.com}`, "endpoint"},
		{`origin: {endpoint: "https://user:password@s3.example.com"}`, "endpoint"},
		{`origin: {endpoint: "https://s3.example.com/bucket"}`, "endpoint"},
		{`config: {cacheDir: /other}`, "cacheDir"},
		{`config: {secretFile: /etc/passwd}`, "secretFile"},
		{`config: {maxOriginRat: 1Gi}`, "maxOriginRat"},
		{`csi: {config: {kubeletDir: /x}}`, "kubeletDir"},
		{`ports: {gossip: 0}`, "gossip"},
		{`ports: {metrics: "http"}`, "metrics"},
		{`image: {pullPolicy: Sometimes}`, "pullPolicy"},
		{`image: {digest: "sha256:1"}`, "digest"},
		{`updateStrategy: {type: Recreate}`, "updateStrategy"},
		{`updateStrategy: {rollingUpdate: {maxSurge: 1, maxUnavailable: 0}}`, "updateStrategy"},
		{`terminationGracePeriodSeconds: 5`, "terminationGracePeriodSeconds"},
		{`runDir: run`, "runDir"},
		{`keeper: {mode: Always}`, "mode"},
		{`keeper: {giveUp: soon}`, "giveUp"},
		{`csiDriver: {tokenRequests: [{audience: a, expirationSeconds: 10}]}`, "expirationSeconds"},
		{`resources: {limits: {memory: much}}`, "memory"},
	} {
		_, err := chart.Render(chart.Options{Dir: dir(t), Values: parse(t, c.values)})
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: error is %v", c.values, err)
		}
	}
}

// TestPlainManifest fails when the chart has changed since the manifest was made.
func TestPlainManifest(t *testing.T) {
	want, err := chart.Plain(dir(t))
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(dir(t), "..", "..", "manifests", "shardwell.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Error("deploy/manifests/shardwell.yaml is not what the chart makes: run `make manifests`")
	}
	if strings.Contains(string(got), "kind: Secret") {
		t.Error("the plain manifest holds a secret, which all its users would share")
	}
}

// container is what is looked at of a container.
type container struct {
	Name            string   `json:"name"`
	Image           string   `json:"image"`
	Args            []string `json:"args"`
	SecurityContext struct {
		Privileged             bool  `json:"privileged"`
		ReadOnlyRootFilesystem bool  `json:"readOnlyRootFilesystem"`
		Escalation             *bool `json:"allowPrivilegeEscalation"`
	} `json:"securityContext"`
	Resources    struct{ Requests, Limits map[string]any } `json:"resources"`
	VolumeMounts []struct {
		Name, MountPath, MountPropagation string
	} `json:"volumeMounts"`
}

type workload struct {
	Spec struct {
		Template struct {
			Spec struct {
				InitContainers []container             `json:"initContainers"`
				Containers     []container             `json:"containers"`
				Volumes        []struct{ Name string } `json:"volumes"`
			} `json:"spec"`
		} `json:"template"`
	} `json:"spec"`
}

// containers returns the containers of all workloads of a chart.
func containers(t *testing.T, r chart.Rendered) []container {
	t.Helper()
	var out []container
	for _, m := range r.Manifests {
		var w workload
		if err := yaml.Unmarshal([]byte(m.Text), &w); err != nil {
			t.Fatal(err)
		}
		out = append(append(out, w.Spec.Template.Spec.InitContainers...), w.Spec.Template.Spec.Containers...)
	}
	return out
}

// TestContainersAreConfined wants limits and requests for memory everywhere, a root file system that
// cannot be written, and privileges where mounts are made only.
func TestContainersAreConfined(t *testing.T) {
	mounters := []string{"node", "csi", "keeper"}
	for _, values := range []string{"", everything, least} {
		for _, c := range containers(t, render(t, values)) {
			s := c.SecurityContext
			if !s.ReadOnlyRootFilesystem {
				t.Errorf("%s: the root file system can be written", c.Name)
			}
			if s.Privileged != slices.Contains(mounters, c.Name) {
				t.Errorf("%s: privileged is %v", c.Name, s.Privileged)
			}
			if !s.Privileged && (s.Escalation == nil || *s.Escalation) {
				t.Errorf("%s: may escalate", c.Name)
			}
			if c.Resources.Limits["memory"] == nil || c.Resources.Requests["memory"] == nil {
				t.Errorf("%s: no request or limit for memory", c.Name)
			}
		}
	}
}

// TestVolumesMatch wants each mount to have its volume, and each volume a mount.
func TestVolumesMatch(t *testing.T) {
	for _, values := range []string{"", everything, least} {
		for _, m := range render(t, values).Manifests {
			var w workload
			if err := yaml.Unmarshal([]byte(m.Text), &w); err != nil {
				t.Fatal(err)
			}
			spec := w.Spec.Template.Spec
			used, there := map[string]bool{}, map[string]bool{}
			for _, c := range append(spec.InitContainers, spec.Containers...) {
				for _, v := range c.VolumeMounts {
					used[v.Name] = true
				}
			}
			for _, v := range spec.Volumes {
				there[v.Name] = true
				if !used[v.Name] {
					t.Errorf("%s: nobody mounts volume %s", m.Metadata.Name, v.Name)
				}
			}
			for name := range used {
				if !there[name] {
					t.Errorf("%s: there is no volume %s", m.Metadata.Name, name)
				}
			}
		}
	}
}

// binary returns the program under test; it is built when none is named.
func binary(t *testing.T) string {
	t.Helper()
	if bin := os.Getenv("SHARDWELL_BIN"); bin != "" {
		return bin
	}
	return build(t, "shardwell")
}

// build builds a program of the product.
func build(t *testing.T, name string) string {
	t.Helper()
	root, err := chart.Root()
	if err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(t.TempDir(), name)
	cmd := exec.Command("go", "build", "-o", bin, "./cmd/"+name)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return bin
}

var (
	flagLine = regexp.MustCompile(`(?m)^\s+(?:-\w, )?--?([a-z0-9-]+)`)
	ours     = regexp.MustCompile(`/shardwell(:|@)`)
)

// flags returns the flags that --help of a command lists.
func flags(t *testing.T, bin string, command ...string) []string {
	t.Helper()
	out, err := exec.Command(bin, slices.Concat(command, []string{"--help"})...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v --help: %v\n%s", command, err, out)
	}
	var names []string
	for _, m := range flagLine.FindAllStringSubmatch(string(out), -1) {
		names = append(names, m[1])
	}
	if len(names) == 0 {
		t.Fatalf("%v --help lists no flag:\n%s", command, out)
	}
	return names
}

// TestArgumentsAreFlags compares each argument of the chart with the flags of the command it is given to.
func TestArgumentsAreFlags(t *testing.T) {
	bin, keeper := binary(t), build(t, "shardwell-keeper")
	seen := 0
	for _, values := range []string{"", everything, least} {
		for _, c := range containers(t, render(t, values)) {
			if !ours.MatchString(c.Image) {
				continue
			}
			bin := bin
			if c.Name == "keeper" {
				bin = keeper
			}
			words := 0
			for words < len(c.Args) && !strings.HasPrefix(c.Args[words], "-") {
				words++
			}
			known := flags(t, bin, c.Args[:words]...)
			for _, a := range c.Args[words:] {
				name, _, _ := strings.Cut(strings.TrimPrefix(a, "--"), "=")
				if !strings.HasPrefix(a, "--") || !slices.Contains(known, name) {
					t.Errorf("%s: %q is no flag of %s %s", c.Name, a, filepath.Base(bin), strings.Join(c.Args[:words], " "))
				}
				seen++
			}
		}
	}
	if seen < 20 {
		t.Errorf("only %d arguments were looked at", seen)
	}
}

// TestValuesOfArguments has the program itself judge what the chart gives the node.
func TestValuesOfArguments(t *testing.T) {
	bin := binary(t)
	for _, values := range []string{"", everything, least} {
		r := render(t, values)
		file := filepath.Join(t.TempDir(), "node.yaml")
		for _, m := range r.Manifests {
			if m.Kind == "ConfigMap" {
				var c struct{ Data map[string]string }
				if err := yaml.Unmarshal([]byte(m.Text), &c); err != nil {
					t.Fatal(err)
				}
				for name, text := range c.Data {
					if err := os.WriteFile(filepath.Join(filepath.Dir(file), name), []byte(text), 0o600); err != nil {
						t.Fatal(err)
					}
				}
				if out, err := exec.Command(bin, "config", "--config="+filepath.Join(filepath.Dir(file), "csi.yaml")).CombinedOutput(); err != nil {
					t.Errorf("options of the driver: %v\n%s", err, out)
				}
			}
		}
		for _, c := range containers(t, r) {
			if c.Name != "node" {
				continue
			}
			args := []string{"config"}
			for _, a := range c.Args[1:] {
				if strings.HasPrefix(a, "--config=") {
					a = "--config=" + file
				}
				args = append(args, strings.NewReplacer("$(NODE_NAME)", "node-1", "$(POD_IP)", "10.0.0.1").Replace(a))
			}
			if out, err := exec.Command(bin, args...).CombinedOutput(); err != nil {
				t.Errorf("%v: %v\n%s", args, err, out)
			}
		}
	}
}

// TestNotes says what is to be done next.
func TestNotes(t *testing.T) {
	if notes := render(t, "").Notes; !strings.Contains(notes, "shardwell-keyring") || !strings.Contains(notes, "pod-security") {
		t.Errorf("notes are:\n%s", notes)
	}
	for _, upgrade := range []bool{false, true} {
		r, err := chart.Render(chart.Options{Dir: dir(t), Upgrade: upgrade})
		if err != nil || strings.Contains(r.Notes, "Keepers run on as they were") != upgrade {
			t.Errorf("upgrade %v: %v, notes are:\n%s", upgrade, err, r.Notes)
		}
	}
}
