package node

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/internal/config"
	"github.com/shardwell/shardwell/objstore"
	"github.com/shardwell/shardwell/peer"
	"github.com/shardwell/shardwell/peer/member"
	"github.com/shardwell/shardwell/peer/secret"
	"github.com/shardwell/shardwell/peer/transfer"
)

// cluster is this node's part in the cluster: membership, ring, and both ends of
// the peer port.
type cluster struct {
	log    *slog.Logger
	self   string
	group  *member.Group
	ring   *placement
	peers  *peer.Peers
	server *peer.Server
	listen net.Listener
	signer *transfer.Signer
	bytes  transfer.Stats // of client and server

	last      []member.Member // of change, which is called by New and then by the group, one call at a time
	directory peer.Directory  // of members that can be asked
	news      chan struct{}   // the ring has changed
	moved     chan struct{}   // likewise, for who hands on what moved
	asked     chan struct{}   // closed when the seeds have been asked
	askOnce   sync.Once
}

// openCluster opens the ports of n and joins nobody yet. openServer completes it.
func openCluster(n *Node) (_ *cluster, err error) {
	cfg := n.cfg
	c := &cluster{log: n.log, self: n.id, ring: newPlacement(n.id, n.geometry, int64(cfg.PlaceWhole), time.Duration(cfg.RestartGrace)),
		asked: make(chan struct{}),
		news:  make(chan struct{}, 1), moved: make(chan struct{}, 1)}
	n.policy.ring.Store(c.ring.history)
	defer func() {
		if err != nil {
			c.Close()
		}
	}()
	var keys secret.Set
	if cfg.SecretFile != "" {
		if keys, err = secret.ReadFile(cfg.SecretFile); err != nil {
			return nil, &config.Error{What: err.Error(), Where: "--secret-file"}
		}
		if c.signer, err = transfer.NewSigner(keys.RequestKeys()); err != nil {
			return nil, err
		}
		n.origins.ids.setKey(keys.RequestKeys()[0])
	}
	if c.listen, err = listen("peer port", cfg.PeerBind, "choose another --peer-bind"); err != nil {
		return nil, err
	}
	mc, err := memberConfig(n, keys)
	if err != nil {
		return nil, err
	}
	mc.PeerPort = c.listen.Addr().(*net.TCPAddr).Port
	mc.OnChange = func(all []member.Member) { // the first time when the seeds have been asked
		c.change(all)
		c.askOnce.Do(func() { close(c.asked) })
	}
	if c.group, err = member.New(mc); err != nil {
		if strings.Contains(err.Error(), syscall.EADDRINUSE.Error()) { // memberlist keeps the text only
			return nil, fmt.Errorf("gossip: cannot listen on %s: %w: choose another --bind", cfg.Bind, syscall.EADDRINUSE)
		}
		return nil, err
	}
	c.change(c.group.Members()) // this member alone, until the seeds have been asked
	c.peers, err = peer.New(peer.Config{
		Self: n.id, Version: Version, Geometry: n.geometry, Ring: c.ring, Members: &c.directory,
		Transfer: transfer.NewClient(transfer.ClientConfig{
			Self: n.id, Geometry: n.geometry, Signer: c.signer, Buffers: n.arena, Stats: &c.bytes, Logger: n.log,
			OnSlow: func(id chunk.ObjectID, rate float64) {
				if c.server != nil {
					c.server.Slow(id, rate)
				}
			},
		}),
		Signer: c.signer, Presigner: n.origins.presigner, Routes: n.origins.routes, Logger: n.log,
		OnLag: func(id chunk.ObjectID) {
			if c.server != nil { // made before the first fetch
				c.server.Lags(id)
			}
		},
		Pace: c.pace,
		Elsewhere: func(req chunk.Request, failed []string) (string, bool) {
			if c.server == nil {
				return "", false
			}
			return c.server.Elsewhere(req, failed)
		},
	})
	return c, err
}

// pace is what comes to this node; see peer.Config.
func (c *cluster) pace() (bytesPerSecond int64, slow bool) {
	if c.server == nil {
		return 0, false
	}
	return c.server.Pace()
}

