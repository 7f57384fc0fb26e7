package disk

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/shardwell/shardwell/internal/chunk"
)

// small is the smallest geometry, so that tests move few bytes.
var small = chunk.Geometry{ChunkBytes: 4 * chunk.MinBlockBytes, BlockBytes: chunk.MinBlockBytes}

func testConfig(path string) Config {
	return Config{Path: path, Geometry: small, BootID: "boot-one", MaxOpen: 64}
}

// openDir opens a directory and closes it with the test.
func openDir(t testing.TB, cfg Config) *Dir {
	t.Helper()
	d, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// content is an object with bytes that follow from its key and size.
type content struct {
	obj  chunk.Object
	id   chunk.ObjectID
	data []byte
}

func newContent(key string, size int) content {
	obj := chunk.Object{Origin: "https://s3.example.com", Bucket: "b", Key: key, ETag: "e1", Size: int64(size)}
	id := obj.ID()
	rng := rand.New(rand.NewChaCha8([32]byte(append(id[:], id[:]...))))
	data := make([]byte, size)
	for i := range data {
		data[i] = byte(rng.Uint32())
	}
	return content{obj, id, data}
}

func (c content) block(g chunk.Geometry, i uint32) chunk.Block {
	off := int64(i) * g.BlockBytes
	data := c.data[off : off+int64(g.BlockLen(c.obj.Size, i))]
	return chunk.Block{Index: i, CRC: chunk.Checksum(data), Data: data}
}

func (c content) acquire(t testing.TB, d *Dir) *File {
	t.Helper()
	f, err := d.Acquire(c.obj, c.id, true)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// store puts the whole object.
func (c content) store(t testing.TB, d *Dir) {
	t.Helper()
	f := c.acquire(t, d)
	defer f.Release()
	c.putAll(t, f)
}

func (c content) putAll(t testing.TB, f *File) {
	t.Helper()
	for i := range f.Blocks() {
		if err := f.Put(c.block(f.d.cfg.Geometry, i)); err != nil {
			t.Fatal(err)
		}
	}
}

// check reads the whole object back and compares.
func (c content) check(t testing.TB, f *File) {
	t.Helper()
	got := make([]byte, len(c.data))
	if _, err := f.ReadAt(got, 0); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, c.data) {
		t.Fatal("other bytes than were stored")
	}
}

func TestPutAndRead(t *testing.T) {
	for _, size := range []int{1, 100, chunk.MinBlockBytes, chunk.MinBlockBytes + 1, 9*chunk.MinBlockBytes - 7} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			d := openDir(t, testConfig(t.TempDir()))
			c := newContent("k", size)
			f := c.acquire(t, d)
			defer f.Release()
			if f.Complete() || f.Has(0) || f.PresentBlocks() != 0 {
				t.Fatal("a new object has blocks")
			}
			if _, err := f.ReadAt(make([]byte, 1), 0); !errors.Is(err, ErrNotPresent) {
				t.Fatalf("read of nothing: %v", err)
			}
			c.putAll(t, f)
			c.check(t, f)
			if !f.Complete() || !f.Trusted() || f.CachedBytes() != int64(size) {
				t.Fatalf("complete %v, trusted %v, %d bytes of %d", f.Complete(), f.Trusted(), f.CachedBytes(), size)
			}
			backing, ok := f.Backing()
			if !ok {
				t.Fatal("a complete file is not given out")
			}
			got, err := io.ReadAll(io.NewSectionReader(backing, 0, 1<<30))
			if err != nil || !bytes.Equal(got, c.data) {
				t.Fatalf("backing file: %d bytes, %v", len(got), err)
			}
			rng := rand.New(rand.NewPCG(1, uint64(size)))
			for range 200 {
				off, n := rng.IntN(size), rng.IntN(3*chunk.MinBlockBytes)
				p := make([]byte, n)
				n, err := f.ReadAt(p, int64(off))
				if want := min(len(p), size-off); n != want || (err != nil) != (n < len(p)) || err != nil && err != io.EOF {
					t.Fatalf("ReadAt(%d, %d) = %d, %v", len(p), off, n, err)
				}
				if !bytes.Equal(p[:n], c.data[off:off+n]) {
					t.Fatalf("ReadAt(%d, %d): other bytes", len(p), off)
				}
			}
		})
	}
}

func TestLookUpCreatesNothing(t *testing.T) {
	d := openDir(t, testConfig(t.TempDir()))
	c := newContent("k", 1000)
	if _, err := d.Find(c.id); !errors.Is(err, ErrNotPresent) {
		t.Fatalf("Find: %v", err)
	}
	c.acquire(t, d).Release()
	names, _ := filepath.Glob(d.path(objectsName, "*"))
	if len(names) != 0 {
		t.Fatalf("look-ups made %v", names)
	}
	c.store(t, d)
	f, err := d.Find(c.id)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Release()
	if f.Object() != c.obj {
		t.Fatalf("Find returned %v", f.Object())
	}
}

func TestReopen(t *testing.T) {
	path := t.TempDir()
	c := newContent("k", 5*chunk.MinBlockBytes+3)
	d, err := Open(testConfig(path))
	if err != nil {
		t.Fatal(err)
	}
	id := d.NodeID()
	c.store(t, d)
	used, _ := d.Usage()
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	d = openDir(t, testConfig(path))
	if got, _ := d.Usage(); got != used || !d.ledger.exact() {
		t.Fatalf("%d bytes used after a clean stop, %d before", got, used)
	}
	if d.NodeID() != id || len(id) != 16 {
		t.Fatalf("node id %q became %q", id, d.NodeID())
	}
	if _, err := os.Stat(d.path(cleanName)); err == nil {
		t.Fatal("the clean mark is still there")
	}
	f := c.acquire(t, d)
	defer f.Release()
	if _, ok := f.Backing(); !ok {
		t.Fatal("not trusted in the same boot")
	}
	c.check(t, f)
}

func TestRunEnds(t *testing.T) {
	d := openDir(t, testConfig(t.TempDir()))
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	if err := d.Run(ctx); err != nil {
		t.Fatal(err)
	}
}
