package transfer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/shardwell/shardwell/internal/chunk"
)

// FrameHeaderBytes is the size of the header before each block on the wire.
const FrameHeaderBytes = 16

// ErrMalformed says that an answer breaks the wire format.
var ErrMalformed = errors.New("malformed answer from peer")

// FrameHeader announces one block: little-endian block, length, CRC32C, zero.
type FrameHeader struct {
	Block  uint32 // within the object
	Length uint32 // bytes that follow
	CRC    uint32 // CRC32C of them
}

// Append appends the encoding of h to b.
func (h FrameHeader) Append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, h.Block)
	b = binary.LittleEndian.AppendUint32(b, h.Length)
	b = binary.LittleEndian.AppendUint32(b, h.CRC)
	return binary.LittleEndian.AppendUint32(b, 0)
}

// ParseFrameHeader is the inverse of [FrameHeader.Append].
func ParseFrameHeader(b []byte) (FrameHeader, error) {
	if len(b) != FrameHeaderBytes {
		return FrameHeader{}, fmt.Errorf("%w: frame header of %d bytes", ErrMalformed, len(b))
	}
	if binary.LittleEndian.Uint32(b[12:]) != 0 {
		return FrameHeader{}, fmt.Errorf("%w: reserved field of a frame is not zero", ErrMalformed)
	}
	return FrameHeader{
		Block:  binary.LittleEndian.Uint32(b[0:]),
		Length: binary.LittleEndian.Uint32(b[4:]),
		CRC:    binary.LittleEndian.Uint32(b[8:]),
	}, nil
}

// Signs is how many signs of life every answer carries, so that its length is
// known before anybody knows how long its blocks will take. A sender that waits for a block
// sends one now and then; those left over go before the last block. 32 of them, one a
// second, outlast a throttled origin and are 512 bytes.
const Signs = 32

// noBlock marks a sign of life: a frame without a block. Its CRC field is 0, or says that the
// asker takes less than the sender could send, and how much that is, in KiB a second.
const noBlock = ^uint32(0)

var sign = FrameHeader{Block: noBlock}

// slowSign says how many bytes a second the sender could send.
func slowSign(rate float64) FrameHeader {
	return FrameHeader{Block: noBlock, CRC: uint32(min(max(1, rate/1024), 1<<32-1))}
}

// bodyBytes is the length of an answer: every block of the span with its header,
// and the signs of life.
func bodyBytes(g chunk.Geometry, size int64, s chunk.Span) int64 {
	_, n := g.Bytes(size, s)
	return n + (int64(s.Count)+Signs)*FrameHeaderBytes
}

// maxSpanBlocks is how many blocks the largest chunk has.
const maxSpanBlocks = chunk.MaxChunkBytes / chunk.MinBlockBytes

// blockSet remembers which blocks of a span were seen.
type blockSet struct {
	span chunk.Span
	bits [maxSpanBlocks / 64]uint64
	n    uint32
}

// add reports whether the block lies in the span and is new.
func (s *blockSet) add(block uint32) bool {
	if !s.span.Contains(block) {
		return false
	}
	i := block - s.span.First
	word, bit := i/64, uint64(1)<<(i%64)
	if int(word) >= len(s.bits) || s.bits[word]&bit != 0 {
		return false
	}
	s.bits[word] |= bit
	s.n++
	return true
}

func (s *blockSet) full() bool { return s.n == s.span.Count }

// frameReader takes an answer apart and trusts nothing in it.
type frameReader struct {
	r        io.Reader
	geometry chunk.Geometry
	size     int64 // of the object
	got      blockSet
	signs    int                // seen
	alive    func()             // called for each of them; may be nil
	slow     func(rate float64) // called for those that say that this node is slow; may be nil
}

func newFrameReader(r io.Reader, g chunk.Geometry, size int64, span chunk.Span) *frameReader {
	return &frameReader{r: r, geometry: g, size: size, got: blockSet{span: span}}
}

// CorruptError is a block that arrived with another checksum than announced.
type CorruptError struct{ Block uint32 }

func (e *CorruptError) Error() string { return fmt.Sprintf("block %d: %v", e.Block, chunk.ErrCorrupt) }

// Unwrap makes errors.Is find chunk.ErrCorrupt.
func (e *CorruptError) Unwrap() error { return chunk.ErrCorrupt }

// head reads the header of the next block and checks that it is one that is
// wanted. It returns io.EOF after the last block of the span, and io.ErrUnexpectedEOF
// when the sender went away before it.
func (f *frameReader) head() (FrameHeader, error) {
	if f.got.full() {
		return FrameHeader{}, f.end()
	}
	h, err := f.header()
	if err != nil {
		return FrameHeader{}, err
	}
	if want := f.geometry.BlockLen(f.size, h.Block); !f.got.span.Contains(h.Block) || int(h.Length) != want {
		return FrameHeader{}, fmt.Errorf("%w: block %d of %d bytes for %v", ErrMalformed, h.Block, h.Length, f.got.span)
	}
	if !f.got.add(h.Block) {
		return FrameHeader{}, fmt.Errorf("%w: block %d comes twice", ErrMalformed, h.Block)
	}
	return h, nil
}

// end returns io.EOF when nothing is missing or too much.
func (f *frameReader) end() error {
	if f.signs != Signs {
		return fmt.Errorf("%w: %d signs of life", ErrMalformed, f.signs)
	}
	var one [1]byte
	if n, err := io.ReadFull(f.r, one[:]); n == 0 {
		return err
	}
	return fmt.Errorf("%w: bytes behind the last block", ErrMalformed)
}

// block reads and checks the bytes that h announces into buf, which has room for
// the largest block.
func (f *frameReader) block(h FrameHeader, buf []byte) (chunk.Block, error) {
	data := buf[:h.Length]
	if _, err := io.ReadFull(f.r, data); err != nil {
		return chunk.Block{}, truncated(err)
	}
	if chunk.Checksum(data) != h.CRC {
		return chunk.Block{}, &CorruptError{Block: h.Block}
	}
	return chunk.Block{Index: h.Block, CRC: h.CRC, Data: data}, nil
}

// header reads the next header that announces a block.
func (f *frameReader) header() (FrameHeader, error) {
	for {
		var head [FrameHeaderBytes]byte
		if _, err := io.ReadFull(f.r, head[:]); err != nil {
			return FrameHeader{}, truncated(err)
		}
		h, err := ParseFrameHeader(head[:])
		if err != nil || h.Block != noBlock || h.Length != 0 {
			return h, err
		}
		if f.signs++; f.signs > Signs {
			return h, fmt.Errorf("%w: more than %d signs of life", ErrMalformed, Signs)
		}
		if f.alive != nil {
			f.alive()
		}
		if h.CRC != 0 && f.slow != nil {
			f.slow(float64(h.CRC) * 1024)
		}
	}
}

// truncated turns the end of the input into what it is within a frame.
func truncated(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}
