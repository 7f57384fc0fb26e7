package node

import (
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/internal/config"
	"github.com/shardwell/shardwell/internal/control"
	"github.com/shardwell/shardwell/objstore"
	"github.com/shardwell/shardwell/objstore/objstoretest"
	"github.com/shardwell/shardwell/objstore/s3"
)

// onlyList allows listings.
func onlyList(op objstore.Op, _ string) bool { return op == objstore.OpList }

// Who asks in the node's own name proves nothing where nobody else reads, and as much as
// everybody where others do: what the cluster holds of a bucket then is not all its own.
func TestOwnNameBesideTenants(t *testing.T) {
	needMounts(t)
	files := map[string][]byte{"all/x": randomBytes(900<<10, 1), "alice/x": randomBytes(900<<10, 2)}
	w := newTenants(t, files, 2, nil)
	w.Set("", objstoretest.User{May: func(op objstore.Op, name string) bool {
		return onlyList(op, name) || strings.HasPrefix(name, "all/")
	}})
	w.user("alice", mayRead("alice/"))
	own := []string{w.nodes[0].mountOn(t, "s3://data/"), w.nodes[1].mountOn(t, "s3://data/")}
	for _, dir := range own {
		if _, err := namesIn(filepath.Join(dir, "all")); err != nil {
			t.Fatal(err)
		}
		if err := readAll(dir, map[string][]byte{"all/x": files["all/x"]}); err != nil {
			t.Fatal(err)
		}
	}
	heads := 0
	for _, a := range w.Asked() {
		if a.Op == objstore.OpHead && a.Name == "all/x" {
			heads++
		}
	}
	if heads > 1 { // of the look-up, on one of the nodes
		t.Errorf("%d HEADs without a tenant", heads)
	}
	if err := readAll(w.mount(t, 0, "alice", "s3://data/alice"), map[string][]byte{"x": files["alice/x"]}); err != nil {
		t.Fatal(err)
	}
	for _, dir := range own {
		if got, err := namesIn(filepath.Join(dir, "alice")); err != nil || len(got) != 1 {
			t.Errorf("the node, which may list, sees %q, %v", got, err)
		}
		denied(t, "the node", filepath.Join(dir, "alice", "x"))
		if err := readAll(dir, map[string][]byte{"all/x": files["all/x"]}); err != nil {
			t.Errorf("what the node may read: %v", err)
		}
	}
	// A node that starts again still knows.
	cfg := w.nodes[1].cfg
	if err := w.nodes[1].stop(); err != nil {
		t.Fatal(err)
	}
	cfg.Join = []string{w.nodes[0].cluster.group.Addr().String()}
	again := start(t, cfg)
	if !again.foreign.has(objstore.Bucket{Origin: w.url, Name: "data"}) {
		t.Error("a node forgets which buckets tenants read")
	}
}

func TestForeignBuckets(t *testing.T) {
	notes, told := make(memoryNotes), 0
	f := newForeign(slog.New(slog.DiscardHandler), notes, func() { told++ })
	a, b := objstore.Bucket{Origin: "o", Name: "a"}, objstore.Bucket{Origin: "o", Name: "b"}
	if f.has(a) || !f.add(a) || f.add(a) || !f.has(a) || f.has(b) || told != 1 {
		t.Error("a bucket is not on the list once")
	}
	other := newForeign(slog.New(slog.DiscardHandler), make(memoryNotes), func() {})
	other.hear(f.tell())
	if !other.has(a) || other.has(b) {
		t.Error("what was told was not heard")
	}
	if again := newForeign(slog.New(slog.DiscardHandler), notes, func() {}); !again.has(a) || again.has(b) {
		t.Error("what was written down is not known again")
	}
	notes[foreignName] = []byte("{")
	if broken := newForeign(slog.New(slog.DiscardHandler), notes, func() {}); !broken.has(a) || !broken.has(b) {
		t.Error("with a damaged file not all buckets count")
	}
	for i := range maxForeign {
		f.add(objstore.Bucket{Origin: "o", Name: fmt.Sprint("more", i)})
	}
	if !f.has(b) || len(f.tell()) > maxForeign {
		t.Errorf("%d buckets are told, others forgotten", len(f.tell()))
	}
}

