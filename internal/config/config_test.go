package config

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

func flagsOf(t *testing.T, args ...string) *Flags {
	t.Helper()
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	flags := Bind(fs, ScopeNode, ScopeOrigin, ScopeMount, ScopeClient)
	if err := fs.Parse(args); err != nil {
		t.Fatalf("parse %q: %v", args, err)
	}
	return flags
}

func fileOf(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "shardwell.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestEveryFieldIsAnOption(t *testing.T) {
	names := regexp.MustCompile(`^[a-z]+(-[a-z]+)*$`)
	seen := map[string]bool{}
	for _, f := range fields() {
		if !names.MatchString(f.name) {
			t.Errorf("option %q: not a kebab-case name", f.name)
		}
		if seen[f.name] {
			t.Errorf("option %q: twice", f.name)
		}
		seen[f.name] = true
		if f.help == "" || !strings.HasSuffix(f.help, ".") {
			t.Errorf("option %q: its comment is no sentence: %q", f.name, f.help)
		}
		for _, s := range f.scopes {
			if s != ScopeNode && s != ScopeOrigin && s != ScopeMount && s != ScopeClient && s != ScopeCSI {
				t.Errorf("option %q: unknown scope %q", f.name, s)
			}
		}
		if got, ok := byKey(f.key()); !ok || got.name != f.name {
			t.Errorf("option %q: not found by its key %q", f.name, f.key())
		}
	}
}

func TestNamesFollowTheCustomOfEachView(t *testing.T) {
	f, ok := lookup("cache-dir")
	if !ok || f.env() != "SHARDWELL_CACHE_DIR" || f.key() != "cacheDir" {
		t.Errorf("cache-dir is %s and %s, want SHARDWELL_CACHE_DIR and cacheDir", f.env(), f.key())
	}
}

func TestDefaultsAreValid(t *testing.T) {
	r, err := Load(Inputs{})
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(r.Config, Default()) {
		t.Errorf("nothing given: got %+v, want the defaults", r.Config)
	}
	if s := r.Source("bind"); s.Kind != "default" {
		t.Errorf("source of bind: got %v, want default", s)
	}
}

func TestPrecedence(t *testing.T) {
	file := fileOf(t, "zone: file\nrack: file\nname: file\n")
	environ := []string{"SHARDWELL_ZONE=env", "SHARDWELL_RACK=env", "HOME=/root"}
	r, err := Load(Inputs{File: file, Environ: environ, Flags: flagsOf(t, "--zone=flag")})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ option, got, want, kind, where string }{
		{"zone", r.Zone, "flag", "flag", "--zone"},
		{"rack", r.Rack, "env", "env", "SHARDWELL_RACK"},
		{"name", r.Name, "file", "file", file + ":3"},
	} {
		if s := r.Source(c.option); c.got != c.want || s.Kind != c.kind || s.Where != c.where {
			t.Errorf("%s: got %q from %+v, want %q from %s %s", c.option, c.got, s, c.want, c.kind, c.where)
		}
	}
}

func TestFileByEnvironment(t *testing.T) {
	file := fileOf(t, "weight: 7\n")
	r, err := Load(Inputs{Environ: []string{"SHARDWELL_CONFIG=" + file}})
	if err != nil || r.Weight != 7 {
		t.Errorf("weight: got %d, %v, want 7", r.Weight, err)
	}
	if len(r.Ignored) != 0 {
		t.Errorf("ignored: got %q, want none", r.Ignored)
	}
}

func TestAllKindsInAllViews(t *testing.T) {
	want := Default()
	want.CacheDirs = []CacheDir{{Path: "/a", Budget: 1 << 30}, {Path: "/b"}}
	want.Join = []string{"n1", "n2:7946"}
	want.Memory = 512 << 20
	want.RestartGrace = Duration(90 * time.Second)
	want.Consistency = Consistency{Mode: ConsistencyTTL, TTL: 5 * time.Minute}
	want.FileMode = 0o440
	want.AllowOther = true
	want.UID = 1000
	views := map[string]Inputs{
		"flags": {Flags: flagsOf(t, "--cache-dir", "/a=1Gi", "--cache-dir=/b/", "--join=n1,n2:7946", "--memory=512Mi", "--restart-grace=90s",
			"--consistency=ttl=5m", "--file-mode=0440", "--allow-other", "--uid=1000")},
		"environment": {Environ: []string{"SHARDWELL_CACHE_DIR=/a=1Gi, /b", "SHARDWELL_JOIN=n1,n2:7946", "SHARDWELL_MEMORY=0.5Gi",
			"SHARDWELL_RESTART_GRACE=1m30s", "SHARDWELL_CONSISTENCY=ttl=300s", "SHARDWELL_FILE_MODE=440", "SHARDWELL_ALLOW_OTHER=true", "SHARDWELL_UID=1000"}},
		"file": {File: fileOf(t, `# a comment
cacheDir: [/a=1Gi, "/b"]
join:
- n1
- n2:7946
memory: 512Mi
restartGrace: 90s
consistency: ttl=5m
fileMode: 0440
allowOther: true
uid: 1000
`)},
	}
	for name, in := range views {
		t.Run(name, func(t *testing.T) {
			r, err := Load(in)
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(r.Config, want) {
				t.Errorf("got  %+v\nwant %+v", r.Config, want)
			}
		})
	}
}

