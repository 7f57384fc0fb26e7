package cage_test

import (
	"context"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shardwell/shardwell/e2e/cage"
)

func newCage(t *testing.T) *cage.Cage {
	t.Helper()
	c, err := cage.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func newHost(t *testing.T, c *cage.Cage, name string) *cage.Host {
	t.Helper()
	h, err := c.Host(name)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// send serves n zero bytes to every connection until the test ends.
func send(t *testing.T, ln net.Listener, n int) {
	t.Helper()
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer conn.Close()
				var b [1]byte
				if _, err := io.ReadFull(conn, b[:]); err != nil {
					return
				}
				_, _ = conn.Write(make([]byte, n))
			})
		}
	})
	t.Cleanup(func() {
		_ = ln.Close()
		wg.Wait()
	})
}

// fetch asks for the bytes of send and returns how long the first and the last took.
func fetch(t *testing.T, from *cage.Host, addr string, n int) (first, last time.Duration) {
	t.Helper()
	start := time.Now()
	conn, err := from.Dial(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 1)
	if _, err := io.ReadFull(conn, buf); err != nil {
		t.Fatal(err)
	}
	first = time.Since(start)
	if got, err := io.Copy(io.Discard, conn); err != nil || got != int64(n-1) {
		t.Fatalf("read %d bytes (%v), want %d", got, err, n-1)
	}
	return first, time.Since(start)
}

func TestShapedAndDelayed(t *testing.T) {
	const bytes = 16 << 20
	c := newCage(t)
	a, b := newHost(t, c, "a"), newHost(t, c, "b")
	if err := a.Shape(cage.Link{RateMbit: 500}); err != nil {
		t.Fatal(err)
	}
	inner, err := a.Listen("127.0.0.1:8000")
	if err != nil {
		t.Fatal(err)
	}
	send(t, inner, bytes)
	outer, err := a.Listen(a.IP + ":9000")
	if err != nil {
		t.Fatal(err)
	}
	const oneWay = 15 * time.Millisecond
	d := &cage.Delay{OneWay: oneWay, Dial: func(ctx context.Context) (net.Conn, error) {
		return a.Dial(ctx, "tcp", "127.0.0.1:8000")
	}}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := d.Serve(ctx, outer); err != nil {
			t.Error(err)
		}
	})
	defer wg.Wait()
	defer cancel()
	first, last := fetch(t, b, a.IP+":9000", bytes)
	if first < 4*oneWay || first > 4*oneWay+100*time.Millisecond {
		t.Errorf("first byte after %v, want about %v", first, 4*oneWay)
	}
	// 16 MiB at 500 Mbit/s take 268 ms.
	if d := last - first; d < 250*time.Millisecond || d > 600*time.Millisecond {
		t.Errorf("%d bytes in %v, want about 280 ms", bytes, d)
	}
	received, _, err := b.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	if received < bytes || received > bytes*11/10 {
		t.Errorf("interface of b received %d bytes, want a little over %d", received, bytes)
	}
}

func TestProcessDiesAndIsCounted(t *testing.T) {
	c := newCage(t)
	h := newHost(t, c, "a")
	p, err := h.Start(cage.Command{Name: "ip", Args: []string{"ip", "-br", "addr", "show", "eth0"}})
	if err != nil {
		t.Fatal(err)
	}
	if code, err := p.Wait(10 * time.Second); err != nil || code != 0 {
		t.Fatalf("exit code %d, %v", code, err)
	}
	if out := p.Output(); !strings.Contains(out, h.IP) {
		t.Errorf("the process saw %q, want the address %s", out, h.IP)
	}
	p, err = h.Start(cage.Command{Name: "sleep", Args: []string{"sleep", "60"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, peak, err := p.Memory(); err != nil || peak == 0 {
		t.Errorf("peak memory %d, %v", peak, err)
	}
	if _, err := p.CPU(); err != nil {
		t.Error(err)
	}
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	if p.Running() {
		t.Error("the process still runs after Kill")
	}
}

func TestUnpluggedHostIsUnreachable(t *testing.T) {
	c := newCage(t)
	a, b := newHost(t, c, "a"), newHost(t, c, "b")
	ln, err := a.Listen(a.IP + ":8000")
	if err != nil {
		t.Fatal(err)
	}
	send(t, ln, 10)
	fetch(t, b, a.IP+":8000", 10)
	if err := a.SetLink(false); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if conn, err := b.Dial(ctx, "tcp", a.IP+":8000"); err == nil {
		_ = conn.Close()
		t.Error("connected to an unplugged host")
	}
	if err := a.SetLink(true); err != nil {
		t.Fatal(err)
	}
	fetch(t, b, a.IP+":8000", 10)
}

func TestCloseLeavesNothing(t *testing.T) {
	c, err := cage.New()
	if err != nil {
		t.Fatal(err)
	}
	h := newHost(t, c, "a")
	if _, err := h.Start(cage.Command{Name: "sleep", Args: []string{"sleep", "60"}}); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat("/run/netns/" + h.NS); !os.IsNotExist(err) {
		t.Errorf("namespace %s is still there (%v)", h.NS, err)
	}
	if _, err := os.Stat(c.Dir); !os.IsNotExist(err) {
		t.Errorf("directory %s is still there (%v)", c.Dir, err)
	}
}
