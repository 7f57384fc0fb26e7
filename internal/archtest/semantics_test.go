package archtest

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// promise matches a numbered promise of docs/SEMANTICS.md.
var promise = regexp.MustCompile(`(?m)^- \*\*([A-Z]\d+)\*\* (.+)$`)

// quote matches the opening of a promise quoted in a test's comment.
var quote = regexp.MustCompile(`SEMANTICS ([A-Z]\d+): `)

// TestPromisesAreQuoted fails for a promise that no test quotes, for a quotation
// whose words are no longer those of the page, and for one of an unknown number.
// A comment quotes a promise as "SEMANTICS B1: its words", over as many lines as it takes.
func TestPromisesAreQuoted(t *testing.T) {
	root := filepath.Join("..", "..")
	page, err := os.ReadFile(filepath.Join(root, "docs", "SEMANTICS.md"))
	if err != nil {
		t.Fatal(err)
	}
	promised := map[string]string{}
	for _, m := range promise.FindAllStringSubmatch(string(page), -1) {
		if promised[m[1]] != "" {
			t.Errorf("docs/SEMANTICS.md: %s is promised twice", m[1])
		}
		promised[m[1]] = m[2]
	}
	if len(promised) == 0 {
		t.Fatal("docs/SEMANTICS.md: no promise found")
	}
	quoted := map[string]bool{}
	for _, c := range testComments(t, root) {
		for _, m := range quote.FindAllStringSubmatchIndex(c.text, -1) {
			name, rest := c.text[m[2]:m[3]], c.text[m[1]:]
			switch words, ok := promised[name]; {
			case !ok:
				t.Errorf("%s: quotes %s, which docs/SEMANTICS.md does not promise", c.at, name)
			case !strings.HasPrefix(rest, words):
				t.Errorf("%s: quotes %s in other words than docs/SEMANTICS.md: %q", c.at, name, words)
			default:
				quoted[name] = true
			}
		}
	}
	for name, words := range promised {
		if !quoted[name] {
			t.Errorf("docs/SEMANTICS.md: no test quotes %s: %s", name, words)
		}
	}
}

type comment struct {
	at   token.Position
	text string // on one line
}

// testComments returns the comments of all test files that quote a promise.
func testComments(t *testing.T, root string) []comment {
	var found []comment
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && strings.HasPrefix(d.Name(), ".") && path != root && d.Name() != ".." {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, "_test.go") || filepath.Base(path) == "semantics_test.go" {
			return nil
		}
		src, err := os.ReadFile(path)
		if err != nil || !quote.Match(src) {
			return err
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path, src, parser.ParseComments)
		if err != nil {
			return err
		}
		for _, group := range file.Comments {
			found = append(found, comment{files.Position(group.Pos()), strings.Join(strings.Fields(group.Text()), " ")})
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}
