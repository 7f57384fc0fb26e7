package s3

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/objstore"
)

// Get implements objstore.Store.
func (s *Store) Get(ctx context.Context, key, etag string, off, n int64) (io.ReadCloser, error) {
	body, err := s.get(ctx, key, etag, off, n)
	if err != nil {
		return nil, s.fail(objstore.OpGet, key, err)
	}
	return body, nil
}

func (s *Store) get(ctx context.Context, key, etag string, off, n int64) (io.ReadCloser, error) {
	q, err := getQuery(key, etag, off, n)
	if err != nil {
		return nil, err
	}
	x := s.ask(ctx, q)
	if x.failed() {
		return nil, failure(objstore.OpGet, x)
	}
	if err := checkRange(x, etag, off, n); err != nil {
		x.drop()
		return nil, err
	}
	return &exactBody{body: x.body, left: n}, nil
}

// getQuery returns the request for a range of a version.
func getQuery(key, etag string, off, n int64) (query, error) {
	if err := checkKey(key); err != nil {
		return query{}, err
	}
	if off < 0 || n <= 0 || etag == "" || strings.ContainsAny(etag, "\"\r\n") {
		return query{}, invalid("range [%d, +%d) of version %q", off, n, etag)
	}
	return query{op: objstore.OpGet, method: http.MethodGet, key: key, header: map[string]string{
		"Range":    fmt.Sprintf("bytes=%d-%d", off, off+n-1),
		"If-Match": `"` + etag + `"`,
	}}, nil
}

// checkRange compares an answer's headers with what was asked for. Answers that
// may come out right another time are transient errors.
func checkRange(x *exchange, etag string, off, n int64) error {
	if got := cleanETag(x.header.Get("ETag")); got == "" {
		return invalid("the answer has no ETag, so nobody can tell versions apart")
	} else if got != etag {
		return fmt.Errorf("%w: version is %q, not %q", objstore.ErrChanged, got, etag)
	}
	length := int64(-1)
	if v := x.header.Get("Content-Length"); v != "" {
		var err error
		if length, err = strconv.ParseInt(v, 10, 64); err != nil {
			return fmt.Errorf("the answer has Content-Length %q", clip(v))
		}
	}
	switch x.status {
	case http.StatusPartialContent:
		first, last, err := parseContentRange(x.header.Get("Content-Range"))
		if err != nil {
			return err
		}
		if first != off || last != off+n-1 {
			return fmt.Errorf("asked for bytes %d-%d, the answer holds %d-%d", off, off+n-1, first, last)
		}
	case http.StatusOK:
		// The whole object: right only if that is what was asked for.
		if off != 0 || length != n {
			return fmt.Errorf("asked for bytes %d-%d, the answer is the whole object (%d bytes)", off, off+n-1, length)
		}
	default:
		return fmt.Errorf("asked for a range, the answer has status %d", x.status)
	}
	if length >= 0 && length != n {
		return fmt.Errorf("asked for %d bytes, the answer holds %d", n, length)
	}
	return nil
}

// parseContentRange reads "bytes 0-99/1000" or "bytes 0-99/*".
func parseContentRange(v string) (first, last int64, err error) {
	rest, ok := strings.CutPrefix(v, "bytes ")
	span, _, ok2 := strings.Cut(rest, "/")
	from, to, ok3 := strings.Cut(strings.TrimSpace(span), "-")
	if ok && ok2 && ok3 {
		first, err = strconv.ParseInt(from, 10, 64)
		if err == nil {
			last, err = strconv.ParseInt(to, 10, 64)
		}
		if err == nil && first >= 0 && last >= first {
			return first, last, nil
		}
	}
	return 0, 0, fmt.Errorf("the answer has Content-Range %q", clip(v))
}

// errLong says that a body goes on behind the range. It is transient.
var errLong = errors.New("the body is longer than the range")

// exactBody yields left bytes or an error that is not io.EOF. It holds the last
// bytes back until it has seen the end of the body.
type exactBody struct {
	body io.ReadCloser
	left int64
	err  error
}

func (b *exactBody) Read(p []byte) (int, error) {
	if b.err != nil {
		return 0, b.err
	}
	if len(p) == 0 {
		return 0, nil
	}
	if int64(len(p)) > b.left {
		p = p[:b.left]
	}
	n, err := b.body.Read(p)
	b.left -= int64(n)
	if b.left == 0 {
		if err == nil {
			err = end(b.body)
		}
		b.err = err // io.EOF, if all is well
		if err != io.EOF {
			return 0, err
		}
		return n, nil
	}
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		b.err = fmt.Errorf("body ended %d bytes early: %w", b.left, err)
	}
	return n, b.err
}

// end returns io.EOF if a body has nothing more.
func end(body io.Reader) error {
	var one [1]byte
	for range 16 { // a reader may yield nothing, without an error, for a while
		n, err := body.Read(one[:])
		if n > 0 {
			return errLong
		}
		if err != nil {
			return err
		}
	}
	return io.ErrNoProgress
}

func (b *exactBody) Close() error { return b.body.Close() }

// infoOf reads the headers of a HEAD.
func infoOf(key string, h http.Header) (objstore.Info, error) {
	info := objstore.Info{Key: key, ETag: cleanETag(h.Get("ETag"))} // perhaps none, as in a listing
	size, err := strconv.ParseInt(h.Get("Content-Length"), 10, 64)
	if err != nil || size < 0 || size > chunk.MaxObjectBytes {
		return info, fmt.Errorf("the answer has Content-Length %q", clip(h.Get("Content-Length")))
	}
	info.Size = size
	info.ModTime = parseTime(h.Get("Last-Modified"))
	return info, nil
}

// cleanETag takes off the quotes, and the mark of a weak ETag, which proxies put
// on: our If-Match is a strong comparison, and S3's own ETags are strong.
// It returns "" for one that could not be sent back.
func cleanETag(v string) string {
	v = strings.Trim(strings.TrimPrefix(strings.TrimSpace(v), "W/"), `"`)
	if len(v) > chunk.MaxETagBytes || strings.ContainsFunc(v, func(c rune) bool { return c == '"' || c < ' ' || c == 0x7f }) {
		return ""
	}
	return v
}

// parseTime reads the dates that headers and listings hold; the zero time when
// it cannot, since a modification time is only shown.
func parseTime(v string) time.Time {
	for _, layout := range [...]string{http.TimeFormat, time.RFC3339Nano, "2006-01-02T15:04:05.999999999", time.RFC1123Z, time.RFC1123} {
		if t, err := time.Parse(layout, v); err == nil {
			return t.UTC()
		}
	}
	return time.Time{}
}
