package chunk

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

func TestIdentityThatCanTravel(t *testing.T) {
	for text, want := range map[Identity]bool{
		"": true, Anonymous: true, "0aZ-9": true, Identity(strings.Repeat("a", MaxIdentityBytes)): true,
		Identity(strings.Repeat("a", MaxIdentityBytes+1)): false, "a b": false, "a\n": false, "ä": false, "a,b": false,
	} {
		if got := text.Valid(); got != want {
			t.Errorf("%q: valid is %v", text, got)
		}
	}
}

// No way to print or log shows the URL of a grant, on its own or within what carries it.
func TestGrantIsNotPrinted(t *testing.T) {
	g := NewGrant("https://s3.example.com/b/k?X-Amz-Signature=hush")
	req := Request{Access: Access{Identity: "tenant", Grant: g}}
	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "grant", g, "access", req.Access, "request", req)
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "grant", g, "access", req.Access, "request", req)
	text := log.String()
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		text += fmt.Sprintf(verb+verb+verb+verb, g, &g, req, &req)
	}
	doc, err := json.Marshal(req.Access)
	if err != nil {
		t.Fatal(err)
	}
	if text += string(doc); strings.Contains(text, "hush") || strings.Contains(text, fmt.Sprintf("%x", "hush")) {
		t.Errorf("a grant is printed: %s", text)
	}
	if g.Secret() == "" || NewGrant("") != (Grant{}) {
		t.Error("a grant is not what it was made of")
	}
}
