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
	Routes   Routes                   // as in Config
	Logger   *slog.Logger             // nil discards
	RingHash func() uint64            // of the present table, for Hello; may be nil
	Forget   ForgetFunc               // nil forgets nothing
	Status   StatusFunc               // nil says "{}"
	Keeper   Keeper                   // nil keeps nothing
	Tars     Tars                     // nil knows of no tar
	Lessor   Lessor                   // nil leases nothing
	Worker   Worker                   // nil does no work for others
	Bounds   transfer.ServerConfig    // MaxStreams and timeouts; the other fields are set here
	// Anew has what is on its way to this node of an object that it fills, and of a span if that is not empty, asked
	// for again. nil does nothing.
	Anew func(object chunk.ObjectID, s chunk.Span)

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
	slows  chan chunk.ObjectID             // for askAnew
}

// Lags ends what this node sends to members that were sent here for an object that they fill:
// an owner found this node far behind others. It fits [Config].OnLag.
func (s *Server) Lags(object chunk.ObjectID) {
	if t := s.sender.Load(); t != nil {
		t.CutFills(object)
	}
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
	if cfg.Anew == nil {
		cfg.Anew = func(chunk.ObjectID, chunk.Span) {}
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
	s := &Server{cfg: cfg, slows: make(chan chunk.ObjectID, maxSlows), gate: &gate{geometry: cfg.Geometry, members: cfg.Members, stats: cfg.Stats, lender: cfg.Lender, log: cfg.Logger, owned: cfg.Owned,
		link: newLink(cfg.Bounds.Received), plan: broadcast.New(cfg.Plan)}}
	s.gate.slowed, s.gate.anew = s.slowed, cfg.Anew
	return s, nil
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
	run("slow link", func() error { return s.askAnew(ctx) })
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
	link     *link
	anew     func(object chunk.ObjectID, s chunk.Span)
	slowed   func(now time.Time, d time.Duration, object chunk.ObjectID, rate float64) // a probe found this node slow

	mu   sync.Mutex
	plan *broadcast.Plan // guarded by mu
}

// holder is a Lender that knows whether it has a block, and how many of a span.
type holder interface {
	Holds(obj chunk.Object, id chunk.ObjectID, block uint32) bool
	HeldOf(obj chunk.Object, id chunk.ObjectID, s chunk.Span) (blocks uint32)
	// Reading reports whether a reader has the object open.
	Reading(obj chunk.Object, id chunk.ObjectID) bool
}

// freshPart is the part of a chunk, one block in so many, that an owner may have and another one fetch it all the same.
const freshPart = 8

// relieve reports whether a node that fills an object is better served by others: this one is slow,
// and has not got all that is asked for.
func (g *gate) relieve(req transfer.Request) bool {
	if !req.Background || !g.link.isSlow(time.Now()) {
		return false
	}
	h, ok := g.lender.(transfer.Holder)
	return ok && !h.HoldsAll(req.Object, req.ID, req.Span)
}

// minProbed is the size from which on objects are fetched in part by others for comparison, in chunks. What is on its way to
// the owner of such a chunk comes twice, and is to be below a hundredth of the object.
const minProbed = 128

// isFresh reports whether a reader of this node wants a chunk, of which it has next to nothing but what the asker has, and owns
// the whole object, a large one: of one that many own each receives from the others, who would find it slow.
func (g *gate) isFresh(h holder, req transfer.Request) bool {
	last := g.geometry.Chunks(req.Object.Size) - 1
	if last+1 < minProbed {
		return false
	}
	for _, index := range [...]uint32{0, last / 2, last} { // that many are one node's own by chance hardly ever
		r := req.Request
		r.Span = g.geometry.ChunkSpan(req.Object.Size, index)
		if !g.owned(r) {
			return false
		}
	}
	whole := g.geometry.ChunkSpan(req.Object.Size, g.geometry.ChunkOf(req.Span.First))
	if req.Span.Count < whole.Count/2 || !h.Reading(req.Object, req.ID) {
		return false
	}
	held := h.HeldOf(req.Object, req.ID, req.Span)
	return held <= req.Span.Count/freshPart && h.HeldOf(req.Object, req.ID, whole)-held == whole.Count-req.Span.Count
}

// weigh looks at how fast blocks come to a node that fills an object, if it fetched a chunk of it for comparison.
func (g *gate) weigh(req transfer.Request) {
	h, ok := g.lender.(transfer.Holder)
	if !ok || !req.Background {
		return
	}
	now := time.Now()
	if g.link.compared(now, req, func(s chunk.Span) bool { return h.HoldsAll(req.Object, req.ID, s) }) {
		g.slowed(now, probedFor, req.ID, float64(req.Pace))
	}
}

// Admit implements transfer.Gate.
func (g *gate) Admit(ctx context.Context, req transfer.Request) transfer.Verdict {
	g.weigh(req)
	relieve := g.relieve(req)
	owned := g.owned != nil && req.Hops < chunk.MaxHops && g.owned(req.Request)
	if relieve && (req.HeldOnly || !owned) {
		return transfer.Verdict{Refuse: fmt.Errorf("%w: and is slow", chunk.ErrNotHeld)}
	}
	if req.HeldOnly {
		return transfer.Verdict{} // the asker was sent here, or asks what only we can know
	}
	ask := broadcast.Request{Chunk: broadcast.Chunk{Object: req.ID, Index: g.geometry.ChunkOf(req.Span.First)}, Span: req.Span,
		Member: req.From, Failed: req.Failed, Delegate: relieve && !req.Slow, Slow: req.Slow}
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
	if h, ok := g.lender.(holder); ok {
		ask.Blameless = len(req.Failed) > 0 && !h.Holds(req.Object, req.ID, req.Span.First)
		ask.Fresh = req.Background && owned && g.isFresh(h, req)
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
		if d.Probe {
			g.link.compare(time.Now(), req.ID, req.From, g.geometry.ChunkSpan(req.Object.Size, d.Against))
			g.anew(req.ID, req.Span) // in vain if this node has not begun
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
