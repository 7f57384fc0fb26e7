package transfer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/shardwell/shardwell/internal/chunk"
)

// Gate decides who serves a request that this node could serve.
type Gate interface {
	// Admit is asked once for each well-formed request, before the Lender is.
	Admit(ctx context.Context, req Request) Verdict
}

// Verdict is a Gate's decision.
type Verdict struct {
	// Redirect is the ring id of the member to ask instead, "" to serve here.
	Redirect string
	// Lags is told to the asker with a Redirect; see [RedirectError].
	Lags bool
	// Refuse, unless nil, is the error that the asker gets instead of blocks.
	Refuse error
	// Done is called once when a request that was served here has ended, with nil
	// when every block left. May be nil.
	Done func(error)
}

// ServerConfig is what [NewServer] needs. Zero values mean the defaults.
type ServerConfig struct {
	Self     string // ring id; a request signed for another member is refused
	Geometry chunk.Geometry
	Lender   chunk.Lender
	Gate     Gate      // nil serves everything here
	Verifier *Verifier // nil accepts everybody: only for a cluster without a secret
	Stats    *Stats
	Logger   *slog.Logger // nil discards

	// MaxStreams is how many answers are under way at once, those that wait for the
	// origin included, default 512; others get "busy" with RetryAfter, default 200 ms.
	MaxStreams int
	RetryAfter time.Duration
	// MaxSentBytesPerSecond bounds the payload that leaves, all answers together; 0 sets no
	// bound.
	MaxSentBytesPerSecond int64
	// StallTimeout is how long one block may take to leave, default 20 s.
	StallTimeout time.Duration
	// LifeSign is how often an asker is told that its next block is still awaited,
	// default 1 s.
	LifeSign time.Duration
	// Received returns how many bytes have come to this node, from peers and origins, ever; nil counts
	// those from peers.
	Received func() int64
}