// SEMANTICS T3: After a permission was revoked at the origin, opens of a mount whose credentials had it are EACCES once its last proof
// is older than `--auth-ttl`; what is open reads on as far as it is cached, and what has to be fetched for it is EACCES.
func TestRevokedPermission(t *testing.T) {
	needMounts(t)
	files := map[string][]byte{"small": randomBytes(100<<10, 1), "large": randomBytes(5<<20, 2)}
	w := newTenantsFor(t, files, 2, func(_ int, cfg *config.Config) {
		cfg.AuthTTL = config.Duration(time.Second)
	})
	w.user("alice", nil)
	w.user("bob", nil)
	dir, bobs := w.mount(t, 0, "alice", "s3://data/"), w.mount(t, 0, "bob", "s3://data/")
	if err := readAll(dir, map[string][]byte{"small": files["small"]}); err != nil {
		t.Fatal(err)
	}
	open, err := openFile(filepath.Join(dir, "small"))
	if err != nil {
		t.Fatal(err)
	}
	defer open.close()
	cold, err := openFile(filepath.Join(dir, "large"))
	if err != nil {
		t.Fatal(err)
	}
	defer cold.close()
	w.user("alice", onlyList)
	until(t, "an open is refused", func() bool {
		f, err := openFile(filepath.Join(dir, "small"))
		if err == nil {
			f.close()
		}
		if err != nil && !errors.Is(err, syscall.EACCES) {
			t.Fatal(err)
		}
		return err != nil
	})
	if got, err := open.readAll(); err != nil || string(got) != string(files["small"]) {
		t.Errorf("what is open and cached: %d bytes, %v", len(got), err)
	}
	if _, err := unix.Pread(cold.fd, make([]byte, 1<<20), 3<<20); !errors.Is(err, syscall.EACCES) {
		t.Errorf("what is open and was not fetched: %v, want EACCES", err)
	}
	// Nobody else suffers, and what comes back comes back.
	if err := readAll(bobs, files); err != nil {
		t.Errorf("bob: %v", err)
	}
	w.user("alice", nil)
	until(t, "what is allowed again is read", func() bool { // a refusal holds for a moment
		err := readAll(dir, files)
		if err != nil && !errors.Is(err, syscall.EACCES) {
			t.Fatal(err)
		}
		return err == nil
	})
}

// Where grants are of no use (an owner that does not know the endpoint, an origin whose clock
// is minutes ahead), the node of the tenant asks by itself: no error, right bytes.
func TestGrantsOfNoUse(t *testing.T) {
	needMounts(t)
	files := dataset()
	for name, c := range map[string]struct {
		skew   time.Duration
		change func(int, *config.Config)
	}{
		"slow clocks":      {10 * time.Minute, nil},
		"another endpoint": {0, func(i int, cfg *config.Config) { cfg.Endpoint = "http://127.0.0.1:" + fmt.Sprint(i+1) }},
	} {
		t.Run(name, func(t *testing.T) {
			w := newTenants(t, files, 3, c.change)
			w.user("alice", nil)
			w.Skew(c.skew)
			dir := mountpoint(t)
			if _, err := w.nodes[0].Mount(t.Context(), control.MountRequest{URI: "s3://data/", Dir: dir,
				Options: map[string]string{"endpoint": w.url}, Credentials: keysOf("alice")}); err != nil {
				t.Fatal(err)
			}
			if err := readAll(dir, files); err != nil {
				t.Error(err)
			}
			refused, used := 0, 0
			for _, a := range w.Asked() {
				switch {
				case a.Granted && a.Status == http.StatusForbidden:
					refused++
				case a.Granted:
					used++
				}
			}
			if used > 0 || (refused > 0) != (c.skew > 0) {
				t.Errorf("%d grants were used, %d refused", used, refused)
			}
		})
	}
}

