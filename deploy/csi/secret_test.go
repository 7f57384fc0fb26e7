package csi

import (
	"encoding/pem"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/shardwell/shardwell/objstore/objstoretest"
)

// guarded is a machine whose origin knows who asks.
func guarded(t *testing.T, files map[string]string) (*machine, *objstoretest.Guard) {
	t.Helper()
	var guard *objstoretest.Guard
	m := newMachineBehind(t, files, func(origin string) string {
		guard = objstoretest.NewGuard("data", passTo(t, origin))
		front := httptest.NewServer(guard)
		t.Cleanup(front.Close)
		return front.URL
	})
	return m, guard
}

func passTo(t *testing.T, origin string) *httputil.ReverseProxy {
	t.Helper()
	u, err := url.Parse(origin)
	if err != nil {
		t.Fatal(err)
	}
	p := httputil.NewSingleHostReverseProxy(u)
	p.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)
	return p
}

// A volume reads with the keys of its Secret, and goes on with new ones without another mount: who has
// its directory open notices nothing.
func TestVolumeReadsWithItsSecret(t *testing.T) {
	m, guard := guarded(t, map[string]string{"a.txt": "hello", "b.txt": "later", "c.txt": "never"})
	guard.Set("key-1", objstoretest.User{Secret: "secret of key-1"})
	conn, _ := m.driver(nil)
	node := csi.NewNodeClient(conn)
	for name, c := range map[string]struct {
		req  *csi.NodePublishVolumeRequest
		code codes.Code
	}{
		"the daemon's":   {inline("x", m.target("x", "data"), map[string]string{"bucketName": "data"}), codes.PermissionDenied},
		"another secret": {withKeys("x", m.target("x", "data"), "key-1", "wrong-secret"), codes.Unauthenticated},
		"another key":    {withKeys("x", m.target("x", "data"), "key-0", "secret of key-0"), codes.Unauthenticated},
	} {
		_, err := node.NodePublishVolume(t.Context(), c.req)
		if got := status.Code(err); got != c.code && got != codes.PermissionDenied {
			t.Errorf("with the credentials %s: got %v, want %v", name, err, c.code)
		}
	}
	target := m.target("a", "data")
	publish(t, conn, withKeys("a", target, "key-1", "secret of key-1"))
	if got := read(t, target+"/a.txt"); got != "hello" {
		t.Errorf("read %q", got)
	}
	inside := exec.Command("sh", "-c", "cd "+target+" && echo in && read x && exec cat b.txt")
	stdin, _ := inside.StdinPipe()
	stdout, _ := inside.StdoutPipe()
	if err := inside.Start(); err != nil {
		t.Fatal(err)
	}
	var in [3]byte
	if _, err := stdout.Read(in[:]); err != nil {
		t.Fatal(err)
	}
	guard.Set("key-2", objstoretest.User{Secret: "secret of key-2"})
	publish(t, conn, withKeys("a", target, "key-2", "secret of key-2"))
	guard.Drop("key-1")
	_, _ = stdin.Write([]byte("\n"))
	var later [16]byte
	n, _ := stdout.Read(later[:])
	if err := inside.Wait(); err != nil || string(later[:n]) != "later" {
		t.Errorf("after the Secret changed a process inside reads %q, %v", later[:n], err)
	}
	if log := m.log.String(); strings.Contains(log, "secret of") || strings.Contains(log, "wrong-secret") {
		t.Errorf("a secret was logged:\n%s", log)
	}
	unpublish(t, conn, "a", target)
}

// The endpoint in a Secret comes with its certificates.
func TestEndpointAndCertificateOfSecret(t *testing.T) {
	m := newMachine(t, map[string]string{"a.txt": "hello"})
	guard := objstoretest.NewGuard("data", passTo(t, m.origin.URL()))
	guard.Set("key", objstoretest.User{Secret: "secret"})
	front := httptest.NewTLSServer(guard)
	t.Cleanup(front.Close)
	ca := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: front.Certificate().Raw}))
	conn, _ := m.driver(func(c *Config) { c.Policy.AllowLocal = true })
	request := func() *csi.NodePublishVolumeRequest {
		req := withKeys("a", m.target("a", "data"), "key", "secret")
		req.Secrets["endpoint"], req.Secrets["region"], req.Secrets["ca.crt"] = front.URL, "us-east-1", ca
		return req
	}
	publish(t, conn, request())
	if got := read(t, m.target("a", "data")+"/a.txt"); got != "hello" {
		t.Errorf("read %q", got)
	}
	unpublish(t, conn, "a", m.target("a", "data"))
	for says, change := range map[string]func(map[string]string){
		"certificate": func(s map[string]string) { s["ca.crt"] = "nothing" },
		"for which":   func(s map[string]string) { delete(s, "endpoint") },
	} {
		req := request()
		change(req.Secrets)
		if _, err := csi.NewNodeClient(conn).NodePublishVolume(t.Context(), req); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), says) {
			t.Errorf("got %v, want one that says %q", err, says)
		}
	}
}

// A volume that reads as its Pod has the keys that the STS gives for the service account's token, and goes on with a
// new token.
func TestVolumeReadsAsItsPod(t *testing.T) {
	m, guard := guarded(t, map[string]string{"a.txt": "hello"})
	sts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = r.ParseForm()
		token := r.Form.Get("WebIdentityToken")
		if !strings.HasPrefix(token, "good-") || r.Form.Get("RoleArn") != "arn:role" {
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprint(w, `<ErrorResponse><Error><Code>InvalidIdentityToken</Code><Message>no</Message></Error></ErrorResponse>`)
			return
		}
		guard.Set("key of "+token, objstoretest.User{Secret: "s", Token: "t"})
		fmt.Fprintf(w, `<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleWithWebIdentityResult>
<Credentials><AccessKeyId>key of %s</AccessKeyId><SecretAccessKey>s</SecretAccessKey><SessionToken>t</SessionToken><Expiration>%s</Expiration></Credentials>
</AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>`, token, time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
	}))
	t.Cleanup(sts.Close)
	conn, _ := m.driver(func(c *Config) { c.Policy.STSEndpoint = sts.URL })
	request := func(token string) *csi.NodePublishVolumeRequest {
		return inline("a", m.target("a", "data"), map[string]string{
			"bucketName": "data", "authenticationSource": "pod", "roleArn": "arn:role", kubeTokens: tokens("sts.amazonaws.com", token),
		})
	}
	if _, err := csi.NewNodeClient(conn).NodePublishVolume(t.Context(), request("bad-token")); err == nil || strings.Contains(err.Error(), "bad-token") {
		t.Errorf("with a token that the STS refuses: %v", err)
	}
	for _, token := range []string{"good-1", "good-1", "good-2"} {
		publish(t, conn, request(token))
		if got := read(t, m.target("a", "data")+"/a.txt"); got != "hello" {
			t.Errorf("with %s: read %q", token, got)
		}
	}
	if log := m.log.String(); strings.Contains(log, "good-") || strings.Contains(log, "bad-token") {
		t.Errorf("a token was logged:\n%s", log)
	}
	unpublish(t, conn, "a", m.target("a", "data"))
}
