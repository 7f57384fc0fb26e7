package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"
)

// wires is a network in the time of a synctest bubble. Each host has a link with a rate each way, which
// the connections that have something to send share in turns, segment by segment. A connection has a buffer
// on both sides and so many bytes on the way, so a receiver that is slow holds up the connections to it and no
// others. Not modelled: latency, losses, and what headers of packets take.
type wires struct {
	segment, buffer, window int // bytes of one turn, of each buffer of a connection, and sent but not read

	wg sync.WaitGroup
	mu sync.Mutex // guards all that follows, and all of hosts and ends

	hosts  map[string]*wireHost // by address
	cut    map[[2]*wireHost]bool
	closed bool
}

// wireHost is a host and its link.
type wireHost struct {
	w          *wires
	addr       string
	rate       float64 // bytes a second, each way
	dead       bool
	accepting  *wireListener
	ends       []*wireEnd // that it reads from and writes to
	news       [2]*sync.Cond
	sent, came int64 // bytes that have crossed its link
}

// The directions of a link.
const (
	outward = iota
	inward
)

// wireEnd is one end of a connection. It is a net.Conn.
type wireEnd struct {
	host *wireHost
	peer *wireEnd
	news *sync.Cond

	unsent []byte // written here
	onWay  []byte // sent to this end, and not through its host's link
	unread []byte // through it
	eof    bool   // closed here
	broken bool   // by a host that died, or by its peer that closed before it had read everything
	until  [2]time.Time
	timers [2]*time.Timer
}

func newWires(segment, buffer, window int) *wires {
	return &wires{segment: segment, buffer: buffer, window: window, hosts: make(map[string]*wireHost), cut: make(map[[2]*wireHost]bool)}
}

// host adds a host whose link takes so many bytes a second each way.
func (w *wires) host(addr string, rate float64) *wireHost {
	w.mu.Lock()
	defer w.mu.Unlock()
	h := &wireHost{w: w, addr: addr, rate: rate, news: [2]*sync.Cond{sync.NewCond(&w.mu), sync.NewCond(&w.mu)}}
	w.hosts[addr] = h
	for d := range h.news {
		w.wg.Go(func() { h.pump(d) })
	}
	return h
}

// close ends the links. Nobody uses them any more.
func (w *wires) close() {
	w.mu.Lock()
	w.closed = true
	for _, h := range w.hosts {
		h.news[outward].Broadcast()
		h.news[inward].Broadcast()
	}
	w.mu.Unlock()
	w.wg.Wait()
}

// pump is one direction of a link: what there is to send, or has come, goes on one segment after the other.
func (h *wireHost) pump(direction int) {
	w := h.w
	w.mu.Lock()
	defer w.mu.Unlock()
	for turn := 0; !w.closed; {
		e, n := h.next(direction, &turn)
		if e == nil {
			h.news[direction].Wait()
			continue
		}
		w.mu.Unlock()
		time.Sleep(time.Duration(float64(n) / h.rate * float64(time.Second)))
		w.mu.Lock()
		e.move(direction, n)
	}
}

// next returns the end whose turn it is, and how many bytes may go, or nil. Callers hold mu.
func (h *wireHost) next(direction int, turn *int) (*wireEnd, int) {
	h.ends = slices.DeleteFunc(h.ends, func(e *wireEnd) bool { return e.eof && len(e.unsent) == 0 || e.broken })
	for i := range h.ends {
		e := h.ends[(*turn+i)%len(h.ends)]
		n := len(e.onWay)
		if direction == outward {
			n = min(len(e.unsent), h.w.window-len(e.peer.onWay)-len(e.peer.unread))
			if h.w.cut[[2]*wireHost{h, e.peer.host}] {
				n = 0
			}
		}
		if n > 0 {
			*turn = (*turn + i + 1) % len(h.ends)
			return e, min(n, h.w.segment)
		}
	}
	return nil, 0
}

