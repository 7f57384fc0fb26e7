package kube

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// api is an API server of one node, without a network.
type api struct {
	mu      sync.Mutex
	labels  map[string]string
	taints  []map[string]string
	drivers []string
	status  int                     // of every answer, when it is not 0
	before  func(r *http.Request)   // runs before each answer
	asked   []string                // methods and paths
	tokens  []string                // that came with the requests
	fail    func(*http.Request) int // status of an answer, 0 to go on
}

func (a *api) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	a.ServeHTTP(w, r)
	return w.Result(), nil
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.before != nil {
		a.before(r)
	}
	a.asked = append(a.asked, r.Method+" "+r.URL.Path)
	a.tokens = append(a.tokens, r.Header.Get("Authorization"))
	status := a.status
	if a.fail != nil && status == 0 {
		status = a.fail(r)
	}
	switch {
	case status != 0:
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(map[string]string{"message": "no"})
	case r.URL.Path == "/api/v1/nodes/n1" && r.Method == http.MethodPatch:
		a.patch(w, r)
	case r.URL.Path == "/api/v1/nodes/n1":
		_ = json.NewEncoder(w).Encode(map[string]any{
			"metadata": map[string]any{"labels": a.labels}, "spec": map[string]any{"taints": a.taints},
		})
	case r.URL.Path == "/apis/storage.k8s.io/v1/csinodes/n1" && a.drivers != nil:
		var list []map[string]string
		for _, d := range a.drivers {
			list = append(list, map[string]string{"name": d})
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"spec": map[string]any{"drivers": list}})
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}

// patch applies what Lift sends: a test of the list, then its replacement.
func (a *api) patch(w http.ResponseWriter, r *http.Request) {
	var steps []struct {
		Op, Path string
		Value    []map[string]string
	}
	body, _ := io.ReadAll(r.Body)
	if json.Unmarshal(body, &steps) != nil || len(steps) != 2 || steps[0].Op != "test" || steps[1].Op != "replace" ||
		r.Header.Get("Content-Type") != "application/json-patch+json" {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	have, _ := json.Marshal(a.taints)
	want, _ := json.Marshal(steps[0].Value)
	if string(have) != string(want) {
		w.WriteHeader(http.StatusUnprocessableEntity)
		_ = json.NewEncoder(w).Encode(map[string]string{"message": "the test failed"})
		return
	}
	a.taints = steps[1].Value
	_, _ = w.Write([]byte("{}"))
}

func (a *api) client(t *testing.T) *Client {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "token"), []byte("token-1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return &Client{server: "https://api", dir: dir, http: &http.Client{Transport: a, Timeout: callTimeout}}
}

func taint(key, value string) map[string]string {
	return map[string]string{"effect": "NoSchedule", "key": key, "value": value}
}

var silent = slog.New(slog.DiscardHandler)

// TestLiftTakesOneKey keeps the taints of others as they are.
func TestLiftTakesOneKey(t *testing.T) {
	a := &api{taints: []map[string]string{taint("a", "1"), taint(StartupTaint, ""), taint("b", "2"), taint(StartupTaint, "x")}}
	c := a.client(t)
	lifted, err := c.Lift(t.Context(), "n1", StartupTaint)
	if err != nil || !lifted {
		t.Fatal(lifted, err)
	}
	if len(a.taints) != 2 || a.taints[0]["key"] != "a" || a.taints[1]["value"] != "2" {
		t.Errorf("taints are %v", a.taints)
	}
	if lifted, err := c.Lift(t.Context(), "n1", StartupTaint); err != nil || lifted {
		t.Error("lifted what was not there", err)
	}
	if n := len(a.asked); n != 3 || a.asked[2] != "GET /api/v1/nodes/n1" {
		t.Errorf("asked %v", a.asked)
	}
}

// TestLiftLosesARace fails when somebody changes the taints in between, and takes nothing of theirs.
func TestLiftLosesARace(t *testing.T) {
	a := &api{taints: []map[string]string{taint(StartupTaint, "")}}
	a.before = func(r *http.Request) {
		if r.Method == http.MethodPatch {
			a.taints = append(a.taints, taint("late", ""))
		}
	}
	if _, err := a.client(t).Lift(t.Context(), "n1", StartupTaint); err == nil || Final(err) {
		t.Error("error is", err)
	}
	if len(a.taints) != 2 {
		t.Errorf("taints are %v", a.taints)
	}
}

// TestTokenIsReadAnew follows the rotation of the token.
func TestTokenIsReadAnew(t *testing.T) {
	a := &api{}
	c := a.client(t)
	for _, token := range []string{"token-1", "token-2"} {
		if err := os.WriteFile(filepath.Join(c.dir, "token"), []byte(token), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Labels(t.Context(), "n1"); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(a.tokens, []string{"Bearer token-1", "Bearer token-2"}) {
		t.Errorf("tokens were %q", a.tokens)
	}
}

// TestUntaintWaits takes the taint away only when the daemon can mount and the kubelet knows the driver.
func TestUntaintWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &api{taints: []map[string]string{taint(StartupTaint, "")}}
		began := time.Now()
		ready := func(context.Context) error {
			if time.Since(began) < 10*time.Second {
				return errors.New("not yet")
			}
			return nil
		}
		a.before = func(*http.Request) {
			switch since := time.Since(began); {
			case since < 10*time.Second:
				t.Errorf("asked the API server after %v", since)
			case since > 200*time.Second:
				a.drivers = []string{"other", "d"}
			case since > 100*time.Second:
				a.drivers = []string{"other"}
			}
		}
		a.fail = func(*http.Request) int {
			if time.Since(began) < 30*time.Second {
				return http.StatusInternalServerError
			}
			return 0
		}
		if err := Untaint(t.Context(), a.client(t), "n1", "d", ready, silent); err != nil {
			t.Fatal(err)
		}
		if since := time.Since(began); since < 200*time.Second || len(a.taints) != 0 {
			t.Errorf("taints are %v after %v", a.taints, since)
		}
	})
}

