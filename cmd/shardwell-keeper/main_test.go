package main

import (
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// allowed is all that the keeper and what it imports of this project may import: each line
// more is a reason to replace a process that holds all mounts.
var allowed = []string{
	"context", "encoding/binary", "errors", "flag", "fmt", "io", "os", "os/signal", "path/filepath", "slices", "strconv", "strings",
	"sync", "sync/atomic", "syscall", "time", "unsafe", "golang.org/x/sys/unix",
}

func TestImportsAreFew(t *testing.T) {
	const module = "github.com/shardwell/shardwell/"
	seen := map[string]bool{}
	var look func(dir string)
	look = func(dir string) {
		if seen[dir] {
			return
		}
		seen[dir] = true
		files, err := filepath.Glob(filepath.Join("..", "..", dir, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v, %v", dir, files, err)
		}
		for _, name := range files {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
			if err != nil {
				t.Fatal(err)
			}
			for _, spec := range f.Imports {
				path, _ := strconv.Unquote(spec.Path.Value)
				if ours, ok := strings.CutPrefix(path, module); ok {
					look(ours)
				} else if !slices.Contains(allowed, path) {
					t.Errorf("%s imports %s", name, path)
				}
			}
		}
	}
	look("cmd/shardwell-keeper")
	if !seen["fuse/handover"] || len(seen) != 2 {
		t.Errorf("packages of the keeper: %v", seen)
	}
}

func TestCommandLine(t *testing.T) {
	for _, c := range []struct {
		args      string
		code      int
		out, errs string
	}{
		{"--version", 0, "shardwell-keeper 0", ""},
		{"--help", 0, "-give-up", ""},
		{"--give-up 0s", 2, "", "longer than 0"},
		{"--give-up soon", 2, "", "invalid value"},
		{"extra", 2, "", `"extra": takes no arguments`},
		{"--unknown", 2, "", "not defined"},
		{"--socket=", 2, "", "path is empty"},
	} {
		var out, errs strings.Builder
		_, code, done := parse(strings.Fields(c.args), &out, &errs)
		if !done || code != c.code || !strings.Contains(out.String(), c.out) || !strings.Contains(errs.String(), c.errs) || strings.Count(errs.String(), "\n") > 1 {
			t.Errorf("%s: %v, %d, %q, %q", c.args, done, code, out.String(), errs.String())
		}
	}
	o, _, done := parse([]string{"--socket", "/x", "--give-up", "5s"}, os.Stdout, os.Stderr)
	if done || o.socket != "/x" || o.giveUp.String() != "5s" {
		t.Errorf("%+v, %v", o, done)
	}
}
