package archtest

import (
	"slices"
	"strings"
	"testing"
)

// floors says who may import whom. A row is a tree of packages, lowest first; it
// may import itself and the trees that its row names, and nothing else of the project. Siblings
// do not import each other: each declares what it needs in words of the floors below.
var floors = []struct {
	tree string
	may  []string
}{
	{"internal/chunk", nil},
	{"objstore", []string{"internal/chunk"}},
	{"cache", []string{"internal/chunk", "objstore"}},
	{"peer", []string{"internal/chunk", "objstore"}},
	{"fuse", []string{"internal/chunk", "objstore"}},
	{"warm", []string{"internal/chunk"}},
	{"internal/config", []string{"internal/chunk"}},
	{"internal/control", []string{"internal/chunk", "internal/config", "objstore", "warm"}},
	{"internal/node", []string{"internal/chunk", "internal/config", "internal/control", "objstore", "cache", "peer", "fuse", "warm"}},
	{"deploy/kube", nil},
	{"deploy/csi", []string{"internal/chunk", "internal/config", "internal/control", "internal/node", "objstore", "fuse"}},
	{"cmd", []string{"internal/chunk", "internal/config", "internal/control", "internal/node", "deploy/csi", "deploy/kube", "objstore", "cache", "peer", "fuse", "warm"}},
	{"internal/archtest", nil},
}

// testOnly are packages that only tests may import, and other such packages.
var testOnly = []string{"objstore/objstoretest", "peer/member/membertest", "cache/cachetest"}

// libraries says which trees may use a library, so that each has one place that
// knows its traps. A library that is not here may be used anywhere.
var libraries = map[string][]string{
	"github.com/minio/minio-go":          {"objstore/s3", "objstore/objstoretest"},
	"github.com/johannesboyne/gofakes3":  {"objstore/s3/s3server"},
	"github.com/hanwen/go-fuse":          {"fuse"},
	"github.com/hashicorp/memberlist":    {"peer/member"},
	"github.com/buraksezer/consistent":   {"peer/ring"},
	"github.com/dgraph-io/ristretto":     {"cache/meta", "fuse/tarindex"},
	"github.com/prometheus":              {"internal/node"},
	"github.com/spf13/cobra":             {"cmd"},
	"github.com/vbauerster/mpb":          {"cmd"},
	"github.com/spf13/pflag":             {"internal/config", "cmd"},
	"google.golang.org/grpc":             {"peer", "internal/control", "internal/node", "deploy/csi"},
	"go.yaml.in/yaml":                    {"internal/config", "deploy/kube"},
	"k8s.io/apimachinery":                {"internal/config", "deploy/csi"},
	"github.com/rogpeppe/go-internal":    {"cmd"},
	"github.com/container-storage-inter": {"deploy/csi"},
}

// TestFloors fails for an import that crosses the floors.
func TestFloors(t *testing.T) {
	for _, f := range module(t) {
		row := slices.IndexFunc(floors, func(r struct {
			tree string
			may  []string
		}) bool {
			return under(f.pkg, r.tree)
		})
		if row < 0 {
			t.Errorf("%s: the folder %s is on no floor: add it to the table, or move it", f.path, f.pkg)
			continue
		}
		for _, path := range f.imports() {
			pkg, ours := strings.CutPrefix(path, modulePath+"/")
			if !ours {
				continue
			}
			allowed := under(pkg, floors[row].tree) || slices.ContainsFunc(floors[row].may, func(tree string) bool { return under(pkg, tree) })
			if !allowed {
				t.Errorf("%s: %s may not import %s", f.path, floors[row].tree, pkg)
			}
			if slices.Contains(testOnly, pkg) && !f.test && !slices.Contains(testOnly, f.pkg) {
				t.Errorf("%s: %s is for tests only", f.path, pkg)
			}
		}
	}
}

// TestLibraries fails for a library that is used outside of its place.
func TestLibraries(t *testing.T) {
	for _, f := range module(t) {
		for _, path := range f.imports() {
			if path == "C" {
				t.Errorf("%s: cgo has no place in the product", f.path)
			}
			for library, trees := range libraries {
				if strings.HasPrefix(path, library) && !f.test && !slices.ContainsFunc(trees, func(tree string) bool { return under(f.pkg, tree) }) {
					t.Errorf("%s: %s belongs into %s", f.path, path, strings.Join(trees, ", "))
				}
			}
		}
	}
}

// TestChildrenAreOfTwoKinds fails for a child folder that does not say whether it is
// a part, which its parent imports, or an implementation, which imports its
// parent; or that says one and is the other.
func TestChildrenAreOfTwoKinds(t *testing.T) {
	files := module(t)
	importsOf := map[string][]string{}
	for _, f := range files {
		if !f.test {
			importsOf[f.pkg] = append(importsOf[f.pkg], f.imports()...)
		}
	}
	for pkg, doc := range packageComments(files) {
		parent := pkg[:max(0, strings.LastIndexByte(pkg, '/'))]
		if _, isPackage := importsOf[parent]; !isPackage || slices.Contains(testOnly, pkg) {
			continue
		}
		words := strings.FieldsFunc(doc, func(r rune) bool { return r < 'a' || r > 'z' })
		part, implementation := slices.Contains(words, "part"), slices.Contains(words, "implementation")
		switch {
		case !part && !implementation:
			t.Errorf("%s: the package comment does not say whether it is a part or an implementation", pkg)
		case !implementation && slices.Contains(importsOf[pkg], modulePath+"/"+parent):
			t.Errorf("%s: says that it is a part, and imports its parent", pkg)
		case !part && slices.Contains(importsOf[parent], modulePath+"/"+pkg):
			t.Errorf("%s: says that it is an implementation, and its parent imports it", pkg)
		}
	}
}
