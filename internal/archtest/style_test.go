package archtest

import (
	"go/ast"
	"path"
	"slices"
	"strings"
	"testing"
)

// How large things may get, in lines.
const (
	maxFunctionLines     = 70
	maxTestFunctionLines = 120 // tables count
	maxFileLines         = 500
	maxMainLines         = 60 // of cmd/*/main.go
)

// packageComments returns the comment that opens each package.
func packageComments(files []sourceFile) map[string]string {
	out := map[string]string{}
	for _, f := range files {
		if f.test || f.generated {
			continue
		}
		if _, seen := out[f.pkg]; !seen {
			out[f.pkg] = ""
		}
		if f.syntax.Doc != nil {
			out[f.pkg] += f.syntax.Doc.Text()
		}
	}
	return out
}

// TestPackagesSayWhatTheyPromise fails for a package without an opening that
// says what it does, what it promises and what it leaves to others.
func TestPackagesSayWhatTheyPromise(t *testing.T) {
	for pkg, doc := range packageComments(module(t)) {
		opening := "Package " + path.Base(pkg) + " "
		if path.Dir(pkg) == "cmd" {
			opening = "Command " + path.Base(pkg) + " "
		}
		switch {
		case doc == "":
			t.Errorf("%s: no package comment", pkg)
		case !strings.HasPrefix(doc, opening):
			t.Errorf("%s: the package comment does not open with %q: %.60q", pkg, opening, doc)
		case strings.Count(doc, ".") < 2:
			t.Errorf("%s: the package comment is too short to say what it does, promises and leaves to others: %q", pkg, doc)
		}
	}
}

// TestSizes fails for functions and files that have become too long to read.
func TestSizes(t *testing.T) {
	for _, f := range module(t) {
		if f.generated {
			continue
		}
		limit := maxFileLines
		if path.Dir(path.Dir(f.path)) == "cmd" && path.Base(f.path) == "main.go" {
			limit = maxMainLines
		}
		if f.lines > limit {
			t.Errorf("%s: %d lines, more than %d", f.path, f.lines, limit)
		}
		longest := maxFunctionLines
		if f.test {
			longest = maxTestFunctionLines
		}
		for _, d := range f.syntax.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			from, to := f.positions.Position(fn.Pos()).Line, f.positions.Position(fn.End()).Line
			if n := to - from + 1; n > longest {
				t.Errorf("%s:%d: function %s has %d lines, more than %d", f.path, from, fn.Name.Name, n, longest)
			}
		}
	}
}

// TestWhatIsKeptOut fails for packages that would hold anything, and for code that
// runs because it was imported.
func TestWhatIsKeptOut(t *testing.T) {
	for _, f := range module(t) {
		if slices.Contains([]string{"util", "utils", "common", "helper", "helpers", "misc"}, path.Base(f.pkg)) {
			t.Errorf("%s: a package is named after what it does", f.path)
		}
		for _, d := range f.syntax.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Name.Name == "init" && fn.Recv == nil && !f.generated {
				t.Errorf("%s: init functions are kept out", f.path)
			}
		}
		if f.test || f.generated {
			continue
		}
		for _, group := range f.syntax.Comments {
			for _, word := range []string{"TODO", "FIXME", "XXX"} {
				if strings.Contains(group.Text(), word) {
					t.Errorf("%s: a comment has %s", f.positions.Position(group.Pos()), word)
				}
			}
		}
	}
}
