// Package membertest is a network in memory for tests of membership: lossy,
// with delay, and to be cut and healed at will. It works within a bubble of testing/synctest.
// It is an implementation of memberlist's transport, a part of no production path.
package membertest

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
)

// Port is the port of all transports of a network.
const Port = 7946

// packetQueue is how many packets wait at a transport before more are lost, as with a socket's buffer.
const packetQueue = 4096

// Network connects transports. Its methods are safe for concurrent use.
type Network struct {
	delay time.Duration

	mu    sync.Mutex
	rng   *rand.Rand
	loss  float64 // of packets; streams arrive or fail
	cut   func(from, to netip.AddrPort) bool
	nodes map[netip.AddrPort]*Transport
	next  uint32
}

// New returns a network whose packets take delay, and whose losses follow from seed.
func New(seed uint64, delay time.Duration) *Network {
	return &Network{
		delay: delay,
		rng:   rand.New(rand.NewPCG(seed, 0)),
		cut:   func(_, _ netip.AddrPort) bool { return false },
		nodes: make(map[netip.AddrPort]*Transport),
	}
}

// Lose makes the network lose that part of all packets.
func (n *Network) Lose(part float64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.loss = part
}

// Cut stops everything, packets and new streams, for which cut returns true; nil heals the network.
func (n *Network) Cut(cut func(from, to netip.AddrPort) bool) {
	if cut == nil {
		cut = func(_, _ netip.AddrPort) bool { return false }
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cut = cut
}

// Addr returns an address that no transport has had.
func (n *Network) Addr() netip.AddrPort {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.next++
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(n.next >> 16), byte(n.next >> 8), byte(n.next)}), Port)
}

// Listen returns the transport at addr, which must be free. Shutdown frees it.
func (n *Network) Listen(addr netip.AddrPort) *Transport {
	t := &Transport{
		network: n, addr: addr,
		packets: make(chan *memberlist.Packet, packetQueue),
		streams: make(chan net.Conn),
		closed:  make(chan struct{}),
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.nodes[addr] != nil {
		panic(fmt.Sprintf("membertest: address %s is taken", addr))
	}
	n.nodes[addr] = t
	return t
}

// Inject delivers a packet to the transport at addr, as a stranger could send it.
func (n *Network) Inject(from, to netip.AddrPort, packet []byte) {
	n.mu.Lock()
	t := n.nodes[to]
	n.mu.Unlock()
	if t != nil {
		t.receive(from, packet)
	}
}

// Dial opens a stream to addr, as a stranger could.
func (n *Network) Dial(addr netip.AddrPort, timeout time.Duration) (net.Conn, error) {
	return n.dial(netip.AddrPort{}, addr, timeout, nil)
}

// reaches reports whether a packet arrives.
func (n *Network) reaches(from, to netip.AddrPort) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return !n.cut(from, to) && n.rng.Float64() >= n.loss
}

// dial opens a stream. It takes the whole timeout when the way is cut, and fails at once when nobody listens.
func (n *Network) dial(from, to netip.AddrPort, timeout time.Duration, closed <-chan struct{}) (net.Conn, error) {
	fail := func(err error) error {
		return &net.OpError{Op: "dial", Net: "tcp", Addr: net.TCPAddrFromAddrPort(to), Err: err}
	}
	n.mu.Lock()
	t, cut := n.nodes[to], n.cut(from, to) || n.cut(to, from)
	n.mu.Unlock()
	late := time.NewTimer(timeout)
	defer late.Stop()
	if cut {
		select {
		case <-late.C:
			return nil, fail(fmt.Errorf("i/o timeout"))
		case <-closed:
			return nil, fail(net.ErrClosed)
		}
	}
	if t == nil {
		return nil, fail(fmt.Errorf("connection refused"))
	}
	here, there := net.Pipe()
	select {
	case t.streams <- there:
		return here, nil
	case <-t.closed:
		return nil, fail(fmt.Errorf("connection refused"))
	case <-late.C:
		return nil, fail(fmt.Errorf("i/o timeout"))
	}
}

// Transport is one member's end of a [Network].
type Transport struct {
	network *Network
	addr    netip.AddrPort
	packets chan *memberlist.Packet
	streams chan net.Conn
	once    sync.Once
	closed  chan struct{}
}

var _ memberlist.NodeAwareTransport = (*Transport)(nil)

// FinalAdvertiseAddr returns the address of the transport, whatever it is given.
func (t *Transport) FinalAdvertiseAddr(string, int) (net.IP, int, error) {
	return net.IP(t.addr.Addr().AsSlice()), int(t.addr.Port()), nil
}

// WriteTo sends a packet.
func (t *Transport) WriteTo(b []byte, addr string) (time.Time, error) {
	return t.WriteToAddress(b, memberlist.Address{Addr: addr})
}

// WriteToAddress sends a packet, which may be lost. It fails only after Shutdown.
func (t *Transport) WriteToAddress(b []byte, a memberlist.Address) (time.Time, error) {
	to, err := netip.ParseAddrPort(a.Addr)
	if err != nil {
		return time.Time{}, err
	}
	select {
	case <-t.closed:
		return time.Time{}, net.ErrClosed
	default:
	}
	now := time.Now()
	if t.network.reaches(t.addr, to) {
		packet := append([]byte(nil), b...)
		time.AfterFunc(t.network.delay, func() { t.network.Inject(t.addr, to, packet) })
	}
	return now, nil
}

// receive queues a packet, or loses it when the queue is full.
func (t *Transport) receive(from netip.AddrPort, packet []byte) {
	select {
	case t.packets <- &memberlist.Packet{Buf: packet, From: net.UDPAddrFromAddrPort(from), Timestamp: time.Now()}:
	default:
	}
}

// PacketCh is where packets arrive.
func (t *Transport) PacketCh() <-chan *memberlist.Packet { return t.packets }

// StreamCh is where streams arrive that others open.
func (t *Transport) StreamCh() <-chan net.Conn { return t.streams }

// DialTimeout opens a stream.
func (t *Transport) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	return t.DialAddressTimeout(memberlist.Address{Addr: addr}, timeout)
}

// DialAddressTimeout opens a stream.
func (t *Transport) DialAddressTimeout(a memberlist.Address, timeout time.Duration) (net.Conn, error) {
	to, err := netip.ParseAddrPort(a.Addr)
	if err != nil {
		return nil, err
	}
	return t.network.dial(t.addr, to, timeout, t.closed)
}

// Shutdown takes the transport off the network.
func (t *Transport) Shutdown() error {
	t.once.Do(func() {
		close(t.closed)
		t.network.mu.Lock()
		delete(t.network.nodes, t.addr)
		t.network.mu.Unlock()
	})
	return nil
}
