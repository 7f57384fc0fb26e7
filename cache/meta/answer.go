package meta

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/klauspost/compress/s2"

	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/objstore"
)

// question is what is asked about names.
type question struct {
	bucket objstore.Bucket
	who    chunk.Identity // on whose behalf
	name   string         // a key, or the prefix of a list
	list   bool
	req    objstore.ListRequest // of a list
}

func (q question) op() string {
	if q.list {
		return "list"
	}
	return "head"
}

// key spells a question unambiguously.
func (q question) key() string {
	b := make([]byte, 0, 64+len(q.name))
	for _, s := range [...]string{q.op(), string(q.who), q.bucket.Origin, q.bucket.Name, q.name, q.req.Delimiter, q.req.Token} {
		b = binary.AppendUvarint(b, uint64(len(s)))
		b = append(b, s...)
	}
	return string(binary.AppendVarint(b, int64(q.req.Limit)))
}

// answer is what the origin said to a question, and when it was asked. It never changes.
type answer struct {
	question question
	asked    time.Time
	missing  bool          // there is no such key
	info     objstore.Info // of a key
	page     []byte        // of a list: encoded

	forgotten bool // is no answer any more; the next one is compared with it
}

// answerBytes is about what an answer takes beside its strings: the struct, its
// place in the store and in the maps that the store keeps.
const answerBytes = 400

func (a *answer) cost() int64 {
	q := a.question
	return int64(answerBytes + 2*len(q.name) + 2*len(q.req.Token) + len(a.info.ETag) + cap(a.page))
}

// Pages are kept as bytes: keys as what differs from the key before, ETags of 32
// hexadecimal digits as 16 bytes, all of it compressed. A name takes some 30 bytes.

// encodePage is the inverse of decodePage.
func encodePage(p objstore.Page) []byte {
	b := binary.AppendUvarint(nil, uint64(len(p.Objects)))
	before := ""
	var last int64
	for _, o := range p.Objects {
		b = appendKey(b, before, o.Key)
		b = binary.AppendVarint(b, o.Size)
		b = appendETag(b, o.ETag)
		if o.ModTime.IsZero() {
			b = append(b, 0)
		} else {
			b = append(b, 1)
			b = binary.AppendVarint(b, o.ModTime.Unix()-last)
			b = binary.AppendUvarint(b, uint64(o.ModTime.Nanosecond()))
			last = o.ModTime.Unix()
		}
		before = o.Key
	}
	b = binary.AppendUvarint(b, uint64(len(p.Prefixes)))
	before = ""
	for _, s := range p.Prefixes {
		b = appendKey(b, before, s)
		before = s
	}
	b = appendString(b, p.Next)
	packed := s2.EncodeBetter(nil, b)
	return append(make([]byte, 0, len(packed)), packed...) // s2 leaves room behind
}

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// appendKey appends how many bytes s shares with the key before, and the rest.
func appendKey(b []byte, before, s string) []byte {
	n := 0
	for n < min(len(before), len(s)) && before[n] == s[n] {
		n++
	}
	return appendString(binary.AppendUvarint(b, uint64(n)), s[n:])
}

// Spellings of an ETag.
const (
	etagText  = 0 // as it is
	etagMD5   = 1 // 32 lower-case hexadecimal digits
	etagParts = 2 // the same, "-", and a decimal number
)

func appendETag(b []byte, etag string) []byte {
	digits, parts, multi := strings.Cut(etag, "-")
	sum, err := hex.DecodeString(digits)
	n, perr := strconv.ParseUint(parts, 10, 32)
	switch {
	case err != nil || len(sum) != 16 || hex.EncodeToString(sum) != digits, // upper case
		multi && (perr != nil || strconv.FormatUint(n, 10) != parts):
		return appendString(append(b, etagText), etag)
	case multi:
		return binary.AppendUvarint(append(append(b, etagParts), sum...), n)
	}
	return append(append(b, etagMD5), sum...)
}

var errPage = errors.New("malformed page")

// maxPageBytes bounds what decodePage unpacks: a page of 1,000 of the longest names.
const maxPageBytes = 1100 * (chunk.MaxKeyBytes + chunk.MaxETagBytes + 64)

// decodePage returns the page that encodePage was given.
func decodePage(packed []byte) (objstore.Page, error) {
	if n, err := s2.DecodedLen(packed); err != nil || n > maxPageBytes {
		return objstore.Page{}, errPage
	}
	raw, err := s2.Decode(nil, packed)
	if err != nil {
		return objstore.Page{}, errPage
	}
	d := decoder{b: raw}
	var p objstore.Page
	var last int64
	before := ""
	n := d.count()
	if n > 0 {
		p.Objects = make([]objstore.Info, 0, n)
	}
	for range n {
		o := objstore.Info{Key: d.key(before), Size: d.varint(), ETag: d.etag()}
		if d.byte() == 1 {
			last += d.varint()
			o.ModTime = time.Unix(last, int64(d.uvarint()%1e9)).UTC()
		}
		if d.bad {
			return objstore.Page{}, errPage
		}
		p.Objects = append(p.Objects, o)
		before = o.Key
	}
	before = ""
	n = d.count()
	if n > 0 {
		p.Prefixes = make([]string, 0, n)
	}
	for range n {
		before = d.key(before)
		p.Prefixes = append(p.Prefixes, before)
	}
	p.Next = d.string()
	if d.bad || len(d.b) > 0 {
		return objstore.Page{}, errPage
	}
	return p, nil
}

// decoder takes values off b. After the first that is not there, bad is set and
// all values are zero.
type decoder struct {
	b   []byte
	bad bool
}

func (d *decoder) fail() {
	d.b, d.bad = nil, true
}

func (d *decoder) byte() byte {
	if len(d.b) == 0 {
		d.fail()
		return 0
	}
	c := d.b[0]
	d.b = d.b[1:]
	return c
}

func (d *decoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 {
		d.fail()
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) varint() int64 {
	v, n := binary.Varint(d.b)
	if n <= 0 {
		d.fail()
		return 0
	}
	d.b = d.b[n:]
	return v
}

// count takes the number of things that follow, each of a byte at least.
func (d *decoder) count() int {
	n := d.uvarint()
	if n > uint64(len(d.b)) {
		d.fail()
		return 0
	}
	return int(n)
}

func (d *decoder) bytes(n uint64) []byte {
	if n > uint64(len(d.b)) {
		d.fail()
		return nil
	}
	s := d.b[:n]
	d.b = d.b[n:]
	return s
}

func (d *decoder) string() string { return string(d.bytes(d.uvarint())) }

func (d *decoder) key(before string) string {
	n := d.uvarint()
	if n > uint64(len(before)) {
		d.fail()
		return ""
	}
	return before[:n] + d.string()
}

func (d *decoder) etag() string {
	switch d.byte() {
	case etagText:
		return d.string()
	case etagMD5:
		return hex.EncodeToString(d.bytes(16))
	case etagParts:
		sum := hex.EncodeToString(d.bytes(16))
		return sum + "-" + strconv.FormatUint(d.uvarint(), 10)
	}
	d.fail()
	return ""
}
