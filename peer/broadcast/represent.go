package broadcast

import "encoding/binary"

// Represent returns which of the members of a rack, by their ring ids, fetches a chunk
// for all of them: the one with the highest hash of chunk and id, so that all agree,
// the chunks of an object spread over the rack, and one that leaves hands on its own only.
// It returns "" for none.
func Represent(c Chunk, ids func(yield func(string) bool)) string {
	key := binary.LittleEndian.Uint64(c.Object[:8]) ^ uint64(c.Index)*0x9e3779b97f4a7c15
	best, high := "", uint64(0)
	for id := range ids {
		h := placeOf(id) ^ key
		h ^= h >> 31
		h *= 0x94d049bb133111eb
		h ^= h >> 29
		if best == "" || h > high || h == high && id < best {
			best, high = id, h
		}
	}
	return best
}
