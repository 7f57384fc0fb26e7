package secret

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const (
	one = "6WvM1q0nJ4tD8yXb2KfR5sLz9HcPuGeA7wQoTiNjVhY="
	two = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
)

func TestKeysOfDifferentUsesAndSecretsDiffer(t *testing.T) {
	s, err := Parse([]byte("# cluster a\n\n" + one + "\r\n  " + two + "  \n"))
	if err != nil {
		t.Fatal(err)
	}
	if s.Len() != 2 {
		t.Fatalf("secrets: %d, want 2", s.Len())
	}
	seen := map[string]bool{}
	for _, k := range append(s.GossipKeys(), s.RequestKeys()...) {
		if len(k) != KeyBytes || seen[string(k)] {
			t.Errorf("key of %d bytes, seen before: %v", len(k), seen[string(k)])
		}
		seen[string(k)] = true
	}
}

// The derivation is part of the protocol: nodes of two releases must agree on it.
func TestDerivationStaysAsItIs(t *testing.T) {
	s, err := Parse([]byte(one))
	if err != nil {
		t.Fatal(err)
	}
	got := hex.EncodeToString(s.GossipKeys()[0]) + " " + hex.EncodeToString(s.RequestKeys()[0])
	const want = "c4c5cb365fd8622254f558d35fe36318c65f942784a13d1b0f764961dece857c 4e778938f2e0e4baaa01cb9f2e750bfa9a5400aa135701cbf6e57fa490018e11"
	if got != want {
		t.Errorf("keys %s, want %s", got, want)
	}
}

func TestWeakOrDamagedFilesAreRefusedWithoutQuotingThem(t *testing.T) {
	for name, text := range map[string]string{
		"empty":         "",
		"only comments": "# nothing\n\n",
		"short":         "hunter2hunter2",
		"long":          strings.Repeat(two, 17),
		"one letter":    strings.Repeat("a", 64),
		"binary":        strings.Repeat("\x00\x01\xfe", 20) + two,
		"twice":         one + "\n" + one,
		"second weak":   one + "\nhunter2",
		"huge":          strings.Repeat("#\n", MaxFileBytes),
		"too many":      manySecrets(MaxSecrets + 1),
	} {
		_, err := Parse([]byte(text))
		if err == nil {
			t.Errorf("%s: accepted", name)
			continue
		}
		for _, word := range strings.Fields(text) {
			if len(word) > 3 && word != "nothing" && strings.Contains(err.Error(), word) {
				t.Errorf("%s: the error quotes the secret: %v", name, err)
			}
		}
	}
}

func manySecrets(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "%s%d\n", two, i)
	}
	return b.String()
}

func TestNoWayOfPrintingShowsKeys(t *testing.T) {
	s, err := Parse([]byte(one))
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	slog.New(slog.NewTextHandler(&log, nil)).Info("start", "secret", s)
	slog.New(slog.NewJSONHandler(&log, nil)).Info("start", "secret", s)
	out := log.String()
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x", "%q", "%d"} {
		out += fmt.Sprintf(verb, s) + fmt.Sprintf(verb, &s) + fmt.Sprintf(verb, struct{ S Set }{s})
	}
	for _, k := range append(s.GossipKeys(), s.RequestKeys()...) {
		if strings.Contains(out, hex.EncodeToString(k)) || strings.Contains(out, fmt.Sprint(k)) {
			t.Errorf("a key is in %q", out)
		}
	}
	if strings.Contains(out, one) {
		t.Error("the secret is in the output")
	}
}

func TestReadFileNamesTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "secret")
	if _, err := ReadFile(path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("missing file: %v", err)
	}
	if err := os.WriteFile(path, []byte("short"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadFile(path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("short secret: %v", err)
	}
	if err := os.WriteFile(path, []byte(one), 0o600); err != nil {
		t.Fatal(err)
	}
	if s, err := ReadFile(path); err != nil || s.Len() != 1 {
		t.Errorf("good file: %v, %v", s, err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(one + "\n" + two))
	f.Add([]byte("# x\r\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := Parse(data)
		if (err == nil) != (s.Len() > 0) || len(s.GossipKeys()) != len(s.RequestKeys()) {
			t.Errorf("%d secrets, error %v", s.Len(), err)
		}
	})
}
