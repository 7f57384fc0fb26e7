package peer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/objstore"
	"github.com/shardwell/shardwell/peer/broadcast"
	"github.com/shardwell/shardwell/peer/peerpb"
	"github.com/shardwell/shardwell/peer/transfer"
)

// ServerConfig is what [NewServer] needs. Zero durations and counts mean the defaults.
type ServerConfig struct {
	Self     string // ring id of this node
	Version  string // of the program, for people
	Geometry chunk.Geometry
	Lender   chunk.Lender   // blocks of this node
	Names    objstore.Names // names from this node's cache, or as their owner
	Members  Members
	Stats    *Stats                   // shared with Peers; nil for one of its own
	Transfer *transfer.Stats          // shared with the transfer client; nil likewise
	Verifier *transfer.Verifier       // nil only in a cluster without a secret
	Plan     broadcast.Config         // whom to send to
	Owned    func(chunk.Request) bool // this node is the owner, as Peers.Owned says; nil: never
	Logger   *slog.Logger             // nil discards
	RingHash func() uint64            // of the present table, for Hello; may be nil
	Forget   ForgetFunc               // nil forgets nothing
	Status   StatusFunc               // nil says "{}"
	Keeper   Keeper                   // nil keeps nothing
	Tars     Tars                     // nil knows of no tar
	Lessor   Lessor                   // nil leases nothing
	Worker   Worker                   // nil does no work for others
	Bounds   transfer.ServerConfig    // MaxStreams and timeouts; the other fields are set here

	// Grace is how long streams under way may go on after Run's context ended,
	// default 3 s.
	Grace time.Duration
}

// ForgetFunc drops what this node knows of the names under a prefix and returns how
// many there were.
type ForgetFunc func(ctx context.Context, b objstore.Bucket, prefix string) (int, error)

// StatusFunc returns this node's own status as JSON.
type StatusFunc func(ctx context.Context) ([]byte, error)

// Server answers the other members on the peer port.
type Server struct {
	cfg    ServerConfig
	gate   *gate
	sender atomic.Pointer[transfer.Server] // nil before Run

	inMu sync.Mutex
	in   inflow // when a peer last said that this node is slow; guarded by inMu
}

// Lags ends what this node sends to members that were sent here for an object that they fill:
// an owner found this node far behind others. It fits [Config].OnLag.
func (s *Server) Lags(object chunk.ObjectID) {
	if t := s.sender.Load(); t != nil {
		t.CutFills(object)
	}
}

// Bounds of [Server.Slow].
const (
	// slowFor is how long this node counts as slow after a peer found it so.
	slowFor = 20 * time.Second
	// slowPart is the part of what a peer could send that has to come to this node, from
	// whomever, lest it counts as slow.
	slowPart = 0.5
	// A rate is that of the time since the last time a peer said so, if that makes sense.
	minSlowPast, maxSlowPast = 800 * time.Millisecond, 5 * time.Second
)

// inflow is what had come to this node at some time.
type inflow struct {
	at    time.Time
	bytes int64
}

// Slow is told that a peer found this node to take less of an object than the peer could send,
// which is rate, in bytes a second. If no more comes from others either, this node promises nothing to
// those who fill an object for a while: they get what it holds, and what it would have to fetch
// as the owner they are to fetch themselves. It fits transfer.ClientConfig.OnSlow.
func (s *Server) Slow(object chunk.ObjectID, rate float64) {
	now := time.Now()
	if !s.takesLess(now, rate) {
		return
	}
	was := s.gate.slow.Swap(now.Add(slowFor).UnixNano())
	if t := s.sender.Load(); t != nil && was < now.UnixNano() {
		s.cfg.Logger.Info("this node's link is slower than its peers'", "object id", object, "peers' bytes/s", int64(rate))
		t.CutAllFills(object)
	}
}

// takesLess reports whether little comes to this node, compared with a rate.
func (s *Server) takesLess(now time.Time, rate float64) bool {
	s.inMu.Lock()
	defer s.inMu.Unlock()
	past := now.Sub(s.in.at)
	if past < minSlowPast {
		return false
	}
	got := s.cfg.Bounds.Received()
	came := got - s.in.bytes
	s.in = inflow{now, got}
	return past <= maxSlowPast && float64(came) < slowPart*rate*past.Seconds()
}

