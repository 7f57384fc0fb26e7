// Package chunk is the vocabulary of Shardwell: what an object version, a
// chunk, a block and a span of blocks are, how they are numbered and named,
// and the one seam through which verified blocks travel.
//
// It promises that two nodes with the same [Geometry] mean the same bytes by
// the same numbers. It does no I/O and imports no other package of the project.
//
// Units. A chunk (8 MiB by default) is the unit of ownership, of scheduling and
// of one origin range. A block (256 KiB by default) is the unit of presence, of
// checksums and of forwarding, and the smallest fetch of a random reader. Both
// are one value for a whole cluster. Blocks are numbered from 0 through the
// whole object, not within their chunk.
package chunk

import (
	"fmt"
	"hash/crc32"
)

// Limits and defaults of a [Geometry], in bytes.
const (
	DefaultChunkBytes = 8 << 20
	DefaultBlockBytes = 256 << 10

	MinBlockBytes = 64 << 10
	MaxBlockBytes = 1 << 20 // one block fits one FUSE reply
	MaxChunkBytes = 64 << 20

	// MaxObjectBytes is the largest object that S3 and its kin can hold (50 TB
	// since 2025), rounded up. It keeps block numbers within uint32.
	MaxObjectBytes = 1 << 46
)

// Geometry is how objects are cut. The zero value is not valid; see [DefaultGeometry].
type Geometry struct {
	ChunkBytes int64 // a multiple of BlockBytes
	BlockBytes int64 // a power of two
}

// DefaultGeometry returns the sizes that a cluster uses unless told otherwise.
func DefaultGeometry() Geometry {
	return Geometry{ChunkBytes: DefaultChunkBytes, BlockBytes: DefaultBlockBytes}
}

// Validate reports, in words meant for the user, why g cannot be used.
func (g Geometry) Validate() error {
	switch {
	case g.BlockBytes < MinBlockBytes || g.BlockBytes > MaxBlockBytes:
		return fmt.Errorf("block size %d: must be between %d and %d bytes", g.BlockBytes, MinBlockBytes, MaxBlockBytes)
	case g.BlockBytes&(g.BlockBytes-1) != 0:
		return fmt.Errorf("block size %d: must be a power of two", g.BlockBytes)
	case g.ChunkBytes < g.BlockBytes || g.ChunkBytes > MaxChunkBytes:
		return fmt.Errorf("chunk size %d: must be between the block size (%d) and %d bytes", g.ChunkBytes, g.BlockBytes, MaxChunkBytes)
	case g.ChunkBytes%g.BlockBytes != 0:
		return fmt.Errorf("chunk size %d: must be a multiple of the block size (%d)", g.ChunkBytes, g.BlockBytes)
	}
	return nil
}

// BlocksPerChunk returns how many blocks a full chunk has.
func (g Geometry) BlocksPerChunk() uint32 { return uint32(g.ChunkBytes / g.BlockBytes) }

// Blocks returns the number of blocks of an object of size bytes.
func (g Geometry) Blocks(size int64) uint32 {
	return uint32((size + g.BlockBytes - 1) / g.BlockBytes)
}

// Chunks returns the number of chunks of an object of size bytes.
func (g Geometry) Chunks(size int64) uint32 {
	return uint32((size + g.ChunkBytes - 1) / g.ChunkBytes)
}

// BlockLen returns the length of a block: BlockBytes, or less for the last
// block of the object. It returns 0 for a block that lies behind the end.
func (g Geometry) BlockLen(size int64, block uint32) int {
	off := int64(block) * g.BlockBytes
	return int(max(0, min(g.BlockBytes, size-off)))
}

// ChunkOf returns the chunk in which a block lies.
func (g Geometry) ChunkOf(block uint32) uint32 { return block / g.BlocksPerChunk() }

// ChunkSpan returns all the blocks of a chunk of an object of size bytes.
func (g Geometry) ChunkSpan(size int64, index uint32) Span {
	first := uint64(index) * uint64(g.BlocksPerChunk())
	total := uint64(g.Blocks(size))
	if first >= total {
		return Span{}
	}
	return Span{First: uint32(first), Count: uint32(min(uint64(g.BlocksPerChunk()), total-first))}
}

// SpanOf returns the blocks that hold the bytes [off, off+n) of an object of
// size bytes, cut at the object's end.
func (g Geometry) SpanOf(size, off, n int64) Span {
	end := min(size, off+n)
	if off < 0 || end <= off {
		return Span{}
	}
	first := uint32(off / g.BlockBytes)
	last := uint32((end - 1) / g.BlockBytes)
	return Span{First: first, Count: last - first + 1}
}

// Bytes returns the byte range that a span covers in an object of size bytes.
func (g Geometry) Bytes(size int64, s Span) (off, n int64) {
	off = int64(s.First) * g.BlockBytes
	return off, max(0, min(size-off, int64(s.Count)*g.BlockBytes))
}

// Span is a run of consecutive blocks of one object.
type Span struct {
	First uint32
	Count uint32
}

// End returns the number of the block behind the last one.
func (s Span) End() uint32 { return s.First + s.Count }

// Contains reports whether block lies in s.
func (s Span) Contains(block uint32) bool { return block >= s.First && block-s.First < s.Count }

func (s Span) String() string { return fmt.Sprintf("blocks %d+%d", s.First, s.Count) }

// castagnoli is the polynomial of CRC32C (RFC 3720, appendix B.4), which amd64
// and arm64 compute in hardware.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Checksum returns the CRC32C of data.
func Checksum(data []byte) uint32 { return crc32.Checksum(data, castagnoli) }