// Credentials are replaced by asking for the same mount again; files that are open go on.
func TestCredentialsAreReplaced(t *testing.T) {
	needMounts(t)
	files := map[string][]byte{"x": randomBytes(5<<20, 1), "y": randomBytes(10<<10, 2)}
	w := newTenants(t, files, 1, nil)
	w.user("one", nil)
	w.user("two", nil)
	dir := w.mount(t, 0, "one", "s3://data/")
	open, err := openFile(filepath.Join(dir, "x"))
	if err != nil {
		t.Fatal(err)
	}
	defer open.close()
	if st, err := w.nodes[0].Status(t.Context()); err != nil || len(st.Mounts) != 1 || !strings.HasPrefix(st.Mounts[0].Identity, "keys-") {
		t.Errorf("status: %+v, %v", st.Mounts, err)
	}
	w.Drop("one")
	req := control.MountRequest{URI: "s3://data/", Dir: dir, Credentials: keysOf("two")}
	if reply, err := w.nodes[0].Mount(t.Context(), req); err != nil || !reply.Existing {
		t.Fatalf("%+v, %v", reply, err)
	}
	if got, err := open.readAll(); err != nil || string(got) != string(files["x"]) {
		t.Errorf("an open file: %d bytes, %v", len(got), err)
	}
	if err := readAll(dir, files); err != nil {
		t.Error(err)
	}
	req.Credentials = control.Credentials{}
	_, err = w.nodes[0].Mount(t.Context(), req)
	oneGoodLine(t, err, "with other options")
	for _, c := range []struct {
		given   control.Credentials
		options map[string]string
		want    string
	}{
		{control.Credentials{AccessKey: "a"}, nil, "needs a secret key"},
		{control.Credentials{AccessKey: "a", SecretKey: "b", WebIdentityToken: "c"}, nil, "both keys and"},
		{control.Credentials{RoleARN: "r"}, nil, "no web identity token"},
		{keysOf("two"), map[string]string{"anonymous": "false", "profile": "p"}, "its options name others"},
	} {
		_, err := w.nodes[0].Mount(t.Context(), control.MountRequest{URI: "s3://data/", Dir: mountpoint(t), Credentials: c.given, Options: c.options})
		oneGoodLine(t, err, c.want)
	}
}

// sts exchanges tokens that begin with its own header for keys of the subject.
type sts struct {
	mu    sync.Mutex
	asked []string
}

func (s *sts) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_ = r.ParseForm()
	token := r.Form.Get("WebIdentityToken")
	s.mu.Lock()
	s.asked = append(s.asked, token)
	s.mu.Unlock()
	_, subject, genuine := strings.Cut(token, ".genuine-")
	if !genuine {
		w.WriteHeader(http.StatusBadRequest)
		_, _ = fmt.Fprint(w, "<ErrorResponse><Error><Code>InvalidIdentityToken</Code><Message>no</Message></Error></ErrorResponse>")
		return
	}
	_, _ = fmt.Fprintf(w, `<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleWithWebIdentityResult>
<Credentials><AccessKeyId>%s</AccessKeyId><SecretAccessKey>secret of %s</SecretAccessKey><SessionToken></SessionToken><Expiration>%s</Expiration></Credentials>
</AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>`, subject, subject, time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
}

// token is one of a service account; serial tells its tokens apart.
func token(subject string, serial int, genuine bool) string {
	body := base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, `{"iss":"https://k8s","sub":%q,"jti":"%d"}`, subject, serial))
	if !genuine {
		return "e30." + body + ".forged"
	}
	return "e30." + body + ".genuine-" + subject
}

