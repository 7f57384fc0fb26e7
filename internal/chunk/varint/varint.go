// Package varint takes apart what was put together of variable-length numbers: records kept on
// disk and sent between nodes, which may be damaged or forged.
//
// It promises that nothing read lies outside of the bytes given, that nothing is allocated for a
// length that the bytes do not have, and that one look at [Decoder.Whole] after the last value
// tells whether all of them were there. Layouts, their versions and what values mean are left to
// those who write them. The numbers are those of [encoding/binary]: protobuf's varints.
//
// It is a part: internal/chunk imports it, and so may all above.
package varint

import "encoding/binary"

// Append appends a number.
func Append(b []byte, n uint64) []byte { return binary.AppendUvarint(b, n) }

// AppendSigned appends a number that may be negative (zigzag, as [binary.AppendVarint]).
func AppendSigned(b []byte, n int64) []byte { return binary.AppendVarint(b, n) }

// AppendText appends the length of s in bytes, and s.
func AppendText[T ~string | ~[]byte](b []byte, s T) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// A Decoder takes values off the front of bytes, which it does not change. After the first value
// that is not there, or a call of Fail, all values are zero and Bad is true. The zero Decoder has nothing left.
type Decoder struct {
	b   []byte
	bad bool
}

// NewDecoder returns a decoder of b, which must not change while it is used.
func NewDecoder(b []byte) Decoder { return Decoder{b: b} }

// Bad reports whether a value was missing or refused so far.
func (d *Decoder) Bad() bool { return d.bad }

// Whole reports whether all values were there and nothing follows them.
func (d *Decoder) Whole() bool { return !d.bad && len(d.b) == 0 }

// Left returns the number of bytes not taken yet; none after a failure.
func (d *Decoder) Left() int { return len(d.b) }

// Fail refuses what was read: the caller knows that a value cannot be right.
func (d *Decoder) Fail() { d.b, d.bad = nil, true }

// Byte takes one byte.
func (d *Decoder) Byte() byte {
	if len(d.b) == 0 {
		d.Fail()
		return 0
	}
	c := d.b[0]
	d.b = d.b[1:]
	return c
}

// Number takes a number written by Append. Longer spellings of the same number are taken as well.
func (d *Decoder) Number() uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 {
		d.Fail()
		return 0
	}
	d.b = d.b[n:]
	return v
}

// Signed takes a number written by AppendSigned.
func (d *Decoder) Signed() int64 {
	v, n := binary.Varint(d.b)
	if n <= 0 {
		d.Fail()
		return 0
	}
	d.b = d.b[n:]
	return v
}

// AtMost takes a number and refuses one above limit.
func (d *Decoder) AtMost(limit uint64) uint64 {
	n := d.Number()
	if n > limit {
		d.Fail()
		return 0
	}
	return n
}

// Count takes the number of things that follow, each of a byte at least, so that it is safe to
// make room for as many.
func (d *Decoder) Count() int { return int(d.AtMost(uint64(len(d.b)))) }

// Bytes takes n bytes. They are the decoder's own, not a copy.
func (d *Decoder) Bytes(n uint64) []byte {
	if n > uint64(len(d.b)) {
		d.Fail()
		return nil
	}
	s := d.b[:n]
	d.b = d.b[n:]
	return s
}

// Text takes what AppendText wrote, of at most limit bytes. They are the decoder's own, not a copy.
func (d *Decoder) Text(limit uint64) []byte { return d.Bytes(d.AtMost(limit)) }
