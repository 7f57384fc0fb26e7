package tarindex

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shardwell/shardwell/internal/chunk"
)

// made is a tar of headers, whose bodies are made up.
func made(t testing.TB, headers ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for i := range headers {
		h := headers[i]
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatalf("%q: %v", h.Name, err)
		}
		if _, err := w.Write(body(h.Name+h.Linkname, h.Size)); err != nil {
			t.Fatalf("%q: %v", h.Name, err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func body(name string, n int64) []byte {
	return bytes.Repeat([]byte(name+"."), int(n)/(len(name)+1)+1)[:n]
}

func scan(t testing.TB, b []byte) *Index {
	t.Helper()
	s := NewScanner(int64(len(b)))
	if err := s.Scan(bytes.NewReader(b)); err != nil {
		t.Fatal(err)
	}
	return s.Index()
}

// paths lists what an index shows, in order; directories end with a slash.
func paths(x *Index) (all []string) {
	for path, e := range x.All() {
		if e.Dir {
			path += "/"
		}
		all = append(all, path)
	}
	return all
}

func reasons(x *Index) (all []string) {
	_, left := x.LeftOut()
	for _, l := range left {
		all = append(all, l.Name+": "+l.Reason)
	}
	return all
}

func wantPaths(t *testing.T, x *Index, want ...string) {
	t.Helper()
	if err := x.Err(); err != nil {
		t.Fatal(err)
	}
	if got := paths(x); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func wantBytes(t *testing.T, x *Index, b []byte, path string, want []byte) {
	t.Helper()
	n, ok := x.Find(path)
	e := x.Entry(n)
	if !ok || e.Dir {
		t.Fatalf("%q: found %v, %+v", path, ok, e)
	}
	if got := b[e.Off : e.Off+e.Size]; !bytes.Equal(got, want) {
		t.Errorf("%q: got %q, want %q", path, got[:min(len(got), 80)], want[:min(len(want), 80)])
	}
}

func TestSamplesStayInOrder(t *testing.T) {
	at := time.Unix(1700000000, 0)
	var hs []tar.Header
	var want []string
	for i := range 50 {
		for _, ext := range [...]string{"jpg", "cls", "json"} {
			name := fmt.Sprintf("train/%04d.%s", 49-i, ext)
			hs, want = append(hs, tar.Header{Name: name, Size: int64(i * 37), ModTime: at}), append(want, name)
		}
	}
	b := made(t, hs...)
	x := scan(t, b)
	wantPaths(t, x, want...)
	dir, _ := x.Find("train")
	if n := x.Len(dir); n != len(want) || x.Files() != len(want) {
		t.Errorf("%d entries, %d files", n, x.Files())
	}
	for i, name := range want {
		if got := "train/" + x.Entry(x.At(dir, i)).Name; got != name {
			t.Errorf("entry %d is %q, want %q", i, got, name)
		}
		wantBytes(t, x, b, name, body(name, hs[i].Size))
	}
	if e := x.Entry(x.At(dir, 0)); !e.ModTime.Equal(at) {
		t.Errorf("time %v, want %v", e.ModTime, at)
	}
}

// What Go's, GNU's and Python's writers make, in all their formats.
func TestFormats(t *testing.T) {
	long := strings.Repeat("d/", 120) + strings.Repeat("n", 200)
	split := strings.Repeat("p", 120) + "/" + strings.Repeat("n", 60) // fits ustar's prefix and name
	precise := time.Unix(1700000000, 123456789)
	for _, f := range []tar.Format{tar.FormatUSTAR, tar.FormatPAX, tar.FormatGNU} {
		hs := []tar.Header{{Name: "a", Size: 5, Format: f}, {Name: split, Size: 700, Format: f}, {Name: "z", Size: 512, Format: f}}
		if f != tar.FormatUSTAR {
			hs = append(hs, tar.Header{Name: long, Size: 600, Format: f}, tar.Header{Name: "\u00e9\xff", Size: 3, Format: tar.FormatGNU})
		}
		if f == tar.FormatPAX {
			hs = append(hs, tar.Header{Name: "timed", Size: 9, ModTime: precise, Format: f},
				tar.Header{Name: "attributed", Size: 9, PAXRecords: map[string]string{"SCHILY.xattr.user.x": "1"}, Format: f})
		}
		hs = append(hs, tar.Header{Name: "last", Size: 1, Format: f})
		b := made(t, hs...)
		x := scan(t, b)
		for _, h := range hs {
			wantBytes(t, x, b, h.Name, body(h.Name, h.Size))
		}
		if x.Files() != len(hs) || x.Damage() != "" {
			t.Errorf("%v: %d files, damage %q", f, x.Files(), x.Damage())
		}
	}
}

func TestToolsFormats(t *testing.T) {
	if _, err := exec.LookPath("tar"); err != nil {
		skip(t, "no tar on this machine")
	}
	dir := t.TempDir()
	files := map[string][]byte{"a.txt": body("a", 3000), "sub/b": nil, strings.Repeat("l", 150): body("l", 10), "z": body("z", 1<<20)}
	for name, data := range files {
		path := filepath.Join(dir, "in", name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, data, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	for _, format := range []string{"v7", "oldgnu", "gnu", "ustar", "posix"} {
		out := filepath.Join(dir, format+".tar")
		cmd := exec.Command("tar", "--format="+format, "-C", filepath.Join(dir, "in"), "-cf", out, ".")
		text, err := cmd.CombinedOutput()
		bare := format == "v7" || format == "ustar" // have no room for the long name, and leave it out
		if err != nil && !bare {
			t.Fatalf("%s: %v: %s", format, err, text)
		}
		b, err := os.ReadFile(out)
		if err != nil {
			t.Fatal(err)
		}
		x := scan(t, b)
		for name, data := range files {
			if bare && len(name) > 100 {
				continue
			}
			wantBytes(t, x, b, name, data)
		}
		if x.Damage() != "" {
			t.Errorf("%s: %s", format, x.Damage())
		}
	}
}

// FAULTS: names that lead out, links that point out, devices, duplicates.
func TestWhatIsShown(t *testing.T) {
	b := made(t,
		tar.Header{Name: "../../x", Size: 3}, tar.Header{Name: "a/../b", Size: 3},
		tar.Header{Name: "/etc/passwd", Size: 4}, tar.Header{Name: "./here", Size: 4}, tar.Header{Name: "d//e/./f", Size: 2},
		tar.Header{Name: "twice", Size: 5}, tar.Header{Name: "between", Size: 1}, tar.Header{Name: "twice", Size: 6},
		tar.Header{Name: "hard", Typeflag: tar.TypeLink, Linkname: "./twice"},
		tar.Header{Name: "early", Typeflag: tar.TypeLink, Linkname: "late"}, tar.Header{Name: "late", Size: 2},
		tar.Header{Name: "out", Typeflag: tar.TypeSymlink, Linkname: "/etc/shadow"},
		tar.Header{Name: "hardout", Typeflag: tar.TypeLink, Linkname: "../../etc/shadow"},
		tar.Header{Name: "dev", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3}, tar.Header{Name: "fifo", Typeflag: tar.TypeFifo},
		tar.Header{Name: "empty/", Typeflag: tar.TypeDir}, tar.Header{Name: "file", Size: 1}, tar.Header{Name: "file/below", Size: 1},
		tar.Header{Name: "d/e", Size: 1}, tar.Header{Name: strings.Repeat("n", 256), Size: 1, Format: tar.FormatPAX},
		tar.Header{Name: ".", Size: 3},
	)
	x := scan(t, b)
	wantPaths(t, x, "etc/passwd", "here", "d/e/f", "between", "twice", "hard", "late", "empty/", "file/below")
	wantBytes(t, x, b, "twice", body("twice", 6))
	wantBytes(t, x, b, "hard", body("twice", 6))
	want := []string{"../../x: " + reasonParent, "a/../b: " + reasonParent, "early: " + reasonNoTarget, "out: " + reasonSymlink,
		"hardout: " + reasonNoTarget, "dev: " + reasonSpecial, "fifo: " + reasonSpecial, "file: " + reasonIsDir, "d/e: " + reasonIsDir,
		strings.Repeat("n", 255) + ": " + reasonLong, ".: " + reasonNoName}
	if got := reasons(x); !slices.Equal(got, want) {
		t.Errorf("left out: got %q, want %q", got, want)
	}
}

// sparseTar is a tar with members in one of GNU's sparse forms, as GNU tar makes them.
func sparseTar(t *testing.T, options ...string) []byte {
	t.Helper()
	if _, err := exec.LookPath("tar"); err != nil {
		skip(t, "no tar on this machine")
	}
	dir := t.TempDir()
	f, err := os.Create(filepath.Join(dir, "holes"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range int64(40) { // more than fit one header
		if _, err := f.WriteAt(body("data", 4096), i<<20); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(f.Close(), os.WriteFile(filepath.Join(dir, "a"), []byte("before"), 0o644),
		os.WriteFile(filepath.Join(dir, "z"), []byte("behind"), 0o644)); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(dir, "x.tar")
	args := append([]string{"-S", "-C", dir, "-cf", out}, options...)
	if text, err := exec.Command("tar", append(args, "a", "holes", "z")...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	b, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	if len(b) > 4<<20 {
		skip(t, "the file system of this machine has no holes")
	}
	return b
}

func TestSparseMembersAreLeftOut(t *testing.T) {
	for _, options := range [][]string{{"--format=gnu"}, {"--format=posix", "--sparse-version=0.0"},
		{"--format=posix", "--sparse-version=0.1"}, {"--format=posix", "--sparse-version=1.0"}} {
		b := sparseTar(t, options...)
		x := scan(t, b)
		wantPaths(t, x, "a", "z")
		wantBytes(t, x, b, "a", []byte("before"))
		wantBytes(t, x, b, "z", []byte("behind"))
		if got := reasons(x); len(got) != 1 || !strings.HasSuffix(got[0], reasonSparse) || x.Damage() != "" {
			t.Errorf("%v: left out %q, damage %q", options, got, x.Damage())
		}
	}
}

func TestRefusals(t *testing.T) {
	for _, c := range []struct {
		name string
		b    []byte
		want error
		text string
	}{
		{"empty", nil, ErrNotTar, "not a tar"},
		{"short", []byte("hello"), ErrNotTar, "not a tar"},
		{"text", bytes.Repeat([]byte("hello "), 1000), ErrNotTar, "not a tar"},
		{"gzip", append([]byte("\x1f\x8b\x08"), make([]byte, 2000)...), ErrCompressed, "gzip: compressed"},
		{"short gzip", []byte("\x1f\x8b\x08abc"), ErrCompressed, "gzip: compressed"},
		{"zstd", append([]byte("\x28\xb5\x2f\xfd"), make([]byte, 600)...), ErrCompressed, "zstd: compressed"},
	} {
		x := scan(t, c.b)
		if err := x.Err(); !errors.Is(err, c.want) || !strings.HasPrefix(err.Error(), c.text) {
			t.Errorf("%s: got %v, want %v", c.name, err, c.want)
		}
		again, err := decode(encode(x, chunk.ObjectID{1}), chunk.ObjectID{1}, int64(len(c.b)))
		if err != nil || again.Err().Error() != x.Err().Error() {
			t.Errorf("%s: came back as %v, %v", c.name, again, err)
		}
	}
	if x := scan(t, make([]byte, 10240)); x.Err() != nil || x.Files() != 0 {
		t.Errorf("an empty tar: %v", x.Err())
	}
}

// What comes before a damage is readable.
func TestDamagedTars(t *testing.T) {
	whole := made(t, tar.Header{Name: "a", Size: 600}, tar.Header{Name: "b", Size: 700}, tar.Header{Name: "c", Size: 5})
	second := int64(512 + 1024)
	cut := func(n int64) []byte { return whole[:n] }
	flipped := slices.Clone(whole)
	flipped[second+3] ^= 1
	huge := slices.Clone(whole)
	copy(huge[second+124:], "77777777777\x00")
	sum(huge[second:])
	beyond := slices.Clone(whole)
	copy(beyond[second+124:], []byte{0x80, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}) // 2^63 - 1
	sum(beyond[second:])
	for _, c := range []struct {
		name   string
		b      []byte
		paths  []string
		damage string
	}{
		{"in a header", cut(second + 100), []string{"a"}, "in the middle of a header"},
		{"in a member", cut(second + 512 + 10), []string{"a"}, "in the middle of a member"},
		{"in a member's padding", cut(second + 512 + 701), []string{"a", "b"}, ""},
		{"between members", cut(second), []string{"a"}, ""},
		{"flipped bit", flipped, []string{"a"}, fmt.Sprintf("at byte %d", second)},
		{"lying size", huge, []string{"a"}, "in the middle of a member"},
		{"size of 2^63-1", beyond, []string{"a"}, "in the middle of a member"},
	} {
		x := scan(t, c.b)
		if got := paths(x); !slices.Equal(got, c.paths) || !strings.Contains(x.Damage(), c.damage) || (c.damage == "") != (x.Damage() == "") {
			t.Errorf("%s: got %q, damage %q; want %q, %q", c.name, got, x.Damage(), c.paths, c.damage)
		}
	}
}

// FAULTS: megabyte PAX headers: those that archive/tar takes are read, larger ones end the index.
func TestLargeRecords(t *testing.T) {
	record := func(n int) tar.Header {
		return tar.Header{Name: "large", Size: 3, Format: tar.FormatPAX, PAXRecords: map[string]string{"VENDOR.x": strings.Repeat("x", n)}}
	}
	b := made(t, tar.Header{Name: "a", Size: 1}, record(1<<20-4096), tar.Header{Name: "z", Size: 1})
	wantPaths(t, scan(t, b), "a", "large", "z")
	b = made(t, tar.Header{Name: "a", Size: 1}, record(1<<19))
	i := bytes.Index(b, []byte("xxxx")) // make it larger than its writer would
	long := slices.Concat(b[:i], bytes.Repeat([]byte("x"), 1<<20), b[i:])
	copy(long[1024+atSize:], fmt.Sprintf("%011o\x00", 2<<20))
	sum(long[1024:])
	x := scan(t, long)
	wantPaths(t, x, "a")
	if !strings.Contains(x.Damage(), "more than 1 MiB") {
		t.Errorf("damage %q", x.Damage())
	}
}

// sum puts the right checksum into a header block.
func sum(b []byte) {
	copy(b[atSum:atSum+8], "        ")
	n := 0
	for _, c := range b[:blockBytes] {
		n += int(c)
	}
	copy(b[atSum:], fmt.Sprintf("%06o\x00 ", n))
}

// endless is a tar without an end: what it reads is made when it is asked for.
type endless struct {
	block func(at int64) []byte
	reads int
}

func (e *endless) ReadAt(p []byte, off int64) (int, error) {
	e.reads++
	for done := 0; done < len(p); {
		b := e.block((off + int64(done)) &^ (blockBytes - 1))
		done += copy(p[done:], b[(off+int64(done))%blockBytes:])
	}
	return len(p), nil
}

// FAULTS: endless headers, millions of members: memory is bounded.
func TestMaliciousTarsTakeBoundedMemory(t *testing.T) {
	base := made(t, tar.Header{Name: strings.Repeat("x", 90), Size: 0})[:blockBytes]
	many := &endless{block: func(at int64) []byte {
		b := slices.Clone(base)
		copy(b, fmt.Sprintf("%030d", at/blockBytes))
		sum(b)
		return b
	}}
	s := NewScanner(chunk.MaxObjectBytes)
	if err := s.Scan(many); err != nil {
		t.Fatal(err)
	}
	if x := s.Index(); !errors.Is(x.Err(), ErrTooLarge) || x.Bytes() > 1<<20 {
		t.Errorf("millions of members: %v, %d bytes", x.Err(), x.Bytes())
	}
	if limit := MaxIndexBytes/nodeBytes + 10; many.reads > limit {
		t.Errorf("%d headers were read, want at most %d", many.reads, limit)
	}

	chain := slices.Clone(made(t, tar.Header{Name: strings.Repeat("l", 300), Size: 0, Format: tar.FormatGNU})[:blockBytes])
	copy(chain[atSize:], "00000000000\x00")
	sum(chain)
	if chain[atKind] != tar.TypeGNULongName {
		t.Fatalf("kind %q", chain[atKind])
	}
	long := &endless{block: func(int64) []byte { return chain }}
	s = NewScanner(chunk.MaxObjectBytes)
	if err := s.Scan(long); err != nil {
		t.Fatal(err)
	}
	if x := s.Index(); !errors.Is(x.Err(), ErrNotTar) || long.reads > 2*maxHeaderBytes/blockBytes {
		t.Errorf("endless headers: %v after %d reads", x.Err(), long.reads)
	}
}

// errElsewhere is what a reader says of bytes that it lacks.
var errElsewhere = errors.New("elsewhere")

// pieces is a tar of which only some blocks are at hand.
type pieces struct {
	b    []byte
	size int
	here map[int]bool
}

func (p pieces) ReadAt(b []byte, off int64) (int, error) {
	for i := int(off) / p.size; i <= (int(off)+len(b)-1)/p.size; i++ {
		if !p.here[i] {
			return 0, errElsewhere
		}
	}
	return copy(b, p.b[off:]), nil
}

// One tar gives one index, in whichever pieces its bytes come.
func TestScanGoesOn(t *testing.T) {
	hs := []tar.Header{{Name: strings.Repeat("long/", 300), Typeflag: tar.TypeDir, Format: tar.FormatPAX}}
	for i := range 200 {
		hs = append(hs, tar.Header{Name: fmt.Sprintf("%d/%s", i, strings.Repeat("x", i)), Size: int64(i * i), Format: tar.FormatPAX,
			ModTime: time.Unix(1700000000, int64(i%2))})
	}
	b := made(t, hs...)
	want := encode(scan(t, b), chunk.ObjectID{})
	p := pieces{b: b, size: 1024, here: map[int]bool{}}
	s := NewScanner(int64(len(b)))
	stops := 0
	for !s.Done() {
		err := s.Scan(p)
		if err == nil {
			break
		}
		if err != errElsewhere {
			t.Fatal(err)
		}
		stops++
		// The next headers may take several pieces.
		for i := int(s.Next()) / p.size; ; i++ {
			if !p.here[i] {
				p.here[i] = true
				break
			}
		}
	}
	if got := encode(s.Index(), chunk.ObjectID{}); !bytes.Equal(got, want) {
		t.Error("the index of pieces differs from that of the whole")
	}
	if stops == 0 || len(p.here) == (len(b)+p.size-1)/p.size {
		t.Errorf("%d stops, %d pieces: all were read", stops, len(p.here))
	}
}

// skip ends a test that this machine cannot run; on CI it fails.
func skip(t *testing.T, why string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatal(why)
	}
	t.Skip(why)
}
