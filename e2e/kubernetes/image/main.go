// Command image writes an OCI image archive of static binaries, without Docker and
// without a network: one layer with the files it is given, CA certificates and a
// user that is not root.
//
// It promises that the same files make the same archive, byte for byte, and that
// `ctr images import`, `podman load` and `skopeo copy oci-archive:` read it.
// deploy/Dockerfile makes the same image where there is Docker; what the files do
// is not known here.
package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// User is whom the image runs as when nothing else is said, "nonroot" of many base images.
const User = 65532

// maxFileBytes bounds a file of the image: it is read into memory.
const maxFileBytes = 1 << 30

// options of the command.
type options struct {
	out        string // the archive
	name       string // of the image, with its tag
	version    string
	entrypoint string
	arch       string
	caFile     string // certificates of the system, "" for none
	files      []file
	links      []link
}

// file is a file of the image; link a symbolic link.
type (
	file struct{ from, to string }
	link struct{ at, target string }
)

func main() {
	var o options
	flag.StringVar(&o.out, "o", "", "archive to write")
	flag.StringVar(&o.name, "name", "", "name and tag of the image")
	flag.StringVar(&o.version, "version", "", "version for the label")
	flag.StringVar(&o.entrypoint, "entrypoint", "", "program that the image runs")
	flag.StringVar(&o.arch, "arch", "amd64", "architecture of the binaries")
	flag.StringVar(&o.caFile, "ca", "/etc/ssl/certs/ca-certificates.crt", "CA certificates to put in")
	flag.Func("link", "symbolic link, as PATH=TARGET; may be repeated", func(s string) error {
		at, target, ok := strings.Cut(s, "=")
		if !ok {
			return errors.New("write it like /bin/sh=busybox")
		}
		o.links = append(o.links, link{at, target})
		return nil
	})
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "usage: image -o FILE -name NAME:TAG -entrypoint PATH SOURCE=PATH...")
		flag.PrintDefaults()
	}
	flag.Parse()
	for _, a := range flag.Args() {
		from, to, ok := strings.Cut(a, "=")
		if !ok {
			flag.Usage()
			os.Exit(2)
		}
		o.files = append(o.files, file{from, to})
	}
	if o.out == "" || o.name == "" || o.entrypoint == "" || len(o.files) == 0 {
		flag.Usage()
		os.Exit(2)
	}
	if err := write(o); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

// write makes the archive. It appears under its name when it is whole.
func write(o options) error {
	img, err := build(o)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp(filepath.Dir(o.out), ".image-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	p, err := layout.Write(filepath.Join(dir, "layout"), empty.Index)
	if err != nil {
		return err
	}
	_, tag, _ := strings.Cut(path.Base(o.name), ":")
	err = p.AppendImage(img, layout.WithAnnotations(map[string]string{
		"io.containerd.image.name":          o.name, // the full name, for `ctr images import`
		"org.opencontainers.image.ref.name": tag,
	}), layout.WithPlatform(v1.Platform{OS: "linux", Architecture: o.arch}))
	if err != nil {
		return err
	}
	archive := filepath.Join(dir, "archive")
	if err := pack(filepath.Join(dir, "layout"), archive); err != nil {
		return err
	}
	return os.Rename(archive, o.out)
}

// build returns the image: one layer and a configuration.
func build(o options) (v1.Image, error) {
	data, err := rootFS(o)
	if err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(data)), nil
	}, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	img, err := mutate.AppendLayers(mutate.MediaType(empty.Image, types.OCIManifestSchema1), layer)
	if err != nil {
		return nil, err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", o.arch
	config.Config = v1.Config{
		Entrypoint: []string{o.entrypoint},
		Env:        []string{"PATH=/usr/bin:/bin"},
		User:       fmt.Sprintf("%d:%d", User, User),
		Labels:     labels(o),
	}
	img, err = mutate.ConfigFile(img, config)
	if err != nil {
		return nil, err
	}
	return mutate.MediaType(mutate.ConfigMediaType(img, types.OCIConfigJSON), types.OCIManifestSchema1), nil
}

// labels says what the image is.
func labels(o options) map[string]string {
	return map[string]string{
		"org.opencontainers.image.title":    strings.TrimSuffix(path.Base(o.name), ":"+tagOf(o.name)),
		"org.opencontainers.image.version":  o.version,
		"org.opencontainers.image.licenses": "Apache-2.0",
	}
}

func tagOf(name string) string {
	_, tag, _ := strings.Cut(path.Base(name), ":")
	return tag
}

// rootFS returns the layer: everything is root's, read-only, of the year 1970.
func rootFS(o options) ([]byte, error) {
	contents := map[string]*tar.Header{}
	bodies := map[string][]byte{}
	add := func(name string, mode int64, body []byte) {
		contents[name] = &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: int64(len(body))}
		bodies[name] = body
	}
	for _, f := range o.files {
		body, err := readFile(f.from)
		if err != nil {
			return nil, err
		}
		add(strings.TrimPrefix(path.Clean(f.to), "/"), 0o555, body)
	}
	if o.caFile != "" {
		body, err := readFile(o.caFile)
		if err != nil {
			return nil, err
		}
		add("etc/ssl/certs/ca-certificates.crt", 0o444, body)
	}
	add("etc/passwd", 0o444, fmt.Appendf(nil, "root:x:0:0:root:/:/sbin/nologin\nnonroot:x:%d:%d:nonroot:/:/sbin/nologin\n", User, User))
	add("etc/group", 0o444, fmt.Appendf(nil, "root:x:0:\nnonroot:x:%d:\n", User))
	for _, l := range o.links {
		name := strings.TrimPrefix(path.Clean(l.at), "/")
		contents[name] = &tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: l.target, Mode: 0o777}
	}
	addDirs(contents)
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	names := make([]string, 0, len(contents))
	for name := range contents {
		names = append(names, name)
	}
	slices.Sort(names) // a folder before what is in it
	for _, name := range names {
		if err := w.WriteHeader(contents[name]); err != nil {
			return nil, err
		}
		if _, err := w.Write(bodies[name]); err != nil {
			return nil, err
		}
	}
	return buf.Bytes(), w.Close()
}

// addDirs adds the folders above all files, and /tmp.
func addDirs(contents map[string]*tar.Header) {
	dirs := map[string]int64{"tmp/": 0o1777}
	for name := range contents {
		for d := path.Dir(name); d != "."; d = path.Dir(d) {
			dirs[d+"/"] = 0o755
		}
	}
	for d, mode := range dirs {
		contents[d] = &tar.Header{Typeflag: tar.TypeDir, Name: d, Mode: mode}
	}
}

func readFile(name string) ([]byte, error) {
	st, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if st.Size() > maxFileBytes {
		return nil, fmt.Errorf("%s is larger than %d bytes", name, maxFileBytes)
	}
	return os.ReadFile(name)
}

// pack writes a layout directory as an archive, in an order of its own.
func pack(dir, to string) error {
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	w := tar.NewWriter(out)
	err = filepath.WalkDir(dir, func(name string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		body, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, name)
		if err != nil {
			return err
		}
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: filepath.ToSlash(rel), Mode: 0o444, Size: int64(len(body))}); err != nil {
			return err
		}
		_, err = w.Write(body)
		return err
	})
	return errors.Join(err, w.Close(), out.Close())
}
