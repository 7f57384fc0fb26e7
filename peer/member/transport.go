package member

import (
	"context"
	"fmt"
	"log"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
)

const (
	// streamTimeout bounds dialing, and then the exchange of states, with one member.
	streamTimeout = 5 * time.Second

	// announceTimeout bounds how long a change of this member's record is sent around; a
	// thousand members need some 1.5 s.
	announceTimeout = 3 * time.Second

	// maxStreams bounds streams that others open to this member at one time.
	maxStreams = 256
)

// transport is memberlist's, with a bound on streams and an end: Shutdown stops
// dials under way and closes all streams, so that what memberlist left behind ends soon.
type transport struct {
	memberlist.NodeAwareTransport
	port    int // that was bound; 0 for a transport that was given
	dialTCP bool
	stats   *Stats

	streams chan net.Conn // to memberlist
	stop    context.Context
	end     context.CancelFunc
	drained chan struct{} // closed when nothing comes from the transport below any more
	wait    sync.WaitGroup

	mu      sync.Mutex
	open    map[*stream]struct{}
	inbound int
}

// newTransport opens the transport that cfg asks for.
func newTransport(cfg Config, logger *log.Logger, stats *Stats) (*transport, error) {
	t := &transport{
		stats: stats, streams: make(chan net.Conn), drained: make(chan struct{}),
		open: make(map[*stream]struct{}),
	}
	t.stop, t.end = context.WithCancel(context.Background())
	switch given := cfg.Transport.(type) {
	case nil:
		nt, err := listen(cfg, logger)
		if err != nil {
			return nil, err
		}
		t.NodeAwareTransport, t.port, t.dialTCP = nt, nt.GetAutoBindPort(), true
	case memberlist.NodeAwareTransport:
		t.NodeAwareTransport, t.port = given, cfg.BindPort
	default:
		return nil, fmt.Errorf("transport %T does not know the nodes that it sends to", given)
	}
	t.wait.Go(t.relay)
	return t, nil
}

// listenTries is how often a free port is looked for that is free for both UDP and TCP.
const listenTries = 10

func listen(cfg Config, logger *log.Logger) (*memberlist.NetTransport, error) {
	var nt *memberlist.NetTransport
	var err error
	for range listenTries {
		nt, err = memberlist.NewNetTransport(&memberlist.NetTransportConfig{
			BindAddrs: []string{cfg.BindAddr}, BindPort: cfg.BindPort, Logger: logger,
		})
		if err == nil || cfg.BindPort != 0 {
			break
		}
	}
	return nt, err
}

// relay hands streams that others opened to memberlist, as many as may be.
func (t *transport) relay() {
	for {
		select {
		case c := <-t.NodeAwareTransport.StreamCh():
			s := t.track(c, true)
			if s == nil {
				continue
			}
			select {
			case t.streams <- s:
			case <-t.stop.Done():
				s.Close()
			}
		case <-t.drained:
			return
		}
	}
}

// StreamCh is where memberlist gets streams from.
func (t *transport) StreamCh() <-chan net.Conn { return t.streams }

// DialTimeout opens a stream; memberlist calls DialAddressTimeout.
func (t *transport) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	return t.DialAddressTimeout(memberlist.Address{Addr: addr}, timeout)
}

// DialAddressTimeout opens a stream to a member. It ends early at Shutdown.
func (t *transport) DialAddressTimeout(a memberlist.Address, timeout time.Duration) (net.Conn, error) {
	if err := t.stop.Err(); err != nil {
		return nil, net.ErrClosed
	}
	var c net.Conn
	var err error
	if t.dialTCP {
		d := net.Dialer{Timeout: timeout}
		c, err = d.DialContext(t.stop, "tcp", a.Addr)
	} else {
		c, err = t.NodeAwareTransport.DialAddressTimeout(a, timeout)
	}
	if err != nil {
		return nil, err
	}
	if s := t.track(c, false); s != nil {
		return s, nil
	}
	return nil, net.ErrClosed
}

// Shutdown stops listening, ends dials and streams, and returns when the
// transport below and the relay have ended.
func (t *transport) Shutdown() error {
	t.mu.Lock()
	t.end()
	open := make([]*stream, 0, len(t.open))
	for s := range t.open {
		open = append(open, s)
	}
	t.mu.Unlock()
	for _, s := range open {
		s.Close()
	}
	err := t.NodeAwareTransport.Shutdown()
	select {
	case <-t.drained:
	default:
		close(t.drained)
	}
	t.wait.Wait()
	return err
}

// stream is an open stream that its transport knows of.
type stream struct {
	net.Conn
	of      *transport
	inbound bool
	once    sync.Once
}

// track wraps c, or closes it and returns nil when there are too many or the transport has ended.
func (t *transport) track(c net.Conn, inbound bool) *stream {
	s := &stream{Conn: c, of: t, inbound: inbound}
	t.mu.Lock()
	full := inbound && t.inbound >= maxStreams
	ok := !full && t.stop.Err() == nil
	if ok {
		t.open[s] = struct{}{}
		if inbound {
			t.inbound++
		}
	}
	t.mu.Unlock()
	if !ok {
		if full {
			t.stats.RefusedStreams.Add(1)
		}
		c.Close()
		return nil
	}
	return s
}

// Close closes the stream; more than once does no harm.
func (s *stream) Close() error {
	s.once.Do(func() {
		s.of.mu.Lock()
		defer s.of.mu.Unlock()
		delete(s.of.open, s)
		if s.inbound {
			s.of.inbound--
		}
	})
	return s.Conn.Close()
}
