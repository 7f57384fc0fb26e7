package prefetch

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"math/rand/v2"
	"testing"
)

// block is what is fetched at least.
const block = 256 * kib

// outcome is what a reader cost and got.
type outcome struct {
	touched, fetched int64 // distinct blocks
	waits            int   // times that a reader had to ask for a block itself
	ranges           int   // asked for ahead
}

func (o outcome) amplification() float64 { return float64(o.fetched) / float64(o.touched) }

// simulate has a file read, with everything that is asked for coming at once.
func simulate(d *Detector, content map[int64][]byte, reads [][2]int64) (o outcome) {
	touched, here := map[int64]bool{}, map[int64]bool{}
	bring := func(r Range) {
		for b := r.Off / block; r.N > 0 && b*block < r.Off+r.N; b++ {
			here[b] = true
		}
		if r.N > 0 {
			o.ranges++
		}
	}
	for _, r := range reads {
		off, n := r[0], min(r[1], d.size-r[0])
		got := d.Read(off, n, 1<<40)
		missing := false
		for b := off / block; b*block < off+n; b++ {
			missing = missing || !here[b]
			touched[b], here[b] = true, true
		}
		if missing {
			o.waits++
		}
		bring(got)
		if data, ok := content[off]; ok {
			bring(d.Saw(off, data, 1<<40))
		}
	}
	o.touched, o.fetched = int64(len(touched)), int64(len(here))
	return o
}

// places returns count reads of n bytes in steps, each beginning somewhere in a file.
func places(seed uint64, size, n, step int64, count int) (reads [][2]int64) {
	r := rand.New(rand.NewPCG(seed, 5))
	for range count {
		at := r.Int64N(size - n)
		for off := at; off < at+n; off += step {
			reads = append(reads, [2]int64{off, min(step, at+n-off)})
		}
	}
	return reads
}

// interleave has several readers take turns on one descriptor.
func interleave(readers ...[][2]int64) (all [][2]int64) {
	for i := 0; ; i++ {
		before := len(all)
		for _, r := range readers {
			if i < len(r) {
				all = append(all, r[i])
			}
		}
		if len(all) == before {
			return all
		}
	}
}

func TestReaders(t *testing.T) {
	const shard, large = 100 * mib, 10 << 10 * mib
	head := func(data []byte) map[int64][]byte { return map[int64][]byte{0: data} }
	tarHead := tarOf(t)
	tests := map[string]struct {
		name          string
		size          int64
		content       map[int64][]byte
		reads         [][2]int64
		amplification float64
		waits         int
	}{
		// The first read is waited for, and nothing after it.
		"webdataset":                  {"a.tar", shard, head(tarHead), sequence(0, 10*kib, 10*kib, shard/10/kib), 1, 1},
		"webdataset, unnamed":         {"a", shard, head(tarHead), sequence(0, 64*kib, 64*kib, shard/64/kib), 1, 1},
		"sequential, unknown":         {"a", shard, nil, sequence(0, 128*kib, 128*kib, shard/128/kib), 1, 2},
		"a small file":                {"a.jpg", 900 * kib, nil, sequence(0, 64*kib, 64*kib, 15), 1, 1},
		"looked at only":              {"a", shard, nil, sequence(0, 64*kib, 0, 1), 1, 1},
		"a tar that is looked at":     {"a.tar", shard, head(tarHead), sequence(0, 64*kib, 0, 1), 9, 1},
		"random 4 KiB":                {"a.bin", large, nil, places(1, large, 4*kib, 4*kib, 3000), 1.01, 3000},
		"random 4 KiB, a tar":         {"a.tar", large, nil, places(2, large, 4*kib, 4*kib, 3000), 1.01, 3000},
		"random 1 MiB, in odd pieces": {"a.bin", large, nil, places(3, large, mib+4*kib, mib, 2000), 1.1, 4000},
		// wids: a sample of 300 KiB anywhere, in the kernel's steps.
		"samples by index": {"a.tar", large, nil, places(4, large, 300*kib, 64*kib, 2000), 1.15, 2100},
		// Columns of 8 MiB anywhere: asked for as a whole when a few were seen.
		"columns":       {"a.parquet", large, nil, places(5, large, 8*mib, mib, 500), 1.1, 600},
		"eight threads": {"a.bin", large, nil, interleave(threads(8, large)...), 1.1, 8 * 400},
		// A descriptor that is shared by readers of sections.
		"sections": {"a.bin", 8 * shard, nil, interleave(sections(8, shard)...), 1, 8 * 2},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			d := New(c.name, c.size)
			got := simulate(&d, c.content, c.reads)
			if got.amplification() > c.amplification || got.waits > c.waits {
				t.Errorf("amplification %.3f, want %.3f; waits %d, want %d; %+v", got.amplification(), c.amplification, got.waits, c.waits, got)
			}
		})
	}
}

// threads read a MiB each, anywhere.
func threads(n int, size int64) (all [][][2]int64) {
	for i := range n {
		all = append(all, places(uint64(100+i), size, mib, mib, 400))
	}
	return all
}

// sections are read in order, side by side.
func sections(n int, bytes int64) (all [][][2]int64) {
	for i := range int64(n) {
		all = append(all, sequence(i*bytes, 128*kib, 128*kib, bytes/128/kib))
	}
	return all
}

