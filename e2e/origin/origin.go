package origin

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"time"

	"github.com/shardwell/shardwell/e2e/cage"
)

// Ports of an origin's host.
const (
	storePort = 7070 // versitygw, on loopback
	innerPort = 7071 // the counter, on loopback, when a delay stands before it
	port      = 9000 // what clients see
)

// Region is the region that the store claims to be in.
const Region = "us-east-1"

// Options of an origin.
type Options struct {
	Name   string        // of its host; "" means "origin"
	Store  http.Handler  // what answers; nil runs versitygw
	Bin    string        // versitygw's binary, when Store is nil
	OneWay time.Duration // added to each direction; half of a round trip

	// Users are accounts of versitygw beside the owner of the buckets: secret keys by access
	// key. They may do what the policy of a bucket says, see SetPolicy.
	Users map[string]string
}

// Origin is a running object store in a host of its own.
type Origin struct {
	*Counter
	Host      *cage.Host
	AccessKey string
	SecretKey string

	opts    Options
	dir     string
	gateway *cage.Process
	forward *forward

	mu   sync.Mutex
	stop func() error // of the listeners; nil while the origin is gone; guarded by mu
}

// Start runs an origin in a new host of the cage. It is ended by Close, or with the cage.
func Start(c *cage.Cage, opts Options) (*Origin, error) {
	if opts.Name == "" {
		opts.Name = "origin"
	}
	h, err := c.Host(opts.Name)
	if err != nil {
		return nil, err
	}
	o := &Origin{
		Counter: &Counter{Next: opts.Store}, Host: h, opts: opts,
		AccessKey: "AK" + random(9), SecretKey: random(20),
		dir: filepath.Join(c.Dir, opts.Name+"-data"),
	}
	if opts.Store == nil {
		if err := o.startGateway(); err != nil {
			return nil, err
		}
		o.forward = newForward(func(ctx context.Context) (net.Conn, error) {
			return h.Dial(ctx, "tcp", o.storeAddr())
		})
		o.Next = o.forward
	}
	return o, o.Resume()
}

func random(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// Endpoint is the URL that clients use.
func (o *Origin) Endpoint() string { return fmt.Sprintf("http://%s:%d", o.Host.IP, port) }

// Gateway is the process of versitygw, nil for another store.
func (o *Origin) Gateway() *cage.Process { return o.gateway }

// Resume begins to answer, at the start or after Vanish.
func (o *Origin) Resume() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.stop != nil {
		return nil
	}
	public := fmt.Sprintf("%s:%d", o.Host.IP, port)
	addr := public
	if o.opts.OneWay > 0 {
		addr = fmt.Sprintf("127.0.0.1:%d", innerPort)
	}
	ln, err := o.Host.Listen(addr)
	if err != nil {
		return fmt.Errorf("origin: %w", err)
	}
	server := &http.Server{
		Handler: o.Counter, ErrorLog: log.New(io.Discard, "", 0), ReadHeaderTimeout: 10 * time.Second,
	}
	var wg sync.WaitGroup
	wg.Go(func() { _ = server.Serve(ln) })
	ctx, cancel := context.WithCancel(context.Background())
	o.stop = func() error {
		cancel()
		err := server.Close()
		wg.Wait()
		return err
	}
	if o.opts.OneWay == 0 {
		return nil
	}
	outer, err := o.Host.Listen(public)
	if err != nil {
		return errors.Join(fmt.Errorf("origin: %w", err), o.stop())
	}
	d := &cage.Delay{OneWay: o.opts.OneWay, Dial: func(ctx context.Context) (net.Conn, error) {
		return o.Host.Dial(ctx, "tcp", addr)
	}}
	wg.Go(func() { _ = d.Serve(ctx, outer) })
	return nil
}

// Vanish makes the origin refuse connections and cuts those that are open, until Resume.
func (o *Origin) Vanish() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.stop == nil {
		return nil
	}
	err := o.stop()
	o.stop = nil
	return err
}

// Close ends the origin.
func (o *Origin) Close() error {
	err := o.Vanish()
	if o.forward != nil {
		o.forward.close()
	}
	if o.gateway != nil {
		err = errors.Join(err, o.gateway.Kill())
	}
	return err
}
