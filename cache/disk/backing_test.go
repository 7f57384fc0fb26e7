package disk

import (
	"testing"

	"github.com/shardwell/shardwell/internal/chunk"
)

// A file that somebody cut or grew while it was in use is not given to the kernel,
// which would read it up to its wrong end.
func TestBackingOfWrongLength(t *testing.T) {
	for _, size := range []int64{0, 2*chunk.MinBlockBytes + 1, 3*chunk.MinBlockBytes + 1} {
		c := newContent("key", 3*chunk.MinBlockBytes)
		d := openDir(t, testConfig(t.TempDir()))
		f := c.acquire(t, d)
		for b := range f.Blocks() {
			if err := f.Put(c.block(small, b)); err != nil {
				t.Fatal(err)
			}
		}
		if _, ok := f.Backing(); !ok {
			t.Fatal("a whole file is not given to the kernel")
		}
		truncate(t, d.dataPath(c.id), size)
		if _, ok := f.Backing(); ok {
			t.Errorf("a file of %d bytes is given to the kernel for one of %d", size, c.obj.Size)
		}
		if n := d.stats.Lost[LossTruncated].Load(); n != 1 {
			t.Errorf("the loss is counted %d times", n)
		}
		f.Release()
		again := c.acquire(t, d)
		if again.PresentBlocks() != 0 {
			t.Errorf("%d blocks of what was unlinked are present", again.PresentBlocks())
		}
		again.Release()
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}