// All tokens of a service account are one identity, on all nodes; who makes one up is nobody.
func TestWebIdentities(t *testing.T) {
	needMounts(t)
	files := map[string][]byte{"alice/x": randomBytes(700<<10, 1)}
	w := newTenants(t, files, 2, nil)
	w.user("alice", mayRead("alice/"))
	exchange := new(sts)
	front := httptest.NewServer(exchange)
	t.Cleanup(front.Close)
	given := func(serial int, genuine bool) control.Credentials {
		return control.Credentials{WebIdentityToken: token("alice", serial, genuine), RoleARN: "arn:role", STSEndpoint: front.URL}
	}
	var dirs []string
	for i, n := range w.nodes {
		dir := mountpoint(t)
		if _, err := n.Mount(t.Context(), control.MountRequest{URI: "s3://data/alice", Dir: dir, Credentials: given(i, true)}); err != nil {
			t.Fatal(err)
		}
		dirs = append(dirs, dir)
		if err := readAll(dir, map[string][]byte{"x": files["alice/x"]}); err != nil {
			t.Fatal(err)
		}
	}
	heads := 0
	for _, a := range w.Asked() {
		if a.Op == objstore.OpHead && a.Name == "alice/x" {
			heads++
		}
	}
	if heads != 1 {
		t.Errorf("%d proofs of one service account on two nodes", heads)
	}
	// A token that the STS does not take gets nothing, whatever it states; the mount that is there goes on.
	for _, dir := range []string{mountpoint(t), dirs[0]} {
		_, err := w.nodes[0].Mount(t.Context(), control.MountRequest{URI: "s3://data/alice", Dir: dir, Credentials: given(9, false)})
		if !errors.Is(err, objstore.ErrCredentials) || strings.Contains(fmt.Sprint(err), "forged") {
			t.Errorf("a forged token: %v", err)
		}
	}
	before := len(exchange.asked)
	for range 3 { // as the kubelet does, again and again
		if _, err := w.nodes[0].Mount(t.Context(), control.MountRequest{URI: "s3://data/alice", Dir: dirs[0], Credentials: given(0, true)}); err != nil {
			t.Error(err)
		}
	}
	if n := len(exchange.asked) - before; n != 0 {
		t.Errorf("the STS was asked %d times for a token that it had taken", n)
	}
	if err := readAll(dirs[0], map[string][]byte{"x": files["alice/x"]}); err != nil {
		t.Error(err)
	}
}

// What a token states twice, or in another case, is nobody's: the STS may go by the other.
func TestClaimsOfTokens(t *testing.T) {
	for body, want := range map[string]string{
		`{"iss":"i","sub":"s","aud":["x",{"sub":"y"}],"exp":1}`:       "i s",
		`{"aud":"x","sub":"s","kubernetes.io":{"iss":"z"},"iss":"i"}`: "i s",
		`{"iss":"i","sub":"s","sub":"victim"}`:                        "",
		`{"sub":"victim","iss":"i","sub":"s"}`:                        "",
		`{"iss":"i","sub":"s","Sub":"victim"}`:                        "",
		`{"ISS":"i","sub":"s"}`:                                       "",
		`{"iss":"i","sub":["s"]}`:                                     "",
		`{"iss":"i"}`:                                                 "",
		`{"iss":"","sub":"s"}`:                                        "",
		`["iss","i","sub","s"]`:                                       "",
		`{"iss":"i","sub":"s"`:                                        "",
		`{"iss":"i","sub":"s"}{"sub":"victim"}`:                       "",
		`null`:                                                        "",
		``:                                                            "",
	} {
		issuer, subject, ok := claimsOf("e30." + base64.RawURLEncoding.EncodeToString([]byte(body)) + ".x")
		if got := issuer + " " + subject; ok != (want != "") || ok && got != want {
			t.Errorf("%s: got %q, %v, want %q", body, got, ok, want)
		}
	}
	for _, opaque := range []string{"", "opaque", "a.b", "a.!.c", "a.b.c.d"} {
		if _, _, ok := claimsOf(opaque); ok {
			t.Errorf("%q states whom it is for", opaque)
		}
	}
}

