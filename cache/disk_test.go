package cache_test

import (
	"context"
	"crypto/rand"
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"bytes"

	"github.com/shardwell/shardwell/cache"
	"github.com/shardwell/shardwell/cache/disk"
	"github.com/shardwell/shardwell/cache/mem"
	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/objstore"
	"github.com/shardwell/shardwell/objstore/objstoretest"
)

type oneStore struct{ objstore.Store }

func (o oneStore) Open(context.Context, objstore.Bucket) (objstore.Store, error) { return o.Store, nil }

// onDisk makes a cache over a real cache directory.
func onDisk(t testing.TB, path string, g chunk.Geometry, origin objstore.Store) *cache.Cache {
	t.Helper()
	c, _ := overDisk(t, origin, disk.Config{Path: path, Geometry: g, BudgetBytes: 1 << 30}, cache.Config{})
	return c
}

// overDisk makes a cache with 16 blocks of memory over a cache directory that is looked after, until the test ends.
func overDisk(t testing.TB, origin objstore.Store, d disk.Config, cfg cache.Config) (*cache.Cache, *disk.Dir) {
	t.Helper()
	g := d.Geometry
	arena, err := mem.New(int(g.BlockBytes), 16*g.BlockBytes)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := disk.Open(d)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Geometry, cfg.Arena, cfg.Disk = g, arena, cache.TierOf(dir)
	cfg.Origin = &cache.OriginFetcher{Geometry: g, Origins: oneStore{origin}, Arena: arena}
	c, err := cache.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = dir.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		wg.Wait()
		c.Close()
		if err := dir.Close(); err != nil {
			t.Error(err)
		}
		if err := arena.Close(); err != nil {
			t.Error(err)
		}
	})
	return c, dir
}

func object(origin *objstoretest.Mem, key string, data []byte) chunk.Object {
	info := origin.Put(key, data)
	return chunk.Object{Origin: "https://s3.example.com", Bucket: "b", Key: key, ETag: info.ETag, Size: info.Size}
}

// SEMANTICS B4: A damaged block in the cache is a miss: it is set aside, counted and
// fetched again, and the reader sees only right bytes.
func TestOverARealDisk(t *testing.T) {
	g := chunk.DefaultGeometry()
	data := make([]byte, 20<<20+12345)
	rand.Read(data)
	origin := objstoretest.NewMem()
	obj := object(origin, "k", data)
	path := t.TempDir()
	t.Run("cold", func(t *testing.T) {
		c := onDisk(t, path, g, origin)
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Go(func() {
				f, err := c.Open(obj)
				if err != nil {
					t.Error(err)
					return
				}
				defer f.Close()
				readAll(t, f, data, 100_000*(i+1))
			})
		}
		wg.Wait()
		if got := origin.Bytes(); got != obj.Size {
			t.Errorf("origin bytes: got %d, want %d", got, obj.Size)
		}
		f, _ := c.Open(obj)
		defer f.Close()
		backing, ok := f.Backing()
		if !ok || f.CachedBytes() != obj.Size {
			t.Fatalf("after all was read: backing %v, %d bytes cached", ok, f.CachedBytes())
		}
		if got, err := io.ReadAll(io.NewSectionReader(backing, 0, obj.Size)); err != nil || !bytes.Equal(got, data) {
			t.Errorf("the backing file has not the right bytes: %v", err)
		}
	})
	t.Run("after a restart, with a flipped bit", func(t *testing.T) {
		files, _ := filepath.Glob(filepath.Join(path, "objects", "*", "*.data"))
		if len(files) != 1 {
			t.Fatalf("data files: %v", files)
		}
		flip(t, files[0], 5<<20)
		origin.ResetCounts()
		c := onDisk(t, path, g, origin)
		f, err := c.Open(obj)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		readAll(t, f, data, 1<<20)
		if got := origin.Bytes(); got != g.BlockBytes {
			t.Errorf("origin bytes: got %d, want one block", got)
		}
		if got := c.Stats().CorruptBlocks.Load(); got != 1 {
			t.Errorf("corrupt blocks: got %d, want 1", got)
		}
		checkLent(t, c, obj, data, g.ChunkSpan(obj.Size, 1))
	})
}

