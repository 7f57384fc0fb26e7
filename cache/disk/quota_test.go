package disk

import (
	"errors"
	"fmt"
	"testing"

	"github.com/shardwell/shardwell/cache/evict"
)

// TestQuotaRotates has a dataset that is kept by recency use up its quota: what comes displaces what
// of it was used least recently, and nothing else.
func TestQuotaRotates(t *testing.T) {
	p := &testPolicy{classes: map[string]evict.Class{"r": evict.Recent, "i": evict.Idle}}
	cfg := testConfig(t.TempDir())
	cfg.Policy = p
	d := openDir(t, cfg)
	for i := range 3 {
		newContent(fmt.Sprint("i/own", i), 2*testBlock).store(t, d)
	}
	p.quota, p.taken = 20*testBlock, 0
	object := func(i int) content { return newContent(fmt.Sprint("r/own", i), 2*testBlock) }
	for i := range 10 {
		object(i).store(t, d)
	}
	object(0).store(t, d) // a use: now it is the newest
	late := object(10).acquire(t, d)
	defer late.Release()
	var r *RejectError
	if err := late.Put(object(10).block(small, 0)); !errors.As(err, &r) || r.Reason != RejectDataset {
		t.Fatalf("beyond the quota: %v", err)
	}
	d.relieveQuotas(t.Context())
	object(10).putAll(t, late)
	d.relieveQuotas(t.Context()) // nothing more is wanted
	have := ""
	for i := range 11 {
		if f, err := d.Find(object(i).id); err == nil {
			have += fmt.Sprint(i, " ")
			f.Release()
		}
	}
	if have != "0 2 3 4 5 6 7 8 9 10 " || p.taken > p.quota {
		t.Errorf("objects %sare there, %d bytes", have, p.taken)
	}
	for i := range 3 {
		if f, err := d.Find(newContent(fmt.Sprint("i/own", i), 2*testBlock).id); err != nil {
			t.Error("of another dataset:", err)
		} else {
			f.Release()
		}
	}

	p.set("r", evict.Protected) // by epochs it keeps what it has
	if err := newContent("r/own11", testBlock).acquireAndPut(t, d); !errors.As(err, &r) {
		t.Fatalf("beyond the quota: %v", err)
	}
	d.relieveQuotas(t.Context())
	if f, err := d.Find(object(2).id); err != nil {
		t.Error("a dataset that is kept by epochs gave something up:", err)
	} else {
		f.Release()
	}
}

// acquireAndPut stores the first block.
func (c content) acquireAndPut(t *testing.T, d *Dir) error {
	t.Helper()
	f := c.acquire(t, d)
	defer f.Release()
	return f.Put(c.block(small, 0))
}
