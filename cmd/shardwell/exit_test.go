package main

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"

	"github.com/shardwell/shardwell/internal/config"
	"github.com/shardwell/shardwell/internal/control"
	"github.com/shardwell/shardwell/objstore"
)

func TestExitCodes(t *testing.T) {
	interrupted, cancel := context.WithCancelCause(t.Context())
	cancel(stopSignal{syscall.SIGINT})
	for _, c := range []struct {
		name string
		ctx  context.Context
		err  error
		want int
	}{
		{"nothing wrong", t.Context(), nil, exitDone},
		{"any error", t.Context(), errors.New("x"), exitFailed},
		{"bad usage", t.Context(), usagef("x"), exitUsage},
		{"bad configuration", t.Context(), fmt.Errorf("x: %w", &config.Error{What: "y"}), exitUsage},
		{"bad usage, says the node", t.Context(), fmt.Errorf("x: %w", control.ErrUsage), exitUsage},
		{"partly done", t.Context(), partly{errors.New("x")}, exitPartly},
		{"interrupted", interrupted, fmt.Errorf("x: %w", context.Canceled), exitInterrupted},
		{"interrupted, by its cause", interrupted, context.Cause(interrupted), exitInterrupted},
		{"failed while interrupted", interrupted, errors.New("x"), exitFailed},
		{"canceled by somebody else", t.Context(), context.Canceled, exitFailed},
	} {
		if got := exitCode(c.ctx, c.err); got != c.want {
			t.Errorf("%s: got %d, want %d", c.name, got, c.want)
		}
	}
}

func TestExplain(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
	}{
		{errors.New("x"), "x"},
		{usagef("x"), "x"},
		{fmt.Errorf("s3://b/: %w", objstore.ErrNoBucket), "s3://b/: no such bucket: check the bucket's name, and --endpoint and --region"},
		{fmt.Errorf("s3://b/: %w", objstore.ErrClockSkew), "s3://b/: this machine's clock differs too much from the origin's: set the clock of this machine"},
		{errors.New("listen tcp 127.0.0.1:1: bind: address already in use"), "listen tcp 127.0.0.1:1: bind: address already in use: choose another --bind"},
	} {
		if got := explain(c.err); got != c.want {
			t.Errorf("got  %s\nwant %s", got, c.want)
		}
	}
	for _, a := range advice { // once is enough
		once := explain(fmt.Errorf("x: %w", a.class))
		if got := explain(fmt.Errorf("%s: %w", once, a.class)); got != once+": "+a.class.Error() {
			t.Errorf("advice given twice: %s", got)
		}
	}
}

func TestOutputIsSafeForTerminals(t *testing.T) {
	if got := oneLine("a\nb\tc\x1b[31m d"); got != "a b c?[31m d" {
		t.Errorf("one line: got %q", got)
	}
	for in, want := range map[string]string{"a b": "a b", "ä": "ä", "a\x1b[2J": `"a\x1b[2J"`, "\xff": `"\xff"`, "a\nb": `"a\nb"`} {
		if got := printable(in); got != want {
			t.Errorf("printable %q: got %s, want %s", in, got, want)
		}
	}
}

func TestPlainValuesNeedNoQuotesInYAML(t *testing.T) {
	for in, want := range map[string]bool{"": false, "512Mi": true, "/a/b": true, "-1": true, "ttl=60s": true, "a: b": false, "127.0.0.1:1": false, "- x": false, "*a": false, "a#b": false} {
		if got := plain(in); got != want {
			t.Errorf("plain %q: got %v, want %v", in, got, want)
		}
	}
}
