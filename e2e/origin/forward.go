package origin

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

// maxIdle bounds the idle connections to the store.
const maxIdle = 256

// forward passes GET and HEAD requests on to an HTTP server over connections of
// its own. Request target and headers stay as they are, so that signatures stay valid;
// bodies are moved by splice(2), so that the proxy costs the measured little.
type forward struct {
	dial func(context.Context) (net.Conn, error)
	idle chan *upstream
}

type upstream struct {
	conn net.Conn
	r    *bufio.Reader
}

func newForward(dial func(context.Context) (net.Conn, error)) *forward {
	return &forward{dial: dial, idle: make(chan *upstream, maxIdle)}
}

// ServeHTTP implements http.Handler.
func (f *forward) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	up, resp, err := f.roundTrip(r)
	if err != nil {
		writeError(w, r, http.StatusBadGateway, "BadGateway")
		return
	}
	keep := false
	defer func() {
		if keep {
			f.put(up)
		} else {
			_ = up.conn.Close()
		}
	}()
	for k, v := range resp.Header {
		w.Header()[k] = v
	}
	w.Header().Del("Connection") // about the other connection
	if resp.ContentLength >= 0 {
		w.Header().Set("Content-Length", fmt.Sprint(resp.ContentLength))
	}
	w.WriteHeader(resp.StatusCode)
	// net/http sniffs the head of a body before it lets ReadFrom pass; what the
	// reader has buffered serves as that head.
	err = f.body(w, r, resp, up)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	keep = !resp.Close
}

func (f *forward) body(w http.ResponseWriter, r *http.Request, resp *http.Response, up *upstream) error {
	if r.Method == http.MethodHead || resp.ContentLength == 0 {
		return nil
	}
	if resp.ContentLength < 0 {
		_, err := io.Copy(w, resp.Body)
		return err
	}
	head := min(int64(up.r.Buffered()), resp.ContentLength)
	if _, err := io.CopyN(w, up.r, head); err != nil {
		return err
	}
	rest := resp.ContentLength - head
	if rest == 0 {
		return nil
	}
	n, err := io.Copy(w, &io.LimitedReader{R: up.conn, N: rest})
	if err == nil && n < rest {
		err = io.ErrUnexpectedEOF
	}
	return err
}

// roundTrip sends the request, once more over a new connection when an idle one was dead.
func (f *forward) roundTrip(r *http.Request) (*upstream, *http.Response, error) {
	for {
		up, fresh, err := f.get(r.Context())
		if err != nil {
			return nil, nil, err
		}
		resp, err := up.roundTrip(r)
		if err == nil {
			return up, resp, nil
		}
		_ = up.conn.Close()
		if fresh {
			return nil, nil, err
		}
	}
}

func (u *upstream) roundTrip(r *http.Request) (*http.Response, error) {
	if r.ContentLength != 0 {
		return nil, errors.New("origin: the counter passes no bodies to the store")
	}
	w := bufio.NewWriter(u.conn)
	fmt.Fprintf(w, "%s %s HTTP/1.1\r\nHost: %s\r\n", r.Method, r.RequestURI, r.Host)
	if err := r.Header.Write(w); err != nil {
		return nil, err
	}
	fmt.Fprint(w, "\r\n")
	if err := w.Flush(); err != nil {
		return nil, err
	}
	return http.ReadResponse(u.r, r)
}

func (f *forward) get(ctx context.Context) (up *upstream, fresh bool, err error) {
	select {
	case up := <-f.idle:
		return up, false, nil
	default:
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	conn, err := f.dial(ctx)
	if err != nil {
		return nil, true, err
	}
	return &upstream{conn: conn, r: bufio.NewReaderSize(conn, 4096)}, true, nil
}

func (f *forward) put(up *upstream) {
	select {
	case f.idle <- up:
	default:
		_ = up.conn.Close()
	}
}

// close drops the idle connections.
func (f *forward) close() {
	for {
		select {
		case up := <-f.idle:
			_ = up.conn.Close()
		default:
			return
		}
	}
}
