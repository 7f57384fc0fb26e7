package s3_test

import (
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/objstore"
	"github.com/shardwell/shardwell/objstore/objstoretest"
	"github.com/shardwell/shardwell/objstore/s3"
)

// guarded is an origin that checks who asks, the store of somebody whom it knows, and that
// of a node that has no credentials for it.
type guarded struct {
	*objstoretest.Guard
	url         string
	giver, node *s3.Store
}

func newGuarded(t *testing.T, keys ...string) guarded {
	t.Helper()
	server := objstoretest.S3Server(t)
	for _, key := range keys {
		if _, err := server.PutBytes("data", key, []byte("0123456789")); err != nil {
			t.Fatal(err)
		}
	}
	u, err := url.Parse(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(u)
	transport := &http.Transport{}
	proxy.Transport, proxy.ErrorLog = transport, slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)
	g := guarded{Guard: objstoretest.NewGuard("data", proxy)}
	front := httptest.NewServer(g.Guard)
	t.Cleanup(func() {
		front.Close()
		transport.CloseIdleConnections()
	})
	g.url = front.URL
	g.Set("GIVER", objstoretest.User{Secret: "giver's", Token: "the token"})
	cfg := s3.Config{Endpoint: front.URL, Bucket: "data", Region: "eu-x-1"}
	cfg.Credentials = s3.Credentials{AccessKey: "GIVER", SecretKey: "giver's", SessionToken: "the token"}
	g.giver = newStore(t, cfg)
	cfg.Credentials, cfg.Region = s3.Credentials{AccessKey: "NODE", SecretKey: "unknown"}, ""
	g.node = newStore(t, cfg)
	return g
}

// granted returns the node's store with what the giver signed.
func (g guarded) granted(t *testing.T, sign func() (string, error)) objstore.Store {
	t.Helper()
	u, err := sign()
	if err != nil {
		t.Fatal(err)
	}
	return g.node.Granted(chunk.NewGrant(u))
}

