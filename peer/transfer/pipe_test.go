package transfer

import (
	"context"
	"net"
	"sync"
	"testing"
	"testing/synctest"
)

// pipeNet is a network of net.Pipe, for time that is ours.
type pipeNet struct {
	mu        sync.Mutex
	listeners map[string]*half // by address; guarded by mu
}

type pipeAddr string

func (pipeAddr) Network() string  { return "pipe" }
func (a pipeAddr) String() string { return string(a) }

func (n *pipeNet) listen(addr string) net.Listener {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.listeners == nil {
		n.listeners = make(map[string]*half)
	}
	h := newHalf(pipeAddr(addr))
	n.listeners[addr] = h
	return h
}

func (n *pipeNet) dial(ctx context.Context, addr string) (net.Conn, error) {
	n.mu.Lock()
	h := n.listeners[addr]
	n.mu.Unlock()
	a, b := net.Pipe()
	if h == nil || !h.hand(ctx, b) {
		a.Close()
		b.Close()
		return nil, &net.OpError{Op: "dial", Net: "pipe", Err: net.ErrClosed}
	}
	return a, nil
}

// inBubble runs f with a server on a pipe, in synctest's time.
func inBubble(t *testing.T, size int, change func(*ServerConfig, *ClientConfig), f func(t *testing.T, r *rig)) {
	synctest.Test(t, func(t *testing.T) {
		l := newLender(t, size, false)
		signer := mustSigner(t, keyA)
		var network pipeNet
		sc := ServerConfig{Self: "holder", Geometry: small, Lender: l, Verifier: NewVerifier(signer), Stats: new(Stats)}
		cc := ClientConfig{Self: "asker", Geometry: small, Signer: signer, Stats: new(Stats), Dial: network.dial}
		if change != nil {
			change(&sc, &cc)
		}
		port := NewPort(network.listen("holder:1"), sc.Stats)
		srv := NewServer(sc).HTTP()
		ctx, cancel := context.WithCancel(context.Background())
		r := &rig{lender: l, server: sc, client: NewClient(cc), to: Target{ID: "holder", Addr: "holder:1"}, stats: sc.Stats}
		srv.Handler = r.handler(srv.Handler)
		var wg sync.WaitGroup
		wg.Go(func() { _ = port.Run(ctx) })
		wg.Go(func() { _ = srv.Serve(port.HTTP1()) })
		f(t, r)
		r.client.Close()
		srv.Close()
		cancel()
		wg.Wait()
	})
}
