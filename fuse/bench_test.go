package fuse

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/shardwell/shardwell/objstore"
	"golang.org/x/sys/unix"
)

// endless is an origin whose one directory has count names, made up page by page, so
// that a measurement of memory sees the file system and not the test.
type endless struct {
	*fakeOrigin
	count int
}

func (o endless) List(ctx context.Context, q objstore.Query, req objstore.ListRequest) (objstore.Page, time.Duration, error) {
	from := 0
	if req.Token != "" {
		if _, err := fmt.Sscan(req.Token, &from); err != nil {
			return objstore.Page{}, 0, err
		}
	}
	var page objstore.Page
	to := min(o.count, from+1000)
	for i := from; i < to; i++ {
		key := fmt.Sprintf("%strain-%012d.tar", req.Prefix, i)
		page.Objects = append(page.Objects, objstore.Info{Key: key, Size: 1 << 30, ETag: fmt.Sprintf("%032x", i), ModTime: time.Unix(1700000000, 0)})
	}
	if to < o.count {
		page.Next = fmt.Sprint(to)
	}
	return page, 0, nil
}

func rssBytes(b *testing.B) float64 {
	b.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		b.Fatal(err)
	}
	_, after, _ := strings.Cut(string(status), "VmRSS:")
	var kb float64
	if _, err := fmt.Sscan(after, &kb); err != nil {
		b.Fatal(err)
	}
	return kb * 1024
}

// BenchmarkMillionEntries lists a directory of a million names through the kernel and
// measures what the process grew by: heap, mapped listing and all.
func BenchmarkMillionEntries(b *testing.B) {
	const count = 1_000_000
	for b.Loop() {
		o := newOrigin()
		debug.FreeOSMemory()
		before := rssBytes(b)
		m := mount(b, o, func(c *Config) { c.Names = endless{o, count} })
		fd, err := unix.Open(m.dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
		if err != nil {
			b.Fatal(err)
		}
		began := time.Now()
		var first, all time.Duration
		buf := make([]byte, 256<<10)
		for {
			n, err := unix.Getdents(fd, buf)
			if err != nil {
				b.Fatal(err)
			}
			if n == 0 {
				break
			}
			if first == 0 {
				first = time.Since(began)
			}
			_, _, _ = unix.ParseDirent(buf[:n], -1, nil)
		}
		all = time.Since(began)
		_ = unix.Close(fd)
		if n := m.Stats().Names.Load(); n != count {
			b.Fatalf("%d names", n)
		}
		runtime.GC()
		debug.FreeOSMemory()
		b.ReportMetric((rssBytes(b)-before)/(1<<20), "MiB/Mkeys")
		b.ReportMetric(float64(first.Microseconds())/1000, "ms-to-first")
		b.ReportMetric(all.Seconds(), "s-to-all")
		m.stop(b)
	}
}

func BenchmarkRead1MiB(b *testing.B) {
	o := newOrigin()
	data := randomBytes(64<<20, 3)
	o.put("f", data)
	m := mount(b, o, nil)
	buf := make([]byte, 1<<20)
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		fd, err := unix.Open(m.path("f"), unix.O_RDONLY, 0)
		if err != nil {
			b.Fatal(err)
		}
		_ = unix.Fadvise(fd, 0, 0, unix.FADV_DONTNEED)
		for off := range int64(len(data) >> 20) {
			if _, err := unix.Pread(fd, buf, off<<20); err != nil {
				b.Fatal(err)
			}
		}
		_ = unix.Close(fd)
	}
	b.ReportMetric(float64(m.Stats().Ops[OpRead].Count.Load())/float64(b.N), "reads/op")
}

func BenchmarkStat(b *testing.B) {
	o := newOrigin()
	for i := range 1000 {
		o.put(fmt.Sprint(i), nil)
	}
	m := mount(b, o, func(c *Config) { c.Consistency.Mode = ModeImmutable })
	fd, _ := unix.Open(m.dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	defer unix.Close(fd)
	_, _ = unix.Getdents(fd, make([]byte, 100))
	i := 0
	for b.Loop() {
		i++
		var st unix.Stat_t
		if err := unix.Stat(m.path("none"+fmt.Sprint(i)), &st); err != unix.ENOENT {
			b.Fatal(err)
		}
	}
}
