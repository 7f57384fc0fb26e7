package disk

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/shardwell/shardwell/internal/chunk"
)

// A sidecar, all numbers little-endian:
//
//	0    magic      8 bytes
//	8    layout     u32, LayoutVersion
//	12   identity   u32, length of the encoded object
//	16   chunkBytes u64
//	24   blockBytes u64
//	32   bits       u64, offset of the presence bits
//	40   sums       u64, offset of the checksums
//	48   end        u64, length of the sidecar
//	56   crc        u32, CRC32C of bytes 0–55 and the identity
//	60   zero       u32
//	64   stamp      see stamp
//	128  identity   chunk.Object in its encoding
//	bits            one bit a block, lowest bit first, from a multiple of 512
//	sums            u32 a block, CRC32C of the block
const (
	// LayoutVersion is the layout of sidecars and of the cache directory.
	LayoutVersion = 1

	sidecarMagic   = "shrdwell"
	fixedBytes     = 60
	stampOffset    = 64
	stampBytes     = 32
	identityOffset = 128
	bitsAlign      = 512 // a sector: header and bits never share one
	maxHeaderBytes = identityOffset + 8192
)

// layout says where the parts of one object's sidecar lie, in bytes.
type layout struct {
	identity int   // length of the encoded object
	bits     int64 // offset
	sums     int64 // offset
	end      int64
}

func layoutOf(identity int, blocks uint32) layout {
	l := layout{identity: identity}
	l.bits = (identityOffset + int64(identity) + bitsAlign - 1) / bitsAlign * bitsAlign
	l.sums = l.bits + bitmapBytes(blocks)
	l.end = l.sums + 4*int64(blocks)
	return l
}

// bitmapBytes is the length of the presence bits, in whole 64-bit words.
func bitmapBytes(blocks uint32) int64 { return (int64(blocks) + 63) / 64 * 8 }

// appendHeader appends everything before the presence bits.
func appendHeader(b []byte, obj chunk.Object, g chunk.Geometry, s stamp) []byte {
	start := len(b)
	identity := obj.AppendBinary(nil)
	l := layoutOf(len(identity), g.Blocks(obj.Size))
	b = append(b, sidecarMagic...)
	b = binary.LittleEndian.AppendUint32(b, LayoutVersion)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(identity)))
	for _, n := range [...]int64{g.ChunkBytes, g.BlockBytes, l.bits, l.sums, l.end} {
		b = binary.LittleEndian.AppendUint64(b, uint64(n))
	}
	b = binary.LittleEndian.AppendUint32(b, headerSum(b[start:start+fixedBytes-4], identity))
	b = binary.LittleEndian.AppendUint32(b, 0)
	b = s.append(b)
	b = append(b, make([]byte, identityOffset-stampOffset-stampBytes)...)
	b = append(b, identity...)
	return append(b, make([]byte, int(l.bits)-(len(b)-start))...)
}

func headerSum(fixed, identity []byte) uint32 {
	sum := make([]byte, 0, len(fixed)+len(identity))
	return chunk.Checksum(append(append(sum, fixed...), identity...))
}

// Ways in which a sidecar can be no good; each is a [Reason] as well.
var (
	errSidecar  = errors.New("sidecar is damaged")
	errVersion  = errors.New("sidecar has another layout version")
	errGeometry = errors.New("sidecar has another chunk or block size")
)

// parseHeader reads what appendHeader wrote. b may go on behind it.
func parseHeader(b []byte, g chunk.Geometry) (chunk.Object, layout, stamp, error) {
	fail := func(err error) (chunk.Object, layout, stamp, error) {
		return chunk.Object{}, layout{}, stamp{}, err
	}
	if len(b) < identityOffset || string(b[:8]) != sidecarMagic {
		return fail(errSidecar)
	}
	if v := binary.LittleEndian.Uint32(b[8:]); v != LayoutVersion {
		return fail(fmt.Errorf("%w: %d, want %d", errVersion, v, LayoutVersion))
	}
	n := binary.LittleEndian.Uint32(b[12:])
	if uint64(n) > uint64(len(b)-identityOffset) {
		return fail(errSidecar)
	}
	identity := b[identityOffset : identityOffset+int(n)]
	if binary.LittleEndian.Uint32(b[fixedBytes-4:]) != headerSum(b[:fixedBytes-4], identity) {
		return fail(errSidecar)
	}
	if binary.LittleEndian.Uint64(b[16:]) != uint64(g.ChunkBytes) || binary.LittleEndian.Uint64(b[24:]) != uint64(g.BlockBytes) {
		return fail(errGeometry)
	}
	obj, err := chunk.ParseObject(identity)
	if err != nil {
		return fail(fmt.Errorf("%w: %w", errSidecar, err))
	}
	l := layoutOf(int(n), g.Blocks(obj.Size))
	for i, want := range [...]int64{l.bits, l.sums, l.end} {
		if binary.LittleEndian.Uint64(b[32+8*i:]) != uint64(want) {
			return fail(errSidecar)
		}
	}
	return obj, l, parseStamp(b[stampOffset:]), nil
}

// stamp says in which boot, and in which data file, all present blocks
// were right: written by this kernel, or read and checked under it.
//
//	0   boot     16 bytes, the kernel's boot id
//	16  inode    u64, of the data file
//	24  complete u32, 1 when all blocks were present, 2 when they were once
//	28  crc      u32, CRC32C of the 28 bytes before
//
// A damaged stamp is the zero stamp, which fits no boot.
type stamp struct {
	boot     [16]byte
	inode    uint64
	complete bool
	whole    bool // complete, or was so once
}

func (s stamp) append(b []byte) []byte {
	start := len(b)
	b = append(b, s.boot[:]...)
	b = binary.LittleEndian.AppendUint64(b, s.inode)
	var complete uint32
	switch {
	case s.complete:
		complete = 1
	case s.whole:
		complete = 2
	}
	b = binary.LittleEndian.AppendUint32(b, complete)
	return binary.LittleEndian.AppendUint32(b, chunk.Checksum(b[start:]))
}

func parseStamp(b []byte) stamp {
	if len(b) < stampBytes || chunk.Checksum(b[:stampBytes-4]) != binary.LittleEndian.Uint32(b[stampBytes-4:]) {
		return stamp{}
	}
	s := stamp{
		inode:    binary.LittleEndian.Uint64(b[16:]),
		complete: binary.LittleEndian.Uint32(b[24:]) == 1,
		whole:    binary.LittleEndian.Uint32(b[24:]) != 0,
	}
	copy(s.boot[:], b)
	return s
}
