package s3_test

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shardwell/shardwell/objstore"
	"github.com/shardwell/shardwell/objstore/s3"
)

// keyOf returns the access key that signed a request, "" for none.
func keyOf(r *http.Request) string {
	_, rest, _ := strings.Cut(r.Header.Get("Authorization"), "Credential=")
	key, _, _ := strings.Cut(rest, "/")
	return key
}

// accepting serves an object to those who sign with the current key.
func accepting(t *testing.T, current *atomic.Value) *fake {
	return serve(t, func(_ int, w http.ResponseWriter, r *http.Request) {
		if keyOf(r) != current.Load() {
			refuse(w, 403, "InvalidAccessKeyId", "")
			return
		}
		object(w, r, "e1", []byte("x"))
	})
}

func writeKeys(t *testing.T, file, key string) {
	t.Helper()
	text := fmt.Sprintf("[default]\naws_access_key_id = %s\naws_secret_access_key = secret\n", key)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// Keys that are rotated in their file are taken up when the server refuses the
// old ones, and requests go on as if nothing had happened.
func TestRotatedFileIsReadAgain(t *testing.T) {
	file := filepath.Join(t.TempDir(), "credentials")
	var current atomic.Value
	current.Store("ONE")
	f := accepting(t, &current)
	writeKeys(t, file, "ONE")
	s := newStore(t, s3.Config{Endpoint: f.URL, Credentials: s3.Credentials{Source: s3.SourceFile, File: file}})
	if _, err := get(t, s, 0, 1); err != nil {
		t.Fatal(err)
	}
	current.Store("TWO")
	writeKeys(t, file, "TWO")
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if _, err := get(t, s, 0, 1); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	// Revoked, and nothing new in the file: an error, and no storm of requests.
	current.Store("NONE")
	before := len(f.requests())
	for range 5 {
		if _, err := get(t, s, 0, 1); !errors.Is(err, objstore.ErrCredentials) {
			t.Errorf("after revocation: %v", err)
		}
	}
	if n := len(f.requests()) - before; n != 5 {
		t.Errorf("%d requests for 5 calls with revoked keys", n)
	}
}

func TestCredentialSources(t *testing.T) {
	var current atomic.Value
	current.Store("KEY")
	f := accepting(t, &current)
	try := func(name string, c s3.Credentials) error {
		_, err := get(t, newStore(t, s3.Config{Endpoint: f.URL, Credentials: c}), 0, 1)
		if err != nil && !strings.Contains(name, "fails") {
			t.Errorf("%s: %v", name, err)
		}
		return err
	}
	t.Setenv("HOME", t.TempDir())
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")

	err := try("none fails", s3.Credentials{Source: s3.SourceAuto})
	if !errors.Is(err, objstore.ErrCredentials) || !strings.Contains(err.Error(), "AWS_ACCESS_KEY_ID") || !strings.Contains(err.Error(), "anonymous") {
		t.Errorf("nothing configured: %v", err)
	}
	if n := len(f.requests()); n != 0 {
		t.Errorf("%d requests without credentials: anonymous access must be asked for", n)
	}
	try("static by auto", s3.Credentials{AccessKey: "KEY", SecretKey: "secret"})

	t.Setenv("AWS_ACCESS_KEY_ID", "KEY")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	try("environment", s3.Credentials{Source: s3.SourceEnv})
	try("environment by auto", s3.Credentials{Source: s3.SourceAuto})
	t.Setenv("AWS_ACCESS_KEY_ID", "")

	file := filepath.Join(t.TempDir(), "credentials")
	writeKeys(t, file, "KEY")
	try("file", s3.Credentials{Source: s3.SourceFile, File: file})
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", file)
	t.Setenv("AWS_CONFIG_FILE", filepath.Join(t.TempDir(), "none"))
	try("file by auto", s3.Credentials{Source: s3.SourceAuto})
	if err := try("missing file fails", s3.Credentials{Source: s3.SourceFile, File: file + ".no"}); !errors.Is(err, objstore.ErrCredentials) {
		t.Errorf("missing file: %v", err)
	}

	// Anonymous requests carry no signature.
	open := serve(t, func(_ int, w http.ResponseWriter, r *http.Request) { object(w, r, "e1", []byte("x")) })
	s := newStore(t, s3.Config{Endpoint: open.URL, Credentials: s3.Credentials{Source: s3.SourceAnonymous}})
	if _, err := get(t, s, 0, 1); err != nil {
		t.Error(err)
	}
	_, _ = s.List(t.Context(), objstore.ListRequest{}) // the answer is no listing
	for _, r := range open.requests() {
		if r.Header.Get("Authorization") != "" {
			t.Error("an anonymous request is signed")
		}
	}
}

// sts gives out keys that are valid for ttl, numbered.
func sts(t *testing.T, ttl time.Duration, current *atomic.Value) *fake {
	return serve(t, func(n int, w http.ResponseWriter, r *http.Request) {
		if r.FormValue("WebIdentityToken") != "the-token" || r.FormValue("RoleArn") != "arn:role" {
			refuse(w, 400, "InvalidIdentityToken", "")
			return
		}
		key := fmt.Sprintf("STS%d", n)
		current.Store(key)
		fmt.Fprintf(w, `<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>%s</AccessKeyId>`+
			`<SecretAccessKey>s</SecretAccessKey><SessionToken>t</SessionToken><Expiration>%s</Expiration></Credentials>`+
			`</AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>`, key, time.Now().Add(ttl).UTC().Format(time.RFC3339Nano))
	})
}

func TestWebIdentity(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("the-token\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var current atomic.Value
	f := accepting(t, &current)
	issuer := sts(t, time.Hour, &current)
	t.Setenv("AWS_WEB_IDENTITY_TOKEN_FILE", token)
	t.Setenv("AWS_ROLE_ARN", "arn:role")
	t.Setenv("AWS_ENDPOINT_URL_STS", issuer.URL)
	t.Setenv("HOME", t.TempDir())
	s := newStore(t, s3.Config{Endpoint: f.URL, Credentials: s3.Credentials{Source: s3.SourceAuto}})
	for range 5 {
		if _, err := get(t, s, 0, 1); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(issuer.requests()); n != 1 {
		t.Errorf("the STS was asked %d times", n)
	}
	for _, r := range f.requests() {
		if r.Header.Get("X-Amz-Security-Token") != "t" {
			t.Error("a request without the session token")
		}
	}
}

func TestRefusedTokenIsACredentialError(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("another"), 0o600); err != nil {
		t.Fatal(err)
	}
	var current atomic.Value
	current.Store("x")
	issuer := sts(t, time.Hour, &current)
	s := newStore(t, s3.Config{Endpoint: accepting(t, &current).URL, Credentials: s3.Credentials{
		Source: s3.SourceAuto, RoleARN: "arn:role", TokenFile: token, STSEndpoint: issuer.URL}})
	for range 3 {
		if _, err := get(t, s, 0, 1); !errors.Is(err, objstore.ErrCredentials) || !strings.Contains(err.Error(), "web identity") {
			t.Errorf("%v", err)
		}
	}
	if n := len(issuer.requests()); n != 1 {
		t.Errorf("the STS was asked %d times in a moment", n)
	}
}

func TestInstanceMetadata(t *testing.T) {
	var current atomic.Value
	current.Store("IMDS")
	meta := serve(t, func(_ int, w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodPut && r.URL.Path == "/latest/api/token":
			fmt.Fprint(w, "session")
		case r.Header.Get("X-aws-ec2-metadata-token") != "session":
			w.WriteHeader(401)
		case r.URL.Path == "/latest/meta-data/iam/security-credentials/":
			fmt.Fprint(w, "role")
		default:
			fmt.Fprintf(w, `{"Code":"Success","AccessKeyId":"IMDS","SecretAccessKey":"s","Token":"t","Expiration":%q}`,
				time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
		}
	})
	s := newStore(t, s3.Config{Endpoint: accepting(t, &current).URL, Credentials: s3.Credentials{
		Source: s3.SourceInstance, InstanceEndpoint: meta.URL}})
	for range 3 {
		if _, err := get(t, s, 0, 1); err != nil {
			t.Error(err)
		}
	}
	if n := len(meta.requests()); n != 3 {
		t.Errorf("%d requests to the metadata service, want 3 once", n)
	}
}

func TestSecretsStayOut(t *testing.T) {
	c := s3.Credentials{Source: s3.SourceStatic, AccessKey: "AKIA", SecretKey: "hunter2", SessionToken: "hunter3"}
	var b strings.Builder
	slog.New(slog.NewTextHandler(&b, nil)).Info("x", "credentials", c)
	for _, s := range []string{b.String(), fmt.Sprintf("%v %+v %s", c, c, c), fmt.Sprintf("%+v", s3.Config{Credentials: c})} {
		if strings.Contains(s, "hunter") {
			t.Errorf("a secret in %q", s)
		}
	}
}

// A token that is replaced is exchanged when the keys of the one before have expired or
// were refused, and Keys shows what a source stands for.
func TestTokenIsReplaced(t *testing.T) {
	var asked []string
	var mu sync.Mutex
	sts := serve(t, func(_ int, w http.ResponseWriter, r *http.Request) {
		_ = r.ParseForm()
		mu.Lock()
		defer mu.Unlock()
		asked = append(asked, r.Form.Get("WebIdentityToken")+" "+r.Form.Get("RoleArn"))
		fmt.Fprintf(w, `<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleWithWebIdentityResult>
<Credentials><AccessKeyId>KEY%d</AccessKeyId><SecretAccessKey>s</SecretAccessKey><SessionToken>t</SessionToken><Expiration>%s</Expiration></Credentials>
</AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>`, len(asked), time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
	})
	var current atomic.Value
	current.Store("KEY1")
	f := accepting(t, &current)
	token := s3.NewToken("one")
	c := s3.Credentials{Source: s3.SourceWebIdentity, Token: token, RoleARN: "arn:r", STSEndpoint: sts.URL}
	s := newStore(t, s3.Config{Endpoint: f.URL, Credentials: c})
	if _, err := get(t, s, 0, 1); err != nil {
		t.Fatal(err)
	}
	token.Set("two")
	current.Store("KEY2")
	if _, err := get(t, s, 0, 1); err != nil {
		t.Fatal(err)
	}
	keys, err := c.Keys(t.Context(), s3.Config{Endpoint: f.URL, Bucket: "bucket"})
	if err != nil || keys != (s3.Credentials{Source: s3.SourceStatic, AccessKey: "KEY3", SecretKey: "s", SessionToken: "t"}) {
		t.Errorf("keys: %v, %v", keys.AccessKey, err)
	}
	if want := []string{"one arn:r", "two arn:r", "two arn:r"}; !slices.Equal(asked, want) {
		t.Errorf("the STS was asked with %q, want %q", asked, want)
	}
	anon, err := s3.Credentials{Source: s3.SourceAnonymous}.Keys(t.Context(), s3.Config{Bucket: "bucket"})
	if err != nil || anon != (s3.Credentials{Source: s3.SourceAnonymous}) {
		t.Errorf("keys of nobody: %v, %v", anon, err)
	}
}
