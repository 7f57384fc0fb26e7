package peer

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"github.com/shardwell/shardwell/peer/peerpb"
	"github.com/shardwell/shardwell/peer/transfer"
)

// maxCallBytes is the longest control message: a page of 1,000 keys of the
// longest kind is about 5 MB.
const maxCallBytes = 16 << 20

// callIdleTimeout closes a control connection that nobody used.
const callIdleTimeout = 5 * time.Minute

// callers keeps one control connection for each member that was called.
type callers struct {
	cfg Config

	mu     sync.Mutex
	closed bool               // guarded by mu
	conns  map[string]*caller // by ring id; guarded by mu
}

type caller struct {
	addr   string
	conn   *grpc.ClientConn
	client peerpb.PeerClient
	work   peerpb.WorkClient
	tars   peerpb.TarsClient
}

func newCallers(cfg Config) *callers {
	return &callers{cfg: cfg, conns: make(map[string]*caller)}
}

var errClosed = errors.New("peers are closed")

// to returns the connection to a member, at the address that it has now.
func (c *callers) to(m Member) (*caller, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, errClosed
	}
	if have := c.conns[m.ID]; have != nil {
		if have.addr == m.Addr {
			return have, nil
		}
		have.conn.Close()
		delete(c.conns, m.ID)
	}
	c.forgetStrangers()
	dial := c.cfg.Dial
	if dial == nil {
		dial = func(ctx context.Context, addr string) (net.Conn, error) {
			return (&net.Dialer{Timeout: 2 * time.Second}).DialContext(ctx, "tcp", addr)
		}
	}
	// A member that comes back is found within a second.
	retry := backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second}
	conn, err := grpc.NewClient("passthrough:///"+m.Addr,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithPerRPCCredentials(transfer.RPCCredentials(c.cfg.Signer, c.cfg.Self, m.ID)),
		grpc.WithContextDialer(dial),
		grpc.WithNoProxy(),
		grpc.WithIdleTimeout(callIdleTimeout),
		// A member that lost its power says nothing.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 3 * time.Second}),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: retry, MinConnectTimeout: 2 * time.Second}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxCallBytes), grpc.MaxCallSendMsgSize(maxCallBytes)),
		grpc.WithDisableServiceConfig())
	if err != nil {
		return nil, err
	}
	c.conns[m.ID] = &caller{addr: m.Addr, conn: conn, client: peerpb.NewPeerClient(conn), work: peerpb.NewWorkClient(conn), tars: peerpb.NewTarsClient(conn)}
	return c.conns[m.ID], nil
}

// forgetStrangers closes the connections to those who are no members any more. It
// is called before a new one is made, so there are never more than members.
func (c *callers) forgetStrangers() {
	for id, have := range c.conns {
		if _, ok := c.cfg.Members.Lookup(id); !ok {
			have.conn.Close()
			delete(c.conns, id)
		}
	}
}

func (c *callers) close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	var errs []error
	for id, have := range c.conns {
		errs = append(errs, have.conn.Close())
		delete(c.conns, id)
	}
	return errors.Join(errs...)
}
