package disk

import (
	"bytes"
	"testing"

	"github.com/shardwell/shardwell/internal/chunk"
)

func FuzzHeader(f *testing.F) {
	c := newContent("key", 5*chunk.MinBlockBytes)
	good := appendHeader(nil, c.obj, small, stamp{boot: [16]byte{1}, inode: 7, complete: true})
	f.Add(good)
	f.Add(good[:identityOffset])
	f.Add([]byte(sidecarMagic))
	f.Fuzz(func(t *testing.T, b []byte) {
		obj, l, s, err := parseHeader(b, small)
		if err != nil {
			return
		}
		again := appendHeader(nil, obj, small, s)
		if int64(len(again)) != l.bits {
			t.Fatalf("header of %d bytes, bits at %d", len(again), l.bits)
		}
		if !bytes.Equal(again[:fixedBytes], b[:fixedBytes]) {
			t.Fatal("does not come back")
		}
	})
}

func FuzzSmallFiles(f *testing.F) {
	f.Add(formatClean([prefixes]use{{1, 0}, {2, 1}, {3, 3}}), layoutText(small), "00ff.data")
	f.Add("clean 1\nend", "shardwell cache, layout 1, chunk 0, block 0", "x.meta.tmp")
	f.Fuzz(func(t *testing.T, mark, layout, name string) {
		if used, ok := parseClean(mark); ok {
			if again, ok := parseClean(formatClean(used)); !ok || again != used {
				t.Fatal("the clean mark does not come back")
			}
		}
		if g, err := parseLayout(layout); err == nil && g.Validate() != nil {
			t.Fatal("a layout that is not valid")
		}
		if id, kind, ok := parseName(name); ok && id.String()+kind != name {
			t.Fatal("a name that does not come back")
		}
	})
}
