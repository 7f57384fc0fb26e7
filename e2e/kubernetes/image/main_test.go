package main

import (
	"archive/tar"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// example writes an archive of one program and returns its path.
func example(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, body := range map[string]string{"program": "\x7fELF…", "ca": "-----BEGIN CERTIFICATE-----\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(body), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	out := filepath.Join(dir, "image.tar")
	err := write(options{
		out: out, name: "registry.example/some/program:v1", version: "v1", entrypoint: "/usr/bin/program", arch: "amd64",
		caFile: filepath.Join(dir, "ca"), files: []file{{filepath.Join(dir, "program"), "/usr/bin/program"}},
		links: []link{{"/bin/program", "../usr/bin/program"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// unpack returns an archive as an image layout.
func unpack(t *testing.T, archive string) layout.Path {
	t.Helper()
	dir := t.TempDir()
	f, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if err == io.EOF {
			return layout.Path(dir)
		}
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		to := filepath.Join(dir, filepath.FromSlash(h.Name))
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to, body, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestArchiveIsAnImage reads the archive as any runtime would: every digest and size is compared.
func TestArchiveIsAnImage(t *testing.T) {
	index, err := unpack(t, example(t)).ImageIndex()
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(index); err != nil {
		t.Error(err)
	}
	m, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if len(m.Manifests) != 1 || m.Manifests[0].Annotations["io.containerd.image.name"] != "registry.example/some/program:v1" {
		t.Fatalf("manifests are %+v", m.Manifests)
	}
	img, err := index.Image(m.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	c, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if c.Config.User != "65532:65532" || len(c.Config.Entrypoint) != 1 || c.Config.Entrypoint[0] != "/usr/bin/program" {
		t.Errorf("configuration is %+v", c.Config)
	}
	layers, err := img.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("%d layers, %v", len(layers), err)
	}
	rc, err := layers[0].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	defer rc.Close()
	modes := map[string]int64{}
	for r := tar.NewReader(rc); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Uid != 0 || h.Gid != 0 {
			t.Errorf("%s belongs to %d:%d", h.Name, h.Uid, h.Gid)
		}
		if _, twice := modes[h.Name]; twice {
			t.Errorf("%s is there twice", h.Name)
		}
		modes[h.Name] = h.Mode
	}
	for name, mode := range map[string]int64{
		"usr/bin/program": 0o555, "bin/program": 0o777, "etc/ssl/certs/ca-certificates.crt": 0o444, "tmp/": 0o1777, "usr/": 0o755,
	} {
		if got, ok := modes[name]; !ok || got != mode {
			t.Errorf("%s: mode %o, there %v, want %o", name, got, ok, mode)
		}
	}
}

// TestArchiveIsReproducible makes the archive twice.
func TestArchiveIsReproducible(t *testing.T) {
	a, err := os.ReadFile(example(t))
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(example(t))
	if err != nil {
		t.Fatal(err)
	}
	if string(a) != string(b) {
		t.Error("the same files made two archives")
	}
}
