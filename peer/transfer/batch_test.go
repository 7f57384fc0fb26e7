package transfer

import (
	"context"
	"io"
	"net"
	"testing"

	"golang.org/x/sys/unix"
)

// tcpPair returns both ends of a connection, the first by the client's dialer.
func tcpPair(t *testing.T) (*batchConn, *net.TCPConn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	dial := dialBatched(func(ctx context.Context, addr string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", addr)
	})
	c, err := dial(t.Context(), ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	far, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { far.Close() })
	return c.(*batchConn), far.(*net.TCPConn)
}

// readable reports whether who waits for bytes of c would be woken.
func readable(t *testing.T, c *batchConn) bool {
	t.Helper()
	n := 0
	if err := c.raw.Control(func(fd uintptr) {
		n, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	}); err != nil {
		t.Fatal(err)
	}
	return n > 0
}

// sendSlowly writes n bytes in pieces, each when the one before it has arrived.
func sendSlowly(c *net.TCPConn, n, piece int) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	for ; n > 0; n -= piece {
		if _, err := c.Write(make([]byte, piece)); err != nil {
			return err
		}
		waiting, ioctl := 1, error(nil)
		for waiting > 0 && ioctl == nil {
			err = raw.Control(func(fd uintptr) { waiting, ioctl = unix.IoctlGetInt(int(fd), unix.TIOCOUTQ) })
			if err != nil {
				return err
			}
		}
		if ioctl != nil {
			return ioctl
		}
	}
	return nil
}

// Who reads a long piece is woken when there is enough of it, not by each packet.
func TestLongReadIsWokenForMuch(t *testing.T) {
	const want, some = 48 << 10, 6 << 10
	near, far := tcpPair(t)
	if err := sendSlowly(far, 1, 1); err != nil {
		t.Fatal(err)
	}
	if n, err := near.Read(make([]byte, want)); n != 1 || err != nil {
		t.Fatalf("read %d bytes, %v; want the one that is there", n, err)
	}
	for n := some; n < want; n += some {
		if err := sendSlowly(far, some, some); err != nil {
			t.Fatal(err)
		}
		if readable(t, near) {
			t.Fatalf("woken for %d bytes of %d", n, want)
		}
	}
	if err := sendSlowly(far, some, some); err != nil {
		t.Fatal(err)
	}
	if !readable(t, near) {
		t.Errorf("not woken though all %d bytes are here", want)
	}
}

// Short reads, and the end of the stream, are not waited for: not even after a long read.
func TestShortReadComesAtOnce(t *testing.T) {
	near, far := tcpPair(t)
	sent := make(chan error, 1)
	go func() { sent <- sendSlowly(far, clientBufferBytes+1, clientBufferBytes+1) }()
	if _, err := io.ReadFull(near, make([]byte, clientBufferBytes+1)); err != nil {
		t.Fatal(err)
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	go func() { sent <- sendSlowly(far, 1, 1) }()
	if n, err := near.Read(make([]byte, clientBufferBytes)); n != 1 || err != nil {
		t.Fatalf("read %d bytes, %v; want one", n, err)
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	go func() {
		err := sendSlowly(far, 1, 1)
		far.Close()
		sent <- err
	}()
	n, err := io.ReadFull(near, make([]byte, 256<<10))
	if n != 1 || err != io.ErrUnexpectedEOF {
		t.Errorf("long read at the end of the stream: %d bytes, %v", n, err)
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
}
