// Package origin is the object store of the end-to-end tests: a real S3 server
// (versitygw) or an S3 in memory for keys and lies that no real one offers,
// each behind a [Counter] that counts every request and body byte as the origin
// sees them, and injects faults.
//
// It promises that nothing reaches the store uncounted but what the test
// itself writes. It is a part of the end-to-end tests.
package origin

import (
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Op is a kind of request.
type Op string

// The operations that are told apart.
const (
	OpGet   Op = "GET"  // of an object's bytes
	OpHead  Op = "HEAD" // of an object
	OpList  Op = "LIST" // one page
	OpOther Op = "OTHER"
)

// Request is one request as the origin saw it.
type Request struct {
	Op      Op
	Bucket  string
	Key     string // of LIST: the prefix
	Offset  int64  // of GET with a range
	Length  int64  // of GET with a range, else -1
	IfMatch string
	Token   string // of LIST: the continuation token
	Client  string // address of the other end, without port
	At      time.Time

	// Filled in when the request ends.
	Status int
	Bytes  int64 // of the body, as sent
	Fault  bool  // whether a fault was injected
}

// maxRecords bounds the memory of a counter; requests beyond are only summed up.
const maxRecords = 2_000_000

// Counter is a handler that counts what passes it to Next, and injects faults.
type Counter struct {
	Next http.Handler

	mu      sync.Mutex
	records []Request            // guarded by mu
	fault   func(Request) *Fault // guarded by mu
	open    int                  // requests under way; guarded by mu
}

// SetFault makes f decide about every request from now on; nil ends all faults.
// f may be called from many goroutines at once.
func (c *Counter) SetFault(f func(Request) *Fault) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fault = f
}

// Reset forgets what was counted. Requests under way are counted when they end.
func (c *Counter) Reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.records = nil
}

// Requests returns what has ended since Reset, in the order of its end.
func (c *Counter) Requests() Requests {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append(Requests(nil), c.records...)
}

// Open returns how many requests are under way.
func (c *Counter) Open() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.open
}

// ServeHTTP implements http.Handler.
func (c *Counter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	req := describe(r)
	c.mu.Lock()
	decide := c.fault
	c.open++
	c.mu.Unlock()
	var fault *Fault
	if decide != nil {
		fault = decide(req)
	}
	body := &countingWriter{ResponseWriter: w, request: r, fault: fault, status: http.StatusOK}
	defer func() {
		req.Status, req.Bytes, req.Fault = body.status, body.sent, fault != nil
		c.mu.Lock()
		c.open--
		if len(c.records) < maxRecords {
			c.records = append(c.records, req)
		}
		c.mu.Unlock()
	}()
	if fault != nil {
		if done := fault.before(body, r); done {
			return
		}
		r = r.WithContext(withLie(r.Context(), fault.Lie))
	}
	c.Next.ServeHTTP(body, r)
}

// describe reads a path-style request.
func describe(r *http.Request) Request {
	req := Request{Op: OpOther, Length: -1, IfMatch: strings.Trim(r.Header.Get("If-Match"), `"`), At: time.Now()}
	req.Client, _, _ = strings.Cut(r.RemoteAddr, ":")
	var hasKey bool
	req.Bucket, req.Key, hasKey = strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	hasKey = hasKey && req.Key != ""
	query := r.URL.Query()
	switch {
	case r.Method == http.MethodGet && hasKey:
		req.Op = OpGet
		if first, last, ok := parseRange(r.Header.Get("Range")); ok {
			req.Offset, req.Length = first, last-first+1
		}
	case r.Method == http.MethodHead && hasKey:
		req.Op = OpHead
	case r.Method == http.MethodGet && (query.Has("list-type") || query.Has("prefix") || query.Has("delimiter")):
		req.Op = OpList
		req.Key, req.Token = query.Get("prefix"), query.Get("continuation-token")
	}
	return req
}

// parseRange reads "bytes=FIRST-LAST", the only form that counts here.
func parseRange(s string) (first, last int64, ok bool) {
	s, ok = strings.CutPrefix(s, "bytes=")
	a, b, found := strings.Cut(s, "-")
	first, err1 := strconv.ParseInt(a, 10, 64)
	last, err2 := strconv.ParseInt(b, 10, 64)
	return first, last, ok && found && err1 == nil && err2 == nil && last >= first
}

// countingWriter counts the body and applies the faults that happen within it.
// It passes ReadFrom on, so that the kernel moves the bytes when nothing is to happen to them.
type countingWriter struct {
	http.ResponseWriter
	request *http.Request
	fault   *Fault
	status  int
	sent    int64
}

func (w *countingWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

func (w *countingWriter) Write(p []byte) (int, error) {
	for w.fault != nil {
		at, ok := w.fault.next(w.sent)
		if !ok || at >= w.sent+int64(len(p)) {
			break
		}
		n, err := w.write(p[:at-w.sent])
		if err != nil {
			return n, err
		}
		w.fault.at(w) // does not return when it cuts
		more, err := w.Write(p[n:])
		return n + more, err
	}
	return w.write(p)
}

func (w *countingWriter) write(p []byte) (int, error) {
	n, err := w.ResponseWriter.Write(p)
	w.sent += int64(n)
	return n, err
}

// ReadFrom implements io.ReaderFrom.
func (w *countingWriter) ReadFrom(r io.Reader) (int64, error) {
	rf, ok := w.ResponseWriter.(io.ReaderFrom)
	if w.fault != nil || !ok {
		return io.Copy(struct{ io.Writer }{w}, r)
	}
	n, err := rf.ReadFrom(r)
	w.sent += n
	return n, err
}

// Unwrap lets http.ResponseController find the connection.
func (w *countingWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