func (c *ServerConfig) setDefaults() {
	if c.MaxStreams == 0 {
		c.MaxStreams = 512
	}
	if c.RetryAfter == 0 {
		c.RetryAfter = 200 * time.Millisecond
	}
	if c.StallTimeout == 0 {
		c.StallTimeout = 20 * time.Second
	}
	if c.LifeSign == 0 {
		c.LifeSign = time.Second
	}
	if c.Stats == nil {
		c.Stats = new(Stats)
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Received == nil {
		c.Received = c.Stats.ReceivedBytes.Load
	}
}

// Server answers requests for blocks. It is an http.Handler; [Server.HTTP] returns
// the http.Server that it belongs in.
type Server struct {
	cfg     ServerConfig
	streams chan struct{} // one slot for each answer under way
	rate    *rate.Limiter // of payload; nil without a bound
	pace    *pace

	mu    sync.Mutex
	fills map[*fillAnswer]struct{} // under way; at most MaxStreams; guarded by mu
}

// fillAnswer is an answer to a member that fills an object.
type fillAnswer struct {
	object   chunk.ObjectID
	heldOnly bool
	cut      context.CancelFunc
}

// CutFills ends the answers to members that were sent here for an object they fill, so
// that they go elsewhere for the rest.
func (s *Server) CutFills(object chunk.ObjectID) { s.cutFills(object, true) }

// CutAllFills is CutFills for those too who asked this node as the owner. What it holds
// whole it goes on to send.
func (s *Server) CutAllFills(object chunk.ObjectID) { s.cutFills(object, false) }

func (s *Server) cutFills(object chunk.ObjectID, heldOnly bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for f := range s.fills {
		if f.object == object && (f.heldOnly || !heldOnly) {
			f.cut()
		}
	}
}

// asFill lets CutFills end an answer. The caller calls the function in the end.
func (s *Server) asFill(ctx context.Context, req Request) (context.Context, func()) {
	if !req.Background || !req.HeldOnly && s.holds(req) {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	f := &fillAnswer{object: req.ID, heldOnly: req.HeldOnly, cut: cancel}
	s.mu.Lock()
	s.fills[f] = struct{}{}
	s.mu.Unlock()
	return ctx, func() {
		s.mu.Lock()
		delete(s.fills, f)
		s.mu.Unlock()
		cancel()
	}
}

// holds reports whether all of a request can be sent without waiting for it, as far as the Lender
// can tell.
func (s *Server) holds(req Request) bool {
	h, ok := s.cfg.Lender.(Holder)
	return ok && h.HoldsAll(req.Object, req.ID, req.Span)
}

// Holder is a Lender that knows what it has.
type Holder interface {
	// HoldsAll reports whether all blocks of a span are there.
	HoldsAll(obj chunk.Object, id chunk.ObjectID, s chunk.Span) bool
}

// NewServer returns a Server.
func NewServer(cfg ServerConfig) *Server {
	cfg.setDefaults()
	s := &Server{cfg: cfg, fills: make(map[*fillAnswer]struct{}), streams: make(chan struct{}, cfg.MaxStreams),
		pace: newPace(cfg.Received)}
	if cfg.MaxSentBytesPerSecond > 0 {
		// One block at once; what was not used is not saved up.
		s.rate = rate.NewLimiter(rate.Limit(cfg.MaxSentBytesPerSecond), int(cfg.Geometry.BlockBytes))
	}
	return s
}

// HTTP returns an http.Server with the limits of a peer port.
func (s *Server) HTTP() *http.Server {
	return &http.Server{
		Handler:           s,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(s.cfg.Logger.Handler(), slog.LevelDebug),
	}
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header()["Content-Type"] = []string{"application/octet-stream"}
	ans := &answer{server: s, w: w, rc: http.NewResponseController(w), turn: make(chan struct{}, 1)}
	// Nothing that this server answers has a body to read.
	if r.ContentLength != 0 {
		ans.fail(invalid("request with a body"))
		return
	}
	switch {
	case r.Method == http.MethodGet && strings.HasPrefix(r.URL.Path, blocksPath):
		s.serveBlocks(ans, r)
	case r.Method == http.MethodPost && strings.HasPrefix(r.URL.Path, suspectPath):
		s.serveSuspect(ans, r)
	default:
		ans.fail(invalid("%s %s", r.Method, r.URL.Path))
	}
}

// verify checks who asks, and notes in the answer what proves that we are we.
func (s *Server) verify(ans *answer, r *http.Request) error {
	h := r.Header
	v, err := s.cfg.Verifier.verify(h.Get(headerAuth), time.Now(), signedFields(r.Method, r.RequestURI, h)...)
	ans.proof = v
	if err == nil && s.cfg.Self != "" && h.Get(headerTo) != s.cfg.Self {
		err = fmt.Errorf("%w: %s", ErrMisdirected, s.cfg.Self)
	}
	if err != nil {
		s.cfg.Stats.RequestsRefused.Add(1)
		s.cfg.Logger.Warn("refused a peer's request", "peer", r.RemoteAddr, "target", r.URL.Path, "error", err)
	}
	return err
}

func (s *Server) serveBlocks(ans *answer, r *http.Request) {
	if err := s.verify(ans, r); err != nil {
		ans.fail(err)
		return
	}
	req, err := parseRequest(r.URL.Path, r.Header, s.cfg.Geometry)
	if err != nil {
		s.cfg.Stats.RequestsRefused.Add(1)
		s.cfg.Logger.Warn("refused a peer's request", "peer", r.Header.Get(headerFrom), "error", err)
		ans.fail(err)
		return
	}
	select {
	case s.streams <- struct{}{}:
		s.cfg.Stats.StreamsInUse.Add(1)
		defer func() { s.cfg.Stats.StreamsInUse.Add(-1); <-s.streams }()
	default:
		s.cfg.Stats.RequestsBusy.Add(1)
		ans.fail(ErrBusy)
		return
	}
	verdict := Verdict{}
	if s.cfg.Gate != nil {
		verdict = s.cfg.Gate.Admit(r.Context(), req)
	}
	if verdict.Redirect != "" {
		if verdict.Lags {
			verdict.Redirect += lagsSuffix
		}
		ans.redirect(verdict.Redirect)
		return
	}
	if verdict.Refuse != nil {
		ans.fail(verdict.Refuse)
		return
	}
	err = errAborted
	defer func() {
		if verdict.Done != nil {
			verdict.Done(err)
		}
	}()
	err = s.lend(ans, r.Context(), req)
}

// errAborted is how a stream ended that panicked.
var errAborted = errors.New("answer was cut off")

// lend answers with the blocks of a request. It panics with
// http.ErrAbortHandler when the connection has to be cut.
func (s *Server) lend(ans *answer, ctx context.Context, req Request) error {
	ans.target, ans.asker = req.target(), req.From
	ans.length = bodyBytes(s.cfg.Geometry, req.Object.Size, req.Span)
	ans.left = blockSet{span: req.Span}
	ans.size = req.Object.Size
	ctx, done := s.asFill(ctx, req)
	defer done()
	ans.signLife()
	send := ans.send
	if s.rate != nil {
		send = func(p chunk.Piece) error {
			// Signs of life go on meanwhile.
			if err := s.rate.WaitN(ctx, p.Len); err != nil {
				return fmt.Errorf("wait for this node's upload rate: %w", err)
			}
			return ans.send(p)
		}
	}
	err := s.cfg.Lender.Lend(ctx, req.Request, send)
	begun := ans.endLife()
	switch {
	case err == nil && ans.left.full():
		s.cfg.Stats.RequestsServed.Add(1)
		return nil
	case err == nil:
		err = fmt.Errorf("lender gave %d of %d blocks", ans.left.n, req.Span.Count)
	}
	if ctx.Err() == nil && !errors.Is(err, chunk.ErrNotHeld) {
		s.cfg.Logger.Info("could not serve a peer", "object", req.Object.URI(), "request", req, "peer", req.From, "error", err)
	}
	if !begun {
		ans.fail(err)
		return err
	}
	panic(http.ErrAbortHandler)
}

func (s *Server) serveSuspect(ans *answer, r *http.Request) {
	err := s.verify(ans, r)
	if err == nil {
		var id chunk.ObjectID
		var block uint32
		if id, block, err = parseSuspect(r.URL.Path); err == nil {
			s.cfg.Stats.SuspectsHeard.Add(1)
			s.cfg.Logger.Warn("peer found a block from here damaged", "object id", id, "block", block, "peer", r.Header.Get(headerFrom))
			s.cfg.Lender.Suspect(id, block)
			ans.begin(http.StatusNoContent, nil)
			return
		}
	}
	ans.fail(err)
}