// A reader that jumped for long has a window again when it has read little in a row.
func TestSwitchesBack(t *testing.T) {
	const size = 10 << 10 * mib
	d := New("a.tar", size)
	simulate(&d, nil, places(9, size, 300*kib, 64*kib, 500))
	got := simulate(&d, nil, sequence(5<<10*mib, 128*kib, 128*kib, 800))
	if got.waits > 6 {
		t.Errorf("waited %d times in 100 MiB", got.waits)
	}
}

// The header, or the footer, is asked for as a whole as soon as its length is known.
func TestHeadersAndFooters(t *testing.T) {
	const size = 1 << 30
	safetensors := append(binary.LittleEndian.AppendUint64(nil, 5<<20), []byte(`{"a":{"dtype":"F32"`)...)
	safetensors = append(safetensors, make([]byte, 64<<10-len(safetensors))...)
	parquet := append(binary.LittleEndian.AppendUint32(make([]byte, 64<<10-8), 3<<20), []byte("PAR1")...)
	arrow := append(binary.LittleEndian.AppendUint32(make([]byte, 64<<10-10), 3<<20), []byte("ARROW1")...)
	directory := make([]byte, 64<<10)
	end := directory[len(directory)-22-7:] // a comment of 7 bytes behind it
	copy(end, "PK\x05\x06")
	binary.LittleEndian.PutUint32(end[12:], 3<<20)
	tests := map[string]struct {
		name string
		off  int64
		data []byte
		want Range
	}{
		"safetensors": {"m.safetensors", 0, safetensors, Range{Off: 64 << 10, N: 5<<20 + 8 - 64<<10}},
		"parquet":     {"t.parquet", size - 64<<10, parquet, Range{Off: size - 3<<20 - 8, N: 3<<20 + 8 - 64<<10}},
		"arrow":       {"t.arrow", size - 64<<10, arrow, Range{Off: size - 3<<20 - 10, N: 3<<20 + 10 - 64<<10}},
		"zip":         {"t.npz", size - 64<<10, directory, Range{Off: size - 3<<20 - 29, N: 3<<20 + 29 - 64<<10}},
		"nothing":     {"t", size - 64<<10, make([]byte, 64<<10), Range{}},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			d := New(c.name, size)
			if got := d.Read(c.off, int64(len(c.data)), 1<<30); got != (Range{}) {
				t.Errorf("before: asked for %+v", got)
			}
			if got := d.Saw(c.off, c.data, 1<<30); got != c.want {
				t.Errorf("asked for %+v, want %+v", got, c.want)
			}
		})
	}
}

func tarOf(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := w.WriteHeader(&tar.Header{Name: "000001.jpg", Size: 60 << 10, Mode: 0o644}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(make([]byte, 60<<10)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return append(b.Bytes(), make([]byte, 64<<10)...)[:64<<10]
}

func TestKinds(t *testing.T) {
	record := binary.LittleEndian.AppendUint64(nil, 1000)
	crc := crc32.Checksum(record, crc32.MakeTable(crc32.Castagnoli))
	record = binary.LittleEndian.AppendUint32(record, (crc>>15|crc<<17)+0xa282ead8)
	var zipped bytes.Buffer
	z := zip.NewWriter(&zipped)
	if _, err := z.Create("x.npy"); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	damaged := tarOf(t)
	damaged[3] ^= 1
	tests := map[string]struct {
		name string
		head []byte
		want Kind
	}{
		"tar":                          {"noname", tarOf(t), Tar},
		"no tar by its sum":            {"x", damaged, Unknown},
		"named as something else":      {"x.parquet", tarOf(t), Tar},
		"an empty tar keeps its name":  {"x.tar", make([]byte, 1024), Unknown},
		"record":                       {"x", record, Records},
		"record's name":                {"train.tfrecord-00001-of-00128", nil, Records},
		"zip":                          {"x", zipped.Bytes(), Zip},
		"parquet":                      {"x", []byte("PAR1 and so on"), Parquet},
		"hdf5":                         {"x", []byte("\x89HDF\r\n\x1a\n"), HDF5},
		"safetensors":                  {"x", append(binary.LittleEndian.AppendUint64(nil, 100), '{'), Safetensors},
		"a length beyond the file":     {"x", append(binary.LittleEndian.AppendUint64(nil, 1<<40), '{'), Unknown},
		"zstandard":                    {"x", []byte("\x28\xb5\x2f\xfd...."), Compressed},
		"a name in capitals":           {"X.TAR", nil, Tar},
		"text":                         {"x", []byte("hello"), Unknown},
		"text that is named parquet":   {"x.parquet", []byte("hello"), Parquet},
		"text that is named as a tar":  {"x.tar", bytes.Repeat([]byte("hello"), 200), Unknown},
		"a checkpoint by its old name": {"x.ckpt", nil, Zip},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			head := append(c.head, bytes.Repeat([]byte("."), max(0, SniffBytes-len(c.head)))...)
			d := New(c.name, 1<<30)
			if c.head != nil {
				d.Saw(0, head, 1<<30)
			}
			if d.Kind() != c.want {
				t.Errorf("is %v, want %v", d.Kind(), c.want)
			}
		})
	}
}
