package transfer

import (
	"io"
	"net"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// conn is an accepted connection whose first bytes were read already. Its
// ReadFrom is what net/http calls to send a file.
type conn struct {
	net.Conn
	head    []byte       // read before anybody else does; owned by the reader
	tcp     *net.TCPConn // nil when the connection is something else
	raw     syscall.RawConn
	stats   *Stats
	release func() // frees the connection's slot, once
}

func (c *conn) Read(p []byte) (int, error) {
	if len(c.head) > 0 {
		n := copy(p, c.head)
		c.head = c.head[n:]
		return n, nil
	}
	return c.Conn.Read(p)
}

func (c *conn) Close() error {
	err := c.Conn.Close()
	c.release()
	return err
}

// ReadFrom sends a fileFrame by sendfile and everything else as the connection
// would have.
func (c *conn) ReadFrom(src io.Reader) (int64, error) {
	if f, ok := src.(*fileFrame); ok && c.raw != nil {
		return c.sendFrame(f)
	}
	if c.tcp != nil {
		return c.tcp.ReadFrom(src)
	}
	buf := copyBuffers.Get().(*[]byte)
	defer copyBuffers.Put(buf)
	return io.CopyBuffer(struct{ io.Writer }{c.Conn}, struct{ io.Reader }{src}, *buf)
}

var copyBuffers = sync.Pool{New: func() any { b := make([]byte, 64<<10); return &b }}

// fileFrame is what is left to send of one frame: its header and a range of a
// file. It reads at its own offset, so that many responses share a description.
type fileFrame struct {
	head  []byte
	file  *os.File
	off   int64
	n     int64
	bySys int64 // payload bytes that the kernel copied
}

// Read is the way without sendfile.
func (f *fileFrame) Read(p []byte) (int, error) {
	if len(f.head) > 0 {
		n := copy(p, f.head)
		f.head = f.head[n:]
		return n, nil
	}
	if f.n == 0 {
		return 0, io.EOF
	}
	if int64(len(p)) > f.n {
		p = p[:f.n]
	}
	n, err := f.file.ReadAt(p, f.off)
	f.off += int64(n)
	f.n -= int64(n)
	if err == io.EOF && n < len(p) {
		err = io.ErrUnexpectedEOF // the file is shorter than its holder said
	} else if err == io.EOF {
		err = nil
	}
	return n, err
}

// sendFrame writes the header with MSG_MORE, so that it leaves in one segment
// with the first bytes of the file, and then the file.
func (c *conn) sendFrame(f *fileFrame) (written int64, err error) {
	for len(f.head) > 0 {
		n, err := c.writeMore(f.head)
		f.head = f.head[n:]
		written += int64(n)
		if err != nil {
			return written, err
		}
	}
	file, err := f.file.SyscallConn()
	if err != nil {
		return written, err
	}
	var sendErr error
	// Control keeps the descriptor from being closed under us.
	err = file.Control(func(fd uintptr) {
		for f.n > 0 && sendErr == nil {
			var n int
			n, sendErr = c.sendFile(int(fd), &f.off, f.n)
			f.n -= int64(n)
			f.bySys += int64(n)
			written += int64(n)
			if sendErr == nil && n == 0 {
				sendErr = io.ErrUnexpectedEOF
			}
		}
	})
	if err == nil {
		err = sendErr
	}
	if isNotSupported(err) && f.n > 0 {
		buf := copyBuffers.Get().(*[]byte)
		defer copyBuffers.Put(buf)
		n, err := io.CopyBuffer(struct{ io.Writer }{c.Conn}, struct{ io.Reader }{f}, *buf)
		return written + n, err
	}
	return written, err
}

// isNotSupported reports whether the file system cannot do sendfile.
func isNotSupported(err error) bool {
	return err == unix.EINVAL || err == unix.ENOSYS || err == unix.EOPNOTSUPP
}

// writeMore writes some of p and tells the kernel that more follows.
func (c *conn) writeMore(p []byte) (n int, err error) {
	werr := c.raw.Write(func(fd uintptr) bool {
		for {
			n, err = unix.SendmsgN(int(fd), p, nil, nil, unix.MSG_MORE|unix.MSG_NOSIGNAL)
			if err != unix.EINTR {
				return err != unix.EAGAIN
			}
		}
	})
	if werr != nil {
		return 0, werr
	}
	return max(n, 0), err
}

// sendFile moves up to n bytes at *off and advances it. It waits for room in the
// socket, up to the write deadline.
func (c *conn) sendFile(file int, off *int64, n int64) (sent int, err error) {
	const maxCall = 1 << 30 // the kernel takes less than 2 GiB at a time
	werr := c.raw.Write(func(fd uintptr) bool {
		for {
			sent, err = unix.Sendfile(int(fd), file, off, int(min(n, maxCall)))
			if err != unix.EINTR {
				return err != unix.EAGAIN
			}
		}
	})
	if werr != nil {
		return 0, werr
	}
	return max(sent, 0), err
}
