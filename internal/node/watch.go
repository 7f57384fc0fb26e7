package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/shardwell/shardwell/internal/control"
)

// watch serves metrics and health: GET /metrics, /healthz (the process answers) and
// /readyz (the seeds were asked and mounts can be made).
type watch struct {
	listen net.Listener // nil when metrics are off
	server *http.Server
}

// openWatch opens the port of metrics.
func openWatch(n *Node) (*watch, error) {
	if n.cfg.MetricsOff() {
		return &watch{}, nil
	}
	l, err := listen("metrics", n.cfg.MetricsBind, "choose another --metrics-bind, or off")
	if err != nil {
		return nil, err
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collector{n}, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := http.NewServeMux()
	metrics := promhttp.HandlerFor(registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4})
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, r *http.Request) {
		err := n.requests.do(r.Context(), func(context.Context) error {
			metrics.ServeHTTP(w, r)
			return nil
		})
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	})
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		if left := n.keeping.takingOver(); left > 0 { // no reason to be killed
			fmt.Fprintf(w, "ok, taking over: %d mounts are left\n", left)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if left := n.keeping.takingOver(); left > 0 {
			http.Error(w, fmt.Sprintf("taking over: %d mounts are left", left), http.StatusServiceUnavailable)
			return
		}
		if !n.ready() {
			http.Error(w, "starting", http.StatusServiceUnavailable)
			return
		}
		// One that reaches no seed is ready all the same: the first of a cluster reaches none.
		if s := control.Seeds(n.cluster.group.Seeds()); s.Alone() {
			fmt.Fprintf(w, "ready, alone: joined none of %d seeds (unreachable, or another secret)\n", s.Asked)
			return
		}
		fmt.Fprintln(w, "ready")
	})
	return &watch{listen: l, server: &http.Server{
		Handler: mux, ReadHeaderTimeout: 5 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
	}}, nil
}

// Run serves until ctx ends.
func (w *watch) Run(ctx context.Context) error {
	if w.listen == nil {
		<-ctx.Done()
		return nil
	}
	stop := context.AfterFunc(ctx, func() { _ = w.server.Close() }) // what is lost is one answer
	defer stop()
	if err := w.server.Serve(w.listen); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// listen opens a TCP port. The error says what to do.
func listen(what, addr, do string) (net.Listener, error) {
	l, err := net.Listen("tcp", addr)
	if err == nil {
		return l, nil
	}
	var errno syscall.Errno
	if errors.As(err, &errno) { // operation and address are said already
		err = errno
	}
	return nil, fmt.Errorf("%s: cannot listen on %s: %w: %s", what, addr, err, do)
}

// Close closes the port.
func (w *watch) Close() {
	if w.listen != nil {
		_ = w.listen.Close()
	}
}

// ready reports whether mounts can be made and the cluster was looked for.
func (n *Node) ready() bool {
	for _, done := range []<-chan struct{}{n.mounts.begun, n.cluster.joined()} {
		select {
		case <-done:
		default:
			return false
		}
	}
	return true
}
