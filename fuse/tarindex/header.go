package tarindex

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

const blockBytes = 512

// header is what the headers of one member say.
type header struct {
	name  string
	link  string
	kind  byte // as archive/tar has it
	data  int64
	size  int64 // of the member's bytes
	next  int64 // where the next member's headers begin
	mtime int64
	pax   map[string]string
}

// sparse reports whether the bytes of the member are not as they lie in the tar.
func (h *header) sparse() bool {
	if h.kind == tar.TypeGNUSparse {
		return true
	}
	for k := range h.pax {
		if strings.HasPrefix(k, "GNU.sparse.") {
			return true
		}
	}
	return false
}

// Offsets in a header block (POSIX.1-1988, ustar).
const (
	atMode, atUID, atGID, atSize, atTime, atSum = 100, 108, 116, 124, 136, 148
	atKind, atMagic, atMajor, atPrefix          = 156, 257, 329, 345
)

// plainHeader reads the header block of a regular file of the kind that nearly all members
// are. False says that it may be any other, or none: archive/tar knows.
func plainHeader(b *[blockBytes]byte, at int64) (h header, ok bool) {
	if b[atKind] != tar.TypeReg {
		return h, false
	}
	switch string(b[atMagic : atMagic+8]) {
	case "ustar\x0000":
		if string(b[508:]) == "tar\x00" { // star's, whose prefix is shorter
			return h, false
		}
	case "ustar  \x00": // GNU: other fields where the prefix is
		if !zero(b[atPrefix:]) {
			return h, false
		}
	default:
		return h, false
	}
	if want, ok := octal(b[atSum : atSum+8]); !ok || want != checksum(b) {
		return h, false
	}
	for _, f := range [...][]byte{b[atMode:atUID], b[atUID:atGID], b[atGID:atSize], b[atMajor : atMajor+8], b[atMajor+8 : atPrefix]} {
		if _, ok := octal(f); !ok && !zero(f) {
			return h, false
		}
	}
	size, ok1 := octal(b[atSize:atTime])
	mtime, ok2 := octal(b[atTime:atSum])
	if !ok1 || !ok2 {
		return h, false
	}
	name := text(b[:atMode])
	if name == "" {
		return h, false
	}
	if b[atPrefix] != 0 {
		name = text(b[atPrefix:500]) + "/" + name
	}
	h = header{name: name, kind: tar.TypeReg, data: at + blockBytes, size: size, mtime: mtime}
	h.next = roundUp(h.data + size)
	return h, true
}

// checksum adds up a header block, with spaces for its checksum.
func checksum(b *[blockBytes]byte) (sum int64) {
	for i := 0; i < blockBytes; i += 8 { // whole words: most of the cost of a member is here
		w := binary.LittleEndian.Uint64(b[i:])
		w = w&0x00ff00ff00ff00ff + w>>8&0x00ff00ff00ff00ff
		sum += int64(w * 0x0001000100010001 >> 48)
	}
	for _, c := range b[atSum : atSum+8] {
		sum += ' ' - int64(c)
	}
	return sum
}

// octal reads digits that end with one NUL or space, or two for a checksum.
func octal(f []byte) (v int64, ok bool) {
	n := 0
	for n < len(f) && f[n] >= '0' && f[n] <= '7' {
		v = v<<3 | int64(f[n]-'0')
		n++
	}
	for _, c := range f[n:] {
		if c != 0 && c != ' ' {
			return 0, false
		}
	}
	return v, n > 0 && n < len(f)
}

func text(f []byte) string {
	if i := bytes.IndexByte(f, 0); i >= 0 {
		f = f[:i]
	}
	return string(f)
}

func zero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

func roundUp(n int64) int64 { return (n + blockBytes - 1) &^ (blockBytes - 1) }

// headerReader reads the headers of one member, in order.
type headerReader struct {
	r       io.ReaderAt
	at, end int64
	failed  error // what r failed with
	short   bool  // end was met
}

