package transfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/shardwell/shardwell/internal/chunk"
)

// DialFunc opens a connection to a peer port.
type DialFunc func(ctx context.Context, addr string) (net.Conn, error)

// Buffers lends memory for one block each. Get may wait, and returns an error
// when ctx ends; a buffer has room for BlockBytes.
type Buffers interface {
	Get(ctx context.Context) ([]byte, error)
	Put([]byte)
}

// Target is the member that is asked.
type Target struct {
	ID   string // ring id
	Addr string // host:port of its peer port
}

// ClientConfig is what [NewClient] needs. Zero values mean the defaults.
type ClientConfig struct {
	Self     string // ring id of this node
	Geometry chunk.Geometry
	Signer   *Signer  // nil only in a cluster without a secret
	Dial     DialFunc // nil dials TCP
	Buffers  Buffers  // nil allocates, at most one buffer a fetch
	Stats    *Stats
	Logger   *slog.Logger // nil discards

	// MaxConnections bounds the connections of this client to all peers, default
	// 512. A quarter of them may be idle.
	MaxConnections int
	// IdleTimeout closes a connection that nobody used, default 90 s.
	IdleTimeout time.Duration
	// DialTimeout bounds opening a connection, default 2 s.
	DialTimeout time.Duration
	// SilenceTimeout is how long a peer may be silent before its answer begins,
	// default 3 s. StallTimeout is how long a block may take to arrive, default 5 s. A sign of
	// life starts both anew.
	SilenceTimeout, StallTimeout time.Duration
	// MaxWait is how long a reader's request may wait for its next block, life signs
	// or not, so that nodes which wait for each other part again; one that is passed
	// on for a peer waits half of it, so that the peer is still there. Default 20 s.
	MaxWait time.Duration
	// OnSlow, unless nil, is told when a peer finds that this node takes less of an object than
	// the peer could send, and how much that is, in bytes a second.
	OnSlow func(object chunk.ObjectID, rate float64)
}

func (c *ClientConfig) setDefaults() {
	if c.MaxConnections == 0 {
		c.MaxConnections = 512
	}
	c.MaxConnections = max(c.MaxConnections, 4)
	for _, d := range [...]struct {
		to  *time.Duration
		def time.Duration
	}{{&c.IdleTimeout, 90 * time.Second}, {&c.DialTimeout, 2 * time.Second}, {&c.SilenceTimeout, 3 * time.Second},
		{&c.MaxWait, 20 * time.Second}, {&c.StallTimeout, 5 * time.Second}} {
		if *d.to == 0 {
			*d.to = d.def
		}
	}
	if c.Stats == nil {
		c.Stats = new(Stats)
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Dial == nil {
		d := net.Dialer{Timeout: c.DialTimeout, KeepAliveConfig: keepAlive}
		c.Dial = func(ctx context.Context, addr string) (net.Conn, error) { return d.DialContext(ctx, "tcp", addr) }
	}
	if c.Buffers == nil {
		c.Buffers = newPool(c.Geometry)
	}
}

// pool is Buffers without a bound of its own: a fetch holds at most one, and
// fetches are bounded.
type pool struct{ p sync.Pool }

func newPool(g chunk.Geometry) *pool {
	return &pool{p: sync.Pool{New: func() any { b := make([]byte, g.BlockBytes); return &b }}}
}

func (p *pool) Get(context.Context) ([]byte, error) { return *p.p.Get().(*[]byte), nil }
func (p *pool) Put(b []byte)                        { p.p.Put(&b) }

// Client asks peers for blocks over persistent connections. Safe for concurrent use.
type Client struct {
	cfg       ClientConfig
	transport *http.Transport
	slots     chan struct{} // one for each request under way
}

// NewClient returns a Client. Call Close when it is no longer used.
func NewClient(cfg ClientConfig) *Client {
	cfg.setDefaults()
	dial := dialBatched(cfg.Dial)
	idle := cfg.MaxConnections / 4
	return &Client{
		cfg:   cfg,
		slots: make(chan struct{}, cfg.MaxConnections-idle),
		transport: &http.Transport{
			DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
				ctx, cancel := context.WithTimeout(ctx, cfg.DialTimeout)
				defer cancel()
				return dial(ctx, addr)
			},
			DisableCompression:     true,
			MaxIdleConns:           idle,
			MaxIdleConnsPerHost:    idle,
			IdleConnTimeout:        cfg.IdleTimeout,
			MaxResponseHeaderBytes: maxHeaderBytes,
			ReadBufferSize:         clientBufferBytes,
		},
	}
}

// Stats returns the counters.
func (c *Client) Stats() *Stats { return c.cfg.Stats }

// Close closes idle connections; fetches under way end by themselves.
func (c *Client) Close() { c.transport.CloseIdleConnections() }

