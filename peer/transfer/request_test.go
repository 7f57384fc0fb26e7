package transfer

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/objstore"
)

func someRequest(size int64) Request {
	o := chunk.Object{Origin: "https://s3.example.com", Bucket: "b", Key: "train/\xff0.tar", ETag: "e1", Size: size}
	r := Request{Request: chunk.Request{Object: o, ID: o.ID(), Hops: 1, From: "node-a"}}
	r.Span = small.ChunkSpan(size, 0)
	return r
}

func TestRequestCrossesTheWire(t *testing.T) {
	r := someRequest(1 << 20)
	r.Span = chunk.Span{First: 9, Count: 3}
	r.HeldOnly, r.Background, r.Hops = true, true, 3
	r.Patience = 1500 * time.Millisecond
	r.Pace, r.Slow = 6250000, true
	r.Failed = []string{"node-b", AnyMember}
	r.Access = chunk.Access{Identity: "tenant-1", Grant: chunk.NewGrant("https://s3.example.com/b/k?X-Amz-Signature=secret")}
	h := http.Header{}
	r.setHeaders(h, "node-c", small)
	got, err := parseRequest(r.target(), h, small)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, r) {
		t.Errorf("got %+v\nwant %+v", got, r)
	}
	var log strings.Builder
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "request", r, "pointer", &r)
	if s := log.String() + fmt.Sprint(r) + fmt.Sprintf("%+v", r); strings.Contains(s, "secret") {
		t.Errorf("the grant is printed: %s", s)
	}
}

func TestRequestsThatAreRefused(t *testing.T) {
	base := someRequest(1 << 20) // 16 blocks, 2 chunks
	for name, change := range map[string]func(path *string, h http.Header){
		"identity of another object": func(p *string, _ http.Header) {
			*p = blocksPath + strings.Repeat("0", 32) + "/0-1"
		},
		"no identity":         func(_ *string, h http.Header) { h.Del(headerObject) },
		"broken identity":     func(_ *string, h http.Header) { h.Set(headerObject, h.Get(headerObject)+"A") },
		"two chunks":          func(p *string, _ http.Header) { *p = blocksPath + base.ID.String() + "/7-8" },
		"behind the end":      func(p *string, _ http.Header) { *p = blocksPath + base.ID.String() + "/16-16" },
		"last before first":   func(p *string, _ http.Header) { *p = blocksPath + base.ID.String() + "/2-1" },
		"another spelling":    func(p *string, _ http.Header) { *p = blocksPath + base.ID.String() + "/00-1" },
		"a sign":              func(p *string, _ http.Header) { *p = blocksPath + base.ID.String() + "/+0-1" },
		"huge":                func(p *string, _ http.Header) { *p = blocksPath + base.ID.String() + "/0-4294967295" },
		"other sizes":         func(_ *string, h http.Header) { h.Set(headerGeometry, "8388608/262144") },
		"no hops":             func(_ *string, h http.Header) { h.Del(headerHops) },
		"from nowhere":        func(_ *string, h http.Header) { h.Set(headerHops, "0") },
		"too many hops":       func(_ *string, h http.Header) { h.Set(headerHops, "4") },
		"no asking member":    func(_ *string, h http.Header) { h.Del(headerFrom) },
		"asking member":       func(_ *string, h http.Header) { h.Set(headerFrom, "a b") },
		"long member":         func(_ *string, h http.Header) { h.Set(headerFrom, strings.Repeat("a", MaxMemberIDBytes+1)) },
		"a flag":              func(_ *string, h http.Header) { h.Set(headerHeldOnly, "true") },
		"many failed members": func(_ *string, h http.Header) { h.Set(headerFailed, strings.Repeat("a,", MaxFailed)+"a") },
		"no patience":         func(_ *string, h http.Header) { h.Set(headerPatience, "0") },
		"much patience":       func(_ *string, h http.Header) { h.Set(headerPatience, "3600001") },
		"spelt patience":      func(_ *string, h http.Header) { h.Set(headerPatience, "01") },
		"no pace":             func(_ *string, h http.Header) { h.Set(headerPace, "0") },
		"negative pace":       func(_ *string, h http.Header) { h.Set(headerPace, "-1*") },
		"spelt pace":          func(_ *string, h http.Header) { h.Set(headerPace, "1e3") },
		"slow twice":          func(_ *string, h http.Header) { h.Set(headerPace, "1**") },
		"pace twice":          func(_ *string, h http.Header) { h[headerPace] = []string{"1", "2"} },
		"empty failed member": func(_ *string, h http.Header) { h.Set(headerFailed, "a,,b") },
		"a header twice":      func(_ *string, h http.Header) { h.Add(headerHops, "1") },
		"long grant": func(_ *string, h http.Header) {
			h.Set(headerIdentity, "t")
			h.Set(headerGrant, strings.Repeat("a", chunk.MaxGrantBytes+1))
		},
		"grant of nobody": func(_ *string, h http.Header) { h.Set(headerGrant, "https://presigned") },
		"long identity": func(_ *string, h http.Header) {
			h.Set(headerIdentity, strings.Repeat("a", chunk.MaxIdentityBytes+1))
		},
		"odd identity":   func(_ *string, h http.Header) { h.Set(headerIdentity, "a b") },
		"identity twice": func(_ *string, h http.Header) { h[headerIdentity] = []string{"a", "b"} },
	} {
		t.Run(name, func(t *testing.T) {
			path, h := base.target(), http.Header{}
			base.setHeaders(h, "node-c", small)
			change(&path, h)
			if _, err := parseRequest(path, h, small); !errors.Is(err, objstore.ErrInvalid) {
				t.Errorf("error %v, want class ErrInvalid", err)
			}
		})
	}
}