// What one may read another may ask for with a grant: a range of a version, a description, a
// page, whatever the names.
func TestGrantsAreUsed(t *testing.T) {
	keys := []string{"a b/c+d", "a b/ü~%41", "x"}
	g := newGuarded(t, keys...)
	for _, key := range keys {
		want, err := g.giver.Head(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		info, err := g.granted(t, func() (string, error) { return g.giver.PresignHead(t.Context(), key, time.Minute) }).Head(t.Context(), key)
		if err != nil || info != want {
			t.Errorf("head %q: %+v, %v", key, info, err)
		}
		s := g.granted(t, func() (string, error) { return g.giver.Presign(t.Context(), key, want.ETag, time.Minute) })
		for off := int64(0); off < 9; off += 4 {
			body, err := s.Get(t.Context(), key, want.ETag, off, 2)
			if err != nil {
				t.Fatalf("get %q: %v", key, err)
			}
			data, err := io.ReadAll(body)
			if err = errors.Join(err, body.Close()); err != nil || string(data) != "0123456789"[off:off+2] {
				t.Errorf("get %q at %d: %q, %v", key, off, data, err)
			}
		}
		if _, err := s.Get(t.Context(), key, "another", 0, 2); !errors.Is(err, objstore.ErrCredentials) && !errors.Is(err, objstore.ErrChanged) {
			t.Errorf("get another version of %q: %v", key, err)
		}
	}
	var names []string
	for req := (objstore.ListRequest{Prefix: "a b/", Limit: 1}); ; {
		page, err := g.granted(t, func() (string, error) { return g.giver.PresignList(t.Context(), req, time.Minute) }).List(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range page.Objects {
			names = append(names, o.Key)
		}
		if req.Token = page.Next; req.Token == "" {
			break
		}
	}
	if strings.Join(names, "|") != "a b/c+d|a b/ü~%41" {
		t.Errorf("listed %q", names)
	}
	for _, a := range g.Asked() {
		if a.User != "GIVER" {
			t.Errorf("%+v", a)
		}
	}
}

// A grant is good for its question alone, and only at the endpoint that the node was told:
// what is not is refused before anybody is asked.
func TestGrantsLeadNowhereElse(t *testing.T) {
	g := newGuarded(t, "k", "other")
	good, err := g.giver.Presign(t.Context(), "k", "e", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	list, err := g.giver.PresignList(t.Context(), objstore.ListRequest{Prefix: "p/"}, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	elsewhere := serve(t, func(_ int, w http.ResponseWriter, r *http.Request) { object(w, r, "e", []byte("x")) })
	for name, u := range map[string]string{
		"nothing":          "",
		"no URL":           "http://\x7f",
		"another host":     strings.Replace(good, g.url, elsewhere.URL, 1),
		"another scheme":   strings.Replace(good, "http://", "https://", 1),
		"a user":           strings.Replace(good, "http://", "http://u@", 1),
		"another key":      strings.Replace(good, "/data/k?", "/data/other?", 1),
		"another bucket":   strings.Replace(good, "/data/k?", "/secret/k?", 1),
		"dots":             strings.Replace(good, "/data/k?", "/data/../data/k?", 1),
		"another question": good + "&acl=",
		"a list":           list,
		"twice":            good + "&X-Amz-Date=20200101T000000Z",
		"a header":         strings.Replace(good, "SignedHeaders=host", "SignedHeaders=host%3Bcookie", 1),
		"a fragment":       good + "#x",
		"broken query":     good + "&%zz",
	} {
		if _, err := g.node.Granted(chunk.NewGrant(u)).Get(t.Context(), "k", "e", 0, 1); !errors.Is(err, objstore.ErrCredentials) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := g.node.Granted(chunk.NewGrant(list)).List(t.Context(), objstore.ListRequest{Prefix: "q/"}); !errors.Is(err, objstore.ErrCredentials) {
		t.Errorf("a list of another prefix: %v", err)
	}
	if n := len(g.Asked()) + len(elsewhere.requests()); n != 0 {
		t.Errorf("%d requests were made", n)
	}
}

// What is wrong with a grant is not what its giver may do: it is another class of error, so
// that the giver asks himself. Nothing of a grant gets into an error.
func TestGrantsThatAreRefused(t *testing.T) {
	g := newGuarded(t, "k")
	info, err := g.giver.Head(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	may := objstoretest.User{Secret: "giver's", Token: "the token"}
	for name, c := range map[string]struct {
		change func()
		class  error
	}{
		"expired":           {func() { g.Skew(10 * time.Minute) }, objstore.ErrCredentials},
		"of a fast clock":   {func() { g.Skew(-20 * time.Minute) }, objstore.ErrCredentials},
		"of a lost user":    {func() { g.Drop("GIVER") }, objstore.ErrCredentials},
		"broken":            {func() { g.Set("GIVER", objstoretest.User{Secret: "new", Token: "the token"}) }, objstore.ErrCredentials},
		"of who may not":    {func() { may.May = func(objstore.Op, string) bool { return false }; g.Set("GIVER", may) }, objstore.ErrPermission},
		"of an old session": {func() { g.Set("GIVER", objstoretest.User{Secret: "giver's", Token: "next"}) }, objstore.ErrCredentials},
	} {
		g.Skew(0)
		g.Set("GIVER", objstoretest.User{Secret: "giver's", Token: "the token"})
		u, err := g.giver.Presign(t.Context(), "k", info.ETag, 5*time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		c.change()
		_, err = g.node.Granted(chunk.NewGrant(u)).Get(t.Context(), "k", info.ETag, 0, 1)
		if !errors.Is(err, c.class) {
			t.Errorf("%s: %v", name, err)
			continue
		}
		parsed, _ := url.Parse(u)
		for _, secret := range []string{"X-Amz", parsed.Query().Get("X-Amz-Signature"), "the token"} {
			if strings.Contains(err.Error(), secret) {
				t.Errorf("%s: the error shows %q: %v", name, secret, err)
			}
		}
	}
}

// A server that cannot be reached, or that answers in the words of the request, does not get a
// grant into an error either.
func TestGrantsAreNotQuoted(t *testing.T) {
	f := serve(t, func(_ int, w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusForbidden)
		_, _ = io.WriteString(w, "<Error><Code>AccessDenied</Code><Message>no: "+r.URL.RawQuery[len(r.URL.RawQuery)-90:]+"</Message></Error>")
	})
	cfg := s3.Config{Endpoint: f.URL, Bucket: "bucket", Credentials: s3.Credentials{AccessKey: "K", SecretKey: "s"}}
	s := newStore(t, cfg)
	u, err := s.Presign(t.Context(), "k", "e", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	parsed, _ := url.Parse(u)
	check := func(what string) {
		t.Helper()
		_, err := s.Granted(chunk.NewGrant(u)).Get(t.Context(), "k", "e", 0, 1)
		if err == nil || strings.Contains(err.Error(), parsed.Query().Get("X-Amz-Signature")) || strings.Contains(err.Error(), "X-Amz") {
			t.Errorf("%s: %v", what, err)
		}
	}
	check("quoted")
	f.Close()
	check("unreachable")
}

// The region that a grant for AWS was signed for chooses among the hosts of AWS, and no other.
func TestGrantsOfAWS(t *testing.T) {
	giver := newStore(t, s3.Config{Bucket: "bucket", Region: "eu-west-1", Credentials: s3.Credentials{AccessKey: "K", SecretKey: "s"}})
	u, err := giver.Presign(t.Context(), "k", "e", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(u, "https://bucket.s3.eu-west-1.amazonaws.com/k?") {
		t.Fatal(u)
	}
	node := newStore(t, s3.Config{Bucket: "bucket", Proxy: "http://127.0.0.1:1", Credentials: s3.Credentials{Source: s3.SourceAnonymous}})
	for _, c := range []struct {
		u    string
		asks bool
	}{
		{u, true},
		{strings.Replace(u, "s3.eu-west-1.amazonaws.com", "s3.eu-west-2.amazonaws.com", 1), false},
		{strings.Replace(u, "eu-west-1", "evil.example.com%23", 2), false},
		{strings.Replace(u, "bucket.s3", "other.s3", 1), false},
	} {
		_, err := node.Granted(chunk.NewGrant(c.u)).Get(t.Context(), "k", "e", 0, 1)
		if asks := err != nil && !errors.Is(err, objstore.ErrCredentials); asks != c.asks {
			t.Errorf("asks %v: %v", asks, err)
		}
	}
}
