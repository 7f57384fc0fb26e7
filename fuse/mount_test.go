package fuse

import (
	"bytes"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
)

// randomBytes returns n bytes that are the same for a seed.
func randomBytes(n int, seed uint64) []byte {
	r := rand.New(rand.NewPCG(seed, seed))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

func names(t testing.TB, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, e := range entries {
		name := e.Name()
		if e.IsDir() {
			name += "/"
		}
		all = append(all, name)
	}
	slices.Sort(all)
	return all
}

func TestReadListStat(t *testing.T) {
	o := newOrigin()
	big := randomBytes(5<<20+123, 1)
	o.put("data/big.bin", big)
	o.put("data/empty", nil)
	o.put("data/sub/x", []byte("x"))
	o.put("top", []byte("hello"))
	m := mount(t, o, nil)

	if got, want := names(t, m.dir), []string{"data/", "top"}; !slices.Equal(got, want) {
		t.Errorf("root holds %q, want %q", got, want)
	}
	if got, want := names(t, m.path("data")), []string{"big.bin", "empty", "sub/"}; !slices.Equal(got, want) {
		t.Errorf("data holds %q, want %q", got, want)
	}
	info, err := os.Stat(m.path("data/big.bin"))
	if err != nil || info.Size() != int64(len(big)) || info.Mode() != 0o444 || info.ModTime().Unix() != 1700000000 {
		t.Errorf("stat: %+v, %v", info, err)
	}
	got, err := os.ReadFile(m.path("data/big.bin"))
	if err != nil || !bytes.Equal(got, big) {
		t.Errorf("big.bin: %d bytes, equal %v, %v", len(got), bytes.Equal(got, big), err)
	}
	if got, err := os.ReadFile(m.path("data/empty")); err != nil || len(got) != 0 {
		t.Errorf("empty: %q, %v", got, err)
	}
	if got, err := os.ReadFile(m.path("data/sub/x")); err != nil || string(got) != "x" {
		t.Errorf("x: %q, %v", got, err)
	}
	if _, err := os.Stat(m.path("data/none")); !os.IsNotExist(err) {
		t.Errorf("stat of nothing: %v", err)
	}
	f, err := os.Open(m.path("data/big.bin"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	p := make([]byte, 10240)
	for off := int64(0); off < int64(len(big)); off += 10240 {
		n, err := f.ReadAt(p, off)
		if err != nil && err != io.EOF || !bytes.Equal(p[:n], big[off:off+int64(n)]) {
			t.Fatalf("read at %d: %d, %v", off, n, err)
		}
	}
}