// memberConfig translates the configuration.
func memberConfig(n *Node, keys secret.Set) (member.Config, error) {
	cfg := n.cfg
	bind, err := netip.ParseAddrPort(cfg.Bind)
	if err != nil {
		return member.Config{}, fmt.Errorf("--bind: %w", err) // was validated
	}
	mc := member.Config{
		ID: n.id, Name: n.name, BindAddr: bind.Addr().String(), BindPort: int(bind.Port()),
		AdvertiseAddr: cfg.Advertise, Insecure: cfg.Insecure, Join: cfg.Join,
		Zone: cfg.Zone, Rack: cfg.Rack, Weight: cfg.Weight, NoOwner: cfg.NoOwner, CapacityBytes: n.offer.told,
		Geometry: n.geometry, PlaceWhole: int64(cfg.PlaceWhole),
		ProtocolMin: peer.ProtocolMin, ProtocolMax: peer.ProtocolMax,
		RestartGrace: time.Duration(cfg.RestartGrace), Logger: n.log,
	}
	if keys.Len() > 0 {
		mc.Keys = keys.GossipKeys()
	}
	return mc, nil
}

// openServer makes what answers the other members, when the layers it answers from exist.
func (c *cluster) openServer(n *Node) (err error) {
	c.server, err = peer.NewServer(peer.ServerConfig{
		Self: n.id, Version: Version, Geometry: n.geometry, Lender: n.cache, Names: n.names, Members: &c.directory,
		Stats: c.peers.Stats(), Transfer: &c.bytes, Verifier: transfer.NewVerifier(c.signer), Logger: n.log,
		Bounds: transfer.ServerConfig{MaxSentBytesPerSecond: int64(n.cfg.MaxUpload),
			Received: func() int64 { return c.bytes.ReceivedBytes.Load() + n.origins.stats.Bytes.Load() }},
		Owned:    c.peers.Owned,
		Anew:     n.cache.Anew,
		Routes:   n.origins.routes,
		Keeper:   keeper{n},
		Tars:     n.tars,
		Lessor:   n.budgets,
		Worker:   worker{n},
		RingHash: func() uint64 { return c.ring.history.Current().Fingerprint() },
		Forget: func(ctx context.Context, b objstore.Bucket, prefix string) (count int, err error) {
			err = n.requests.do(ctx, func(ctx context.Context) (err error) {
				count, err = n.forgetHere(ctx, b, prefix)
				return err
			})
			return count, err
		},
		Status: func(ctx context.Context) (doc []byte, err error) {
			err = n.requests.do(ctx, func(ctx context.Context) (err error) {
				doc, err = n.statusHere(ctx)
				return err
			})
			return doc, err
		},
	})
	return err
}

// change makes a new ring of new members.
func (c *cluster) change(all []member.Member) {
	if slices.Equal(all, c.last) {
		return
	}
	c.last = all
	c.directory.Set(peer.Reachable(all))
	if err := c.ring.update(all); err != nil {
		c.log.Error("ring stays as it was", "error", err)
		return
	}
	c.log.Info("ring changed", "members", len(all))
	for _, told := range [...]chan struct{}{c.news, c.moved} {
		select {
		case told <- struct{}{}:
		default:
		}
	}
}

// joined is closed when the cluster was looked for: before, this node takes itself for
// alone, and would ask the origin for what others own.
func (c *cluster) joined() <-chan struct{} { return c.asked }

// addr returns where peers reach this node.
func (c *cluster) addr() string { return c.listen.Addr().String() }

// Run serves the peer port and gossips until ctx ends, or one of both fails. Peers
// are served a little longer than this node is a member, so that those who have
// not heard yet get answers.
func (c *cluster) Run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	serve, stopServing := context.WithCancel(context.WithoutCancel(ctx))
	defer stopServing()
	var group errgroup.Group
	group.Go(func() error {
		defer stopServing()
		return c.group.Run(ctx)
	})
	group.Go(func() error {
		defer stop()
		return c.server.Run(serve, c.listen)
	})
	return group.Wait()
}

// Close gives back ports and connections.
func (c *cluster) Close() {
	if c.listen != nil {
		_ = c.listen.Close()
	}
	if c.group != nil {
		_ = c.group.Close()
	}
	if c.peers != nil {
		_ = c.peers.Close()
	}
}
