package node

import (
	"context"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/objstore"
	"github.com/shardwell/shardwell/peer"
)

const (
	// cutAfter is how long an origin answers nothing to this node before others are asked to
	// fetch in its place. It is longer than what a server needs to restart a connection's other end.
	cutAfter = 3 * time.Second
	// shakyFor is how long a way that works again may be what others' are about to.
	shakyFor = 5 * time.Second
	// lookEvery is how often it is looked whether a way that is cut works again.
	lookEvery = 2 * time.Second
	// maxRoutes bounds the origins that are watched at once.
	maxRoutes = 2 * maxEndpoints
)

// routes are this node's own ways to origins, as far as they bring no answers. An origin that answers with an
// error has answered. While a way is cut and other members are there, they are asked in this node's place;
// that an origin answers nobody looks the same from here, and ends the same way.
type routes struct {
	log   *slog.Logger
	alone func() bool // nobody else can be asked; set before the first use
	news  chan struct{}

	mu sync.Mutex
	by map[string]*route // by origin; none for one that answers
}

// route is the way to an origin that does not answer, or did not a moment ago.
type route struct {
	bucket objstore.Bucket // that was asked for
	since  time.Time       // when the first of the requests began that have had no answer; zero: none
	cut    bool
	back   time.Time // when the way was cut no more; zero: it never was
}

var _ peer.Routes = (*routes)(nil)

func newRoutes(log *slog.Logger) *routes {
	return &routes{log: log, alone: func() bool { return true }, news: make(chan struct{}, 1), by: make(map[string]*route)}
}

// Cut implements peer.Routes.
func (r *routes) Cut(origin string) bool {
	r.mu.Lock()
	x := r.by[origin]
	cut := x != nil && x.cut
	r.mu.Unlock()
	return cut && !r.alone()
}

// Shaky implements peer.Routes.
func (r *routes) Shaky(origin string) bool {
	r.mu.Lock()
	x := r.by[origin]
	shaky := x != nil && (x.cut || time.Since(x.back) < shakyFor)
	r.mu.Unlock()
	return shaky && !r.alone()
}

// note takes in how a request ended that began at some time.
func (r *routes) note(b objstore.Bucket, began time.Time, err error) {
	class := objstore.ClassOf(err)
	if class == objstore.ClassCanceled {
		return // says nothing
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	x := r.by[b.Origin]
	if class != objstore.ClassTransient {
		r.answered(b.Origin, x)
		return
	}
	if x == nil {
		if len(r.by) >= maxRoutes {
			return
		}
		x = &route{}
		r.by[b.Origin] = x
	}
	if x.since.IsZero() {
		x.bucket, x.since = b, began
	}
	if !x.cut && time.Since(x.since) >= cutAfter {
		x.cut = true
		r.log.Warn("origin does not answer this node; other members are asked in its place", "origin", b.Origin, "error", err)
		select {
		case r.news <- struct{}{}:
		default:
		}
	}
}

// answered notes that an origin has answered, x being the way to it if it did not. Caller holds mu.
func (r *routes) answered(origin string, x *route) {
	switch {
	case x == nil:
	case x.cut:
		r.log.Info("origin answers this node again", "origin", origin)
		*x = route{back: time.Now()}
	case time.Since(x.back) < shakyFor:
		x.since = time.Time{}
	default:
		delete(r.by, origin)
	}
}

// broken returns a bucket of each origin to which the way is cut.
func (r *routes) broken() (all []objstore.Bucket) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, x := range r.by {
		if x.cut {
			all = append(all, x.bucket)
		}
	}
	return all
}

// Run looks whether ways that are cut work again, until ctx ends. ask puts a question to the origin of a bucket.
func (r *routes) Run(ctx context.Context, ask func(context.Context, objstore.Bucket) error) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		for _, b := range r.broken() {
			r.note(b, time.Now(), ask(ctx, b))
		}
		next := tick.C
		if len(r.broken()) == 0 {
			next = nil
		}
		select {
		case <-next:
		case <-r.news:
		case <-ctx.Done():
			return nil
		}
	}
}

// keepLooking is the part of a node that runs routes.
func (n *Node) keepLooking(ctx context.Context) error {
	return n.origins.routes.Run(ctx, func(ctx context.Context, b objstore.Bucket) error {
		ctx, cancel := context.WithTimeout(ctx, probeTimeout)
		defer cancel()
		// Nobody's credentials: a refusal is an answer, and a search for credentials none.
		return n.origins.probe(ctx, openKey{b, chunk.Anonymous})
	})
}

// watched notes how requests end.
type watched struct {
	objstore.Store
	routes *routes
	bucket objstore.Bucket
}

func (w watched) Get(ctx context.Context, key, etag string, off, n int64) (io.ReadCloser, error) {
	began := time.Now()
	body, err := w.Store.Get(ctx, key, etag, off, n)
	w.routes.note(w.bucket, began, err)
	return body, err
}

func (w watched) Head(ctx context.Context, key string) (objstore.Info, error) {
	began := time.Now()
	info, err := w.Store.Head(ctx, key)
	w.routes.note(w.bucket, began, err)
	return info, err
}

func (w watched) List(ctx context.Context, req objstore.ListRequest) (objstore.Page, error) {
	began := time.Now()
	page, err := w.Store.List(ctx, req)
	w.routes.note(w.bucket, began, err)
	return page, err
}