// Credentials that nobody uses stay for a while, and not for ever.
func TestIdentitiesAreBounded(t *testing.T) {
	is := newIdentities()
	one, _, err := is.acquire("one", keysAt(1), "")
	if err != nil {
		t.Fatal(err)
	}
	for i := range maxIdentities - 1 {
		h, _, err := is.acquire(chunk.Identity(fmt.Sprint(i)), keysAt(i), "")
		if err != nil {
			t.Fatal(err)
		}
		if i > 0 {
			is.release(h)
		}
	}
	_, dropped, err := is.acquire("more", keysAt(0), "")
	if err != nil || len(dropped) != 1 || dropped[0] != "1" {
		t.Errorf("to make room %v are dropped, %v", dropped, err)
	}
	if _, ok := is.credentials("one"); !ok {
		t.Error("credentials in use are dropped")
	}
	is.release(one)
	is.mu.Lock()
	one.idle = time.Now().Add(-2 * keepIdentity)
	is.mu.Unlock()
	if _, dropped, _ := is.acquire("another", keysAt(0), ""); len(dropped) != 1 || dropped[0] != "one" {
		t.Errorf("of those not used for long %v are dropped", dropped)
	}
	if a, b := is.name("a", "bc"), is.name("a", "b", "c"); a == b || !a.Valid() {
		t.Errorf("names %q and %q", a, b)
	}
	other := newIdentities()
	other.setKey([]byte("secret"))
	if other.name("a") == is.name("a") {
		t.Error("names do not depend on the cluster's secret")
	}
}

func keysAt(i int) s3.Credentials {
	return s3.Credentials{Source: s3.SourceStatic, AccessKey: fmt.Sprint(i), SecretKey: "s"}
}

// Options that say whose a mount is replace what the node's own say, and do not mix with them.
func TestMountsOfOthersThanTheNode(t *testing.T) {
	needMounts(t)
	files := map[string][]byte{"public/x": randomBytes(100<<10, 1), "node/x": randomBytes(100<<10, 2), "alice/x": randomBytes(100<<10, 3)}
	paths := map[string]string{}
	for _, user := range []string{"node", "alice"} {
		paths[user] = filepath.Join(t.TempDir(), user)
		text := fmt.Sprintf("[default]\naws_access_key_id = %s\naws_secret_access_key = secret of %s\n[other]\naws_access_key_id = alice\naws_secret_access_key = secret of alice\n", user, user)
		if err := os.WriteFile(paths[user], []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	w := newTenants(t, files, 2, func(_ int, cfg *config.Config) {
		cfg.Anonymous, cfg.CredentialsFile = false, paths["node"]
	})
	w.user("node", mayRead("node/"))
	w.user("alice", mayRead("alice/"))
	w.Set("", objstoretest.User{May: mayRead("public/")})
	for _, c := range []struct {
		options map[string]string
		may     string
	}{
		{nil, "node"},
		{map[string]string{"anonymous": "true"}, "public"},
		{map[string]string{"credentialsFile": paths["alice"]}, "alice"},
		{map[string]string{"profile": "other"}, "alice"},
		{map[string]string{"credentialsFile": paths["node"]}, "node"},
	} {
		for _, prefix := range []string{"node", "public", "alice"} {
			for _, n := range w.nodes {
				dir := mountpoint(t)
				_, err := n.Mount(t.Context(), control.MountRequest{URI: "s3://data/" + prefix, Dir: dir, Options: c.options})
				if prefix != c.may {
					if !errors.Is(err, objstore.ErrPermission) {
						t.Errorf("%v mounts %s: %v", c.options, prefix, err)
					}
					continue
				}
				if err == nil {
					err = readAll(dir, map[string][]byte{"x": files[prefix+"/x"]})
				}
				if err != nil {
					t.Errorf("%v, %s: %v", c.options, prefix, err)
				}
			}
		}
	}
}
