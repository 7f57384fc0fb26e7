package cache

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/shardwell/shardwell/internal/chunk"
)

var rewrite = flag.Bool("rewrite", false, "write what the traces in testdata now show")

// TestTraces runs the scripts in testdata: commands, and under each which tier
// served which block to whom, and what the origin was asked for.
func TestTraces(t *testing.T) {
	paths, err := filepath.Glob("testdata/*.trace")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no traces: %v", err)
	}
	for _, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) {
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			var got string
			synctest.Test(t, func(t *testing.T) { got = runTrace(t, string(want)) })
			if *rewrite {
				if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if got != string(want) {
				t.Errorf("%s: got\n%s\nwant\n%s", path, got, want)
			}
		})
	}
}

// tracer runs one script.
type tracer struct {
	*rig
	t    *testing.T
	objs map[string]chunk.Object
	data map[string][]byte
	held map[string]chunk.Span // what a peer holds
	open map[string]*File      // by a reader who stays

	mu  sync.Mutex
	out strings.Builder
}

func runTrace(t *testing.T, script string) string {
	tr := &tracer{t: t, objs: map[string]chunk.Object{}, data: map[string][]byte{}, held: map[string]chunk.Span{}, open: map[string]*File{}}
	tr.rig = newRig(t, 8, func(c *Config) {
		c.Peers = fetcherFunc(tr.peer)
		c.Trace = func(e Event) { tr.printf("  %v", e) }
	})
	defer tr.shut(t)
	for line := range strings.Lines(script) {
		line = strings.TrimRight(line, "\n")
		if strings.HasPrefix(line, " ") {
			continue // what came out the last time
		}
		tr.printf("%s", line)
		if line != "" && line[0] != '#' {
			tr.command(strings.Fields(line))
		}
	}
	return tr.out.String()
}

func (tr *tracer) printf(format string, args ...any) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	fmt.Fprintf(&tr.out, format+"\n", args...)
}

// peer is an upstream that has what the script says.
func (tr *tracer) peer(_ context.Context, req chunk.Request, d chunk.Deliver) error {
	all := true
	for b := req.Span.First; b < req.Span.End(); b++ {
		if !tr.held[req.Object.Key].Contains(b) {
			all = false
			continue
		}
		if err := d(blockOf(tr.data[req.Object.Key], b)); err != nil {
			return err
		}
	}
	if !all {
		return chunk.ErrNotHeld
	}
	return nil
}

func (tr *tracer) command(args []string) {
	num := func(i int) (n int) {
		if i < len(args) {
			fmt.Sscan(args[i], &n)
		}
		return n
	}
	key := ""
	if len(args) > 1 {
		key = args[1]
	}
	obj := tr.objs[key]
	before := len(tr.origin.Gets())
	switch args[0] {
	case "put": // KEY BYTES
		tr.objs[key], tr.data[key] = tr.put(key, num(2))
	case "held": // KEY FIRST COUNT
		tr.held[key] = chunk.Span{First: uint32(num(2)), Count: uint32(num(3))}
	case "disk": // full | free
		tr.tier.full = key == "full"
	case "damage": // KEY BLOCK
		tr.tier.damage(obj.ID(), uint32(num(2)))
	case "read": // KEY OFFSET BYTES
		f := tr.rig.open(tr.t, obj)
		wantRead(tr.t, f, tr.data[key], num(2), num(3))
		f.Close()
	case "open": // KEY
		tr.open[key] = tr.rig.open(tr.t, obj)
	case "close": // KEY
		tr.open[key].Close()
	case "prefetch": // KEY OFFSET BYTES, of an open file
		tr.open[key].Prefetch(int64(num(2)), int64(num(3)))
	case "lend": // KEY FIRST COUNT [held]
		req := chunk.Request{Object: obj, ID: obj.ID(), Span: chunk.Span{First: uint32(num(2)), Count: uint32(num(3))}, Hops: 1, From: "p"}
		req.HeldOnly = len(args) > 4
		if _, err := tr.collect(tr.t.Context(), req); err != nil {
			tr.printf("  %v", err)
		}
	default:
		tr.t.Fatalf("unknown command %q", args[0])
	}
	synctest.Wait() // until it is here, and nobody holds anything who has done his work
	for _, g := range tr.origin.Gets()[before:] {
		tr.printf("  origin GET %s [%d, +%d)", g.Key, g.Off, g.N)
	}
}