// checkLent borrows a span like a peer that asks what is held.
func checkLent(t *testing.T, c *cache.Cache, obj chunk.Object, data []byte, span chunk.Span) {
	n := 0
	err := c.Lend(t.Context(), chunk.Request{Object: obj, ID: obj.ID(), Span: span, HeldOnly: true, From: "p"}, func(p chunk.Piece) error {
		n++
		got := make([]byte, p.Len)
		if _, err := p.File.ReadAt(got, p.Offset); err != nil {
			return err
		}
		if off := int64(p.Index) * chunk.DefaultBlockBytes; chunk.Checksum(got) != p.CRC || !bytes.Equal(got, data[off:off+int64(p.Len)]) {
			t.Errorf("block %d is not lent rightly", p.Index)
		}
		return nil
	})
	if err != nil || n != int(span.Count) {
		t.Errorf("lent %d blocks of %v, %v", n, span, err)
	}
}

func flip(t *testing.T, name string, off int64) {
	t.Helper()
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var b [1]byte
	if _, err := f.ReadAt(b[:], off); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 1
	if _, err := f.WriteAt(b[:], off); err != nil {
		t.Fatal(err)
	}
}

func readAll(t *testing.T, f *cache.File, data []byte, step int) {
	p := make([]byte, step)
	for off := 0; off < len(data); off += step {
		n, err := f.ReadAt(t.Context(), p, int64(off))
		if want := data[off:min(off+step, len(data))]; err != nil && err != io.EOF || !bytes.Equal(p[:n], want) {
			t.Errorf("read %d at %d: %d bytes, %v", step, off, n, err)
			return
		}
	}
}

// BenchmarkRead reads a cached object over a real disk: bytes a second and
// allocations by the size of the reads.
func BenchmarkRead(b *testing.B) {
	g := chunk.DefaultGeometry()
	data := make([]byte, 64<<20)
	rand.Read(data)
	origin := objstoretest.NewMem()
	obj := object(origin, "k", data)
	c := onDisk(b, b.TempDir(), g, origin)
	f, err := c.Open(obj)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	if _, err := f.ReadAt(b.Context(), make([]byte, len(data)), 0); err != nil {
		b.Fatal(err)
	}
	for _, size := range []struct {
		name string
		n    int
	}{{"1MiB", 1 << 20}, {"128KiB", 128 << 10}, {"10KiB", 10 << 10}} {
		b.Run(size.name, func(b *testing.B) {
			p := make([]byte, size.n)
			b.SetBytes(int64(size.n))
			b.ReportAllocs()
			for off := 0; b.Loop(); off += size.n {
				if off+size.n > len(data) {
					off = 0
				}
				if _, err := f.ReadAt(b.Context(), p, int64(off)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkCold fetches an object through the disk tier.
func BenchmarkCold(b *testing.B) {
	g := chunk.DefaultGeometry()
	data := make([]byte, 64<<20)
	rand.Read(data)
	origin := objstoretest.NewMem()
	c := onDisk(b, b.TempDir(), g, origin)
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	p := make([]byte, 1<<20)
	i := 0
	for b.Loop() {
		data[0], i = byte(i), i+1
		b.StopTimer()
		obj := object(origin, "k", data)
		b.StartTimer()
		f, err := c.Open(obj)
		if err != nil {
			b.Fatal(err)
		}
		for off := int64(0); off < obj.Size; off += int64(len(p)) {
			if _, err := f.ReadAt(b.Context(), p, off); err != nil {
				b.Fatal(err)
			}
		}
		f.Close()
	}
}
