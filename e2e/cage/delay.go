package cage

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// Limits of the delay proxy.
const (
	delayReadBytes = 64 << 10
	// delayQueueBytes bounds what is under way in one direction of a connection:
	// 1 Gbit/s for 250 ms.
	delayQueueBytes = 32 << 20
)

// Delay passes TCP connections on and adds a one-way delay to each direction,
// at full rate. (Kernels without netem need it.) A new connection costs one more
// round trip, as a handshake does.
type Delay struct {
	OneWay time.Duration
	Dial   func(ctx context.Context) (net.Conn, error)
}

// Serve accepts from ln until ctx ends, and returns when every connection has ended.
func (d *Delay) Serve(ctx context.Context, ln net.Listener) error {
	stop := context.AfterFunc(ctx, func() { _ = ln.Close() })
	defer stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		conn, err := ln.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		wg.Go(func() { d.connection(ctx, conn) })
	}
}

func (d *Delay) connection(ctx context.Context, client net.Conn) {
	defer client.Close()
	if !wait(ctx, 2*d.OneWay) {
		return
	}
	server, err := d.Dial(ctx)
	if err != nil {
		return
	}
	defer server.Close()
	stop := context.AfterFunc(ctx, func() {
		_ = client.Close()
		_ = server.Close()
	})
	defer stop()
	var wg sync.WaitGroup
	wg.Go(func() { d.oneWay(server, client) })
	wg.Go(func() { d.oneWay(client, server) })
	wg.Wait()
}

// parcel is a piece of data and when it is due.
type parcel struct {
	due  time.Time
	data []byte
}

// oneWay copies until the end or an error, then closes: the direction of writing
// after a clean end, everything after an error, so that resets pass as ends.
func (d *Delay) oneWay(to, from net.Conn) {
	queue := make(chan parcel, delayQueueBytes/delayReadBytes)
	go func() {
		defer close(queue)
		for {
			buf := make([]byte, delayReadBytes)
			n, err := from.Read(buf)
			if n > 0 {
				queue <- parcel{time.Now().Add(d.OneWay), buf[:n]}
			}
			if err != nil {
				if !errors.Is(err, io.EOF) {
					_ = to.Close()
				}
				return
			}
		}
	}()
	for p := range queue {
		time.Sleep(time.Until(p.due))
		if _, err := to.Write(p.data); err != nil {
			_ = from.Close() // ends the reader above, which closes the queue
			for range queue {
			}
			return
		}
	}
	if tcp, ok := to.(*net.TCPConn); ok {
		_ = tcp.CloseWrite()
	}
}

// wait waits for d; it reports false when ctx ended first.
func wait(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
