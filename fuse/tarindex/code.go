package tarindex

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/klauspost/compress/s2"

	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/internal/chunk/varint"
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
	b = varint.AppendText(b, x.refused.detail)
	b = varint.Append(b, uint64(len(x.order)))
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
		b = varint.Append(b, uint64(shared))
		b = varint.AppendText(b, string(path[shared:]))
		b = varint.AppendSigned(b, v.mtime-last.mtime)
		last.mtime = v.mtime
		if !v.dir {
			b = varint.AppendSigned(b, v.off-(roundUp(last.off+last.size)+blockBytes))
			b = varint.Append(b, uint64(v.size))
			last.off, last.size = v.off, v.size
		}
		before, path = path, before
	}
	b = varint.AppendText(b, x.damage)
	b = varint.Append(b, uint64(x.left.count))
	b = varint.Append(b, uint64(len(x.left.named)))
	for _, l := range x.left.named {
		b = varint.AppendText(varint.AppendText(b, l.Name), l.Reason)
	}
	out := append([]byte(magic), id[:]...)
	out = append(out, s2.Encode(nil, b)...)
	return binary.LittleEndian.AppendUint32(out, chunk.Checksum(out))
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
	d := varint.NewDecoder(raw)
	x, err := decodeIndex(&d, size)
	if err == nil && !d.Whole() {
		err = errDamaged
	}
	if err != nil {
		return nil, err
	}
	return x, nil
}

func decodeIndex(d *varint.Decoder, size int64) (*Index, error) {
	b := newBuilder()
	b.x.refused = refusal{kind: refusalKind(d.Byte()), detail: string(d.Text(maxEncodedBytes))}
	if b.x.refused.kind >= refusals {
		return nil, errDamaged
	}
	var before []byte
	var last member
	n := d.Count()
	for range n {
		m := decodeMember(d, &before, &last)
		if d.Bad() {
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
	b.x.damage = string(d.Text(maxEncodedBytes))
	b.x.left.count = int64(d.Number())
	for range min(d.Count(), MaxNamedLeftOut) {
		b.x.left.named = append(b.x.left.named, Left{Name: string(d.Text(maxEncodedBytes)), Reason: string(d.Text(maxEncodedBytes))})
	}
	return b.finish(), nil
}

// decodeMember takes one entry. before and last are the path and the entry before.
func decodeMember(d *varint.Decoder, before *[]byte, last *member) member {
	kind := d.Byte()
	shared := d.Number()
	rest := d.Text(maxEncodedBytes)
	if kind > entryDir || shared > uint64(len(*before)) {
		d.Fail()
		return member{}
	}
	*before = append((*before)[:shared], rest...)
	m := member{path: string(*before), dir: kind == entryDir, mtime: last.mtime + d.Signed()}
	last.mtime = m.mtime
	if !m.dir {
		m.off = roundUp(last.off+last.size) + blockBytes + d.Signed()
		size := d.Number()
		if size > chunk.MaxObjectBytes || m.off < 0 || m.off > chunk.MaxObjectBytes {
			d.Fail()
			return member{}
		}
		m.size = int64(size)
		last.off, last.size = m.off, m.size
	}
	return m
}
