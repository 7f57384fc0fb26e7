package archtest

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

const modulePath = "github.com/shardwell/shardwell"

// sourceFile is a file of the product's module, as the tests of the house see it.
type sourceFile struct {
	path      string // relative to the root
	pkg       string // folder, relative to the root
	test      bool
	generated bool
	lines     int
	positions *token.FileSet
	syntax    *ast.File
}

// imports returns the paths that a file imports.
func (f sourceFile) imports() []string {
	var out []string
	for _, spec := range f.syntax.Imports {
		if path, err := strconv.Unquote(spec.Path.Value); err == nil {
			out = append(out, path)
		}
	}
	return out
}

// module parses all Go files of the product's module. Folders with a go.mod of
// their own, such as e2e, are other modules.
func module(t *testing.T) []sourceFile {
	t.Helper()
	root := filepath.Join("..", "..")
	positions := token.NewFileSet()
	var out []sourceFile
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != root {
			_, modErr := os.Stat(filepath.Join(path, "go.mod"))
			if modErr == nil || strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" {
				return filepath.SkipDir
			}
		}
		if d.IsDir() || !strings.HasSuffix(path, ".go") {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		syntax, err := parser.ParseFile(positions, path, text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		out = append(out, sourceFile{
			path: rel, pkg: filepath.ToSlash(filepath.Dir(rel)), test: strings.HasSuffix(rel, "_test.go"), generated: ast.IsGenerated(syntax),
			lines: bytes.Count(text, []byte("\n")), positions: positions, syntax: syntax,
		})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(out) < 20 {
		t.Fatalf("found only %d files: is the module elsewhere?", len(out))
	}
	return out
}

// under reports whether a package lies in a tree of packages.
func under(pkg, tree string) bool { return pkg == tree || strings.HasPrefix(pkg, tree+"/") }
