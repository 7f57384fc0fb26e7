package pods_test

import (
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// stsPort is where the host of the origin exchanges tokens.
const stsPort = 9100

// stsLife is how long keys are good that the STS gives.
const stsLife = 30 * time.Second

// sts exchanges the tokens of one service account for the keys of one of the origin's accounts, when the API server
// says that they are genuine.
type sts struct {
	account string // of Kubernetes: system:serviceaccount:NAMESPACE:NAME
	user    string // of the origin

	mu    sync.Mutex
	count int
	seen  []string // tokens, each once
}

// startSTS serves until the test ends.
func startSTS(t *testing.T, account, user string) *sts {
	t.Helper()
	ln, err := w.origin.Host.Listen(fmt.Sprintf("%s:%d", w.origin.Host.IP, stsPort))
	if err != nil {
		t.Fatal(err)
	}
	s := &sts{account: account, user: user}
	server := &http.Server{Handler: s, ErrorLog: log.New(io.Discard, "", 0), ReadHeaderTimeout: 10 * time.Second}
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := server.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		_ = server.Close()
		wg.Wait()
	})
	return s
}

func (s *sts) exchanges() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.count
}

// tokens returns those that were genuine and of the account.
func (s *sts) tokens() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.seen...)
}

// ServeHTTP implements AssumeRoleWithWebIdentity.
func (s *sts) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	if err := r.ParseForm(); err != nil {
		rw.WriteHeader(http.StatusBadRequest)
		return
	}
	token := r.Form.Get("WebIdentityToken")
	who, err := review(r.Context(), token)
	if err != nil || who != s.account || r.Form.Get("RoleArn") == "" {
		rw.WriteHeader(http.StatusForbidden)
		_, _ = io.WriteString(rw, "<ErrorResponse><Error><Code>AccessDenied</Code><Message>not for you</Message></Error></ErrorResponse>")
		return
	}
	s.mu.Lock()
	s.count++
	if !strings.Contains(strings.Join(s.seen, " "), token) {
		s.seen = append(s.seen, token)
	}
	s.mu.Unlock()
	var answer struct {
		XMLName xml.Name `xml:"https://sts.amazonaws.com/doc/2011-06-15/ AssumeRoleWithWebIdentityResponse"`
		Result  struct {
			Credentials struct{ AccessKeyId, SecretAccessKey, SessionToken, Expiration string }
		} `xml:"AssumeRoleWithWebIdentityResult"`
	}
	c := &answer.Result.Credentials
	c.AccessKeyId, c.SecretAccessKey, c.Expiration = s.user, accounts[s.user], time.Now().Add(stsLife).UTC().Format(time.RFC3339)
	_ = xml.NewEncoder(rw).Encode(answer)
}

// review asks the API server whose token it is.
func review(ctx context.Context, token string) (who string, err error) {
	ask, err := json.Marshal(map[string]any{
		"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview",
		"spec": map[string]any{"token": token, "audiences": []string{"sts.amazonaws.com"}},
	})
	if err != nil {
		return "", err
	}
	text, err := w.node.Run(ctx, strings.NewReader(string(ask)), "kubectl", "create", "-o", "json", "-f", "-")
	if err != nil {
		return "", err
	}
	var told struct {
		Status struct {
			Authenticated bool
			User          struct{ Username string }
		}
	}
	if err := json.Unmarshal([]byte(text), &told); err != nil {
		return "", err
	}
	if !told.Status.Authenticated {
		return "", errors.New("not authenticated")
	}
	return told.Status.User.Username, nil
}