// Elsewhere returns a member that has what is asked for, or gets it without this node, which
// is the owner, or "". It fits [Config].Elsewhere.
func (s *Server) Elsewhere(req chunk.Request, failed []string) string {
	g := s.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.plan.Elsewhere(time.Now(), broadcast.Chunk{Object: req.ID, Index: g.geometry.ChunkOf(req.Span.First)}, req.Span, failed)
}

// NewServer returns a Server; nothing listens before [Server.Run].
func NewServer(cfg ServerConfig) (*Server, error) {
	if cfg.Self == "" || cfg.Lender == nil || cfg.Names == nil || cfg.Members == nil {
		return nil, errors.New("peer server: ring id, lender, names or members are missing")
	}
	if err := cfg.Geometry.Validate(); err != nil {
		return nil, fmt.Errorf("peer server: %w", err)
	}
	if cfg.Stats == nil {
		cfg.Stats = new(Stats)
	}
	if cfg.Transfer == nil {
		cfg.Transfer = new(transfer.Stats)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Grace == 0 {
		cfg.Grace = 3 * time.Second
	}
	if cfg.Bounds.Received == nil {
		cfg.Bounds.Received = cfg.Transfer.ReceivedBytes.Load
	}
	cfg.Plan.Self = cfg.Self
	if m, ok := cfg.Members.Lookup(cfg.Self); ok {
		cfg.Plan.Zone, cfg.Plan.Rack = m.Zone, m.Rack
	}
	return &Server{cfg: cfg, gate: &gate{geometry: cfg.Geometry, members: cfg.Members, stats: cfg.Stats, lender: cfg.Lender, log: cfg.Logger, owned: cfg.Owned,
		plan: broadcast.New(cfg.Plan)}}, nil
}

// Run serves the peer port on l until ctx ends, and then for Grace what is under
// way. It closes l, and returns when every connection and goroutine has ended.
func (s *Server) Run(ctx context.Context, l net.Listener) error {
	port := transfer.NewPort(l, s.cfg.Transfer)
	blocks := s.blocks()
	calls := s.calls()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	run := func(what string, f func() error) {
		wg.Go(func() {
			err := f()
			if err != nil && ctx.Err() == nil && !errors.Is(err, net.ErrClosed) {
				mu.Lock()
				errs = append(errs, fmt.Errorf("peer port: %s: %w", what, err))
				mu.Unlock()
			}
			cancel()
		})
	}
	run("accept", func() error { return port.Run(ctx) })
	run("blocks", func() error {
		if err := blocks.Serve(port.HTTP1()); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	run("calls", func() error { return calls.Serve(port.HTTP2()) })
	<-ctx.Done()
	s.stop(blocks, calls)
	wg.Wait()
	return errors.Join(errs...)
}

func (s *Server) blocks() *http.Server {
	cfg := s.cfg.Bounds
	cfg.Self, cfg.Geometry, cfg.Lender, cfg.Gate = s.cfg.Self, s.cfg.Geometry, s.cfg.Lender, s.gate
	cfg.Verifier, cfg.Stats, cfg.Logger = s.cfg.Verifier, s.cfg.Transfer, s.cfg.Logger
	server := transfer.NewServer(cfg)
	s.sender.Store(server)
	return server.HTTP()
}

func (s *Server) calls() *grpc.Server {
	g := grpc.NewServer(
		grpc.UnaryInterceptor(transfer.RPCInterceptor(s.cfg.Verifier, s.cfg.Self)),
		grpc.StreamInterceptor(transfer.RPCStreamInterceptor(s.cfg.Verifier, s.cfg.Self)),
		grpc.MaxRecvMsgSize(maxCallBytes), grpc.MaxSendMsgSize(maxCallBytes),
		grpc.MaxConcurrentStreams(256),
		grpc.ConnectionTimeout(10*time.Second),
		grpc.MaxHeaderListSize(16<<10),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second}),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: 2 * callIdleTimeout, Time: 10 * time.Second, Timeout: 5 * time.Second}),
	)
	peerpb.RegisterPeerServer(g, &answers{cfg: s.cfg})
	peerpb.RegisterWorkServer(g, &workAnswers{cfg: s.cfg})
	peerpb.RegisterTarsServer(g, &tarAnswers{cfg: s.cfg})
	return g
}