// Fetch asks one member for the blocks of a request and delivers each that
// arrives and passes its check. req.From is set to this node. It returns nil
// after the last block, and otherwise an error that matches one of:
//
//   - [*RedirectError]: the peer names another member;
//   - [*RemoteError] with a class: what the peer answered;
//   - [ErrUnreachable], [ErrSlow]: no connection, no sign of life, a broken stream;
//   - [ErrWaited]: it is alive, and the next block did not come in time;
//   - [chunk.ErrCorrupt], [ErrMalformed], [ErrImpostor]: the answer cannot be believed;
//   - [*DeliverError]: deliver's own error;
//   - the cause of ctx's end, and ErrSlow with it when the peer was silent then.
//
// Blocks delivered before the error are good.
func (c *Client) Fetch(ctx context.Context, to Target, req Request, deliver chunk.Deliver) error {
	select {
	case c.slots <- struct{}{}:
		c.cfg.Stats.FetchesInUse.Add(1)
		defer func() { c.cfg.Stats.FetchesInUse.Add(-1); <-c.slots }()
	case <-ctx.Done():
		return ctx.Err()
	}
	req.From = c.cfg.Self
	err := c.fetch(ctx, to, req, deliver)
	if errors.Is(err, ErrReplay) {
		// The transport sent a request again after its connection broke.
		err = c.fetch(ctx, to, req, deliver)
	}
	return err
}

func (c *Client) fetch(parent context.Context, to Target, req Request, deliver chunk.Deliver) error {
	l := c.limits(&req)
	w := watch(parent, l.silence, l.wait)
	defer w.end()
	h := make(http.Header, 12)
	req.setHeaders(h, to.ID, c.cfg.Geometry)
	resp, sent, err := c.roundTrip(w, to, http.MethodGet, req.target(), h)
	if err != nil {
		return w.explain(parent, "fetch "+req.String()+" from peer "+to.ID, err)
	}
	defer resp.Body.Close()
	if err := c.checkAnswer(to, resp, sent); err != nil {
		return err
	}
	if got := resp.Header.Get(headerAnswers); got != req.target() {
		c.cfg.Stats.MalformedSends.Add(1)
		return fmt.Errorf("fetch %v from peer %s: %w: it answers %q", req, to.ID, ErrMalformed, got)
	}
	if want := bodyBytes(c.cfg.Geometry, req.Object.Size, req.Span); resp.ContentLength != want {
		c.cfg.Stats.MalformedSends.Add(1)
		return fmt.Errorf("fetch %v from peer %s: %w: %d bytes instead of %d", req, to.ID, ErrMalformed, resp.ContentLength, want)
	}
	err = c.receive(w, l.stall, resp.Body, req, deliver)
	var bad *CorruptError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &bad):
		c.cfg.Stats.CorruptBlocks.Add(1)
		c.cfg.Logger.Warn("block arrived damaged", "object", req.Object.URI(), "block", bad.Block, "peer", to.ID)
		resp.Body.Close()
		if err := c.Suspect(parent, to, req.ID, bad.Block); err != nil {
			c.cfg.Logger.Info("could not tell a peer of damage", "peer", to.ID, "error", err)
		}
	case errors.Is(err, ErrMalformed):
		c.cfg.Stats.MalformedSends.Add(1)
	}
	return w.explain(parent, "fetch "+req.String()+" from peer "+to.ID, err)
}

// limits are how long one request waits.
type limits struct {
	silence time.Duration // for a sign of life, until the answer begins
	stall   time.Duration // for one, or for a block's bytes, from then on
	wait    time.Duration // for the next block
}

// answerGrace is how long an asker waits beyond the time that it gave a peer, so that
// this one can say why it brought nothing.
const answerGrace = time.Second

// limits returns the times for a request, and writes into it what the peer is told.
// A question of what is held has half of the asker's time: what it does not bring
// is asked for elsewhere. So has a peer that was cut off: there must be time for others.
func (c *Client) limits(req *Request) limits {
	l := limits{silence: c.cfg.SilenceTimeout, stall: c.cfg.StallTimeout, wait: c.cfg.MaxWait}
	if req.Hops > 1 {
		l.wait /= 2
	}
	if req.Patience <= 0 {
		return l
	}
	l.silence = min(l.silence, max(req.Patience/3, silent))
	l.stall = min(l.stall, max(req.Patience/2, silent))
	if req.HeldOnly {
		req.Patience /= 2
	}
	req.Patience = max(time.Millisecond, min(req.Patience, l.wait, maxPatience))
	l.wait = req.Patience + answerGrace
	return l
}

// receive reads the body and delivers its blocks.
func (c *Client) receive(w *watchdog, stall time.Duration, body io.Reader, req Request, deliver chunk.Deliver) error {
	frames := newFrameReader(body, c.cfg.Geometry, req.Object.Size, req.Span)
	frames.alive = func() { w.reset(stall) }
	frames.slow = func(rate float64) {
		if c.cfg.OnSlow != nil {
			c.cfg.OnSlow(req.ID, rate)
		}
	}
	for {
		w.resume(stall)
		h, err := frames.head()
		w.pause()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if err := c.receiveBlock(w, stall, frames, h, deliver); err != nil {
			return err
		}
	}
}

