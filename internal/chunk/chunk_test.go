package chunk

import (
	"bytes"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestGeometryValidate(t *testing.T) {
	for _, c := range []struct {
		g    Geometry
		want string // part of the error, "" for none
	}{
		{DefaultGeometry(), ""},
		{Geometry{1 << 20, 1 << 20}, ""},
		{Geometry{}, "block size 0"},
		{Geometry{8 << 20, 2 << 20}, "block size"},
		{Geometry{9 * 96 << 10, 96 << 10}, "power of two"},
		{Geometry{64 << 10, 128 << 10}, "chunk size"},
		{Geometry{128 << 20, 128 << 10}, "chunk size"},
		{Geometry{8<<20 + 1, 256 << 10}, "multiple"},
	} {
		err := c.g.Validate()
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%+v: got %v, want %q", c.g, err, c.want)
		}
	}
}

func TestGeometryEdges(t *testing.T) {
	g := DefaultGeometry()
	for _, c := range []struct {
		size           int64
		blocks, chunks uint32
		lastLen        int
	}{
		{0, 0, 0, 0},
		{1, 1, 1, 1},
		{g.BlockBytes, 1, 1, int(g.BlockBytes)},
		{g.BlockBytes + 1, 2, 1, 1},
		{g.ChunkBytes, 32, 1, int(g.BlockBytes)},
		{g.ChunkBytes + 7, 33, 2, 7},
		{MaxObjectBytes, 1 << 28, 1 << 23, int(g.BlockBytes)},
	} {
		if got := g.Blocks(c.size); got != c.blocks {
			t.Errorf("Blocks(%d) = %d, want %d", c.size, got, c.blocks)
		}
		if got := g.Chunks(c.size); got != c.chunks {
			t.Errorf("Chunks(%d) = %d, want %d", c.size, got, c.chunks)
		}
		if c.blocks == 0 {
			continue
		}
		if got := g.BlockLen(c.size, c.blocks-1); got != c.lastLen {
			t.Errorf("BlockLen(%d, last) = %d, want %d", c.size, got, c.lastLen)
		}
		if got := g.BlockLen(c.size, c.blocks); got != 0 {
			t.Errorf("BlockLen(%d, behind the end) = %d", c.size, got)
		}
	}
}

// The chunks of an object are its blocks, each once and in order, and a span
// of bytes covers exactly the blocks that hold one of them.
func TestSpansTile(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := Geometry{BlockBytes: MinBlockBytes}
		g.ChunkBytes = g.BlockBytes * rapid.Int64Range(1, 9).Draw(t, "blocks per chunk")
		size := rapid.Int64Range(0, 50*g.BlockBytes).Draw(t, "size")
		var next uint32
		var total int64
		for i := range g.Chunks(size) {
			s := g.ChunkSpan(size, i)
			if s.First != next || s.Count == 0 {
				t.Fatalf("chunk %d is %v, want it to begin at %d", i, s, next)
			}
			next = s.End()
			_, n := g.Bytes(size, s)
			total += n
		}
		if next != g.Blocks(size) || total != size {
			t.Fatalf("chunks end at block %d of %d, %d bytes of %d", next, g.Blocks(size), total, size)
		}
		if s := g.ChunkSpan(size, g.Chunks(size)); s.Count != 0 {
			t.Fatalf("a chunk behind the end is %v", s)
		}
		off := rapid.Int64Range(-1, size+1).Draw(t, "off")
		n := rapid.Int64Range(0, size+1).Draw(t, "n")
		s := g.SpanOf(size, off, n)
		for b := range g.Blocks(size) {
			lo, hi := int64(b)*g.BlockBytes, int64(b)*g.BlockBytes+int64(g.BlockLen(size, b))
			if want := off >= 0 && max(lo, off) < min(hi, off+n); want != s.Contains(b) {
				t.Fatalf("SpanOf(%d, %d, %d) = %v: block %d: want contained %v", size, off, n, s, b, want)
			}
		}
	})
}

func TestObjectIdentity(t *testing.T) {
	o := Object{Origin: "https://s3.example.com", Bucket: "b", Key: "a/\xff\x00 key", ETag: "e-1", Size: 5}
	ids := map[ObjectID]Object{}
	for _, v := range []Object{o,
		{o.Origin + "b", "", o.Key, o.ETag, o.Size}, // the same characters, cut elsewhere
		{o.Origin, "", "b" + o.Key, o.ETag, o.Size},
		{o.Origin, o.Bucket, o.Key, "e-2", o.Size},
		{o.Origin, o.Bucket, o.Key, o.ETag, 6},
	} {
		if other, ok := ids[v.ID()]; ok {
			t.Errorf("%+v and %+v have one identity", v, other)
		}
		ids[v.ID()] = v
		back, err := ParseObject(v.AppendBinary(nil))
		if err != nil || back != v {
			t.Errorf("%+v came back as %+v, %v", v, back, err)
		}
	}
	id, err := ParseObjectID(o.ID().String())
	if err != nil || id != o.ID() {
		t.Errorf("ParseObjectID: %v, %v", id, err)
	}
	for _, bad := range []string{"", "zz", strings.Repeat("g", 32), o.ID().String() + "0"} {
		if _, err := ParseObjectID(bad); err == nil {
			t.Errorf("ParseObjectID(%q) passed", bad)
		}
	}
}

func FuzzParseObject(f *testing.F) {
	f.Add(Object{Origin: "file:///d", Key: "k", ETag: "e", Size: 1}.AppendBinary(nil))
	f.Add([]byte{1, 0x80, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		o, err := ParseObject(b)
		if err != nil {
			return
		}
		if again := o.AppendBinary(nil); !bytes.Equal(again, b) {
			t.Fatalf("%x parsed to %+v, which encodes to %x", b, o, again)
		}
	})
}
