package tarindex

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/klauspost/compress/s2"

	"github.com/shardwell/shardwell/internal/chunk"
)

// An index on disk and between nodes: magic, identity of the object, size of the tar, why there
// is none, entries in the order of the tar, damage, members left out; and a CRC32C of it all.
// Paths are kept as what differs from the path before, offsets as what differs from where a
// plain member would lie, all of it compressed: some ten bytes a member.
const magic = "shardwell tar 1\n"

// maxEncodedBytes bounds an encoded index, and what it is when it is unpacked.
const maxEncodedBytes = MaxIndexBytes

const (
	entryFile = 0
	entryDir  = 1
)

var errDamaged = errors.New("damaged index of a tar")

// encode is the inverse of decode.
func encode(x *Index, id chunk.ObjectID) []byte {
	var b []byte
	b = append(b, byte(x.refused.kind))
	b = appendString(b, x.refused.detail)
	b = binary.AppendUvarint(b, uint64(len(x.order)))
	var before, path []byte
	var last member
	for _, n := range x.inTarOrder() {
		v := &x.nodes[n]
		path = x.appendPath(path[:0], n)
		kind := byte(entryFile)
		if v.dir {
			kind = entryDir
		}
		shared := 0
		for shared < min(len(before), len(path)) && before[shared] == path[shared] {
			shared++
		}
		b = append(b, kind)
		b = binary.AppendUvarint(b, uint64(shared))
		b = appendString(b, string(path[shared:]))
		b = binary.AppendVarint(b, v.mtime-last.mtime)
		last.mtime = v.mtime
		if !v.dir {
			b = binary.AppendVarint(b, v.off-(roundUp(last.off+last.size)+blockBytes))
			b = binary.AppendUvarint(b, uint64(v.size))
			last.off, last.size = v.off, v.size
		}
		before, path = path, before
	}
	b = appendString(b, x.damage)
	b = binary.AppendUvarint(b, uint64(x.left.count))
	b = binary.AppendUvarint(b, uint64(len(x.left.named)))
	for _, l := range x.left.named {
		b = appendString(appendString(b, l.Name), l.Reason)
	}
	out := append([]byte(magic), id[:]...)
	out = append(out, s2.Encode(nil, b)...)
	return binary.LittleEndian.AppendUint32(out, chunk.Checksum(out))
}

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// decode returns the index of an object of size bytes that encode was given.
func decode(b []byte, id chunk.ObjectID, size int64) (*Index, error) {
	head, sum := len(magic)+len(id), 4
	switch {
	case len(b) < head+sum || len(b) > maxEncodedBytes || string(b[:len(magic)]) != magic,
		chunk.ObjectID(b[len(magic):head]) != id,
		binary.LittleEndian.Uint32(b[len(b)-sum:]) != chunk.Checksum(b[:len(b)-sum]):
		return nil, errDamaged
	}
	packed := b[head : len(b)-sum]
	if n, err := s2.DecodedLen(packed); err != nil || n > maxEncodedBytes {
		return nil, errDamaged
	}
	raw, err := s2.Decode(nil, packed)
	if err != nil {
		return nil, errDamaged
	}
	d := decoder{b: raw}
	x, err := d.index(size)
	if err == nil && (d.bad || len(d.b) > 0) {
		err = errDamaged
	}
	if err != nil {
		return nil, err
	}
	return x, nil
}

func (d *decoder) index(size int64) (*Index, error) {
	b := newBuilder()
	b.x.refused = refusal{kind: refusalKind(d.byte()), detail: d.text()}
	if b.x.refused.kind >= refusals {
		return nil, errDamaged
	}
	var before []byte
	var last member
	n := d.count()
	for range n {
		m := d.member(&before, &last)
		if d.bad {
			return nil, errDamaged
		}
		if path, reason := clean(m.path); reason != "" || path != m.path || path == "" {
			return nil, fmt.Errorf("%w: entry %q", errDamaged, m.path)
		}
		if m.off < 0 || m.size < 0 || m.off > size || m.size > size-m.off {
			return nil, fmt.Errorf("%w: entry %q lies outside of the tar", errDamaged, m.path)
		}
		if b.add(m); b.full() {
			return nil, fmt.Errorf("%w: too large", errDamaged)
		}
	}
	if b.x.left.count != 0 || len(b.x.nodes) != n+1 {
		return nil, errDamaged // entries that exclude each other
	}
	b.x.damage = d.text()
	b.x.left.count = int64(d.uvarint())
	for range min(d.count(), MaxNamedLeftOut) {
		b.x.left.named = append(b.x.left.named, Left{Name: d.text(), Reason: d.text()})
	}
	return b.finish(), nil
}

// member takes one entry. before and last are the path and the entry before.
func (d *decoder) member(before *[]byte, last *member) member {
	kind := d.byte()
	shared := d.uvarint()
	rest := d.bytes(d.uvarint())
	if kind > entryDir || shared > uint64(len(*before)) {
		d.fail()
		return member{}
	}
	*before = append((*before)[:shared], rest...)
	m := member{path: string(*before), dir: kind == entryDir, mtime: last.mtime + d.varint()}
	last.mtime = m.mtime
	if !m.dir {
		m.off = roundUp(last.off+last.size) + blockBytes + d.varint()
		size := d.uvarint()
		if size > chunk.MaxObjectBytes || m.off < 0 || m.off > chunk.MaxObjectBytes {
			d.fail()
			return member{}
		}
		m.size = int64(size)
		last.off, last.size = m.off, m.size
	}
	return m
}

// decoder takes values off b. After the first that is not there, bad is set and all values are
// zero.
type decoder struct {
	b   []byte
	bad bool
}

func (d *decoder) fail() { d.b, d.bad = nil, true }

func (d *decoder) byte() byte {
	if b := d.bytes(1); len(b) == 1 {
		return b[0]
	}
	return 0
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

func (d *decoder) text() string { return string(d.bytes(d.uvarint())) }
