package member

import (
	"bytes"
	"context"
	"log"
	"log/slog"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/peer/member/membertest"
)

// socketConfig is that of a member on real sockets.
func socketConfig(id string, changed chan<- []Member) Config {
	return Config{
		ID: id, BindAddr: "127.0.0.1", PeerPort: 7000, Geometry: chunk.DefaultGeometry(),
		Keys: [][]byte{make([]byte, 32)}, Batch: 50 * time.Millisecond,
		OnChange: func(list []Member) { changed <- list },
	}
}

func TestMembersOnRealSocketsMeetAndEnd(t *testing.T) {
	before := runtime.NumGoroutine()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	firstChanges, secondChanges := make(chan []Member, 100), make(chan []Member, 100)
	first, err := New(socketConfig("first", firstChanges))
	if err != nil {
		t.Fatal(err)
	}
	cfg := socketConfig("second", secondChanges)
	cfg.Join = []string{first.Addr().String()}
	second, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 2)
	go func() { done <- first.Run(ctx) }()
	go func() { done <- second.Run(ctx) }()
	for _, ch := range []chan []Member{firstChanges, secondChanges} {
		waitMembers(t, ch, 2)
	}
	busy := socketConfig("third", firstChanges)
	busy.BindPort = int(first.Addr().Port())
	if _, err := New(busy); err == nil || !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("a port that is taken: %v", err)
	}
	cancel()
	for range 2 {
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(20 * time.Second):
			t.Fatal("Run does not end")
		}
	}
	// The port is free again, for UDP and TCP.
	again, err := New(busy)
	if err != nil {
		t.Fatalf("after the end: %v", err)
	}
	again.Close()
	waitGoroutines(t, before)
}

// waitMembers waits until OnChange was called with so many members.
func waitMembers(t *testing.T, ch <-chan []Member, want int) {
	t.Helper()
	timeout := time.After(20 * time.Second)
	for {
		select {
		case list := <-ch:
			if len(list) == want {
				return
			}
		case <-timeout:
			t.Fatalf("no change to %d members", want)
		}
	}
}

// waitGoroutines waits until memberlist's goroutines have ended by themselves.
func waitGoroutines(t *testing.T, want int) {
	t.Helper()
	timeout := time.After(20 * time.Second)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for runtime.NumGoroutine() > want {
		select {
		case <-tick.C:
		case <-timeout:
			buf := make([]byte, 1<<20)
			t.Fatalf("%d goroutines, %d before:\n%s", runtime.NumGoroutine(), want, buf[:runtime.Stack(buf, true)])
		}
	}
}

func TestStreamsAreBoundedAndEndWithTheTransport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := membertest.New(1, 0)
		addr := network.Addr()
		stats := &Stats{}
		tr, err := newTransport(Config{Transport: network.Listen(addr)}, log.Default(), stats)
		if err != nil {
			t.Fatal(err)
		}
		var outside []net.Conn
		for range maxStreams + 5 {
			c, err := network.Dial(addr, time.Second)
			if err != nil {
				t.Fatal(err)
			}
			outside = append(outside, c)
			select {
			case <-tr.StreamCh():
			case <-time.After(time.Second):
			}
		}
		synctest.Wait()
		if n := stats.RefusedStreams.Load(); n != 5 {
			t.Errorf("%d streams refused, want 5", n)
		}
		// A dial under way ends with the transport, not with its timeout.
		network.Cut(func(_, _ netip.AddrPort) bool { return true })
		failed := make(chan error, 1)
		go func() {
			_, err := tr.DialTimeout("10.9.9.9:1", time.Hour)
			failed <- err
		}()
		synctest.Wait()
		start := time.Now()
		tr.Shutdown()
		if err := <-failed; err == nil || time.Since(start) > 0 {
			t.Errorf("the dial under way ended after %s: %v", time.Since(start), err)
		}
		for i, c := range outside {
			if _, err := c.Read(make([]byte, 1)); err == nil {
				t.Errorf("stream %d is open", i)
			}
			c.Close()
		}
		if _, err := tr.DialTimeout(addr.String(), time.Second); err == nil {
			t.Error("a dial after the end succeeded")
		}
	})
}

func TestGossipLogIsTranslatedCountedAndLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		var dropped atomic.Uint64
		bridge := &logBridge{to: slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})), dropped: &dropped}
		logger := log.New(bridge, "", 0)
		logger.Printf("[DEBUG] memberlist: Stream connection from=x")
		logger.Printf("[ERR] memberlist: Failed to accept: %s", "x")
		for range 1000 {
			logger.Printf("[ERR] memberlist: Decrypt packet failed: no key from=10.0.0.1:5")
		}
		time.Sleep(2 * bridgeWindow)
		logger.Printf("[WARN] memberlist: Conflicting address")
		if dropped.Load() != 1000 {
			t.Errorf("%d packets counted, want 1000", dropped.Load())
		}
		text := out.String()
		for _, want := range []string{"level=DEBUG msg=\"gossip: Stream", "level=WARN msg=\"gossip: Failed to accept", "lines=991", "level=INFO msg=\"gossip: Conflicting"} {
			if !strings.Contains(text, want) {
				t.Errorf("%q is not in the log:\n%s", want, text)
			}
		}
		if n := strings.Count(text, "\n"); n != maxBridgeLines+3 {
			t.Errorf("%d lines, want %d", n, maxBridgeLines+3)
		}
	})
}
