package origin

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"
)

// Fault is what happens to one request. The zero value changes nothing.
type Fault struct {
	// Status, when not 0, is the answer; the store is not asked.
	Status int
	Code   string // S3's name of the error; "" takes the usual one of Status
	// RetryAfter is the header of that name in an answer with Status, in seconds; 0 sends none.
	RetryAfter int

	// Delay holds the request back before anything is answered.
	Delay time.Duration
	// Hang, when not nil, holds the request back until the channel is closed or the client leaves.
	Hang <-chan struct{}

	// CutAfter ends the connection when so many body bytes were sent; 0 does not.
	CutAfter int64
	// Reset makes the cut a TCP reset.
	Reset bool
	// StallAfter stops sending when so many body bytes were sent, until Release is closed or
	// the client leaves; 0 does not.
	StallAfter int64
	Release    <-chan struct{}

	// Lie makes the store in memory answer wrongly.
	Lie Lie

	mu      sync.Mutex
	stalled bool
}

// Lie is an answer that a broken store or middlebox gives.
type Lie string

// The lies that [Memory] knows.
const (
	LieShort    Lie = "short"     // fewer bytes than the range, with a length that says so
	LieLong     Lie = "long"      // more bytes than asked for
	LieRange    Lie = "range"     // another range of the object
	LieWhole    Lie = "whole"     // 200 and the whole object
	LieNoMatch  Lie = "nomatch"   // ignores If-Match
	LieBadRange Lie = "bad range" // a Content-Range that does not fit the bytes asked for
)

type lieKey struct{}

func withLie(ctx context.Context, l Lie) context.Context { return context.WithValue(ctx, lieKey{}, l) }

func lieOf(ctx context.Context) Lie {
	l, _ := ctx.Value(lieKey{}).(Lie)
	return l
}

// before applies what precedes the answer; done says that it was the answer.
func (f *Fault) before(w http.ResponseWriter, r *http.Request) (done bool) {
	if f.Delay > 0 {
		t := time.NewTimer(f.Delay)
		defer t.Stop()
		select {
		case <-t.C:
		case <-r.Context().Done():
			return true
		}
	}
	if f.Hang != nil {
		select {
		case <-f.Hang:
		case <-r.Context().Done():
			return true
		}
	}
	if f.Status == 0 {
		return false
	}
	if f.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(f.RetryAfter))
	}
	code := f.Code
	if code == "" {
		code = usualCode(f.Status)
	}
	writeError(w, r, f.Status, code)
	return true
}

func usualCode(status int) string {
	switch status {
	case http.StatusServiceUnavailable:
		return "SlowDown"
	case http.StatusTooManyRequests:
		return "TooManyRequests"
	case http.StatusForbidden:
		return "AccessDenied"
	case http.StatusNotFound:
		return "NoSuchKey"
	}
	return "InternalError"
}

// writeError answers as S3 does.
func writeError(w http.ResponseWriter, r *http.Request, status int, code string) {
	body := fmt.Sprintf("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"+
		"<Error><Code>%s</Code><Message>injected or refused</Message><RequestId>e2e</RequestId></Error>", code)
	w.Header().Set("Content-Type", "application/xml")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	if r.Method != http.MethodHead {
		_, _ = w.Write([]byte(body))
	}
}

// next returns the body position at which something is to happen, not before sent.
func (f *Fault) next(sent int64) (at int64, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.StallAfter >= sent && f.StallAfter > 0 && !f.stalled {
		return f.StallAfter, true
	}
	if f.CutAfter >= sent && f.CutAfter > 0 {
		return f.CutAfter, true
	}
	return 0, false
}

// at does what is to happen at the position that next told.
func (f *Fault) at(w *countingWriter) {
	_ = http.NewResponseController(w.ResponseWriter).Flush()
	f.mu.Lock()
	stall := f.StallAfter > 0 && !f.stalled && w.sent == f.StallAfter
	f.stalled = f.stalled || stall
	f.mu.Unlock()
	if stall {
		select {
		case <-f.Release:
		case <-w.request.Context().Done():
		}
		return
	}
	if f.Reset {
		if conn, _, err := http.NewResponseController(w.ResponseWriter).Hijack(); err == nil {
			if tcp, ok := conn.(*net.TCPConn); ok {
				_ = tcp.SetLinger(0)
			}
			_ = conn.Close()
		}
	}
	panic(http.ErrAbortHandler)
}

// Sometimes returns a decider that lets each of the faults happen to an equal
// part of share (0 to 1) of the requests of the given operations (all, if none
// is given), by chance from seed.
func Sometimes(seed uint64, share float64, ops []Op, faults ...func(*rand.Rand) *Fault) func(Request) *Fault {
	var mu sync.Mutex
	rng := rand.New(rand.NewPCG(seed, 0))
	return func(r Request) *Fault {
		if len(ops) > 0 && !slices.Contains(ops, r.Op) {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		if rng.Float64() >= share {
			return nil
		}
		return faults[rng.IntN(len(faults))](rng)
	}
}