// TestUntaintEnds returns when its context ends, and when it may not.
func TestUntaintEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		why := errors.New("stopped")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Hour, func() { cancel(why) })
		never := func(context.Context) error { return errors.New("never ready") }
		if err := Untaint(ctx, (&api{}).client(t), "n1", "d", never, silent); !errors.Is(err, why) {
			t.Error("error is", err)
		}
		at := time.Now()
		forbidden := &api{status: http.StatusForbidden}
		ready := func(context.Context) error { return nil }
		if err := Untaint(t.Context(), forbidden.client(t), "n1", "d", ready, silent); err != nil || time.Since(at) > 0 {
			t.Error("refused for good:", err, time.Since(at))
		}
	})
}

// TestConfigGetsItsPlace adds what the labels say to what the file has.
func TestConfigGetsItsPlace(t *testing.T) {
	labels := map[string]string{"zone": "eu-1a", "rack": "true", "other": "x"}
	for _, c := range []struct {
		name, in, want string
		place          Place
		api            *api
	}{
		{"both", "memory: 8Gi", "memory: 8Gi\nzone: eu-1a\nrack: \"true\"\n", Place{"zone", "rack"}, &api{labels: labels}},
		{"one is not wanted", "memory: 8Gi\n", "memory: 8Gi\nzone: eu-1a\n", Place{"zone", ""}, &api{labels: labels}},
		{"a label is not there", "", "rack: \"true\"\n", Place{"region", "rack"}, &api{labels: labels}},
		{"may not", "memory: 8Gi\n", "memory: 8Gi\n", Place{"zone", "rack"}, &api{status: http.StatusForbidden}},
		{"does not answer", "a: b\n", "a: b\n", Place{"zone", "rack"}, &api{status: http.StatusServiceUnavailable}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dir := t.TempDir()
				in, out := filepath.Join(dir, "in"), filepath.Join(dir, "out")
				if err := os.WriteFile(in, []byte(c.in), 0o600); err != nil {
					t.Fatal(err)
				}
				at := time.Now()
				if err := c.place.Config(t.Context(), c.api.client(t), "n1", in, out, 30*time.Second, silent); err != nil {
					t.Fatal(err)
				}
				if got, err := os.ReadFile(out); err != nil || string(got) != c.want {
					t.Errorf("got %q, %v", got, err)
				}
				if waited := time.Since(at); waited > 30*time.Second || waited > 0 && c.api.status != http.StatusServiceUnavailable {
					t.Errorf("waited %v", waited)
				}
				if left, _ := filepath.Glob(filepath.Join(dir, ".*")); len(left) > 0 {
					t.Errorf("left %v", left)
				}
			})
		})
	}
}

// TestConfigRefuses names what is wrong.
func TestConfigRefuses(t *testing.T) {
	dir := t.TempDir()
	in := filepath.Join(dir, "in")
	if err := os.WriteFile(in, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	long := &api{labels: map[string]string{"zone": strings.Repeat("z", 64)}}
	err := Place{ZoneLabel: "zone"}.Config(t.Context(), long.client(t), "n1", in, filepath.Join(dir, "out"), time.Second, silent)
	if err == nil || !strings.Contains(err.Error(), "label zone of node n1 is longer") {
		t.Error("error is", err)
	}
	err = Place{}.Config(t.Context(), long.client(t), "n1", filepath.Join(dir, "none"), filepath.Join(dir, "out"), time.Second, silent)
	if !errors.Is(err, os.ErrNotExist) {
		t.Error("error is", err)
	}
}

// TestInCluster talks TLS to a server whose certificate it was given, and says where it cannot.
func TestInCluster(t *testing.T) {
	a := &api{labels: map[string]string{"a": "b"}}
	server := httptest.NewTLSServer(a)
	defer server.Close()
	host, port, _ := strings.Cut(server.Listener.Addr().String(), ":")
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	t.Setenv("KUBERNETES_SERVICE_PORT", port)
	dir := a.client(t).dir
	if _, err := InCluster(dir); !errors.Is(err, ErrNotInCluster) {
		t.Error("without a variable:", err)
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", host)
	if _, err := InCluster(dir); !errors.Is(err, ErrNotInCluster) {
		t.Error("without a certificate:", err)
	}
	writeCA(t, filepath.Join(dir, "ca.crt"), server)
	c, err := InCluster(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer c.http.CloseIdleConnections()
	if labels, err := c.Labels(t.Context(), "n1"); err != nil || labels["a"] != "b" {
		t.Error(labels, err)
	}
}

// writeCA writes the certificate of a test server.
func writeCA(t *testing.T, to string, server *httptest.Server) {
	t.Helper()
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if err := os.WriteFile(to, text, 0o600); err != nil {
		t.Fatal(err)
	}
}