// A slow node need not know how much comes to it, and one that says nothing sends no header.
func TestPaceOfAnAsker(t *testing.T) {
	for want, r := range map[string]Request{"": {}, "7": {Pace: 7}, "7*": {Pace: 7, Slow: true}, "0*": {Slow: true}} {
		whole := someRequest(1 << 20)
		whole.Pace, whole.Slow = r.Pace, r.Slow
		h := http.Header{}
		whole.setHeaders(h, "node-c", small)
		got, err := parseRequest(whole.target(), h, small)
		if err != nil || h.Get(headerPace) != want || got.Pace != r.Pace || got.Slow != r.Slow {
			t.Errorf("%q became %d, %v, %v", h.Get(headerPace), got.Pace, got.Slow, err)
		}
	}
}

// An identity can neither be taken out of a signed request nor put into one.
func TestIdentityIsSigned(t *testing.T) {
	h, with := http.Header{}, http.Header{}
	r := someRequest(1 << 20)
	r.setHeaders(h, "node-c", small)
	r.Access = chunk.Access{Identity: "tenant", Grant: chunk.NewGrant("https://presigned")}
	r.setHeaders(with, "node-c", small)
	key := []byte("0123456789abcdef")
	sum := func(h http.Header) tag { return mac(key, purposeRequest, signedFields("GET", r.target(), h)...) }
	moved := with.Clone()
	moved.Set(headerGrant, with.Get(headerGrant)+with.Get(headerIdentity))
	moved.Del(headerIdentity)
	other := with.Clone()
	other.Set(headerIdentity, "tenanu")
	seen := map[tag]bool{}
	for _, h := range []http.Header{h, with, moved, other} {
		seen[sum(h)] = true
	}
	if len(seen) != 4 {
		t.Errorf("%d signatures for 4 requests", len(seen))
	}
}

func TestClassesCrossTheWire(t *testing.T) {
	for _, c := range classes {
		name, status := ClassOf(fmt.Errorf("head x: %w", c.err))
		if back := ErrorOfClass(name); back != c.err || status < 400 {
			t.Errorf("%v travels as %q and %d and arrives as %v", c.err, name, status, back)
		}
	}
	if name, _ := ClassOf(errors.New("x")); ErrorOfClass(name) != ErrRemote {
		t.Errorf("an error without a class arrives as %v", ErrorOfClass(name))
	}
}

func FuzzTarget(f *testing.F) {
	f.Add(someRequest(1 << 20).target())
	f.Add(blocksPath + strings.Repeat("a", 32) + "/0-0")
	f.Fuzz(func(t *testing.T, path string) {
		if id, span, err := parseTarget(path); err == nil {
			if span.Count == 0 || span.Count > maxSpanBlocks || span.End() < span.First {
				t.Fatalf("%q is %v", path, span)
			}
			back := Request{Request: chunk.Request{ID: id, Span: span}}.target()
			if !strings.EqualFold(back, path) {
				t.Fatalf("%q was accepted for %q", path, back)
			}
		}
		_, _, _ = parseSuspect(path)
	})
}
