package s3server

import (
	"io"
	"net/http"
	"sync"
	"sync/atomic"
)

// Counter is a handler that counts what passes: requests by kind, bytes of
// bodies, and how often each range of each object was asked for.
type Counter struct {
	Gets  atomic.Int64 // GET of objects
	Heads atomic.Int64 // HEAD of objects
	Lists atomic.Int64 // GET of buckets
	Other atomic.Int64 // everything else
	Bytes atomic.Int64 // of the bodies of GETs of objects that were sent with 200 or 206
	// Refused counts answers of 400 and above, whatever the kind.
	Refused atomic.Int64

	next   http.Handler
	mu     sync.Mutex
	ranges map[string]int64
}

// NewCounter counts what goes to next, a server with path addressing.
func NewCounter(next http.Handler) *Counter {
	return &Counter{next: next, ranges: make(map[string]int64)}
}

// maxRanges bounds the ranges that are told apart; more are counted in the totals only.
const maxRanges = 1 << 20

// Ranges returns how often each GET was made, by "/bucket/key bytes=0-99".
func (c *Counter) Ranges() map[string]int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	ranges := make(map[string]int64, len(c.ranges))
	for k, n := range c.ranges {
		ranges[k] = n
	}
	return ranges
}

// Reset sets everything to zero.
func (c *Counter) Reset() {
	for _, n := range []*atomic.Int64{&c.Gets, &c.Heads, &c.Lists, &c.Other, &c.Bytes, &c.Refused} {
		n.Store(0)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.ranges)
}

// ServeHTTP implements http.Handler.
func (c *Counter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	cw := &countWriter{ResponseWriter: w}
	object := isObject(r.URL.Path)
	switch {
	case r.Method == http.MethodGet && object:
		c.Gets.Add(1)
		cw.bytes = &c.Bytes
		c.note(r.URL.Path + " " + r.Header.Get("Range"))
	case r.Method == http.MethodHead && object:
		c.Heads.Add(1)
	case r.Method == http.MethodGet:
		c.Lists.Add(1)
	default:
		c.Other.Add(1)
	}
	c.next.ServeHTTP(cw, r)
	if cw.status >= 400 {
		c.Refused.Add(1)
	}
}

func (c *Counter) note(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.ranges[what]; ok || len(c.ranges) < maxRanges {
		c.ranges[what]++
	}
}

// isObject reports whether a path is /bucket/key with a key.
func isObject(path string) bool {
	for i := 1; i < len(path); i++ {
		if path[i] == '/' {
			return i+1 < len(path)
		}
	}
	return false
}

// countWriter counts the bytes of good bodies. It passes ReadFrom on, so that
// net/http can send files without a copy.
type countWriter struct {
	http.ResponseWriter
	status int
	bytes  *atomic.Int64
}

func (w *countWriter) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *countWriter) count(n int64) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	if w.bytes != nil && w.status < 300 {
		w.bytes.Add(n)
	}
}

func (w *countWriter) Write(p []byte) (int, error) {
	n, err := w.ResponseWriter.Write(p)
	w.count(int64(n))
	return n, err
}

func (w *countWriter) ReadFrom(r io.Reader) (int64, error) {
	n, err := io.Copy(w.ResponseWriter, r)
	w.count(n)
	return n, err
}

// Unwrap serves http.ResponseController.
func (w *countWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