// move takes bytes over the link. Callers hold mu.
func (e *wireEnd) move(direction, n int) {
	switch {
	case e.broken || direction == outward && e.peer.host.dead:
	case direction == outward:
		n = min(n, len(e.unsent))
		e.host.sent += int64(n)
		if !e.peer.eof {
			e.peer.onWay = append(e.peer.onWay, e.unsent[:n]...)
			e.peer.host.news[inward].Signal()
		}
		e.unsent = append(e.unsent[:0], e.unsent[n:]...)
		e.peer.news.Broadcast() // it may have been the last before the end
	default:
		n = min(n, len(e.onWay))
		e.host.came += int64(n)
		e.unread = append(e.unread, e.onWay[:n]...)
		e.onWay = append(e.onWay[:0], e.onWay[n:]...)
	}
	e.news.Broadcast()
}

// connect makes a connection and returns both ends. Callers hold mu.
func (w *wires) connect(from, to *wireHost) (a, b *wireEnd) {
	a = &wireEnd{host: from, news: sync.NewCond(&w.mu)}
	b = &wireEnd{host: to, news: sync.NewCond(&w.mu), peer: a}
	a.peer = b
	from.ends, to.ends = append(from.ends, a), append(to.ends, b)
	if from.dead || to.dead {
		a.breakOff()
		b.breakOff()
	}
	return a, b
}

// kill ends a host as a process is killed: its connections break at once, and nobody gets new ones.
func (h *wireHost) kill() {
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	h.dead = true
	if h.accepting != nil {
		h.accepting.close()
	}
	for _, e := range h.ends {
		e.breakOff()
		e.peer.breakOff()
	}
}

// breakOff ends a connection for one end of it. Callers hold mu.
func (e *wireEnd) breakOff() {
	e.broken, e.unsent, e.onWay = true, nil, nil
	e.news.Broadcast()
}

// part has all packets between two groups of hosts vanish, or pass again.
func (w *wires) part(as, bs []*wireHost, cut bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, a := range as {
		for _, b := range bs {
			w.cut[[2]*wireHost{a, b}], w.cut[[2]*wireHost{b, a}] = cut, cut
		}
	}
	for _, h := range w.hosts {
		h.news[outward].Signal()
	}
}

// setRate changes a link.
func (h *wireHost) setRate(rate float64) {
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	h.rate = rate
}

// bytes returns what has crossed the link.
func (h *wireHost) bytes() (came, sent int64) {
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	return h.came, h.sent
}

// dial returns the function by which a host opens connections.
func (h *wireHost) dial(ctx context.Context, addr string) (net.Conn, error) {
	h.w.mu.Lock()
	to := h.w.hosts[addr]
	for to != nil && h.w.cut[[2]*wireHost{h, to}] {
		h.w.mu.Unlock()
		if err := sleepOrEnd(ctx, 100*time.Millisecond); err != nil {
			return nil, err
		}
		h.w.mu.Lock()
	}
	defer h.w.mu.Unlock()
	if to == nil || to.dead || h.dead || to.accepting == nil || len(to.accepting.queue) == cap(to.accepting.queue) {
		return nil, &net.OpError{Op: "dial", Net: "wire", Err: syscall.ECONNREFUSED}
	}
	a, b := h.w.connect(h, to)
	to.accepting.queue <- b
	return a, nil
}

