package transfer

import (
	"context"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	// clientBufferBytes is the read buffer of a client's connection. A longer read goes
	// around it, and is of a body that has at least as many bytes to come.
	clientBufferBytes = 16 << 10
	// maxBatchBytes is how much of a block is let arrive before its reader is woken:
	// packet by packet, waking took more time than copying. A block is of use only as a
	// whole, so nobody gets it later.
	maxBatchBytes = 128 << 10
)

// batchConn is a client's connection whose long reads are woken once for many
// packets. Its Read is not safe for concurrent use.
type batchConn struct {
	net.Conn
	raw syscall.RawConn
	low int // SO_RCVLOWAT as it is, in bytes; 0 when it cannot be set
}

// dialBatched returns a DialFunc whose TCP connections are a batchConn.
func dialBatched(dial DialFunc) DialFunc {
	return func(ctx context.Context, addr string) (net.Conn, error) {
		c, err := dial(ctx, addr)
		if tcp, ok := c.(*net.TCPConn); ok && err == nil {
			if raw, err := tcp.SyscallConn(); err == nil {
				return &batchConn{Conn: c, raw: raw, low: 1}, nil
			}
		}
		return c, err
	}
}

// Read reads like any connection. The kernel wakes a waiting reader also when the
// other side closes, or when its window is full.
func (c *batchConn) Read(p []byte) (int, error) {
	low := 1
	if len(p) > clientBufferBytes {
		low = min(len(p), maxBatchBytes)
	}
	if low != c.low && c.low != 0 {
		c.setLow(low)
	}
	return c.Conn.Read(p)
}

func (c *batchConn) setLow(n int) {
	var err error
	if ctl := c.raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVLOWAT, n)
	}); ctl != nil || err != nil {
		n = 0 // closed, or a system without: reads work as they are
	}
	c.low = n
}
