package transfer

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shardwell/shardwell/internal/chunk"
)

// evil starts a server that answers by f, and returns a rig whose client asks it.
func evil(t *testing.T, f http.HandlerFunc) *rig {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: f}
	var wg sync.WaitGroup
	wg.Go(func() { _ = srv.Serve(ln) })
	r := &rig{lender: newLender(t, 300<<10, false), to: Target{ID: "holder", Addr: ln.Addr().String()},
		client: NewClient(ClientConfig{Self: "asker", Geometry: small, Stats: new(Stats)})}
	t.Cleanup(func() { r.client.Close(); srv.Close(); wg.Wait() })
	return r
}

// A faulty peer's answer never gets further than its first fault.
func TestFaultyAnswers(t *testing.T) {
	data := newLender(t, 300<<10, false).data
	whole := frames(data, 0, 1, 2, 3, 4)
	answer := func(w http.ResponseWriter, r *http.Request, body []byte) {
		w.Header().Set(headerAnswers, r.URL.Path)
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		_, _ = w.Write(body)
	}
	for name, c := range map[string]struct {
		f      http.HandlerFunc
		blocks int
		want   error
	}{
		"right": {func(w http.ResponseWriter, r *http.Request) { answer(w, r, whole) }, 5, nil},
		"truncated": {func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set(headerAnswers, r.URL.Path)
			w.Header().Set("Content-Length", strconv.Itoa(len(whole)))
			_, _ = w.Write(whole[:len(whole)-(130<<10)])
			panic(http.ErrAbortHandler)
		}, 2, ErrUnreachable},
		"too short": {func(w http.ResponseWriter, r *http.Request) { answer(w, r, whole[:len(whole)-1]) }, 0, ErrMalformed},
		"too long":  {func(w http.ResponseWriter, r *http.Request) { answer(w, r, append(bytes.Clone(whole), 0)) }, 0, ErrMalformed},
		"of no length": {func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set(headerAnswers, r.URL.Path)
			_ = http.NewResponseController(w).Flush()
			_, _ = w.Write(whole)
		}, 0, ErrMalformed},
		"of another object": {func(w http.ResponseWriter, r *http.Request) {
			r.URL.Path = blocksPath + strings.Repeat("0", 32) + "/0-4"
			answer(w, r, whole)
		}, 0, ErrMalformed},
		"blocks of another chunk": {func(w http.ResponseWriter, r *http.Request) {
			wire := bytes.Clone(whole)
			wire[Signs*FrameHeaderBytes] = 9
			answer(w, r, wire)
		}, 0, ErrMalformed},
		"garbage": {func(w http.ResponseWriter, r *http.Request) { answer(w, r, someBytes(3, len(whole))) }, 0, ErrMalformed},
		"status":  {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) }, 0, ErrMalformed},
		"http redirect": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://127.0.0.1:1/", http.StatusTemporaryRedirect)
		}, 0, ErrMalformed},
		"redirect to no name": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set(headerRedirect, "a,b")
			w.WriteHeader(http.StatusMisdirectedRequest)
		}, 0, ErrMalformed},
		"endless headers": {func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X", strings.Repeat("x", 64<<10)) }, 0, ErrUnreachable},
		"unknown class": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set(headerError, "from the future")
			w.WriteHeader(500)
		}, 0, ErrRemote},
		"cut before the answer": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, 0, ErrUnreachable},
	} {
		t.Run(name, func(t *testing.T) {
			r := evil(t, c.f)
			order, err := r.fetch(t, r.request(0))
			if !errors.Is(err, c.want) || len(order) != c.blocks {
				t.Errorf("%v, %v; want %d blocks, %v", order, err, c.blocks, c.want)
			}
		})
	}
}

func TestConnectionsAreBounded(t *testing.T) {
	r := start(t, newLender(t, 4<<20, true), func(_ *ServerConfig, c *ClientConfig) { c.MaxConnections = 4 })
	var most int64
	r.before = func(context.Context, int) error {
		r.mu.Lock()
		defer r.mu.Unlock()
		most = max(most, r.stats.ConnectionsInUse.Load())
		return nil
	}
	var wg sync.WaitGroup
	for i := range uint32(32) {
		wg.Go(func() {
			if _, err := r.fetch(t, r.request(i%8)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	r.settle()
	// One that is being closed may still count while its successor is open.
	if most > 5 {
		t.Errorf("%d connections", most)
	}
}

func TestIdleConnectionsClose(t *testing.T) {
	inBubble(t, 100<<10, nil, func(t *testing.T, r *rig) {
		if _, err := r.fetch(t, r.request(0)); err != nil {
			t.Fatal(err)
		}
		if r.stats.ConnectionsInUse.Load() != 1 {
			t.Error("the connection is not kept")
		}
		_ = wait(t.Context(), 91*time.Second)
		if n := r.stats.ConnectionsInUse.Load(); n != 0 {
			t.Errorf("%d connections after the idle time", n)
		}
	})
}

// What does not count before the signature is right is not looked at.
func TestUnsignedGarbageCostsNothing(t *testing.T) {
	r := start(t, newLender(t, 100<<10, false), nil)
	for _, target := range []string{"/", "/v1/blocks/", "/v1/blocks/x/0-0", "/v1/suspect/x/1", "/v1/blocks/" + strings.Repeat("a", 32) + "/0-4294967295"} {
		for _, method := range []string{"GET", "POST", "DELETE"} {
			req, _ := http.NewRequestWithContext(t.Context(), method, "http://"+r.to.Addr+target, strings.NewReader(""))
			resp, err := r.client.transport.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != 401 && resp.StatusCode != 400 {
				t.Errorf("%s %s: %d", method, target, resp.StatusCode)
			}
		}
	}
	if len(r.requests)+len(r.suspects) != 0 {
		t.Error("the lender was asked")
	}
}

func BenchmarkFetchOverLoopback(b *testing.B) {
	for _, inFile := range []bool{true, false} {
		b.Run("file="+strconv.FormatBool(inFile), func(b *testing.B) {
			l := newLender(b, 1<<20, inFile)
			r := start(b, l, nil)
			req := r.request(0)
			b.SetBytes(int64(req.Span.Count) * small.BlockBytes)
			for b.Loop() {
				if err := r.client.Fetch(b.Context(), r.to, req, func(chunk.Block) error { return nil }); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
