package fuse

import (
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Sizes of reply buffers, in bytes.
const (
	replyHeaderBytes = 16 // OutHeader of the protocol
	smallReplyBytes  = 4 << 10
	slabBytes        = 256 << 10 // small buffers are mapped this much at a time

	// DefaultBufferBytes is a pool for [NewBuffers] that keeps a fast disk and a fast
	// link busy: a read holds its buffer only while bytes are copied.
	DefaultBufferBytes = 32 << 20
	// overflowBytes is how far a pool goes beyond its size, in buffers that are
	// unmapped after use, when reads are stuck half-way: they must not stop others.
	overflowBytes = 128 << 20
)

// Buffers is the pool of reply buffers of a node. They are mapped, locked in
// memory where the limit allows (RLIMIT_MEMLOCK), and touched before use: a thread
// that is killed while the kernel copies from an absent page would turn the
// reader's answer into EIO.
type Buffers struct {
	large lane
	small lane

	unlocked atomic.Int64 // buffers that could not be locked
	closed   atomic.Bool
}

// lane is a stack of free buffers of one size.
type lane struct {
	mu       sync.Mutex
	free     []*replyBuffer
	made     int // buffers that exist, overflow included
	limit    int // buffers that are kept
	overflow int // buffers that may exist beyond limit
	freed    chan struct{}
	waiting  int
}

// replyBuffer holds a reply: payload page-aligned, its header in front.
type replyBuffer struct {
	page []byte // the mapping; its first page ends with the header
	lane *lane
	own  []byte // to unmap; nil for a part of a slab
}

// NewBuffers makes a pool of total bytes for replies with data (at least four).
// They are mapped when they are first needed.
func NewBuffers(total int64) *Buffers {
	n := int(max(4, total/MaxReplyBytes))
	return &Buffers{
		large: lane{limit: n, overflow: overflowBytes / MaxReplyBytes, freed: make(chan struct{}, 1)},
		small: lane{limit: 2 * MaxInFlightRequests, freed: make(chan struct{}, 1)},
	}
}

// Close unmaps the free buffers. All sessions must have ended.
func (b *Buffers) Close() error {
	if b.closed.Swap(true) {
		return nil
	}
	b.large.mu.Lock()
	defer b.large.mu.Unlock()
	for _, buf := range b.large.free {
		_ = unix.Munmap(buf.own)
	}
	b.large.free = nil
	b.small.mu.Lock()
	defer b.small.mu.Unlock()
	for _, buf := range b.small.free {
		if buf.own != nil {
			_ = unix.Munmap(buf.own)
		}
	}
	b.small.free = nil
	return nil
}

// Unlocked tells how many buffers could not be locked in memory.
func (b *Buffers) Unlocked() int64 { return b.unlocked.Load() }

// get returns a buffer whose payload holds n bytes. It waits while the pool and
// its overflow are in use; an error is that of ctx or of the mapping.
func (b *Buffers) get(ctx context.Context, n int) (*replyBuffer, error) {
	if n+replyHeaderBytes <= smallReplyBytes {
		return b.small.get(ctx, b.mapSlab)
	}
	if n > MaxReplyBytes {
		return nil, fmt.Errorf("reply of %d bytes: at most %d", n, MaxReplyBytes)
	}
	return b.large.get(ctx, b.mapLarge)
}

// get takes a free buffer, or makes more of them.
func (l *lane) get(ctx context.Context, more func() ([]*replyBuffer, error)) (*replyBuffer, error) {
	for {
		l.mu.Lock()
		if n := len(l.free); n > 0 {
			buf := l.free[n-1]
			l.free = l.free[:n-1]
			l.mu.Unlock()
			return buf, nil
		}
		if l.made < l.limit+l.overflow {
			made, err := more()
			if err != nil {
				l.mu.Unlock()
				return nil, fmt.Errorf("map reply buffer: %w", err)
			}
			l.made += len(made)
			l.free = append(l.free, made[1:]...)
			l.mu.Unlock()
			return made[0], nil
		}
		l.waiting++
		l.mu.Unlock()
		select {
		case <-l.freed:
			l.left()
		case <-ctx.Done():
			l.left()
			return nil, ctx.Err()
		}
	}
}

func (l *lane) left() {
	l.mu.Lock()
	l.waiting--
	wake := l.waiting > 0 && len(l.free) > 1
	l.mu.Unlock()
	if wake {
		l.wake()
	}
}

func (l *lane) wake() {
	select {
	case l.freed <- struct{}{}:
	default:
	}
}

// put gives the buffer back.
func (buf *replyBuffer) put() {
	l := buf.lane
	l.mu.Lock()
	if l.made > l.limit && buf.own != nil && l.waiting == 0 {
		l.made--
		l.mu.Unlock()
		_ = unix.Munmap(buf.own)
		return
	}
	l.free = append(l.free, buf)
	wake := l.waiting > 0
	l.mu.Unlock()
	if wake {
		l.wake()
	}
}

func (b *Buffers) mapLarge() ([]*replyBuffer, error) {
	page := os.Getpagesize()
	m, err := b.mapBytes(page + MaxReplyBytes)
	if err != nil {
		return nil, err
	}
	return []*replyBuffer{{page: m[page-replyHeaderBytes:], lane: &b.large, own: m}}, nil
}

func (b *Buffers) mapSlab() ([]*replyBuffer, error) {
	m, err := b.mapBytes(slabBytes)
	if err != nil {
		return nil, err
	}
	bufs := make([]*replyBuffer, 0, slabBytes/smallReplyBytes)
	for off := 0; off < slabBytes; off += smallReplyBytes {
		bufs = append(bufs, &replyBuffer{page: m[off : off+smallReplyBytes : off+smallReplyBytes], lane: &b.small})
	}
	bufs[0].own = m
	return bufs, nil
}

// mapBytes maps n bytes that are present and, if the limit allows, stay so.
func (b *Buffers) mapBytes(n int) ([]byte, error) {
	m, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_POPULATE)
	if err != nil {
		return nil, err
	}
	if err := unix.Mlock(m); err != nil {
		b.unlocked.Add(1)
	}
	return m, nil
}

// bytes returns room for header and payload; the payload begins at a page.
func (buf *replyBuffer) bytes() []byte { return buf.page }

// payload returns the room behind the header.
func (buf *replyBuffer) payload() []byte { return buf.page[replyHeaderBytes:] }
