package transfer

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// Limits of a [Port].
const (
	// prefaceTimeout is how long a new connection may take for its first bytes.
	prefaceTimeout = 5 * time.Second
	// maxConnections is how many accepted connections are open at once; more wait
	// in the kernel's queue.
	maxConnections = 4096
)

// http2Preface begins every HTTP/2 connection, and no HTTP/1.1 one.
var http2Preface = []byte("PRI ")

// Port parts the connections of one listener by their first bytes: HTTP/2, which
// is control (gRPC), and HTTP/1.1, which is blocks. The connections that HTTP1
// accepts keep the kernel's way of sending files.
type Port struct {
	listener net.Listener
	stats    *Stats
	slots    chan struct{}
	http1    *half
	http2    *half
}

// NewPort parts the connections of l. stats may be nil.
func NewPort(l net.Listener, stats *Stats) *Port {
	if stats == nil {
		stats = new(Stats)
	}
	p := &Port{listener: l, stats: stats, slots: make(chan struct{}, maxConnections)}
	p.http1 = newHalf(l.Addr())
	p.http2 = newHalf(l.Addr())
	return p
}

// HTTP1 returns the listener for blocks.
func (p *Port) HTTP1() net.Listener { return p.http1 }

// HTTP2 returns the listener for control.
func (p *Port) HTTP2() net.Listener { return p.http2 }

// Run accepts connections until ctx ends or the listener fails; it closes the
// listener, and both halves, and returns when no connection is being looked at.
// It returns nil when ctx ended.
func (p *Port) Run(ctx context.Context) error {
	var looking sync.WaitGroup
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(ctx, func() { p.listener.Close() })
	defer func() {
		cancel()
		if stop() {
			p.listener.Close()
		}
		p.http1.Close()
		p.http2.Close()
		looking.Wait()
	}()
	backoff := time.Duration(0)
	for {
		select {
		case p.slots <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
		c, err := p.listener.Accept()
		if err != nil {
			<-p.slots
			if ctx.Err() != nil {
				return nil
			}
			if errors.Is(err, net.ErrClosed) {
				return err
			}
			// Out of descriptors, for one: wait for some to be closed.
			backoff = min(max(2*backoff, 5*time.Millisecond), time.Second)
			select {
			case <-time.After(backoff):
			case <-ctx.Done():
				return nil
			}
			continue
		}
		backoff = 0
		p.stats.ConnectionsInUse.Add(1)
		looking.Go(func() { p.part(ctx, p.wrap(c)) })
	}
}

func (p *Port) wrap(c net.Conn) *conn {
	w := &conn{Conn: c, stats: p.stats, release: sync.OnceFunc(func() {
		<-p.slots
		p.stats.ConnectionsInUse.Add(-1)
	})}
	if tcp, ok := c.(*net.TCPConn); ok {
		// A peer that lost its power says nothing: find out within seconds.
		_ = tcp.SetKeepAliveConfig(keepAlive)
		if rc, err := tcp.SyscallConn(); err == nil {
			w.tcp, w.raw = tcp, rc
		}
	}
	return w
}

// keepAlive finds a vanished host in 5 s, which is less than the stall timeout.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 2 * time.Second, Interval: time.Second, Count: 3}

// part reads the first bytes of a connection and hands it to its half.
func (p *Port) part(ctx context.Context, c *conn) {
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	if err := c.SetReadDeadline(time.Now().Add(prefaceTimeout)); err != nil {
		c.Close()
		return
	}
	head := make([]byte, len(http2Preface))
	n, err := io.ReadFull(c.Conn, head)
	if err != nil || c.SetReadDeadline(time.Time{}) != nil || !stop() {
		c.Close()
		return
	}
	c.head = head[:n]
	to := p.http1
	if bytes.Equal(head, http2Preface) {
		to = p.http2
	}
	if !to.hand(ctx, c) {
		c.Close()
	}
}

// half is one of the two listeners that a Port feeds.
type half struct {
	addr   net.Addr
	conns  chan net.Conn
	closed chan struct{}
	close  func()
}

func newHalf(addr net.Addr) *half {
	h := &half{addr: addr, conns: make(chan net.Conn), closed: make(chan struct{})}
	h.close = sync.OnceFunc(func() { close(h.closed) })
	return h
}

func (h *half) hand(ctx context.Context, c net.Conn) bool {
	select {
	case h.conns <- c:
		return true
	case <-h.closed:
	case <-ctx.Done():
	}
	return false
}

// Accept implements net.Listener.
func (h *half) Accept() (net.Conn, error) {
	select {
	case c := <-h.conns:
		return c, nil
	case <-h.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (h *half) Close() error { h.close(); return nil }

// Addr implements net.Listener.
func (h *half) Addr() net.Addr { return h.addr }