func TestVariablesOfAKubernetesServiceAreIgnored(t *testing.T) {
	r, err := Load(Inputs{Environ: []string{"SHARDWELL_SERVICE_HOST=10.0.0.1", "SHARDWELL_PORT=tcp://10.0.0.1:7947", "SHARDWELL_ZNOE=a"}})
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"SHARDWELL_PORT", "SHARDWELL_SERVICE_HOST", "SHARDWELL_ZNOE"}; !reflect.DeepEqual(r.Ignored, want) {
		t.Errorf("ignored: got %q, want %q", r.Ignored, want)
	}
}

func TestErrorsAreOneLineWithWhereAndWhatToDo(t *testing.T) {
	for _, c := range []struct {
		name string
		in   Inputs
		want string // FILE stands for the file's path
	}{
		{"unknown key", Inputs{File: "zone: a\ncachedir: /x\n"}, `unknown option "cachedir": FILE:2: did you mean "cacheDir"?`},
		{"kebab key", Inputs{File: "cache-dir: /x\n"}, `unknown option "cache-dir": FILE:1: did you mean "cacheDir"?`},
		{"far key", Inputs{File: "replicas: 3\n"}, "unknown option \"replicas\": FILE:1: `shardwell config` lists the options"},
		{"twice", Inputs{File: "zone: a\nrack: r\nzone: b\n"}, `option "zone" given twice: FILE:3: keep this one or that of line 1`},
		{"not a size", Inputs{File: "memory: lots\n"}, `"lots" is not a size; write it like 512Mi, 100Gi or 5G: FILE:1`},
		{"mapping for a value", Inputs{File: "memory: {a: b}\n"}, `option "memory" takes one plain value: FILE:1`},
		{"list for a value", Inputs{File: "memory: [1, 2]\n"}, `option "memory" takes one plain value: FILE:1`},
		{"null", Inputs{File: "zone:\n"}, `option "zone" has no value; leave it out to have the default: FILE:1`},
		{"not a mapping", Inputs{File: "- a\n"}, `not a mapping: FILE:1: write one option a line, like cacheDir: [/data=100Gi]`},
		{"two documents", Inputs{File: "zone: a\n---\nrack: b\n"}, `more than one document: FILE: keep one`},
		{"negative", Inputs{Environ: []string{"SHARDWELL_MEMORY=-1"}}, `"-1" is negative: SHARDWELL_MEMORY`},
		{"exposed", Inputs{Environ: []string{"SHARDWELL_BIND=0.0.0.0:7946"}}, `refuses to listen on 0.0.0.0:7946 without a secret: SHARDWELL_BIND: give --secret-file, or --insecure on a network that you trust`},
		{"insecure with a secret", Inputs{Environ: []string{"SHARDWELL_SECRET_FILE=/s", "SHARDWELL_INSECURE=true"}}, `--secret-file and --insecure exclude each other: SHARDWELL_SECRET_FILE, SHARDWELL_INSECURE: drop --insecure`},
		{"anonymous with a profile", Inputs{File: "anonymous: true\nprofile: p\n"}, `--anonymous and --profile exclude each other: FILE:1, FILE:2: drop one`},
		{"same port", Inputs{Environ: []string{"SHARDWELL_PEER_BIND=127.0.0.1:7946"}}, `--bind and --peer-bind are both 127.0.0.1:7946: SHARDWELL_PEER_BIND: give each a port of its own`},
		{"overlap", Inputs{Environ: []string{"SHARDWELL_CACHE_DIR=/a,/a/b"}}, `cache directories /a and /a/b overlap: SHARDWELL_CACHE_DIR: give each a place of its own`},
		{"geometry", Inputs{Environ: []string{"SHARDWELL_BLOCK_SIZE=300Ki"}}, `block size 307200: must be a power of two: SHARDWELL_BLOCK_SIZE`},
		{"writable", Inputs{Environ: []string{"SHARDWELL_FILE_MODE=0644"}}, `"0644" allows to write, but mounts are read-only; write it like 0444 or 0555: SHARDWELL_FILE_MODE`},
		{"endpoint with a bucket", Inputs{Environ: []string{"SHARDWELL_ENDPOINT=https://s3.example.com/bucket"}}, `endpoint "https://s3.example.com/bucket" has a path or query: SHARDWELL_ENDPOINT: give scheme, host and port only; the bucket belongs into s3://BUCKET/PREFIX`},
		{"password is masked", Inputs{Environ: []string{"SHARDWELL_ENDPOINT=https://u:hunter2@s3.example.com"}}, `endpoint "https://u:xxxxx@s3.example.com" carries credentials: SHARDWELL_ENDPOINT: use --credentials-file or the environment`},
		{"no scheme", Inputs{Environ: []string{"SHARDWELL_ENDPOINT=s3.example.com"}}, `"s3.example.com" is not a URL: SHARDWELL_ENDPOINT: write it like https://s3.example.com`},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.in.File != "" {
				c.in.File = fileOf(t, c.in.File)
				c.want = strings.ReplaceAll(c.want, "FILE", c.in.File)
			}
			_, err := Load(c.in)
			var e *Error
			if !errors.As(err, &e) {
				t.Fatalf("got %T %v, want an *Error", err, err)
			}
			if err.Error() != c.want {
				t.Errorf("got  %s\nwant %s", err, c.want)
			}
		})
	}
}

