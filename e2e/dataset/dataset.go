// Package dataset makes the bytes that the end-to-end tests read: large objects
// of random bytes that need no memory to be compared, a tree of files, a
// WebDataset of real photographs and a real model.
//
// Everything is made from a seed and is the same each time. It is a part of the
// end-to-end tests.
package dataset

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// pageBytes is the unit in which a [Random] is made.
const pageBytes = 64 << 10

// Random is an object of random bytes, made as they are asked for.
type Random struct {
	Seed uint64
	Size int64 // bytes
}

// ReadAt implements io.ReaderAt.
func (r Random) ReadAt(p []byte, off int64) (int, error) {
	var page [pageBytes]byte
	n := 0
	for n < len(p) && off < r.Size {
		r.page(&page, off/pageBytes)
		at := off % pageBytes
		m := copy(p[n:], page[at:min(pageBytes, at+r.Size-off)])
		n += m
		off += int64(m)
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (r Random) page(page *[pageBytes]byte, index int64) {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], r.Seed)
	binary.LittleEndian.PutUint64(key[8:], uint64(index))
	_, _ = rand.NewChaCha8(key).Read(page[:]) // never fails
}

// Reader returns a reader of the whole object.
func (r Random) Reader() *io.SectionReader { return io.NewSectionReader(r, 0, r.Size) }

// Bytes returns the whole object.
func (r Random) Bytes() []byte {
	b := make([]byte, r.Size)
	_, _ = r.ReadAt(b, 0) // never short
	return b
}

// compareBytes is how much Compare reads at a time.
const compareBytes = 1 << 20

// Compare reads got from its start to its end and tells where it first differs
// from the size bytes of want, or whether it is shorter or longer.
func Compare(got io.Reader, want io.ReaderAt, size int64) error {
	a, b := make([]byte, compareBytes), make([]byte, compareBytes)
	for off := int64(0); ; {
		n, err := io.ReadFull(got, a)
		if off+int64(n) > size {
			return fmt.Errorf("longer than %d bytes", size)
		}
		if _, err := want.ReadAt(b[:n], off); err != nil && n > 0 && err != io.EOF {
			return err
		}
		if !bytes.Equal(a[:n], b[:n]) {
			return fmt.Errorf("differs at byte %d: %s", off+int64(firstDifference(a[:n], b[:n])), describe(a[:n], b[:n]))
		}
		off += int64(n)
		switch {
		case err == nil:
		case err == io.EOF || err == io.ErrUnexpectedEOF:
			if off < size {
				return fmt.Errorf("ends after %d of %d bytes", off, size)
			}
			return nil
		default:
			return fmt.Errorf("at byte %d: %w", off, err)
		}
	}
}

func firstDifference(a, b []byte) int {
	for i := range a {
		if a[i] != b[i] {
			return i
		}
	}
	return len(a)
}

// describe tells zeros, the most telling of wrong bytes, from others.
func describe(got, want []byte) string {
	i := firstDifference(got, want)
	end := min(len(got), i+16)
	note := ""
	if len(bytes.Trim(got[i:end], "\x00")) == 0 {
		note = " (zeros)"
	}
	return fmt.Sprintf("got % x%s, want % x", got[i:end], note, want[i:end])
}

// CompareFile compares the file at path with want.
func CompareFile(path string, want Random) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := Compare(f, want, want.Size); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// Tree writes a directory tree of files of many sizes and returns the sum of their bytes.
func Tree(dir string, seed uint64) (int64, error) {
	rng := rand.New(rand.NewPCG(seed, 1))
	sizes := []int64{0, 1, 511, 4096, 65535, 256 << 10, 256<<10 + 1, 1 << 20, 3<<20 + 17, 8 << 20, 17<<20 + 5}
	var sum int64
	for i := range 60 {
		size := sizes[i%len(sizes)]
		if i >= 2*len(sizes) {
			size = rng.Int64N(300_000)
		}
		parts := []string{dir}
		for range rng.IntN(4) {
			parts = append(parts, []string{"train", "val", "a b", "ünï", "deep-er"}[rng.IntN(5)])
		}
		path := filepath.Join(append(parts, fmt.Sprintf("part-%03d.bin", i))...)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return 0, err
		}
		if err := os.WriteFile(path, Random{Seed: seed + uint64(i), Size: size}.Bytes(), 0o644); err != nil {
			return 0, err
		}
		sum += size
	}
	return sum, nil
}

// makeTime bounds a Python program that makes files.
const makeTime = 5 * time.Minute

// WebDataset writes tars of real photographs into dir and returns their sizes by
// name. The manifest of digests is dir/manifest.json.
func WebDataset(python, scripts, pictures, dir string, seed uint64, samples, shards int) (map[string]int64, error) {
	err := script(python, filepath.Join(scripts, "make_wds.py"), dir, pictures,
		strconv.FormatUint(seed, 10), strconv.Itoa(samples), strconv.Itoa(shards))
	if err != nil {
		return nil, err
	}
	tars, err := filepath.Glob(filepath.Join(dir, "*.tar"))
	if err != nil {
		return nil, err
	}
	sizes := make(map[string]int64)
	for _, t := range tars {
		info, err := os.Stat(t)
		if err != nil {
			return nil, err
		}
		sizes[filepath.Base(t)] = info.Size()
	}
	return sizes, nil
}

// Model writes the model in the formats that model.py reads.
func Model(python, scripts, safetensors, dir string) error {
	return script(python, filepath.Join(scripts, "make_model.py"), safetensors, dir)
}

func script(python string, args ...string) error {
	cmd := exec.Command(python, args...)
	t := time.AfterFunc(makeTime, func() { _ = cmd.Process.Kill() })
	defer t.Stop()
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("dataset: %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}

// Report is what the Python readers print.
type Report struct {
	Members int      `json:"members"`
	Tensors int      `json:"tensors"`
	Wrong   []string `json:"wrong"`
}

// ParseReport reads the last line of a reader's output.
func ParseReport(out string) (Report, error) {
	lines := strings.Split(strings.TrimSpace(out), "\n")
	var r Report
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &r); err != nil {
		return r, fmt.Errorf("dataset: report: %w in %q", err, out)
	}
	return r, nil
}

// Tiled is an object of repeated random bytes: cheap to make, for measurements in
// which the origin must not be the limit. Objects with different Shift differ.
type Tiled struct {
	Tile  []byte
	Shift int64
	Size  int64 // bytes
}

// ReadAt implements io.ReaderAt.
func (t Tiled) ReadAt(p []byte, off int64) (int, error) {
	n := 0
	for n < len(p) && off < t.Size {
		at := (off + t.Shift) % int64(len(t.Tile))
		m := copy(p[n:min(int64(len(p)), int64(n)+t.Size-off)], t.Tile[at:])
		n += m
		off += int64(m)
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}