func sleepOrEnd(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// wireListener accepts connections.
type wireListener struct {
	addr  wireAddr
	queue chan *wireEnd
	done  chan struct{}
	close func()
}

// listen makes a host accept connections.
func (h *wireHost) listen() net.Listener {
	l := &wireListener{addr: wireAddr(h.addr), queue: make(chan *wireEnd, 256), done: make(chan struct{})}
	l.close = sync.OnceFunc(func() { close(l.done) })
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	h.accepting = l
	return l
}

func (l *wireListener) Addr() net.Addr { return l.addr }
func (l *wireListener) Close() error   { l.close(); return nil }
func (l *wireListener) Accept() (net.Conn, error) {
	select {
	case e := <-l.queue:
		return e, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

type wireAddr string

func (wireAddr) Network() string  { return "wire" }
func (a wireAddr) String() string { return string(a) }

func (e *wireEnd) LocalAddr() net.Addr  { return wireAddr(e.host.addr) }
func (e *wireEnd) RemoteAddr() net.Addr { return wireAddr(e.peer.host.addr) }

// Read implements net.Conn.
func (e *wireEnd) Read(p []byte) (int, error) {
	e.host.w.mu.Lock()
	defer e.host.w.mu.Unlock()
	for {
		switch {
		case e.eof:
			return 0, net.ErrClosed
		case e.late(inward):
			return 0, os.ErrDeadlineExceeded
		case len(e.unread) > 0:
			n := copy(p, e.unread)
			e.unread = append(e.unread[:0], e.unread[n:]...)
			e.peer.host.news[outward].Signal()
			return n, nil
		case e.broken:
			return 0, syscall.ECONNRESET
		case e.peer.eof && len(e.peer.unsent) == 0 && len(e.onWay) == 0:
			return 0, io.EOF
		}
		e.news.Wait()
	}
}

// Write implements net.Conn.
func (e *wireEnd) Write(p []byte) (done int, err error) {
	e.host.w.mu.Lock()
	defer e.host.w.mu.Unlock()
	for done < len(p) {
		switch room := e.host.w.buffer - len(e.unsent); {
		case e.eof:
			return done, net.ErrClosed
		case e.broken, e.peer.eof:
			return done, syscall.EPIPE
		case e.late(outward):
			return done, os.ErrDeadlineExceeded
		case room > 0:
			n := min(room, len(p)-done)
			e.unsent = append(e.unsent, p[done:done+n]...)
			done += n
			e.host.news[outward].Signal()
			continue
		}
		e.news.Wait()
	}
	return done, nil
}

// Close implements net.Conn: what was written is sent still.
func (e *wireEnd) Close() error {
	e.host.w.mu.Lock()
	defer e.host.w.mu.Unlock()
	if e.eof {
		return nil
	}
	e.eof = true
	for _, t := range e.timers {
		if t != nil {
			t.Stop()
		}
	}
	if len(e.unread)+len(e.onWay) > 0 || len(e.peer.unsent) > 0 {
		e.peer.breakOff()
	}
	e.unread, e.onWay = nil, nil
	e.news.Broadcast()
	e.peer.news.Broadcast()
	return nil
}

// late reports whether a deadline has passed. Callers hold mu.
func (e *wireEnd) late(direction int) bool {
	return !e.until[direction].IsZero() && !time.Now().Before(e.until[direction])
}

func (e *wireEnd) setDeadline(direction int, t time.Time) error {
	e.host.w.mu.Lock()
	defer e.host.w.mu.Unlock()
	if e.eof {
		return net.ErrClosed
	}
	e.until[direction] = t
	if e.timers[direction] != nil {
		e.timers[direction].Stop()
	}
	if !t.IsZero() {
		e.timers[direction] = time.AfterFunc(time.Until(t), func() {
			e.host.w.mu.Lock()
			defer e.host.w.mu.Unlock()
			e.news.Broadcast()
		})
	}
	return nil
}

func (e *wireEnd) SetReadDeadline(t time.Time) error  { return e.setDeadline(inward, t) }
func (e *wireEnd) SetWriteDeadline(t time.Time) error { return e.setDeadline(outward, t) }
func (e *wireEnd) SetDeadline(t time.Time) error {
	return errors.Join(e.SetReadDeadline(t), e.SetWriteDeadline(t))
}

// pour sends a body from a host without a program of its own, an origin, to another.
func (w *wires) pour(from, to *wireHost, body io.ReadCloser) io.ReadCloser {
	w.mu.Lock()
	a, b := w.connect(from, to)
	w.mu.Unlock()
	w.wg.Go(func() {
		_, err := io.Copy(struct{ io.Writer }{a}, struct{ io.Reader }{body})
		if err != nil && !errors.Is(err, syscall.EPIPE) {
			panic(fmt.Sprintf("origin: %v", err))
		}
		_ = body.Close()
		_ = a.Close()
	})
	return b
}

var (
	_ net.Conn     = (*wireEnd)(nil)
	_ net.Listener = (*wireListener)(nil)
)
