package disk

import (
	"fmt"
	"io"
	"log/slog"
	"syscall"
	"testing"
	"time"

	"github.com/shardwell/shardwell/internal/chunk"
)

func benchDir(tb testing.TB, size int) (*File, content) {
	cfg := Config{Path: tb.TempDir(), Geometry: chunk.DefaultGeometry(), Logger: slog.New(slog.NewTextHandler(io.Discard, nil))}
	d := openDir(tb, cfg)
	obj := chunk.Object{Origin: "https://s3.example.com", Bucket: "b", Key: "k", Size: int64(size)}
	c := content{obj: obj, id: obj.ID(), data: make([]byte, size)}
	f := c.acquire(tb, d)
	tb.Cleanup(f.Release)
	c.putAll(tb, f)
	return f, c
}

// TestAlignedReadAllocatesNothing keeps the read path free of garbage.
func TestAlignedReadAllocatesNothing(t *testing.T) {
	f, _ := benchDir(t, 4<<20)
	p := make([]byte, 1<<20)
	for _, tt := range []struct {
		n   int
		off int64
	}{{256 << 10, 0}, {1 << 20, 1 << 20}, {4 << 10, 8 << 10}, {1 << 20, 100}} {
		got := testing.AllocsPerRun(100, func() {
			if _, err := f.ReadAt(p[:tt.n], tt.off); err != nil {
				t.Fatal(err)
			}
		})
		if got >= 1 {
			t.Errorf("a read of %d bytes at %d allocates %v times", tt.n, tt.off, got)
		}
	}
	if got := testing.AllocsPerRun(100, func() { f.Lend(3) }); got >= 1 {
		t.Errorf("Lend allocates %v times", got)
	}
}

func BenchmarkReadAt(b *testing.B) {
	f, c := benchDir(b, 64<<20)
	for _, n := range []int{4 << 10, 256 << 10, 1 << 20} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			p := make([]byte, n)
			b.SetBytes(int64(n))
			b.ReportAllocs()
			for i := range b.N {
				if _, err := f.ReadAt(p, int64(i*n)%int64(len(c.data)-n+1)/int64(n)*int64(n)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkPut(b *testing.B) {
	const size = 64 << 20
	data := make([]byte, chunk.DefaultBlockBytes)
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	d := openDir(b, Config{Path: b.TempDir(), Geometry: chunk.DefaultGeometry()})
	block := chunk.Block{CRC: chunk.Checksum(data), Data: data}
	var f *File
	for i := range b.N {
		block.Index = uint32(i % (size / len(data)))
		if block.Index == 0 {
			if f != nil {
				f.Release()
				_, _ = d.evict(victim(f.id))
			}
			obj := chunk.Object{Key: fmt.Sprint(i), Size: size}
			var err error
			if f, err = d.Acquire(obj, obj.ID(), true); err != nil {
				b.Fatal(err)
			}
		}
		if err := f.Put(block); err != nil {
			b.Fatal(err)
		}
	}
	f.Release()
}

// BenchmarkPutAndRead tells the CPU seconds that a GiB costs on its way in and once out.
func BenchmarkPutAndRead(b *testing.B) {
	const blocks = 256
	g := chunk.DefaultGeometry()
	data := make([]byte, g.BlockBytes)
	p := make([]byte, 1<<20)
	d := openDir(b, Config{Path: b.TempDir(), Geometry: g})
	start := cpuSeconds()
	for i := range b.N {
		obj := chunk.Object{Key: fmt.Sprint(i), Size: blocks * g.BlockBytes}
		f, err := d.Acquire(obj, obj.ID(), true)
		if err != nil {
			b.Fatal(err)
		}
		for block := range uint32(blocks) {
			data[0] = byte(block)
			if err := f.Put(chunk.Block{Index: block, CRC: chunk.Checksum(data), Data: data}); err != nil {
				b.Fatal(err)
			}
		}
		for off := int64(0); off < obj.Size; off += int64(len(p)) {
			if _, err := f.ReadAt(p, off); err != nil {
				b.Fatal(err)
			}
		}
		f.Release()
		_, _ = d.evict(victim(f.id))
	}
	gib := float64(b.N) * blocks * float64(g.BlockBytes) / (1 << 30)
	b.ReportMetric((cpuSeconds()-start)/gib, "cpu-s/GiB")
}

// cpuSeconds is what this process has used, in user mode and in the kernel.
func cpuSeconds() float64 {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}

func BenchmarkFind(b *testing.B) {
	f, c := benchDir(b, 1<<20)
	b.ReportAllocs()
	for range b.N {
		g, err := f.d.Find(c.id)
		if err != nil {
			b.Fatal(err)
		}
		g.Release()
	}
}
