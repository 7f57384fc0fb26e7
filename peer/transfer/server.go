package transfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

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
	// StallTimeout is how long one block may take to leave, default 20 s.
	StallTimeout time.Duration
	// LifeSign is how often an asker is told that its next block is still awaited,
	// default 1 s.
	LifeSign time.Duration
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
}

// Server answers requests for blocks. It is an http.Handler; [Server.HTTP] returns
// the http.Server that it belongs in.
type Server struct {
	cfg     ServerConfig
	streams chan struct{} // one slot for each answer under way
}

// NewServer returns a Server.
func NewServer(cfg ServerConfig) *Server {
	cfg.setDefaults()
	return &Server{cfg: cfg, streams: make(chan struct{}, cfg.MaxStreams)}
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
		ans.redirect(verdict.Redirect)
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
	ans.target = req.target()
	ans.length = bodyBytes(s.cfg.Geometry, req.Object.Size, req.Span)
	ans.left = blockSet{span: req.Span}
	ans.size = req.Object.Size
	ans.signLife()
	err := s.cfg.Lender.Lend(WithGrant(ctx, req.Grant), req.Request, ans.send)
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

// answer is one response on its way out.
type answer struct {
	server *Server
	w      http.ResponseWriter
	rc     *http.ResponseController
	proof  verified

	target string // of the request
	length int64  // of the body
	size   int64  // of the object

	// turn is held over w and what follows while the Lender is at work, by it or by the
	// timer: a lock that may be held while a write waits for the asker.
	turn  chan struct{}
	left  blockSet    // sent
	signs int         // of life, left to be sent after the answer began
	begun bool        // the status line is out
	wrote time.Time   // something last
	timer *time.Timer // nil when the time of life signs is over
	head  []byte      // reused
	frame fileFrame   // reused
}

// begin writes the status line and headers, bound to the request by a proof.
func (a *answer) begin(status int, extra map[string]string) {
	h := a.w.Header()
	for k, v := range extra {
		h[k] = []string{v}
	}
	if p := a.proof.prove(strconv.Itoa(status), h.Get(headerError), h.Get(headerRedirect), h.Get("Content-Length")); p != "" {
		h[headerProof] = []string{p}
	}
	// A deadline of an earlier answer on this connection may have passed.
	a.setDeadline()
	a.w.WriteHeader(status)
}

// fail answers with an error's class, and its text for people.
func (a *answer) fail(err error) {
	class, status := ClassOf(err)
	text := err.Error()
	if len(text) > maxMessageBytes {
		text = text[:maxMessageBytes]
	}
	extra := map[string]string{headerError: class, "Content-Length": strconv.Itoa(len(text))}
	if class == "busy" {
		extra["Retry-After"] = strconv.FormatFloat(a.server.cfg.RetryAfter.Seconds(), 'f', 3, 64)
	}
	a.begin(status, extra)
	_, _ = a.w.Write([]byte(text)) // the asker may have gone: nothing to do about it
}

// redirect answers with the name of another member. No client follows the status
// by itself.
func (a *answer) redirect(member string) {
	a.begin(http.StatusMisdirectedRequest, map[string]string{headerRedirect: member, "Content-Length": "0"})
}

// signLife tells the asker now and then that its request is being worked on,
// until endLife: by interim answers before the first block, by frames without a block after it.
func (a *answer) signLife() {
	every := a.server.cfg.LifeSign
	a.lock()
	defer a.unlock()
	a.signs, a.wrote = Signs, time.Now()
	a.timer = time.AfterFunc(every, func() {
		a.lock()
		defer a.unlock()
		if a.timer == nil {
			return
		}
		if wait := every - time.Since(a.wrote); wait > 0 {
			a.timer.Reset(wait)
			return
		}
		a.setDeadline()
		switch {
		case !a.begun:
			a.w.WriteHeader(http.StatusProcessing)
		case a.signs == 0:
			return // the asker's patience ends with ours
		default:
			a.signs--
			// An error here is one for the next block as well.
			_, _ = a.w.Write(sign.Append(a.head[:0]))
			_ = a.rc.Flush()
		}
		a.wrote = time.Now()
		a.timer.Reset(every)
	})
}

func (a *answer) lock()   { a.turn <- struct{}{} }
func (a *answer) unlock() { <-a.turn }

// setDeadline gives what is written next its time to leave.
func (a *answer) setDeadline() {
	_ = a.rc.SetWriteDeadline(time.Now().Add(a.server.cfg.StallTimeout))
}

// endLife stops the life signs and reports whether the answer has begun.
func (a *answer) endLife() bool {
	a.lock()
	defer a.unlock()
	if a.timer != nil {
		a.timer.Stop()
		a.timer = nil
	}
	return a.begun
}

// send is what the Lender calls for each block.
func (a *answer) send(p chunk.Piece) error {
	a.lock()
	defer a.unlock()
	g := a.server.cfg.Geometry
	if p.Len != g.BlockLen(a.size, p.Index) || (p.File == nil && len(p.Data) != p.Len) || !a.left.add(p.Index) {
		return fmt.Errorf("lender gave block %d of %d bytes for %v", p.Index, p.Len, a.left.span)
	}
	if !a.begun {
		a.begun = true
		a.begin(http.StatusOK, map[string]string{headerAnswers: a.target, "Content-Length": strconv.FormatInt(a.length, 10)})
	}
	a.setDeadline()
	head := a.head[:0]
	if a.left.full() {
		for ; a.signs > 0; a.signs-- {
			head = sign.Append(head)
		}
	}
	a.head = FrameHeader{Block: p.Index, Length: uint32(p.Len), CRC: p.CRC}.Append(head)
	err := a.sendPiece(p)
	a.wrote = time.Now()
	return err
}

func (a *answer) sendPiece(p chunk.Piece) error {
	st := a.server.cfg.Stats
	if p.File == nil {
		if err := a.sendData(a.head, p.Data); err != nil {
			return err
		}
		st.CopiedBytes.Add(int64(p.Len))
	} else {
		a.frame = fileFrame{head: a.head, file: p.File, off: p.Offset, n: int64(p.Len)}
		if err := a.sendFile(); err != nil {
			return err
		}
		st.SendfileBytes.Add(a.frame.bySys)
		st.CopiedBytes.Add(int64(p.Len) - a.frame.bySys)
		if a.frame.bySys > 0 {
			st.SendfileCalls.Add(1)
		}
	}
	st.SentBlocks.Add(1)
	st.SentBytes.Add(int64(p.Len))
	return nil
}

// sendData writes header and bytes, and sees them off: a block that waits in a
// buffer helps nobody.
func (a *answer) sendData(head, data []byte) error {
	if _, err := a.w.Write(head); err != nil {
		return err
	}
	if _, err := a.w.Write(data); err != nil {
		return err
	}
	if a.left.full() {
		return nil // the end of the handler flushes
	}
	return a.rc.Flush()
}

// sendFile hands the frame to the connection as it is: response.ReadFrom passes
// its source on to the connection's own ReadFrom once the headers are out.
func (a *answer) sendFile() error {
	rf, ok := a.w.(io.ReaderFrom)
	if !ok {
		rf = readerFrom{a.w}
	}
	want := a.frame.n + int64(len(a.frame.head))
	n, err := rf.ReadFrom(&a.frame)
	if err == nil && n != want {
		err = io.ErrShortWrite
	}
	return err
}

// readerFrom is for writers in tests that are no connections.
type readerFrom struct{ io.Writer }

func (w readerFrom) ReadFrom(src io.Reader) (int64, error) {
	return io.Copy(w.Writer, struct{ io.Reader }{src})
}
