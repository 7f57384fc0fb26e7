package main

import (
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/moby/patternmatcher"
	"github.com/moby/patternmatcher/ignorefile"

	"github.com/shardwell/shardwell/e2e/kubernetes/chart"
)

// dockerfile returns the stages of deploy/Dockerfile as BuildKit reads them, and the folder of the repository.
func dockerfile(t *testing.T) (stages []instructions.Stage, root string) {
	t.Helper()
	root, err := chart.Root()
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(filepath.Join(root, "deploy", "Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	parsed, err := parser.Parse(f)
	if err != nil {
		t.Fatal(err)
	}
	if len(parsed.Warnings) > 0 {
		t.Errorf("warnings: %+v", parsed.Warnings)
	}
	stages, args, err := instructions.Parse(parsed.AST, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(stages) != 2 || len(args) != 0 {
		t.Fatalf("%d stages, %d arguments before them", len(stages), len(args))
	}
	return stages, root
}

// only returns the one instruction of a kind in a stage.
func only[T instructions.Command](t *testing.T, s instructions.Stage) (one T) {
	t.Helper()
	n := 0
	for _, c := range s.Commands {
		if c, ok := c.(T); ok {
			one = c
			n++
		}
	}
	if n != 1 {
		t.Fatalf("stage from %s: %d instructions %T", s.BaseName, n, one)
	}
	return one
}

// TestDockerfileIsTheSameImage compares what `docker build` makes with what this command makes.
func TestDockerfileIsTheSameImage(t *testing.T) {
	stages, _ := dockerfile(t)
	last := stages[1]
	if got := only[*instructions.UserCommand](t, last).User; got != fmt.Sprintf("%d:%d", User, User) {
		t.Errorf("user is %s", got)
	}
	if e := only[*instructions.EntrypointCommand](t, last); e.PrependShell || !slices.Equal(e.CmdLine, []string{"/usr/bin/shardwell"}) {
		t.Errorf("entrypoint is %q, in a shell: %v", e.CmdLine, e.PrependShell)
	}
	c := only[*instructions.CopyCommand](t, last)
	if c.From != stages[0].Name || !slices.Equal(c.SourcePaths, []string{"/out/"}) || c.DestPath != "/usr/bin/" {
		t.Errorf("it copies %q of %q to %s", c.SourcePaths, c.From, c.DestPath)
	}
	got := map[string]string{}
	for _, l := range only[*instructions.LabelCommand](t, last).Labels {
		got[l.Key] = l.Value
	}
	want := labels(options{name: "ghcr.io/shardwell/shardwell:v1", version: "$VERSION"})
	if !maps.Equal(got, want) {
		t.Errorf("labels are %v, want %v", got, want)
	}
}

// TestDockerfileBuilds runs the build of the Dockerfile on what Docker would send of the repository, and looks
// at the programs.
func TestDockerfileBuilds(t *testing.T) {
	stages, root := dockerfile(t)
	dir := t.TempDir()
	copyContext(t, root, filepath.Join(dir, "src"))
	var build string
	for _, c := range stages[0].Commands {
		if run, ok := c.(*instructions.RunCommand); ok && strings.Contains(strings.Join(run.CmdLine, " "), "go build") {
			build = strings.Join(run.CmdLine, " ")
		}
	}
	if !strings.Contains(build, " /out/ ") {
		t.Fatalf("it builds by %q, not into /out/", build)
	}
	cmd := exec.Command("sh", "-c", strings.Replace(build, " /out/ ", " "+dir+"/out/ ", 1))
	cmd.Dir = filepath.Join(dir, "src")
	cmd.Env = append(os.Environ(), "VERSION=v1.2.3-test", "TARGETARCH="+runtime.GOARCH)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", build, err, out)
	}
	var got, want []string
	for _, m := range []struct {
		dir string
		to  *[]string
	}{{filepath.Join(dir, "out"), &got}, {filepath.Join(root, "cmd"), &want}} {
		entries, err := os.ReadDir(m.dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			*m.to = append(*m.to, e.Name())
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("it has %q, the programs are %q", got, want)
	}
	for _, name := range got {
		static(t, filepath.Join(dir, "out", name))
	}
	out, err := exec.Command(filepath.Join(dir, "out", "shardwell"), "version").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "v1.2.3-test") {
		t.Errorf("its version is %s, %v", out, err)
	}
}

// static fails for a program that needs anything of the image it is in.
func static(t *testing.T, path string) {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			t.Errorf("%s is linked dynamically", filepath.Base(path))
		}
	}
}

// copyContext copies what Docker sends: everything that .dockerignore does not name.
func copyContext(t *testing.T, root, to string) {
	t.Helper()
	f, err := os.Open(filepath.Join(root, ".dockerignore"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	patterns, err := ignorefile.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	ignored, err := patternmatcher.New(patterns)
	if err != nil {
		t.Fatal(err)
	}
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == root {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if skip, err := ignored.MatchesOrParentMatches(rel); err != nil || skip {
			if skip && d.IsDir() {
				return fs.SkipDir
			}
			return err
		}
		if d.IsDir() {
			return os.MkdirAll(filepath.Join(to, rel), 0o755)
		}
		if !d.Type().IsRegular() {
			return nil
		}
		body, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) { // of another test, and gone by now
			return nil
		}
		if err != nil {
			return err
		}
		if err := os.MkdirAll(filepath.Dir(filepath.Join(to, rel)), 0o755); err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, rel), body, 0o644)
	})
	if err != nil {
		t.Fatal(err)
	}
}

var linkerFlags = regexp.MustCompile(`-s -w (?:-X \S+=\S*\s*)+`)

// TestDockerfileLinksAsTheMakefileDoes compares the flags that set the version.
func TestDockerfileLinksAsTheMakefileDoes(t *testing.T) {
	_, root := dockerfile(t)
	flags := func(name string) string {
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		found := linkerFlags.FindString(strings.NewReplacer("$(VERSION)", "V", "$VERSION", "V", `"`, " ").Replace(string(text)))
		return strings.TrimSpace(found)
	}
	if d, m := flags(filepath.Join("deploy", "Dockerfile")), flags("Makefile"); d != m || d == "" {
		t.Errorf("deploy/Dockerfile links with %q, the Makefile with %q", d, m)
	}
}
