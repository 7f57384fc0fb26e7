package peer

import (
	"context"
	"net"
	"sync"

	"github.com/shardwell/shardwell/internal/chunk"
)

// network is what the nodes of a test speak over: net.Pipe, with faults.
type network struct {
	mu        sync.Mutex
	listeners map[string]*pipeListener // by address; guarded by mu
	conns     map[string][]net.Conn    // accepted ones by address; guarded by mu
	cut       map[[2]string]bool       // from, to; guarded by mu
	dials     map[string]int           // by address; guarded by mu
}

func newNetwork() *network {
	return &network{listeners: map[string]*pipeListener{}, conns: map[string][]net.Conn{}, cut: map[[2]string]bool{},
		dials: map[string]int{}}
}

type pipeListener struct {
	addr   pipeAddr
	conns  chan net.Conn
	closed chan struct{}
	close  func()
}

type pipeAddr string

func (pipeAddr) Network() string  { return "pipe" }
func (a pipeAddr) String() string { return string(a) }

func (l *pipeListener) Addr() net.Addr { return l.addr }
func (l *pipeListener) Close() error   { l.close(); return nil }
func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (n *network) listen(addr string) net.Listener {
	n.mu.Lock()
	defer n.mu.Unlock()
	l := &pipeListener{addr: pipeAddr(addr), conns: make(chan net.Conn), closed: make(chan struct{})}
	l.close = sync.OnceFunc(func() { close(l.closed) })
	n.listeners[addr] = l
	return l
}

// dialer returns the DialFunc of a node.
func (n *network) dialer(from string) func(context.Context, string) (net.Conn, error) {
	return func(ctx context.Context, addr string) (net.Conn, error) {
		n.mu.Lock()
		l, cut := n.listeners[addr], n.cut[[2]string{from, addr}]
		n.dials[addr]++
		n.mu.Unlock()
		if cut { // packets vanish
			<-ctx.Done()
			return nil, ctx.Err()
		}
		refused := &net.OpError{Op: "dial", Net: "pipe", Err: net.ErrClosed}
		if l == nil {
			return nil, refused
		}
		a, b := net.Pipe()
		select {
		case l.conns <- b:
			n.mu.Lock()
			n.conns[addr] = append(n.conns[addr], b)
			n.mu.Unlock()
			return a, nil
		case <-l.closed:
		case <-ctx.Done():
		}
		a.Close()
		b.Close()
		return nil, refused
	}
}

// kill makes an address dead at once, with the streams that it serves.
func (n *network) kill(addr string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if l := n.listeners[addr]; l != nil {
		l.Close()
		delete(n.listeners, addr)
	}
	for _, c := range n.conns[addr] {
		c.Close()
	}
	delete(n.conns, addr)
}

// sever drops what from sends to addr from now on, without a word.
func (n *network) sever(from, addr string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cut[[2]string{from, addr}] = true
}

// toyRing is one order of owners for everything, or one a node.
type toyRing struct {
	mu      sync.Mutex
	owners  []string // guarded by mu
	earlier []string // guarded by mu
}

func (r *toyRing) KeyOfBlocks(_ chunk.Object, _ chunk.ObjectID, s chunk.Span) Key {
	return Key(small.ChunkOf(s.First))
}
func (r *toyRing) KeyOfName(name string) Key { return Key(len(name)) }
func (r *toyRing) Owners(_ Key, buf []string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append(buf, r.owners...)
}
func (r *toyRing) EarlierOwners(_ Key, buf []string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append(buf, r.earlier...)
}
