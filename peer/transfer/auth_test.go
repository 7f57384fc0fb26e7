package transfer

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

func mustSigner(t testing.TB, keys ...string) *Signer {
	t.Helper()
	var raw [][]byte
	for _, k := range keys {
		raw = append(raw, []byte(k))
	}
	s, err := NewSigner(raw)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

const (
	keyA = "0123456789abcdef0123456789abcdef"
	keyB = "fedcba9876543210fedcba9876543210"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func TestSignatures(t *testing.T) {
	header, _ := mustSigner(t, keyA).sign(noon, "GET", "/x", "b")
	for _, c := range []struct {
		name   string
		keys   []string
		header string
		now    time.Time
		fields []string
		want   error
	}{
		{"right", []string{keyA}, header, noon, []string{"GET", "/x", "b"}, nil},
		{"under the second key", []string{keyB, keyA}, header, noon, []string{"GET", "/x", "b"}, nil},
		{"under another secret", []string{keyB}, header, noon, []string{"GET", "/x", "b"}, ErrUnauthorized},
		{"for another target", []string{keyA}, header, noon, []string{"GET", "/y", "b"}, ErrUnauthorized},
		{"fields run into one another", []string{keyA}, header, noon, []string{"GET", "/xb", ""}, ErrUnauthorized},
		{"a field less", []string{keyA}, header, noon, []string{"GET", "/x"}, ErrUnauthorized},
		{"none", []string{keyA}, "", noon, nil, ErrUnauthorized},
		{"at the window's edge", []string{keyA}, header, noon.Add(ClockWindow), []string{"GET", "/x", "b"}, nil},
		{"too late", []string{keyA}, header, noon.Add(ClockWindow + time.Second), []string{"GET", "/x", "b"}, ErrClock},
		{"too early", []string{keyA}, header, noon.Add(-ClockWindow - time.Second), []string{"GET", "/x", "b"}, ErrClock},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := NewVerifier(mustSigner(t, c.keys...)).verify(c.header, c.now, c.fields...)
			if !errors.Is(err, c.want) {
				t.Errorf("error %v, want %v", err, c.want)
			}
		})
	}
}

func TestSignatureCountsOnce(t *testing.T) {
	s := mustSigner(t, keyA)
	v := NewVerifier(s)
	h, _ := s.sign(noon, "x")
	if _, err := v.verify(h, noon, "x"); err != nil {
		t.Fatal(err)
	}
	for _, later := range []time.Duration{0, time.Minute, ClockWindow} {
		if _, err := v.verify(h, noon.Add(later), "x"); !errors.Is(err, ErrReplay) {
			t.Errorf("after %v: error %v, want a replay", later, err)
		}
	}
	if _, err := v.verify(h, noon.Add(ClockWindow+nonceSlot), "x"); !errors.Is(err, ErrClock) {
		t.Errorf("after the window: error %v", err)
	}
}

// A full memory of signatures forgets the oldest and from then on refuses them.
func TestNoncesAreBounded(t *testing.T) {
	n := newNonces(100)
	var old []tag
	for i := range 1000 {
		var x tag
		copy(x[:], fmt.Sprintf("nonce %d", i))
		if i < 50 {
			old = append(old, x)
		}
		if err := n.add(x, noon.Add(time.Duration(i)*time.Second/4), noon.Add(time.Duration(i)*time.Second/4)); err != nil {
			t.Fatalf("signature %d: %v", i, err)
		}
		if n.count > 100 {
			t.Fatalf("%d signatures remembered", n.count)
		}
	}
	for i, x := range old {
		if err := n.add(x, noon.Add(time.Duration(i)*time.Second/4), noon.Add(250*time.Second)); err == nil {
			t.Fatalf("signature %d was accepted again", i)
		}
	}
	total := 0
	for _, m := range n.slots {
		total += len(m)
	}
	if total != n.count {
		t.Errorf("count %d, there are %d", n.count, total)
	}
}

func TestProofOfTheAnswer(t *testing.T) {
	asker := mustSigner(t, keyA)
	v := NewVerifier(mustSigner(t, keyB, keyA)) // a server that has the new secret first already
	h, sent := asker.sign(noon, "x")
	got, err := v.verify(h, noon, "x")
	if err != nil {
		t.Fatal(err)
	}
	proof := got.prove("200", "")
	if err := asker.checkProof(proof, sent, "200", ""); err != nil {
		t.Error(err)
	}
	if err := asker.checkProof(proof, sent, "404", ""); !errors.Is(err, ErrImpostor) {
		t.Errorf("another status: %v", err)
	}
	_, other := asker.sign(noon, "x")
	if err := asker.checkProof(proof, other, "200", ""); !errors.Is(err, ErrImpostor) {
		t.Errorf("another request: %v", err)
	}
	if err := asker.checkProof("", sent, "200", ""); !errors.Is(err, ErrImpostor) {
		t.Errorf("no proof: %v", err)
	}
}

func TestWeakKeysAreRefused(t *testing.T) {
	for _, keys := range [][][]byte{nil, {[]byte("short")}, make([][]byte, 9)} {
		if _, err := NewSigner(keys); err == nil {
			t.Errorf("%d keys were accepted", len(keys))
		}
	}
}

func FuzzAuthorization(f *testing.F) {
	h, _ := mustSigner(f, keyA).sign(noon, "x")
	f.Add(h)
	f.Add("")
	f.Add(strings.ReplaceAll(h, "t=", "t=0"))
	f.Fuzz(func(t *testing.T, h string) {
		a, err := parseAuthorization(h)
		if err != nil {
			if !errors.Is(err, ErrUnauthorized) {
				t.Fatalf("error without a class: %v", err)
			}
			return
		}
		if a.String() != h {
			t.Fatalf("%q was accepted for %q", h, a.String())
		}
	})
}