func (h *headerReader) Read(p []byte) (int, error) {
	if h.at >= h.end {
		h.short = true
		return 0, io.EOF
	}
	p = p[:min(int64(len(p)), h.end-h.at)]
	n, err := h.r.ReadAt(p, h.at)
	h.at += int64(n)
	if n == len(p) {
		return n, nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	h.failed = err
	return n, err
}

// errHeader says that there is no header where one is expected.
var errHeader = errors.New("no header of a member")

// readHeader reads the headers of the member at an offset of a tar of size bytes. An error of
// r is returned as it is, in failed; err says what is wrong with the tar.
func readHeader(r io.ReaderAt, at, size int64) (h header, err, failed error) {
	in := &headerReader{r: r, at: at, end: min(size, at+maxHeaderBytes)}
	got, err := tar.NewReader(in).Next()
	switch {
	case in.failed != nil:
		return h, nil, in.failed
	case in.short && in.end < size:
		return h, fmt.Errorf("headers of more than %d bytes", maxHeaderBytes), nil
	case in.short:
		return h, io.ErrUnexpectedEOF, nil
	case errors.Is(err, tar.ErrFieldTooLong):
		return h, errors.New("names or records of a member of more than 1 MiB"), nil
	case err != nil && !errors.Is(err, tar.ErrInsecurePath):
		return h, errHeader, nil
	}
	h = header{name: got.Name, link: got.Linkname, kind: got.Typeflag, data: in.at, size: got.Size, pax: got.PAXRecords}
	if t := got.ModTime; !t.IsZero() {
		h.mtime = t.Unix()
	}
	switch {
	case h.kind == tar.TypeXGlobalHeader, noData(h.kind):
		h.next = roundUp(in.at)
	case h.sparse():
		var end int64
		if end, err, failed = sparseEnd(r, at, in.at, size, &h); err != nil || failed != nil {
			return h, err, failed
		}
		h.next = roundUp(end)
	case got.Size < 0 || got.Size > size:
		h.size, h.next = size, size+1 // more than there is: cut off
	default:
		h.next = roundUp(in.at + got.Size)
	}
	return h, nil, nil
}

// noData reports kinds of members that have headers only, whatever size they tell.
func noData(kind byte) bool {
	switch kind {
	case tar.TypeLink, tar.TypeSymlink, tar.TypeChar, tar.TypeBlock, tar.TypeDir, tar.TypeFifo:
		return true
	}
	return false
}

// sparseEnd returns where the bytes of a sparse member end, whose size in the tar archive/tar
// keeps to itself. The member's headers begin at; what archive/tar has read of it ends at read.
func sparseEnd(r io.ReaderAt, at, read, size int64, h *header) (end int64, err, failed error) {
	var b [blockBytes]byte
	for {
		if at+blockBytes > size {
			return 0, io.ErrUnexpectedEOF, nil
		}
		if n, err := r.ReadAt(b[:], at); n < len(b) {
			return 0, nil, err
		}
		n, ok := number(b[atSize:atTime])
		if !ok || n > size {
			return 0, errHeader, nil
		}
		switch b[atKind] {
		case tar.TypeXHeader, tar.TypeXGlobalHeader, tar.TypeGNULongName, tar.TypeGNULongLink:
			at = roundUp(at + blockBytes + n)
			continue
		case tar.TypeGNUSparse:
			return read + n, nil, nil // the map lies between header and bytes
		}
		if text, ok := h.pax["size"]; ok {
			if n, err = strconv.ParseInt(text, 10, 64); err != nil || n < 0 || n > size {
				return 0, errHeader, nil
			}
		}
		return at + blockBytes + n, nil, nil // the map, if there is one, is among the bytes
	}
}

// number reads a size in octal digits, or in base 256 as GNU writes large ones.
func number(f []byte) (int64, bool) {
	if f[0]&0x80 == 0 {
		v, err := strconv.ParseInt(string(bytes.Trim(f, " \x00")), 8, 64)
		return v, err == nil && v >= 0
	}
	v := int64(f[0] & 0x3f)
	if f[0]&0x40 != 0 { // negative
		return 0, false
	}
	for _, c := range f[1:] {
		if v > 1<<54 {
			return 0, false
		}
		v = v<<8 | int64(c)
	}
	return v, true
}
