package objstoretest

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/shardwell/shardwell/objstore"
)

// User is somebody whom a [Guard] knows.
type User struct {
	Secret string
	Token  string // session token that requests must show, "" for none
	// May decides on a request: of a list, name is the prefix. nil allows everything.
	May func(op objstore.Op, name string) bool
}

// Asked is a request that came to a [Guard].
type Asked struct {
	Op      objstore.Op
	Name    string // key or prefix
	User    string // access key, "" for an anonymous request
	Granted bool   // by a presigned URL
	Status  int
	Range   string // header
}

// Guard stands before an S3 server that checks nothing, and lets through what its users may:
// it checks signatures of version 4, in headers and in presigned URLs, their dates, and
// then the rights of who signed. Safe for concurrent use.
type Guard struct {
	bucket string
	next   http.Handler

	mu    sync.Mutex
	users map[string]User
	asked []Asked
	skew  time.Duration // of its clock
}

// NewGuard returns a guard of one bucket, addressed by path, before next. It knows nobody.
func NewGuard(bucket string, next http.Handler) *Guard {
	return &Guard{bucket: bucket, next: next, users: make(map[string]User)}
}

// Set makes a user known by an access key, "" being those who do not sign, or changes what he may.
func (g *Guard) Set(key string, u User) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.users[key] = u
}

// Drop makes an access key unknown.
func (g *Guard) Drop(key string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.users, key)
}

// Skew puts the guard's clock before the true time.
func (g *Guard) Skew(d time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.skew = d
}

// Asked returns the requests since the last call.
func (g *Guard) Asked() []Asked {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := g.asked
	g.asked = nil
	return all
}

// ServeHTTP implements http.Handler.
func (g *Guard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	op, name := g.question(r)
	g.mu.Lock()
	now := time.Now().Add(g.skew)
	user, granted, code := g.check(r, now)
	if u, known := g.users[user]; code == "" && (!known || u.May != nil && !u.May(op, name)) {
		code = "AccessDenied"
	}
	status := http.StatusOK
	if code != "" {
		status = http.StatusForbidden
	}
	g.asked = append(g.asked, Asked{Op: op, Name: name, User: user, Granted: granted, Status: status, Range: r.Header.Get("Range")})
	g.mu.Unlock()
	w.Header().Set("Date", now.UTC().Format(http.TimeFormat))
	if code == "" {
		g.next.ServeHTTP(w, r)
		return
	}
	code, message, _ := strings.Cut(code, ": ")
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	_, _ = fmt.Fprintf(w, "<Error><Code>%s</Code><Message>%s</Message></Error>", code, message) // the client may have gone
}

// question reads what a request asks for.
func (g *Guard) question(r *http.Request) (objstore.Op, string) {
	key := strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, "/"+g.bucket), "/")
	switch {
	case key == "":
		return objstore.OpList, r.URL.Query().Get("prefix")
	case r.Method == http.MethodHead:
		return objstore.OpHead, key
	}
	return objstore.OpGet, key
}

// check returns who signed a request, or the code of a refusal. Callers hold mu.
func (g *Guard) check(r *http.Request, now time.Time) (user string, granted bool, code string) {
	q := r.URL.Query()
	if q.Has("X-Amz-Signature") {
		user, code = g.verify(r, now, signature{
			credential: q.Get("X-Amz-Credential"), headers: q.Get("X-Amz-SignedHeaders"), sum: q.Get("X-Amz-Signature"),
			date: q.Get("X-Amz-Date"), token: q.Get("X-Amz-Security-Token"), expires: q.Get("X-Amz-Expires"), payload: "UNSIGNED-PAYLOAD"})
		return user, true, code
	}
	rest, signed := strings.CutPrefix(r.Header.Get("Authorization"), "AWS4-HMAC-SHA256 ")
	if !signed {
		return "", false, ""
	}
	s := signature{date: r.Header.Get("X-Amz-Date"), token: r.Header.Get("X-Amz-Security-Token"), payload: r.Header.Get("X-Amz-Content-Sha256")}
	for part := range strings.SplitSeq(rest, ",") {
		switch name, value, _ := strings.Cut(strings.TrimSpace(part), "="); name {
		case "Credential":
			s.credential = value
		case "SignedHeaders":
			s.headers = value
		case "Signature":
			s.sum = value
		}
	}
	user, code = g.verify(r, now, s)
	return user, false, code
}

// signature is what a request says of its own.
type signature struct {
	credential, headers, sum, date, token, payload string
	expires                                        string // "" in headers
}

const (
	dateLayout = "20060102T150405Z"
	maxSkew    = 15 * time.Minute
)

// verify checks a signature and its date. Callers hold mu.
func (g *Guard) verify(r *http.Request, now time.Time, s signature) (user, code string) {
	scope := strings.Split(s.credential, "/")
	if len(scope) != 5 {
		return "", "AuthorizationHeaderMalformed"
	}
	u, known := g.users[scope[0]]
	at, err := time.Parse(dateLayout, s.date)
	switch {
	case !known:
		return scope[0], "InvalidAccessKeyId"
	case s.token != u.Token:
		return scope[0], "InvalidToken"
	case err != nil:
		return scope[0], "AccessDenied: no date"
	case s.sum != u.sign(r, s, scope):
		return scope[0], "SignatureDoesNotMatch"
	case at.After(now.Add(maxSkew)), s.expires == "" && now.After(at.Add(maxSkew)):
		return scope[0], "RequestTimeTooSkewed"
	}
	if s.expires != "" {
		if ttl, err := time.ParseDuration(s.expires + "s"); err != nil || now.After(at.Add(ttl)) {
			return scope[0], "AccessDenied: Request has expired"
		}
	}
	return scope[0], ""
}

// sign computes what a signature should be.
func (u User) sign(r *http.Request, s signature, scope []string) string {
	var query []string
	for name, values := range r.URL.Query() {
		for _, v := range values {
			if name != "X-Amz-Signature" {
				query = append(query, escape(name)+"="+escape(v))
			}
		}
	}
	slices.Sort(query)
	canonical := r.Method + "\n" + r.URL.EscapedPath() + "\n" + strings.Join(query, "&") + "\n"
	for h := range strings.SplitSeq(s.headers, ";") {
		v := r.Header.Get(h)
		if h == "host" {
			v = r.Host
		}
		canonical += h + ":" + strings.TrimSpace(v) + "\n"
	}
	canonical += "\n" + s.headers + "\n" + s.payload
	sum := sha256.Sum256([]byte(canonical))
	text := "AWS4-HMAC-SHA256\n" + s.date + "\n" + strings.Join(scope[1:], "/") + "\n" + hex.EncodeToString(sum[:])
	key := []byte("AWS4" + u.Secret)
	for _, part := range append(slices.Clone(scope[1:]), text) {
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(part))
		key = mac.Sum(nil)
	}
	return hex.EncodeToString(key)
}

func escape(s string) string { return strings.ReplaceAll(url.QueryEscape(s), "+", "%20") }
