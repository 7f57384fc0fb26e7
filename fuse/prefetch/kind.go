package prefetch

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"path"
	"strings"
)

// Kind is what a file is, as far as that says how it will be read.
type Kind uint8

// The kinds of files that are told apart.
const (
	Unknown     Kind = iota
	Tar              // in order, member after member
	Records          // in order: TFRecord
	Compressed       // in order, as nothing can be found in it otherwise
	Safetensors      // a header whose length is known, then tensors
	Parquet          // a footer whose length is known, then columns
	Arrow            // the same, then batches
	Zip              // a directory at the end, then members: npz, PyTorch's checkpoints
	HDF5             // anywhere
	numKinds
)

var kindNames = [numKinds]string{"unknown", "tar", "tfrecord", "compressed", "safetensors", "parquet", "arrow", "zip", "hdf5"}

func (k Kind) String() string { return kindNames[k%numKinds] }

// inOrder reports whether such files are made to be read from the start to the end.
func (k Kind) inOrder() bool { return k == Tar || k == Records || k == Compressed }

// jumps reports whether readers of such files look up where to read.
func (k Kind) jumps() bool { return k >= Safetensors }

var kindsByExtension = map[string]Kind{
	".tar": Tar, ".tfrecord": Records, ".tfrecords": Records,
	".gz": Compressed, ".tgz": Compressed, ".zst": Compressed, ".xz": Compressed, ".bz2": Compressed, ".lz4": Compressed,
	".safetensors": Safetensors, ".parquet": Parquet, ".arrow": Arrow, ".feather": Arrow,
	".zip": Zip, ".npz": Zip, ".pt": Zip, ".pth": Zip, ".ckpt": Zip,
	".h5": HDF5, ".hdf5": HDF5,
}

// KindOfName returns what a file with such a name most likely is.
func KindOfName(name string) Kind {
	base := strings.ToLower(path.Base(name))
	if k, ok := kindsByExtension[path.Ext(base)]; ok {
		return k
	}
	if strings.Contains(base, ".tfrecord") { // data.tfrecord-00017-of-01024
		return Records
	}
	return Unknown
}

// What headers and footers may be, in bytes; beyond it they are taken for damaged.
const (
	maxHeaderBytes = 100 << 20 // safetensors' own limit
	maxFooterBytes = 256 << 20
)

// SniffBytes of its head are enough to tell the kind of a file.
const SniffBytes = 512

// Saw takes note of the bytes of a read at off that was served, and returns what to ask for
// now that more is known: the header of the file, its footer, or the next bytes of
// one that is read in order. Reads elsewhere than at the start and the end tell nothing.
func (d *Detector) Saw(off int64, data []byte, limit int64) Range {
	switch {
	case len(data) == 0 || limit <= 0:
		return Range{}
	case off == 0 && !d.sniffed:
		return d.sawHead(data, limit)
	case off+int64(len(data)) == d.size:
		return d.sawTail(off, data, limit)
	}
	return Range{}
}

func (d *Detector) sawHead(head []byte, limit int64) Range {
	if len(head) < SniffBytes && int64(len(head)) < d.size {
		return Range{}
	}
	d.sniffed = true
	named := d.kind
	if d.kind = sniff(head, d.size); d.kind == Unknown && !named.inOrder() {
		d.kind = named
	}
	if d.kind == Safetensors {
		if n := headerBytes(head, d.size); n > int64(len(head)) {
			return Range{Off: int64(len(head)), N: min(n-int64(len(head)), limit)}
		}
	}
	if s := &d.streams[0]; d.clock == 1 && d.kind != named && s.reads == 1 {
		return d.ask(s, limit) // it was the first read, and nothing was asked for yet
	}
	return Range{}
}

func (d *Detector) sawTail(off int64, tail []byte, limit int64) Range {
	n := footerBytes(tail)
	if n <= int64(len(tail)) || n > min(d.size, maxFooterBytes) {
		return Range{}
	}
	from := d.size - n
	return Range{Off: from, N: min(off-from, limit)}
}

// sniff returns what the first bytes of a file of size bytes tell of it.
func sniff(head []byte, size int64) Kind {
	for _, m := range [...]struct {
		magic string
		kind  Kind
	}{
		{"PAR1", Parquet}, {"PARE", Parquet}, {"ARROW1", Arrow}, {"PK\x03\x04", Zip}, {"PK\x05\x06", Zip},
		{"\x89HDF\r\n\x1a\n", HDF5}, {"\x1f\x8b", Compressed}, {"\x28\xb5\x2f\xfd", Compressed},
		{"\xfd7zXZ\x00", Compressed}, {"BZh", Compressed}, {"\x04\x22\x4d\x18", Compressed},
	} {
		if bytes.HasPrefix(head, []byte(m.magic)) {
			return m.kind
		}
	}
	switch {
	case isTar(head):
		return Tar
	case headerBytes(head, size) > 0:
		return Safetensors
	case isRecord(head):
		return Records
	}
	return Unknown
}

// isTar reports whether a tar's header comes first: its checksum, the same in all
// dialects, is right.
func isTar(head []byte) bool {
	const sumAt, sumBytes = 148, 8
	if len(head) < 512 || head[0] == 0 {
		return false
	}
	sum, want, digits := 0, 0, 0
	for i, c := range head[:512] {
		if i >= sumAt && i < sumAt+sumBytes {
			c = ' '
		}
		sum += int(c)
	}
	for _, c := range head[sumAt : sumAt+sumBytes] {
		switch {
		case c >= '0' && c <= '7':
			want, digits = want<<3|int(c-'0'), digits+1
		case digits > 0:
			return sum == want
		}
	}
	return digits > 0 && sum == want
}

// headerBytes returns how long the header of a safetensors file is, its length included, or 0.
func headerBytes(head []byte, size int64) int64 {
	if len(head) < 9 || head[8] != '{' {
		return 0
	}
	n := binary.LittleEndian.Uint64(head)
	if n < 2 || n > maxHeaderBytes || int64(n)+8 > size {
		return 0
	}
	return int64(n) + 8
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// isRecord reports whether a record of a TFRecord file comes first: a length and its checksum.
func isRecord(head []byte) bool {
	if len(head) < 12 {
		return false
	}
	crc := crc32.Checksum(head[:8], castagnoli)
	return binary.LittleEndian.Uint32(head[8:]) == (crc>>15|crc<<17)+0xa282ead8
}

// footerBytes returns how many bytes at the end of a file readers look at first, as its last
// bytes tell, or 0.
func footerBytes(tail []byte) int64 {
	end := len(tail)
	switch {
	case end >= 8 && (bytes.HasSuffix(tail, []byte("PAR1")) || bytes.HasSuffix(tail, []byte("PARE"))):
		return int64(binary.LittleEndian.Uint32(tail[end-8:])) + 8
	case end >= 10 && bytes.HasSuffix(tail, []byte("ARROW1")):
		return int64(binary.LittleEndian.Uint32(tail[end-10:])) + 10
	}
	const recordBytes, sizeAt = 22, 12 // the end of a zip's directory; behind it only a comment
	for at := end - recordBytes; at >= max(0, end-recordBytes-1<<16); at-- {
		if bytes.HasPrefix(tail[at:], []byte("PK\x05\x06")) {
			return int64(binary.LittleEndian.Uint32(tail[at+sizeAt:])) + int64(end-at)
		}
	}
	return 0
}
