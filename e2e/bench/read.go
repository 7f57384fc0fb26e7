package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/shardwell/shardwell/e2e/cage"
)

// readBytes is the size of sequential reads.
const readBytes = 1 << 20

// open is the bare system call, made again when a signal of the runtime interrupts it.
func open(path string) (int, error) {
	for {
		fd, err := syscall.Open(path, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil {
			return -1, fmt.Errorf("open %s: %w", path, err)
		}
		return fd, nil
	}
}

// readFile reads a file to its end in 1 MiB reads and returns how long it took.
// It uses bare system calls: the runtime's poller has no part in it.
func readFile(path string, size int64) (time.Duration, error) {
	begin := time.Now()
	fd, err := open(path)
	if err != nil {
		return 0, err
	}
	defer syscall.Close(fd)
	buf := make([]byte, readBytes)
	var sum int64
	for {
		n, err := syscall.Read(fd, buf)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("read %s at %d: %w", path, sum, err)
		}
		if n == 0 {
			break
		}
		sum += int64(n)
	}
	if sum != size {
		return 0, fmt.Errorf("read %s: %d bytes, want %d", path, sum, size)
	}
	return time.Since(begin), nil
}

// randomRead does count 4 KiB reads at random places in each of 8 threads and returns reads a second.
func randomRead(path string, size int64, count int, seed uint64) (float64, error) {
	const threads = 8
	const length = 4096
	var wg sync.WaitGroup
	errs := make([]error, threads)
	begin := time.Now()
	for i := range threads {
		wg.Go(func() {
			fd, err := open(path)
			if err != nil {
				errs[i] = err
				return
			}
			defer syscall.Close(fd)
			rng := rand.New(rand.NewPCG(seed, uint64(i)))
			buf := make([]byte, length)
			for range count {
				off := rng.Int64N(size/length) * length
				n, err := syscall.Pread(fd, buf, off)
				for errors.Is(err, syscall.EINTR) {
					n, err = syscall.Pread(fd, buf, off)
				}
				if n != length || err != nil {
					errs[i] = fmt.Errorf("read %s at %d: %d bytes, %w", path, off, n, err)
					return
				}
			}
		})
	}
	wg.Wait()
	return float64(threads*count) / time.Since(begin).Seconds(), errors.Join(errs...)
}

// atOnce runs f for 0 to n-1 at the same time and returns how long all took.
func atOnce(n int, f func(i int) error) (time.Duration, error) {
	var wg sync.WaitGroup
	errs := make([]error, n)
	begin := time.Now()
	for i := range n {
		wg.Go(func() { errs[i] = f(i) })
	}
	wg.Wait()
	return time.Since(begin), errors.Join(errs...)
}

// clientOf returns an HTTP client whose connections start in a host.
func clientOf(h *cage.Host) *http.Client {
	return &http.Client{Transport: &http.Transport{
		DialContext: h.Dial, DisableCompression: true, MaxIdleConnsPerHost: 128, ReadBufferSize: 256 << 10,
	}}
}

// getWhole reads the body of a GET to its end.
func getWhole(c *http.Client, url string, first, length int64) error {
	req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", first, first+length-1))
	resp, err := c.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	buf := bufs.Get().(*[]byte)
	defer bufs.Put(buf)
	n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, resp.Body, *buf)
	if err == nil && (n != length || resp.StatusCode != http.StatusPartialContent) {
		err = fmt.Errorf("GET %s: %s, %d bytes, want %d", url, resp.Status, n, length)
	}
	return err
}

var bufs = sync.Pool{New: func() any { b := make([]byte, 256<<10); return &b }}

// parallelGet reads an object by ranges of part bytes over so many connections.
func parallelGet(c *http.Client, url string, size int64, connections int, part int64) (time.Duration, error) {
	var next atomic.Int64
	return atOnce(connections, func(int) error {
		for {
			off := (next.Add(1) - 1) * part
			if off >= size {
				return nil
			}
			if err := getWhole(c, url, off, min(part, size-off)); err != nil {
				return err
			}
		}
	})
}

// readTimed is readFile that also tells when the first MiB was there.
func readTimed(path string, size int64) (whole, first time.Duration, err error) {
	begin := time.Now()
	fd, err := open(path)
	if err != nil {
		return 0, 0, err
	}
	defer syscall.Close(fd)
	buf := make([]byte, readBytes)
	for sum := int64(0); sum < size; {
		n, err := syscall.Read(fd, buf)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil || n == 0 {
			return 0, 0, fmt.Errorf("read %s at %d of %d: %d bytes, %w", path, sum, size, n, err)
		}
		if first == 0 {
			first = time.Since(begin)
		}
		sum += int64(n)
	}
	return time.Since(begin), first, nil
}
