package s3_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/shardwell/shardwell/objstore/s3"
)

func TestMain(m *testing.M) {
	// No variable of whoever runs the tests gets into them.
	for _, kv := range os.Environ() {
		if name, _, _ := strings.Cut(kv, "="); strings.HasPrefix(name, "AWS_") {
			_ = os.Unsetenv(name) // fails for no valid name
		}
	}
	goleak.VerifyTestMain(m)
}

// fake is a server whose answers a test decides, one function for all requests.
// It keeps the requests it got.
type fake struct {
	*httptest.Server
	mu   sync.Mutex
	reqs []*http.Request
}

// serve starts a fake. answer gets the number of the request, from 1.
func serve(t *testing.T, answer func(n int, w http.ResponseWriter, r *http.Request)) *fake {
	t.Helper()
	f := &fake{}
	f.Server = httptest.NewServer(f.handler(answer))
	t.Cleanup(f.Close)
	return f
}

func (f *fake) handler(answer func(n int, w http.ResponseWriter, r *http.Request)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		f.reqs = append(f.reqs, r)
		n := len(f.reqs)
		f.mu.Unlock()
		answer(n, w, r)
	})
}

func (f *fake) requests() []*http.Request {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]*http.Request(nil), f.reqs...)
}

// refuse writes a refusal as S3 does.
func refuse(w http.ResponseWriter, status int, code, more string) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	fmt.Fprintf(w, `<?xml version="1.0" encoding="UTF-8"?>`+"\n"+
		`<Error><Code>%s</Code><Message>the message</Message>%s<RequestId>4711</RequestId></Error>`, code, more)
}

// object answers GET and HEAD of one version, ranges included, as S3 does.
func object(w http.ResponseWriter, r *http.Request, etag string, data []byte) {
	h := w.Header()
	h.Set("ETag", `"`+etag+`"`)
	h.Set("Last-Modified", time.Now().UTC().Format(http.TimeFormat))
	if v := r.Header.Get("If-Match"); v != "" && v != `"`+etag+`"` {
		refuse(w, http.StatusPreconditionFailed, "PreconditionFailed", "")
		return
	}
	var first, last int
	if _, err := fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-%d", &first, &last); err == nil {
		h.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", first, last, len(data)))
		h.Set("Content-Length", fmt.Sprint(last-first+1))
		w.WriteHeader(http.StatusPartialContent)
		_, _ = w.Write(data[first : last+1]) // the client may have gone
		return
	}
	h.Set("Content-Length", fmt.Sprint(len(data)))
	if r.Method != http.MethodHead {
		_, _ = w.Write(data)
	}
}

// page writes a listing.
func page(w http.ResponseWriter, inner string) {
	w.Header().Set("Content-Type", "application/xml")
	fmt.Fprintf(w, `<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">%s</ListBucketResult>`, inner)
}

func entry(key string) string {
	return "<Contents><Key>" + key + `</Key><LastModified>2024-02-29T10:11:12.000Z</LastModified><ETag>&quot;e-1&quot;</ETag><Size>5</Size></Contents>`
}

func prefix(p string) string { return "<CommonPrefixes><Prefix>" + p + "</Prefix></CommonPrefixes>" }

func get(t *testing.T, s *s3.Store, off, n int64) ([]byte, error) {
	t.Helper()
	body, err := s.Get(t.Context(), "key", "e1", off, n)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	return io.ReadAll(body)
}
