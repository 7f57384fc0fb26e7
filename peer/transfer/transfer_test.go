package transfer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/objstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a server on loopback and a client for it.
type rig struct {
	*lender
	server ServerConfig
	client *Client
	to     Target
	stats  *Stats // of the server

	serving sync.WaitGroup // requests that a handler is at work on
}

// handler returns a handler whose end settle can await.
func (r *rig) handler(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r.serving.Add(1)
		defer r.serving.Done()
		h.ServeHTTP(w, req)
	})
}

// settle waits until the server has counted what the client has already got.
func (r *rig) settle() { r.serving.Wait() }

// start serves l on a real TCP port, so that sendfile is what the kernel does.
func start(t testing.TB, l *lender, change func(*ServerConfig, *ClientConfig)) *rig {
	t.Helper()
	signer := mustSigner(t, keyA)
	sc := ServerConfig{Self: "holder", Geometry: small, Lender: l, Verifier: NewVerifier(signer), Stats: new(Stats)}
	cc := ClientConfig{Self: "asker", Geometry: small, Signer: signer, Stats: new(Stats)}
	if change != nil {
		change(&sc, &cc)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := NewPort(ln, sc.Stats)
	srv := NewServer(sc).HTTP()
	ctx, cancel := context.WithCancel(context.Background())
	r := &rig{lender: l, server: sc, client: NewClient(cc), to: Target{ID: "holder", Addr: ln.Addr().String()}, stats: sc.Stats}
	srv.Handler = r.handler(srv.Handler)
	var wg sync.WaitGroup
	wg.Go(func() { _ = port.Run(ctx) })
	wg.Go(func() { _ = srv.Serve(port.HTTP1()) })
	t.Cleanup(func() {
		r.client.Close()
		srv.Close()
		cancel()
		wg.Wait()
		if n := sc.Stats.ConnectionsInUse.Load(); n != 0 {
			t.Errorf("%d connections are still open", n)
		}
	})
	return r
}

// fetch fetches a chunk and compares what it got; it returns the blocks' order.
func (r *rig) fetch(t testing.TB, req Request) (order []uint32, err error) {
	t.Helper()
	err = r.client.Fetch(t.Context(), r.to, req, func(b chunk.Block) error {
		off, n := small.Bytes(r.object.Size, chunk.Span{First: b.Index, Count: 1})
		if !bytes.Equal(b.Data, r.data[off:off+n]) || b.CRC != chunk.Checksum(b.Data) {
			t.Errorf("block %d has other bytes", b.Index)
		}
		order = append(order, b.Index)
		return nil
	})
	return order, err
}

func TestBlocksLeaveBySendfile(t *testing.T) {
	r := start(t, newLender(t, 1<<20+100, true), nil)
	r.order = func(s chunk.Span) []uint32 {
		var o []uint32
		for b := s.First; b < s.End(); b++ {
			o = append(o, b)
		}
		slices.Reverse(o)
		return o
	}
	for i := range uint32(3) {
		order, err := r.fetch(t, r.request(i))
		if err != nil {
			t.Fatal(err)
		}
		if want := r.order(r.request(i).Span); !slices.Equal(order, want) {
			t.Errorf("chunk %d came as %v, want %v", i, order, want)
		}
	}
	r.settle()
	s := r.stats
	// Up to 512 bytes of an answer leave with its HTTP headers.
	if calls := s.SendfileCalls.Load(); calls != 17 {
		t.Errorf("%d blocks by sendfile, want 17", calls)
	}
	if n, all := s.SendfileBytes.Load(), int64(len(r.data)); n < all-3*512 || s.SentBytes.Load() != all {
		t.Errorf("%d of %d bytes by sendfile, %d sent", n, all, s.SentBytes.Load())
	}
	if got := r.client.Stats().ReceivedBytes.Load(); got != int64(len(r.data)) {
		t.Errorf("%d bytes received", got)
	}
	if at, _ := r.file.Seek(0, io.SeekCurrent); at != 0 {
		t.Errorf("the lender's file moved to %d", at)
	}
}

func TestManyResponsesShareOneFile(t *testing.T) {
	r := start(t, newLender(t, 2<<20, true), nil)
	var wg sync.WaitGroup
	for range 8 {
		for i := range uint32(4) {
			wg.Go(func() {
				if _, err := r.fetch(t, r.request(i)); err != nil {
					t.Error(err)
				}
			})
		}
	}
	wg.Wait()
	r.settle()
	if n := r.stats.SendfileBytes.Load(); n < 8*(2<<20)-32*512 {
		t.Errorf("%d bytes by sendfile", n)
	}
}

func TestBlocksFromMemory(t *testing.T) {
	r := start(t, newLender(t, 300<<10, false), nil)
	req := r.request(0)
	req.Access = chunk.Access{Identity: "tenant", Grant: chunk.NewGrant("https://presigned")}
	order, err := r.fetch(t, req)
	if err != nil || len(order) != 5 {
		t.Fatalf("%v, %v", order, err)
	}
	r.settle()
	if got := r.requests[0]; got.From != "asker" || got.Hops != 1 || got.ID != req.ID || got.Access != req.Access {
		t.Errorf("the lender was asked %+v", got)
	}
	if r.stats.CopiedBytes.Load() != 300<<10 || r.stats.SendfileCalls.Load() != 0 {
		t.Error("memory does not leave by sendfile")
	}
}

// A file that is shorter than its holder thinks cuts the connection; what came
// before is good.
func TestFileCutShort(t *testing.T) {
	r := start(t, newLender(t, 512<<10, true), nil)
	if err := os.Truncate(r.file.Name(), 200<<10); err != nil {
		t.Fatal(err)
	}
	order, err := r.fetch(t, r.request(0))
	if !errors.Is(err, ErrUnreachable) || len(order) != 3 {
		t.Errorf("%v, %v", order, err)
	}
}

func TestErrorsCrossTheWire(t *testing.T) {
	for _, class := range []error{chunk.ErrNotHeld, objstore.ErrChanged, objstore.ErrPermission, objstore.ErrNotExist,
		objstore.ErrThrottled, objstore.ErrNoBucket, objstore.ErrCredentials} {
		r := start(t, newLender(t, 100<<10, false), nil)
		r.before = func(context.Context, int) error { return fmt.Errorf("get b/k.tar: %w", class) }
		order, err := r.fetch(t, r.request(0))
		if !errors.Is(err, class) || len(order) != 0 {
			t.Errorf("%v arrives as %v", class, err)
		}
		var remote *RemoteError
		if !errors.As(err, &remote) || remote.Peer != "holder" || !strings.Contains(err.Error(), "get b/k.tar") {
			t.Errorf("%v arrives as %#v", class, err)
		}
	}
}

func TestFailureInTheMiddle(t *testing.T) {
	r := start(t, newLender(t, 512<<10, true), nil)
	r.before = func(_ context.Context, sent int) error {
		if sent == 5 {
			return errors.New("disk is gone")
		}
		return nil
	}
	order, err := r.fetch(t, r.request(0))
	if !errors.Is(err, ErrUnreachable) || len(order) != 5 {
		t.Errorf("%v, %v", order, err)
	}
}

// SEMANTICS B3: A block is shown to a reader, forwarded to a peer or kept as present only after its checksum was checked.
// What is delivered is what will be shown, forwarded and kept.
func TestDamageIsReported(t *testing.T) {
	r := start(t, newLender(t, 512<<10, false), nil)
	r.change = func(p *chunk.Piece) {
		if p.Index == 2 {
			p.Data = bytes.Clone(p.Data)
			p.Data[7] ^= 0x40
		}
	}
	order, err := r.fetch(t, r.request(0))
	if !errors.Is(err, chunk.ErrCorrupt) || !slices.Equal(order, []uint32{0, 1}) {
		t.Errorf("%v, %v", order, err)
	}
	r.settle()
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.Equal(r.suspects, []uint32{2}) {
		t.Errorf("suspects %v", r.suspects)
	}
	if r.client.Stats().CorruptBlocks.Load() != 1 || r.stats.SuspectsHeard.Load() != 1 {
		t.Error("not counted")
	}
}

// A lender that breaks its contract does not reach the wire.
func TestLenderIsChecked(t *testing.T) {
	for name, change := range map[string]func(*chunk.Piece){
		"length":  func(p *chunk.Piece) { p.Len-- },
		"bytes":   func(p *chunk.Piece) { p.Data = p.Data[1:] },
		"foreign": func(p *chunk.Piece) { p.Index += 8 },
		"twice":   func(p *chunk.Piece) { p.Index = 0 },
	} {
		r := start(t, newLender(t, 1<<20, false), nil)
		r.change = change
		if _, err := r.fetch(t, r.request(0)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestDeliverEndsTheFetch(t *testing.T) {
	r := start(t, newLender(t, 512<<10, true), nil)
	full := errors.New("disk full")
	n := 0
	err := r.client.Fetch(t.Context(), r.to, r.request(0), func(chunk.Block) error {
		if n++; n == 3 {
			return full
		}
		return nil
	})
	if !errors.Is(err, full) || !errors.As(err, new(*DeliverError)) || n != 3 {
		t.Errorf("%d blocks, %v", n, err)
	}
}

func TestBusy(t *testing.T) {
	inside, leave := make(chan struct{}), make(chan struct{})
	r := start(t, newLender(t, 100<<10, false), func(s *ServerConfig, _ *ClientConfig) { s.MaxStreams = 1 })
	r.before = func(_ context.Context, sent int) error {
		if sent == 0 {
			inside <- struct{}{}
			<-leave
		}
		return nil
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := r.fetch(t, r.request(0)); err != nil {
			t.Error(err)
		}
	})
	<-inside
	_, err := r.fetch(t, r.request(0))
	var remote *RemoteError
	if !errors.As(err, &remote) || !errors.Is(err, ErrBusy) || remote.RetryAfter != 200*time.Millisecond {
		t.Errorf("%v", err)
	}
	close(leave)
	wg.Wait()
}

type gateFunc func(Request) Verdict

func (g gateFunc) Admit(_ context.Context, r Request) Verdict { return g(r) }

func TestRedirect(t *testing.T) {
	var asked Request
	gate := gateFunc(func(r Request) Verdict { asked = r; return Verdict{Redirect: "other"} })
	r := start(t, newLender(t, 100<<10, false), func(s *ServerConfig, _ *ClientConfig) { s.Gate = gate })
	req := r.request(0)
	req.Failed = []string{"x", "y"}
	_, err := r.fetch(t, req)
	var redirect *RedirectError
	if !errors.As(err, &redirect) || redirect.Member != "other" || redirect.Peer != "holder" {
		t.Errorf("%v", err)
	}
	if !slices.Equal(asked.Failed, req.Failed) {
		t.Errorf("asked %+v", asked)
	}
}

func TestGateLearnsTheEnd(t *testing.T) {
	ends := make(chan error, 2)
	gate := gateFunc(func(Request) Verdict { return Verdict{Done: func(err error) { ends <- err }} })
	r := start(t, newLender(t, 200<<10, false), func(s *ServerConfig, _ *ClientConfig) { s.Gate = gate })
	if _, err := r.fetch(t, r.request(0)); err != nil || <-ends != nil {
		t.Errorf("%v", err)
	}
	r.before = func(_ context.Context, sent int) error {
		if sent == 2 {
			return errors.New("gone")
		}
		return nil
	}
	if _, err := r.fetch(t, r.request(0)); err == nil || <-ends == nil {
		t.Errorf("%v", err)
	}
}

func TestStrangersAreRefused(t *testing.T) {
	other := mustSigner(t, keyB)
	for name, c := range map[string]struct {
		change func(*ServerConfig, *ClientConfig)
		want   error
	}{
		"another secret":                  {func(_ *ServerConfig, c *ClientConfig) { c.Signer = other }, ErrUnauthorized},
		"no secret":                       {func(_ *ServerConfig, c *ClientConfig) { c.Signer = nil }, ErrUnauthorized},
		"another member has the address":  {func(s *ServerConfig, _ *ClientConfig) { s.Self = "newcomer" }, ErrMisdirected},
		"a server that knows no secret":   {func(s *ServerConfig, _ *ClientConfig) { s.Verifier = nil }, ErrImpostor},
		"a server with other chunk sizes": {func(s *ServerConfig, _ *ClientConfig) { s.Geometry = chunk.DefaultGeometry() }, objstore.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t, newLender(t, 100<<10, false), c.change)
			if _, err := r.fetch(t, r.request(0)); !errors.Is(err, c.want) {
				t.Errorf("%v, want %v", err, c.want)
			}
		})
	}
	t.Run("no secret on either side", func(t *testing.T) {
		r := start(t, newLender(t, 100<<10, false), func(s *ServerConfig, c *ClientConfig) { s.Verifier, c.Signer = nil, nil })
		if _, err := r.fetch(t, r.request(0)); err != nil {
			t.Error(err)
		}
	})
}

// A request that somebody recorded is of no use, nor is it for another member.
func TestRecordedRequest(t *testing.T) {
	r := start(t, newLender(t, 100<<10, false), nil)
	req := r.request(0)
	req.From = "asker"
	h := http.Header{}
	req.setHeaders(h, "holder", small)
	auth, _ := mustSigner(t, keyA).sign(time.Now(), signedFields("GET", req.target(), h)...)
	h.Set(headerAuth, auth)
	send := func(change func(http.Header)) (int, string) {
		hr, _ := http.NewRequestWithContext(t.Context(), "GET", "http://"+r.to.Addr+req.target(), nil)
		hr.Header = h.Clone()
		change(hr.Header)
		resp, err := r.client.transport.RoundTrip(hr)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		_, _ = io.Copy(io.Discard, resp.Body)
		return resp.StatusCode, resp.Header.Get(headerError)
	}
	if code, class := send(func(h http.Header) { h.Set(headerHops, "2") }); code != 401 || class != "unauthorized" {
		t.Errorf("changed: %d %s", code, class)
	}
	if code, class := send(func(http.Header) {}); code != 200 {
		t.Errorf("first: %d %s", code, class)
	}
	if code, class := send(func(http.Header) {}); code != 401 || class != "replay" {
		t.Errorf("again: %d %s", code, class)
	}
}

func TestNobodyThere(t *testing.T) {
	r := start(t, newLender(t, 100<<10, false), nil)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r.to.Addr = ln.Addr().String()
	ln.Close()
	if _, err := r.fetch(t, r.request(0)); !errors.Is(err, ErrUnreachable) {
		t.Errorf("%v", err)
	}
}

// meter is Buffers that counts how many are lent.
type meter struct {
	lent atomic.Int64
	back chan struct{} // told of each that came back
}

func (m *meter) Get(context.Context) ([]byte, error) {
	m.lent.Add(1)
	return make([]byte, small.BlockBytes), nil
}

func (m *meter) Put([]byte) {
	m.lent.Add(-1)
	m.back <- struct{}{}
}

// Streams that wait for a block leave the memory to those that have one.
func TestWaitingHoldsNoBuffer(t *testing.T) {
	m := meter{back: make(chan struct{}, 8)}
	r := start(t, newLender(t, 512<<10, true), func(_ *ServerConfig, c *ClientConfig) { c.Buffers = &m })
	r.before = func(_ context.Context, sent int) error {
		if sent > 0 {
			<-m.back // the asker is done with what was sent, and waits for more
			if n := m.lent.Load(); n != 0 {
				t.Errorf("%d buffers are lent", n)
			}
		}
		return nil
	}
	if order, err := r.fetch(t, r.request(0)); err != nil || len(order) != 8 || m.lent.Load() != 0 {
		t.Errorf("%v, %v, %d buffers are lent", order, err, m.lent.Load())
	}
}
