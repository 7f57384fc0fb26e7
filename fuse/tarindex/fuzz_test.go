package tarindex

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shardwell/shardwell/internal/chunk"
)

// truth is what archive/tar says of a tar, by the rules of this package for regular files.
func truth(b []byte) map[string][]byte {
	out := map[string][]byte{}
	r := tar.NewReader(bytes.NewReader(b))
	for {
		h, err := r.Next()
		if err != nil && !errors.Is(err, tar.ErrInsecurePath) {
			return out
		}
		path, reason := clean(h.Name)
		if reason != "" || h.Typeflag != tar.TypeReg || path == "" {
			continue
		}
		data, err := io.ReadAll(r)
		if err != nil {
			return out
		}
		out[path] = data
	}
}

func FuzzScan(f *testing.F) {
	f.Add(made(f, tar.Header{Name: "a", Size: 3}, tar.Header{Name: "b/c", Size: 600, Format: tar.FormatPAX, ModTime: time.Unix(1, 5)}))
	f.Add(made(f, tar.Header{Name: strings.Repeat("l", 200), Size: 3, Format: tar.FormatGNU}, tar.Header{Name: "h", Typeflag: tar.TypeLink, Linkname: "x"}))
	f.Add([]byte("\x1f\x8b"))
	f.Fuzz(func(t *testing.T, b []byte) {
		x := scan(t, b)
		want := truth(b)
		for path, e := range x.All() {
			if e.Dir {
				continue
			}
			if e.Off < 0 || e.Size < 0 || e.Off+e.Size > int64(len(b)) {
				t.Fatalf("%q lies at %d+%d of %d", path, e.Off, e.Size, len(b))
			}
			if strings.Contains("/"+path+"/", "/../") || path[0] == '/' {
				t.Fatalf("%q leads out", path)
			}
			if data, ok := want[path]; ok && len(want) == x.Files() && !bytes.Equal(data, b[e.Off:e.Off+e.Size]) {
				t.Fatalf("%q: %q, archive/tar says %q", path, b[e.Off:e.Off+e.Size], data)
			}
		}
		packed := encode(x, chunk.ObjectID{7})
		again, err := decode(packed, chunk.ObjectID{7}, int64(len(b)))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(encode(again, chunk.ObjectID{7}), packed) {
			t.Fatal("the index comes back as another")
		}
	})
}

// The short way through plain headers says what archive/tar says, or nothing.
func FuzzPlainHeader(f *testing.F) {
	f.Add(made(f, tar.Header{Name: "a", Size: 3})[:512], true)
	f.Add(made(f, tar.Header{Name: strings.Repeat("p", 120) + "/n", Size: 3, Format: tar.FormatUSTAR})[:512], true)
	f.Add(made(f, tar.Header{Name: "g", Size: 3, Format: tar.FormatGNU})[:512], true)
	f.Fuzz(func(t *testing.T, b []byte, mend bool) {
		block := make([]byte, 2*blockBytes)
		copy(block[:blockBytes], b)
		if mend {
			sum(block)
		}
		got, ok := plainHeader((*[blockBytes]byte)(block), 0)
		if !ok {
			return
		}
		want, err, failed := readHeader(bytes.NewReader(block), 0, 1<<40)
		if err != nil || failed != nil || got.name != want.name || got.size != want.size || got.data != want.data || got.next != want.next ||
			got.mtime != want.mtime || got.kind != want.kind {
			t.Fatalf("got %+v, archive/tar says %+v, %v, %v", got, want, err, failed)
		}
	})
}

func FuzzDecode(f *testing.F) {
	x := scan(f, made(f, tar.Header{Name: "a", Size: 3}, tar.Header{Name: "b/c", Size: 600}, tar.Header{Name: "../x"}))
	f.Add(encode(x, chunk.ObjectID{}), true)
	f.Fuzz(func(t *testing.T, b []byte, mend bool) {
		if mend && len(b) > 4 {
			c := chunk.Checksum(b[:len(b)-4])
			b = slices.Clone(b)
			b[len(b)-4], b[len(b)-3], b[len(b)-2], b[len(b)-1] = byte(c), byte(c>>8), byte(c>>16), byte(c>>24)
		}
		x, err := decode(b, chunk.ObjectID{}, 1<<20)
		if err != nil {
			return
		}
		for path, e := range x.All() {
			if e.Off < 0 || e.Size < 0 || e.Off+e.Size > 1<<20 || path == "" {
				t.Fatalf("%q lies at %d+%d", path, e.Off, e.Size)
			}
		}
	})
}

func BenchmarkScan(b *testing.B) {
	var hs []tar.Header
	for i := range 30000 {
		hs = append(hs, tar.Header{Name: fmt.Sprintf("%08d.%s", i/3, []string{"jpg", "cls", "json"}[i%3]), Size: 100, ModTime: time.Unix(1700000000, 0)})
	}
	data := made(b, hs...)
	b.ReportAllocs()
	for b.Loop() {
		s := NewScanner(int64(len(data)))
		if err := s.Scan(bytes.NewReader(data)); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(hs)), "ns/member")
}