// receiveBlock takes a buffer only now that bytes are on their way. Streams that
// waited with one in hand could leave none for those they wait for.
func (c *Client) receiveBlock(w *watchdog, stall time.Duration, frames *frameReader, h FrameHeader, deliver chunk.Deliver) error {
	buf, err := c.cfg.Buffers.Get(w.ctx)
	if err != nil {
		return &DeliverError{Err: err}
	}
	defer c.cfg.Buffers.Put(buf)
	w.resume(stall)
	b, err := frames.block(h, buf)
	w.pause() // a slow disk here is not the peer's fault
	if err != nil {
		return err
	}
	c.cfg.Stats.ReceivedBlocks.Add(1)
	c.cfg.Stats.ReceivedBytes.Add(int64(len(b.Data)))
	if err := deliver(b); err != nil {
		return &DeliverError{Err: err}
	}
	return nil
}

// roundTrip signs and sends a request and waits for the answer's headers.
func (c *Client) roundTrip(w *watchdog, to Target, method, target string, h http.Header) (*http.Response, tag, error) {
	var sent tag
	if c.cfg.Signer != nil {
		var auth string
		auth, sent = c.cfg.Signer.sign(time.Now(), signedFields(method, target, h)...)
		h[headerAuth] = []string{auth}
	}
	// Waiting for a connection has its own limit.
	trace := &httptrace.ClientTrace{Got1xxResponse: func(int, textproto.MIMEHeader) error {
		w.reset(w.silence)
		return nil
	}}
	r, err := http.NewRequestWithContext(httptrace.WithClientTrace(w.ctx, trace), method, "http://"+to.Addr+target, nil)
	if err != nil {
		return nil, sent, err
	}
	r.Header = h
	resp, err := c.transport.RoundTrip(r)
	return resp, sent, err
}

// checkAnswer believes an answer when its proof is right, and returns what it
// says unless that is "here are the blocks".
func (c *Client) checkAnswer(to Target, resp *http.Response, sent tag) error {
	h := resp.Header
	remote := &RemoteError{Peer: to.ID}
	if resp.StatusCode >= 400 && h.Get(headerError) != "" {
		remote.Class = ErrorOfClass(h.Get(headerError))
		text, _ := io.ReadAll(io.LimitReader(resp.Body, maxMessageBytes))
		remote.Message = strings.ToValidUTF8(strings.Join(strings.Fields(string(text)), " "), "")
	}
	if c.cfg.Signer != nil && !errors.Is(remote.Class, ErrUnauthorized) {
		err := c.cfg.Signer.checkProof(h.Get(headerProof), sent, strconv.Itoa(resp.StatusCode), h.Get(headerError),
			h.Get(headerRedirect), h.Get("Content-Length"))
		if err != nil {
			return fmt.Errorf("peer %s at %s: %w", to.ID, to.Addr, err)
		}
	}
	switch {
	case resp.StatusCode == http.StatusOK || resp.StatusCode == http.StatusNoContent:
		return nil
	case resp.StatusCode == http.StatusMisdirectedRequest && validMemberID(strings.TrimSuffix(h.Get(headerRedirect), lagsSuffix)):
		member, lags := strings.CutSuffix(h.Get(headerRedirect), lagsSuffix)
		return &RedirectError{Peer: to.ID, Member: member, Lags: lags}
	case remote.Class == nil:
		remote.Class = ErrMalformed
		remote.Message = "status " + resp.Status
	case remote.Class == ErrBusy:
		remote.RetryAfter = retryAfter(h.Get("Retry-After"))
	case remote.Class == ErrClock:
		remote.Message += "; its clock shows " + h.Get("Date")
	}
	return remote
}

// maxRetryAfter bounds how long a busy peer can make us wait.
const maxRetryAfter = 5 * time.Second

func retryAfter(s string) time.Duration {
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || !(f > 0) {
		return 200 * time.Millisecond
	}
	return time.Duration(min(f, maxRetryAfter.Seconds()) * float64(time.Second))
}

// suspectTimeout bounds the report of damage, which nobody waits for gladly.
const suspectTimeout = time.Second

// Suspect tells a member that a block which it sent was damaged on arrival.
func (c *Client) Suspect(parent context.Context, to Target, id chunk.ObjectID, block uint32) error {
	w := watch(parent, suspectTimeout, suspectTimeout)
	defer w.end()
	h := http.Header{headerTo: {to.ID}, headerFrom: {c.cfg.Self}}
	target := suspectPath + id.String() + "/" + strconv.FormatUint(uint64(block), 10)
	resp, sent, err := c.roundTrip(w, to, http.MethodPost, target, h)
	if err != nil {
		return w.explain(parent, "report damage to peer "+to.ID, err)
	}
	defer resp.Body.Close()
	return c.checkAnswer(to, resp, sent)
}
