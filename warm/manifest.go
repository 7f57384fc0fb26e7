package warm

import (
	"encoding/binary"
	"iter"

	"github.com/shardwell/shardwell/internal/chunk"
)

// restartEvery is how many objects are written with the part of the key that they have in
// common with the one before; the next one is whole again, so that any can be found.
const restartEvery = 32

// Manifest is a list of object versions: some forty bytes each, for keys that
// come in order. It grows by Add and does not change otherwise; readers need no lock while
// nobody adds.
type Manifest struct {
	roots    []root
	data     []byte
	restarts []int // offsets in data
	count    int
	bytes    int64
	last     chunk.Object
	seen     map[chunk.ObjectID]struct{} // until Seal
}

// root is what objects of one bucket have in common.
type root struct{ origin, bucket string }

// Add appends an object version unless it is there, and reports whether it was not.
func (m *Manifest) Add(o chunk.Object) bool {
	id := o.ID()
	if _, ok := m.seen[id]; ok {
		return false
	}
	if m.seen == nil {
		m.seen = make(map[chunk.ObjectID]struct{})
	}
	m.seen[id] = struct{}{}
	shared := 0
	if m.count%restartEvery == 0 {
		m.restarts = append(m.restarts, len(m.data))
	} else {
		for shared < min(len(o.Key), len(m.last.Key)) && o.Key[shared] == m.last.Key[shared] {
			shared++
		}
	}
	m.data = binary.AppendUvarint(m.data, uint64(m.rootOf(o)))
	m.data = binary.AppendUvarint(m.data, uint64(shared))
	for _, s := range [...]string{o.Key[shared:], o.ETag} {
		m.data = binary.AppendUvarint(m.data, uint64(len(s)))
		m.data = append(m.data, s...)
	}
	m.data = binary.AppendUvarint(m.data, uint64(o.Size))
	m.count, m.bytes, m.last = m.count+1, m.bytes+o.Size, o
	return true
}

func (m *Manifest) rootOf(o chunk.Object) int {
	r := root{o.Origin, o.Bucket}
	for i, have := range m.roots {
		if have == r {
			return i
		}
	}
	m.roots = append(m.roots, r)
	return len(m.roots) - 1
}

// Seal gives back what only Add needs. Nothing can be added any more.
func (m *Manifest) Seal() { m.seen = nil }

// Len returns how many objects there are.
func (m *Manifest) Len() int { return m.count }

// Bytes returns their size.
func (m *Manifest) Bytes() int64 { return m.bytes }

// At returns the i-th object.
func (m *Manifest) At(i int) (o chunk.Object) {
	at := m.restarts[i/restartEvery]
	for range i%restartEvery + 1 {
		o, at = m.next(o, at)
	}
	return o
}

// All yields all objects with their numbers.
func (m *Manifest) All() iter.Seq2[int, chunk.Object] {
	return func(yield func(int, chunk.Object) bool) {
		var o chunk.Object
		for i, at := 0, 0; i < m.count; i++ {
			if o, at = m.next(o, at); !yield(i, o) {
				return
			}
		}
	}
}

// next decodes the object at an offset, behind last, and returns where the next one is.
func (m *Manifest) next(last chunk.Object, at int) (chunk.Object, int) {
	number := func() int {
		v, n := binary.Uvarint(m.data[at:])
		at += n
		return int(v)
	}
	text := func() []byte {
		n := number()
		at += n
		return m.data[at-n : at]
	}
	r := m.roots[number()]
	shared := number()
	o := chunk.Object{Origin: r.origin, Bucket: r.bucket, Key: last.Key[:min(shared, len(last.Key))] + string(text())}
	o.ETag = string(text())
	o.Size = int64(number())
	return o, at
}
