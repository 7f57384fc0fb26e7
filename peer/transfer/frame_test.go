package transfer

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/shardwell/shardwell/internal/chunk"
)

// small is the geometry of these tests: chunks of 8 blocks of 64 KiB.
var small = chunk.Geometry{ChunkBytes: 512 << 10, BlockBytes: 64 << 10}

// someBytes returns n bytes that depend on seed.
func someBytes(seed uint64, n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
	_, _ = r.Read(b)
	return b
}

// signs encodes n signs of life.
func signs(n int) (out []byte) {
	for range n {
		out = sign.Append(out)
	}
	return out
}

// frames encodes blocks of data in the order given, behind the signs of life.
func frames(data []byte, order ...uint32) []byte {
	return append(signs(Signs), blocks(data, order...)...)
}

// blocks encodes blocks of data in the order given.
func blocks(data []byte, order ...uint32) []byte {
	var out []byte
	for _, i := range order {
		off, n := small.Bytes(int64(len(data)), chunk.Span{First: i, Count: 1})
		b := data[off : off+n]
		out = FrameHeader{Block: i, Length: uint32(n), CRC: chunk.Checksum(b)}.Append(out)
		out = append(out, b...)
	}
	return out
}

// readAll reads frames until the end or an error.
func readAll(wire []byte, size int64, span chunk.Span) (got []chunk.Block, err error) {
	f := newFrameReader(bytes.NewReader(wire), small, size, span)
	buf := make([]byte, small.BlockBytes)
	for {
		h, err := f.head()
		if err == io.EOF {
			return got, nil
		}
		if err != nil {
			return got, err
		}
		b, err := f.block(h, buf)
		if err != nil {
			return got, err
		}
		b.Data = bytes.Clone(b.Data)
		got = append(got, b)
	}
}

func TestFrames(t *testing.T) {
	data := someBytes(1, 200<<10) // 3 blocks and a last one of 8 KiB
	all := chunk.Span{First: 0, Count: 4}
	good := frames(data, 2, 0, 3, 1)
	flip := func(at int) []byte { b := bytes.Clone(good); b[Signs*FrameHeaderBytes+at] ^= 1; return b }
	for _, c := range []struct {
		name   string
		wire   []byte
		blocks int
		want   error
	}{
		{"in any order", good, 4, nil},
		{"a bit of the bytes", flip(FrameHeaderBytes + 5), 0, chunk.ErrCorrupt},
		{"a bit of the checksum", flip(8), 0, chunk.ErrCorrupt},
		{"a bit of the length", flip(4), 0, ErrMalformed},
		{"a bit of the number", flip(0), 3, ErrMalformed}, // 3 instead of 2, whose length differs or which comes twice
		{"a bit of the reserved field", flip(12), 0, ErrMalformed},
		{"twice", frames(data, 0, 0, 1, 2), 1, ErrMalformed},
		{"of another chunk", frames(someBytes(1, 600<<10), 8), 0, ErrMalformed},
		{"signs of life between", append(append(signs(5), blocks(data, 0, 1, 2)...), append(signs(Signs-5), blocks(data, 3)...)...), 4, nil},
		{"a sign too many", append(signs(1), good...), 0, ErrMalformed},
		{"a sign too few", good[FrameHeaderBytes:], 4, ErrMalformed},
		{"cut in a header", good[:FrameHeaderBytes-1], 0, io.ErrUnexpectedEOF},
		{"cut in a block", good[:len(good)-1], 3, io.ErrUnexpectedEOF},
		{"cut between blocks", frames(data, 0, 1), 2, io.ErrUnexpectedEOF},
		{"nothing", nil, 0, io.ErrUnexpectedEOF},
		{"more behind", append(bytes.Clone(good), 0), 4, ErrMalformed},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := readAll(c.wire, int64(len(data)), all)
			if !errors.Is(err, c.want) {
				t.Fatalf("error %v, want %v", err, c.want)
			}
			if len(got) != c.blocks && c.name != "a bit of the number" {
				t.Errorf("%d blocks, want %d", len(got), c.blocks)
			}
			for _, b := range got {
				off, n := small.Bytes(int64(len(data)), chunk.Span{First: b.Index, Count: 1})
				if !bytes.Equal(b.Data, data[off:off+n]) {
					t.Errorf("block %d has other bytes", b.Index)
				}
			}
		})
	}
}

func FuzzFrames(f *testing.F) {
	data := someBytes(1, 70<<10)
	f.Add(frames(data, 0, 1), int64(len(data)))
	f.Add(frames(data, 1), int64(len(data)))
	f.Add([]byte(strings.Repeat("\x00", 64)), int64(10))
	f.Fuzz(func(t *testing.T, wire []byte, size int64) {
		if size <= 0 || size > chunk.MaxObjectBytes {
			return
		}
		span := small.ChunkSpan(size, 0)
		got, err := readAll(wire, size, span)
		if uint32(len(got)) > span.Count {
			t.Fatalf("%d blocks of %v", len(got), span)
		}
		if err == nil && uint32(len(got)) != span.Count {
			t.Fatalf("no error after %d blocks of %v", len(got), span)
		}
		seen := map[uint32]bool{}
		for _, b := range got {
			if !span.Contains(b.Index) || seen[b.Index] || len(b.Data) != small.BlockLen(size, b.Index) || chunk.Checksum(b.Data) != b.CRC {
				t.Fatalf("block %d of %d bytes was accepted", b.Index, len(b.Data))
			}
			seen[b.Index] = true
		}
	})
}