// SEMANTICS C5: A node does not listen beyond loopback without a secret unless told `--insecure`;
// members prove who they are with every request. (The second half is proven in peer/transfer.)
func TestNothingIsOpenToTheNetworkByDefault(t *testing.T) {
	for _, addr := range []string{"0.0.0.0:7946", "[::]:7946", "10.0.0.5:7946", "127.0.0.1:7946", "[::1]:7946", "127.9.9.9:1"} {
		loopback := strings.HasPrefix(addr, "127.") || strings.HasPrefix(addr, "[::1]")
		for _, option := range []string{"SHARDWELL_BIND", "SHARDWELL_PEER_BIND"} {
			_, bare := Load(Inputs{Environ: []string{option + "=" + addr, "SHARDWELL_METRICS_BIND=off", "SHARDWELL_NAME=x"}})
			if option == "SHARDWELL_BIND" || addr != "127.0.0.1:7946" { // that one is the default of --bind
				if (bare == nil) != loopback {
					t.Errorf("%s=%s without a secret: got %v, want it allowed: %v", option, addr, bare, loopback)
				}
				for _, with := range []string{"SHARDWELL_SECRET_FILE=/s", "SHARDWELL_INSECURE=true"} {
					if _, err := Load(Inputs{Environ: []string{option + "=" + addr, with}}); err != nil {
						t.Errorf("%s=%s with %s: %v", option, addr, with, err)
					}
				}
			}
		}
	}
}

func TestMissingFile(t *testing.T) {
	_, err := Load(Inputs{File: "/does/not/exist.yaml"})
	if err == nil || !strings.Contains(err.Error(), "/does/not/exist.yaml: no such file or directory: --config") {
		t.Errorf("got %v", err)
	}
}

func TestSettingsMaskSecrets(t *testing.T) {
	r, err := Load(Inputs{Environ: []string{"SHARDWELL_PROXY=http://user:hunter2@proxy:3128"}})
	if err != nil {
		t.Fatal(err)
	}
	if r.Proxy != "http://user:hunter2@proxy:3128" {
		t.Errorf("value itself: got %q", r.Proxy)
	}
	for _, s := range r.Settings() {
		if strings.Contains(strings.Join(s.Values, ","), "hunter2") {
			t.Errorf("option %s shows the password: %q", s.Name, s.Values)
		}
	}
}

func TestHelpIsTheCommentOfTheField(t *testing.T) {
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	Bind(fs, ScopeNode)
	usage := fs.FlagUsages()
	for _, want := range []string{"--weight N", "relative to other nodes: 1 to 64. (default 1)", "--cache-dir DIR[=SIZE]", "--insecure  "} {
		if !strings.Contains(usage, want) {
			t.Errorf("help lacks %q:\n%s", want, usage)
		}
	}
}

func TestScopesOfFlags(t *testing.T) {
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	Bind(fs, ScopeMount)
	if fs.Lookup("cache-dir") != nil || fs.Lookup("consistency") == nil {
		t.Error("a mount's flags: want consistency and not cache-dir")
	}
}
