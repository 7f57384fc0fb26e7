package ring

import (
	"encoding/binary"

	"github.com/cespare/xxhash/v2"

	"github.com/shardwell/shardwell/internal/chunk"
)

// Key is the place of a thing in the key space, spread evenly over 64 bits. All
// nodes of a cluster must derive it alike: it is part of the protocol.
type Key uint64

// Partition returns in which of the [Partitions] the key lies.
func (k Key) Partition() int { return int(k >> (64 - partitionBits)) }

// DefaultPlaceWholeBytes is the size up to which an object has one owner: about a shard.
const DefaultPlaceWholeBytes = 1 << 30

// KeyOf returns the key of a chunk of an object of size bytes: one for the whole object up to
// placeWhole bytes, so that complete files exist, else one for each chunk, so that every
// node's link carries a share.
func KeyOf(id chunk.ObjectID, size, placeWhole int64, index uint32) Key {
	if size <= placeWhole {
		return KeyOfObject(id)
	}
	return KeyOfChunk(id, index)
}

// KeyOfObject returns the key of an object that is placed whole.
func KeyOfObject(id chunk.ObjectID) Key { return Key(xxhash.Sum64(id[:])) }

// KeyOfChunk returns the key of one chunk of an object that is placed by chunks.
func KeyOfChunk(id chunk.ObjectID, index uint32) Key {
	var b [len(id) + 4]byte
	copy(b[:], id[:])
	binary.LittleEndian.PutUint32(b[len(id):], index)
	return Key(xxhash.Sum64(b[:]))
}

// KeyOfName returns the key of something that has a name in parts, such as
// ("head", origin, bucket, key) or ("budget", endpoint). Where one part ends and the
// next begins counts: ("a", "bc") and ("ab", "c") differ.
func KeyOfName(parts ...string) Key {
	var h uint64
	for _, p := range parts {
		h = mix(h*31 + xxhash.Sum64String(p))
	}
	return Key(h)
}
