package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/shardwell/shardwell/e2e/cage"
	"github.com/shardwell/shardwell/e2e/cluster"
	"github.com/shardwell/shardwell/e2e/dataset"
	"github.com/shardwell/shardwell/e2e/origin"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 4 && os.Args[1] == bareCommand {
		if err := serveBare(os.Args[2], os.Args[3]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func newHost(t *testing.T, name string) (*cage.Cage, *cage.Host) {
	t.Helper()
	c, err := cage.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	h, err := c.Host(name)
	if err != nil {
		t.Fatal(err)
	}
	return c, h
}

// The baseline of warm reads is what it says: the kernel reads the file, nobody else.
func TestBarePassthroughIsAsFastAsTheFile(t *testing.T) {
	const size = 64 << 20
	c, h := newHost(t, "a")
	root := filepath.Join(c.Dir, "root")
	if err := os.MkdirAll(root, 0o755); err != nil {
		t.Fatal(err)
	}
	want := dataset.Random{Seed: 1, Size: size}
	if err := os.WriteFile(filepath.Join(root, "f"), want.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	p, err := startBare(h, root, filepath.Join(c.Dir, "bare"))
	if err != nil {
		t.Fatal(err)
	}
	through := filepath.Join(c.Dir, "bare", "f")
	if err := dataset.CompareFile(through, want); err != nil {
		t.Fatal(err)
	}
	before, err := p.CPU()
	if err != nil {
		t.Fatal(err)
	}
	for range 4 {
		bare, err := readFile(through, size)
		if err != nil {
			t.Fatal(err)
		}
		native, err := readFile(filepath.Join(root, "f"), size)
		if err != nil {
			t.Fatal(err)
		}
		ops, err := randomRead(through, size, 1000, 1)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("bare %.0f MiB/s, native %.0f MiB/s, %.0f random reads/s", rate(size, bare), rate(size, native), ops)
	}
	after, err := p.CPU()
	if err != nil {
		t.Fatal(err)
	}
	if spent := after - before; spent.Milliseconds() > 50 {
		t.Errorf("the file system's process used %v of processor time; passthrough uses next to none", spent)
	}
}

// The baseline of cold reads fills the link.
func TestParallelGetFillsTheLink(t *testing.T) {
	const size = 64 << 20
	tools, err := cluster.Prepare()
	if err != nil {
		t.Fatal(err)
	}
	c, h := newHost(t, "client")
	o, err := origin.Start(c, origin.Options{Bin: tools.Versitygw, OneWay: originOneWay})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = o.Close() })
	if err := o.Host.Shape(originLink); err != nil {
		t.Fatal(err)
	}
	if err := o.MakeBucket(t.Context(), bucket); err != nil {
		t.Fatal(err)
	}
	if _, err := o.Put(t.Context(), bucket, "k", dataset.Random{Seed: 1, Size: size}.Reader(), size); err != nil {
		t.Fatal(err)
	}
	url, err := o.Presign(context.Background(), bucket, "k")
	if err != nil {
		t.Fatal(err)
	}
	best := 0.0
	for _, connections := range []int{4, 8, 16} {
		d, err := parallelGet(clientOf(h), url, size, connections, getPartBytes)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%d connections: %.1f MiB/s", connections, rate(size, d))
		best = max(best, rate(size, d))
	}
	if best < 45 || best > 60 {
		t.Errorf("the fastest GET over a link of 500 Mbit/s gave %.1f MiB/s, want some 55", best)
	}
	if got := o.Requests().Bytes(); got != 3*size {
		t.Errorf("the origin counted %d bytes, want %d", got, 3*size)
	}
}
