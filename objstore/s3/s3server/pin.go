package s3server

import (
	"fmt"
	"io"
	"net/http"
	"strings"
)

// pin adds If-Match to a server that does not know it: an answer whose ETag is
// another one becomes 412. It looks at the answer, not at the object before, so
// that no overwrite comes between.
func pin(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		want := r.Header.Get("If-Match")
		if want == "" || want == "*" || (r.Method != http.MethodGet && r.Method != http.MethodHead) {
			next.ServeHTTP(w, r)
			return
		}
		next.ServeHTTP(&pinWriter{ResponseWriter: w, want: strings.Trim(want, `"`)}, r)
	})
}

// pinWriter replaces the answer when its version is not the one wanted.
type pinWriter struct {
	http.ResponseWriter
	want    string
	begun   bool
	refused bool
}

func (w *pinWriter) WriteHeader(status int) {
	if w.begun {
		return
	}
	w.begun = true
	h := w.Header()
	if status >= 300 || strings.Trim(h.Get("ETag"), `"`) == w.want {
		w.ResponseWriter.WriteHeader(status)
		return
	}
	w.refused = true
	h.Del("Content-Range")
	h.Del("Content-Length")
	h.Set("Content-Type", "application/xml")
	w.ResponseWriter.WriteHeader(http.StatusPreconditionFailed)
	fmt.Fprint(w.ResponseWriter, `<?xml version="1.0" encoding="UTF-8"?>`+
		`<Error><Code>PreconditionFailed</Code><Message>At least one of the pre-conditions you specified did not hold</Message>`+
		`<Condition>If-Match</Condition></Error>`)
}

func (w *pinWriter) Write(p []byte) (int, error) {
	if !w.begun {
		w.WriteHeader(http.StatusOK)
	}
	if w.refused {
		return len(p), nil
	}
	return w.ResponseWriter.Write(p)
}

func (w *pinWriter) ReadFrom(r io.Reader) (int64, error) {
	if !w.begun {
		w.WriteHeader(http.StatusOK)
	}
	if w.refused {
		return 0, nil
	}
	return io.Copy(w.ResponseWriter, r)
}

func (w *pinWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
