package meta

import (
	"encoding/hex"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/klauspost/compress/s2"

	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/internal/chunk/varint"
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
		b = varint.AppendText(b, s)
	}
	return string(varint.AppendSigned(b, int64(q.req.Limit)))
}

// answer is what the origin said to a question, and when it was asked. It never changes.
type answer struct {
	question question
	asked    time.Time
	missing  bool          // there is no such key
	info     objstore.Info // of a key
	page     []byte        // of a list: encoded

	refused   error // the origin denies an answer; the fields above are those of the answer before, if there was one
	forgotten bool  // is no answer any more; the next one is compared with it
}

// refusal returns the answer that the origin gives none, in place of an earlier one, which may
// be nil. It keeps what that said for the next answer to be compared with.
func refusal(qu question, asked time.Time, err error, before *answer) *answer {
	a := &answer{question: qu, asked: asked, refused: err, missing: true}
	if before != nil {
		a.missing, a.info, a.page = before.missing, before.info, before.page
	}
	return a
}

// holds reports whether an answer will do for somebody who needs one for which the origin was
// asked at need or later. A refusal holds for a moment only: whoever is allowed to read after
// all should not have to wait for it.
func (a *answer) holds(need, now time.Time) bool {
	return a != nil && !a.asked.Before(need) && (a.refused == nil || now.Sub(a.asked) < refusalTTL)
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
	b := varint.Append(nil, uint64(len(p.Objects)))
	before := ""
	var last int64
	for _, o := range p.Objects {
		b = appendKey(b, before, o.Key)
		b = varint.AppendSigned(b, o.Size)
		b = appendETag(b, o.ETag)
		if o.ModTime.IsZero() {
			b = append(b, 0)
		} else {
			b = append(b, 1)
			b = varint.AppendSigned(b, o.ModTime.Unix()-last)
			b = varint.Append(b, uint64(o.ModTime.Nanosecond()))
			last = o.ModTime.Unix()
		}
		before = o.Key
	}
	b = varint.Append(b, uint64(len(p.Prefixes)))
	before = ""
	for _, s := range p.Prefixes {
		b = appendKey(b, before, s)
		before = s
	}
	b = varint.AppendText(b, p.Next)
	packed := s2.EncodeBetter(nil, b)
	return append(make([]byte, 0, len(packed)), packed...) // s2 leaves room behind
}

// appendKey appends how many bytes s shares with the key before, and the rest.
func appendKey(b []byte, before, s string) []byte {
	n := 0
	for n < min(len(before), len(s)) && before[n] == s[n] {
		n++
	}
	return varint.AppendText(varint.Append(b, uint64(n)), s[n:])
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
		return varint.AppendText(append(b, etagText), etag)
	case multi:
		return varint.Append(append(append(b, etagParts), sum...), n)
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
	d := varint.NewDecoder(raw)
	var p objstore.Page
	var last int64
	before := ""
	n := d.Count()
	if n > 0 {
		p.Objects = make([]objstore.Info, 0, n)
	}
	for range n {
		o := objstore.Info{Key: takeKey(&d, before), Size: d.Signed(), ETag: takeETag(&d)}
		if d.Byte() == 1 {
			last += d.Signed()
			o.ModTime = time.Unix(last, int64(d.Number()%1e9)).UTC()
		}
		if d.Bad() {
			return objstore.Page{}, errPage
		}
		p.Objects = append(p.Objects, o)
		before = o.Key
	}
	before = ""
	n = d.Count()
	if n > 0 {
		p.Prefixes = make([]string, 0, n)
	}
	for range n {
		before = takeKey(&d, before)
		p.Prefixes = append(p.Prefixes, before)
	}
	p.Next = string(d.Text(maxPageBytes))
	if !d.Whole() {
		return objstore.Page{}, errPage
	}
	return p, nil
}

func takeKey(d *varint.Decoder, before string) string {
	n := d.Number()
	if n > uint64(len(before)) {
		d.Fail()
		return ""
	}
	return before[:n] + string(d.Text(maxPageBytes))
}

func takeETag(d *varint.Decoder) string {
	switch d.Byte() {
	case etagText:
		return string(d.Text(maxPageBytes))
	case etagMD5:
		return hex.EncodeToString(d.Bytes(16))
	case etagParts:
		sum := hex.EncodeToString(d.Bytes(16))
		return sum + "-" + strconv.FormatUint(d.Number(), 10)
	}
	d.Fail()
	return ""
}
