package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// watch serves metrics and health: GET /metrics, /healthz (the process answers) and
// /readyz (the seeds were asked and mounts can be made).
type watch struct {
	listen net.Listener // nil when metrics are off
	server *http.Server
}

// openWatch opens the port of metrics.
func openWatch(n *Node) (*watch, error) {
	if n.cfg.MetricsBind == "off" {
		return &watch{}, nil
	}
	l, err := net.Listen("tcp", n.cfg.MetricsBind)
	if err != nil {
		return nil, fmt.Errorf("listen for metrics: %w: choose another --metrics-bind, or off", err)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collector{n}, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !n.ready() {
			http.Error(w, "starting", http.StatusServiceUnavailable)
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
		return nil
	}
	stop := context.AfterFunc(ctx, func() { _ = w.server.Close() })
	defer stop()
	if err := w.server.Serve(w.listen); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("metrics: %w", err)
	}
	return nil
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