// stop lets both servers finish within Grace and then cuts what is left.
func (s *Server) stop(blocks *http.Server, calls *grpc.Server) {
	ctx, cancel := context.WithTimeout(context.Background(), s.cfg.Grace)
	defer cancel()
	var wg sync.WaitGroup
	wg.Go(func() {
		if blocks.Shutdown(ctx) != nil {
			blocks.Close()
		}
	})
	wg.Go(func() {
		stop := context.AfterFunc(ctx, calls.Stop)
		defer stop()
		calls.GracefulStop()
	})
	wg.Wait()
}

// gate asks the plan, under its lock, and holds what it says against membership.
type gate struct {
	geometry chunk.Geometry
	members  Members
	stats    *Stats
	lender   chunk.Lender
	log      *slog.Logger
	owned    func(chunk.Request) bool
	slow     atomic.Int64 // until when this node is, Unix nanoseconds

	mu   sync.Mutex
	plan *broadcast.Plan // guarded by mu
}

// holder is a Lender that knows whether it has a block.
type holder interface {
	Holds(obj chunk.Object, id chunk.ObjectID, block uint32) bool
}

// relieve reports whether a node that fills an object is better served by others: this one is slow,
// and has not got all that is asked for.
func (g *gate) relieve(req transfer.Request) bool {
	if !req.Background || time.Now().UnixNano() >= g.slow.Load() {
		return false
	}
	h, ok := g.lender.(transfer.Holder)
	return ok && !h.HoldsAll(req.Object, req.ID, req.Span)
}

// Admit implements transfer.Gate.
func (g *gate) Admit(ctx context.Context, req transfer.Request) transfer.Verdict {
	relieve := g.relieve(req)
	if relieve && (req.HeldOnly || g.owned == nil || !g.owned(req.Request)) {
		return transfer.Verdict{Refuse: fmt.Errorf("%w: and is slow", chunk.ErrNotHeld)}
	}
	if req.HeldOnly {
		return transfer.Verdict{} // the asker was sent here, or asks what only we can know
	}
	ask := broadcast.Request{Chunk: broadcast.Chunk{Object: req.ID, Index: g.geometry.ChunkOf(req.Span.First)}, Span: req.Span,
		Member: req.From, Failed: req.Failed, Delegate: relieve}
	if m, ok := g.members.Lookup(req.From); ok {
		ask.Zone, ask.Rack = m.Zone, m.Rack
	}
	for _, f := range req.Failed {
		ask.ServeOnly = ask.ServeOnly || f == transfer.AnyMember
	}
	ask.Delegate = ask.Delegate && !ask.ServeOnly
	if ask.Fill = req.Fill; req.Near != "" {
		if m, ok := g.members.Lookup(req.Near); ok {
			ask.Near, ask.NearZone, ask.NearRack = m.ID, m.Zone, m.Rack
		}
	}
	if holds, ok := g.lender.(holder); ok && len(req.Failed) > 0 {
		ask.Blameless = !holds.Holds(req.Object, req.ID, req.Span.First)
	}
	g.mu.Lock()
	wait := g.plan.Gather(time.Now(), ask)
	g.mu.Unlock()
	if wait > 0 && pause(ctx, wait) != nil {
		return transfer.Verdict{} // the asker has gone
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for {
		d := g.plan.Ask(time.Now(), ask)
		g.log.Debug("broadcast", "object", req.Object.URI(), "blocks", req.Span, "peer", req.From, "failed", req.Failed, "near", req.Near, "to", d.Redirect)
		if d.Redirect == "" {
			break
		}
		if _, ok := g.members.Lookup(d.Redirect); ok {
			g.stats.RedirectsGiven.Add(1)
			return transfer.Verdict{Redirect: d.Redirect, Lags: d.Lags}
		}
		g.plan.Leave(d.Redirect)
	}
	return transfer.Verdict{Done: func(err error) {
		g.mu.Lock()
		defer g.mu.Unlock()
		if err == nil {
			g.plan.Done(time.Now(), ask.Chunk, ask.Member)
		} else {
			g.plan.Failed(time.Now(), ask.Chunk, ask.Member)
		}
	}}
}
