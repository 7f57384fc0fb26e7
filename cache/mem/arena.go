// Package mem is the memory of the read path: an arena of equal buffers in one
// anonymous mapping outside of Go's heap, and the arithmetic that cuts a memory
// limit into an arena and a heap.
//
// It promises that no more than the size given at start is ever in use, that
// readers who wait are served in order, and that background callers (prefetch) are
// refused while readers could still need what is left. It leaves to others
// when to give a buffer back and what to do when none is to be had.
//
// The package is a part of package cache, which keeps its memory tier in an arena.
package mem

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// MinBuffers is the smallest arena: one buffer to fill while another is being
// handed out, so that a lone reader always gets on.
const MinBuffers = 2

// reservedShare is the part of the arena that only readers may take: one
// buffer in this many, at least one.
const reservedShare = 4

// ErrInUse says that an arena cannot be unmapped yet.
var ErrInUse = errors.New("buffers are still in use")

// ErrClosed says that the arena was closed.
var ErrClosed = errors.New("arena is closed")

// Arena is a fixed set of equal buffers. All methods are safe for concurrent use.
type Arena struct {
	bufBytes int
	mapping  []byte
	base     uintptr
	reserve  int // buffers that background callers leave alone

	mu      sync.Mutex
	free    []uint32 // stack: the buffer used last is the next one out, its pages are warm
	out     []bool   // by buffer: handed out
	waiters []*waiter
	closed  bool
}

// waiter is one blocked Get. Its channel has room for one buffer, so that Put
// never blocks.
type waiter struct {
	got chan []byte
}

// New maps totalBytes of memory, cut into buffers of bufBytes. Both are rounded:
// bufBytes up to whole pages, totalBytes down to whole buffers but never below
// [MinBuffers]. Pages cost memory only after their first use.
func New(bufBytes int, totalBytes int64) (*Arena, error) {
	if bufBytes <= 0 || totalBytes < 0 {
		return nil, fmt.Errorf("memory arena of %d bytes in buffers of %d: sizes must be positive", totalBytes, bufBytes)
	}
	page := unix.Getpagesize()
	bufBytes = (bufBytes + page - 1) / page * page
	n := max(MinBuffers, totalBytes/int64(bufBytes))
	if n > 1<<31-1 {
		return nil, fmt.Errorf("memory arena of %d bytes in buffers of %d: too many buffers", totalBytes, bufBytes)
	}
	mapping, err := unix.Mmap(-1, 0, int(n)*bufBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("map memory arena of %d bytes: %w", n*int64(bufBytes), err)
	}
	a := &Arena{
		bufBytes: bufBytes,
		mapping:  mapping,
		base:     uintptr(unsafe.Pointer(unsafe.SliceData(mapping))),
		reserve:  max(1, int(n)/reservedShare),
		free:     make([]uint32, n),
		out:      make([]bool, n),
	}
	for i := range a.free {
		a.free[i] = uint32(int(n) - 1 - i)
	}
	return a, nil
}

// BufBytes returns the length of every buffer.
func (a *Arena) BufBytes() int { return a.bufBytes }

// Buffers returns how many buffers there are.
func (a *Arena) Buffers() int { return len(a.out) }

// InUse returns how many buffers are handed out now.
func (a *Arena) InUse() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.out) - len(a.free)
}

// Get returns a buffer for a reader, waiting its turn until one is free. Its bytes
// are whatever its last user left. The error is ctx's or [ErrClosed].
func (a *Arena) Get(ctx context.Context) ([]byte, error) {
	a.mu.Lock()
	if b := a.take(0); b != nil {
		a.mu.Unlock()
		return b, nil
	}
	if a.closed {
		a.mu.Unlock()
		return nil, ErrClosed
	}
	w := &waiter{got: make(chan []byte, 1)}
	a.waiters = append(a.waiters, w)
	a.mu.Unlock()

	select {
	case b := <-w.got:
		return b, nil
	case <-ctx.Done():
		a.leave(w)
		return nil, ctx.Err()
	}
}

// TryGet returns a buffer for a reader, or nil when none is free.
func (a *Arena) TryGet() []byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.take(0)
}

// TryGetBackground returns a buffer for work that nobody waits for, or nil when
// what is left is reserved for readers.
func (a *Arena) TryGetBackground() []byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.take(a.reserve)
}

// take pops a free buffer if more than keep are free. Callers hold mu. Free
// buffers and waiters never exist at once.
func (a *Arena) take(keep int) []byte {
	n := len(a.free)
	if n <= keep || a.closed {
		return nil
	}
	i := a.free[n-1]
	a.free = a.free[:n-1]
	a.out[i] = true
	return a.buf(i)
}

func (a *Arena) buf(i uint32) []byte {
	off := int(i) * a.bufBytes
	return a.mapping[off : off+a.bufBytes : off+a.bufBytes]
}

// Put gives back a buffer that Get or one of its kin returned; any slice that
// begins where the buffer begins will do. It panics on a buffer that is not of
// this arena or not handed out: that would give one buffer to two owners.
func (a *Arena) Put(b []byte) {
	off := uintptr(unsafe.Pointer(unsafe.SliceData(b))) - a.base
	i := uint32(off / uintptr(a.bufBytes))
	a.mu.Lock()
	defer a.mu.Unlock()
	if off%uintptr(a.bufBytes) != 0 || off >= uintptr(len(a.mapping)) || !a.out[i] {
		panic("mem: Put of a buffer that this arena did not hand out")
	}
	if len(a.waiters) > 0 {
		w := a.waiters[0]
		a.waiters[0] = nil
		a.waiters = a.waiters[1:]
		w.got <- a.buf(i)
		return
	}
	a.out[i] = false
	a.free = append(a.free, i)
}

// leave takes w out of the queue; if a buffer reached it meanwhile, the buffer
// goes on to the next in line.
func (a *Arena) leave(w *waiter) {
	a.mu.Lock()
	for i, other := range a.waiters {
		if other == w {
			a.waiters = append(a.waiters[:i], a.waiters[i+1:]...)
			a.mu.Unlock()
			return
		}
	}
	a.mu.Unlock()
	a.Put(<-w.got)
}

// Close unmaps the memory. It returns [ErrInUse] and changes nothing while a
// buffer is handed out. A second Close does nothing.
func (a *Arena) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return nil
	}
	if n := len(a.out) - len(a.free); n > 0 {
		return fmt.Errorf("close memory arena: %d %w", n, ErrInUse)
	}
	a.closed = true
	if err := unix.Munmap(a.mapping); err != nil {
		return fmt.Errorf("unmap memory arena: %w", err)
	}
	return nil
}
