package evict

import (
	"errors"
	"testing"

	"github.com/shardwell/shardwell/internal/chunk"
)

func object(bucket, key string) chunk.Object {
	return chunk.Object{Origin: "https://o", Bucket: bucket, Key: key, Size: 1}
}

func dataset(bucket, prefix string) Dataset { return Dataset{"https://o", bucket, prefix} }

func TestJudge(t *testing.T) {
	const now = 100
	table := NewTable([]Use{
		{Dataset: dataset("b", "train/"), UsedUntil: 200},
		{Dataset: dataset("b", "val/"), UsedUntil: 200, Policy: LRU},
		{Dataset: dataset("b", "tmp/"), UsedUntil: 200, Policy: None},
		{Dataset: dataset("b", "tmp/kept/"), UsedUntil: 200},
		{Dataset: dataset("b", "old/"), UsedUntil: 50},
		{Dataset: dataset("b", "older/"), UsedUntil: 40, Policy: LRU},
		{Dataset: dataset("b", "model/"), PinnedUntil: 101},
		{Dataset: dataset("b", "val/model/"), PinnedUntil: 99},
	})
	for _, tt := range []struct {
		bucket, key string
		class       Class
		rank        int64
	}{
		{"b", "train/1", Protected, 0},
		{"c", "train/1", Idle, 0},
		{"b", "training/1", Idle, 0},
		{"b", "val/1", Recent, 0},
		{"b", "val/model/1", Recent, 0},
		{"b", "tmp/1", Unkept, 0},
		{"b", "tmp/kept/1", Protected, 0},
		{"b", "old/1", Idle, 50},
		{"b", "older/1", Idle, 40},
		{"b", "model/1", Pinned, 0},
		{"b", "else", Idle, 0},
	} {
		if class, rank := table.Judge(object(tt.bucket, tt.key), now); class != tt.class || rank != tt.rank {
			t.Errorf("%s/%s: %v %d, want %v %d", tt.bucket, tt.key, class, rank, tt.class, tt.rank)
		}
	}
	if class, _ := (*Table)(nil).Judge(object("b", "k"), now); class != Idle {
		t.Errorf("without a table: %v", class)
	}
}

func TestDisplaces(t *testing.T) {
	all := []Class{Unkept, Stale, Copy, Idle, Recent, Protected, Pinned}
	for i, comes := range all {
		for j, there := range all {
			want := i > j || i == j && comes < Protected
			if comes == Unkept {
				want = false
			}
			if got := Displaces(comes, there); got != want {
				t.Errorf("%v displaces %v: %v", comes, there, got)
			}
		}
	}
}

// TestPin refuses with the figure what does not fit beside other pins.
func TestPin(t *testing.T) {
	var table *Table
	table, err := table.Pin(dataset("b", "a/"), 60, 100, 50, 10)
	if err != nil {
		t.Fatal(err)
	}
	_, err = table.Pin(dataset("b", "b/"), 41, 100, 50, 10)
	var refused *PinError
	if !errors.As(err, &refused) || refused.FreeBytes != 40 || refused.NeedBytes != 41 {
		t.Fatalf("second pin: %v", err)
	}
	if _, err := table.Pin(dataset("b", "b/"), 40, 100, 50, 10); err != nil {
		t.Error(err)
	}
	if _, err := table.Pin(dataset("b", "a/"), 100, 100, 50, 10); err != nil {
		t.Error("a pin in place of itself:", err)
	}
	if _, err := table.Pin(dataset("b", "b/"), 100, 100, 90, 50); err != nil {
		t.Error("after the first has expired:", err)
	}
	table, err = table.Pin(dataset("b", "a/"), 60, 100, 0, 10)
	if err != nil {
		t.Fatal(err)
	}
	if class, _ := table.Judge(object("b", "a/1"), 10); class != Idle {
		t.Errorf("after the pin was taken back: %v", class)
	}
}

func TestQuota(t *testing.T) {
	table := NewTable([]Use{{Dataset: dataset("b", ""), QuotaBytes: 100}, {Dataset: dataset("b", "a/"), QuotaBytes: 10}, {Dataset: dataset("b", "a/b/")}})
	for key, want := range map[string]int64{"x": 100, "a/x": 10, "a/b/x": 10} {
		if u, ok := table.Quota(object("b", key)); !ok || u.QuotaBytes != want {
			t.Errorf("%s: %d, %v", key, u.QuotaBytes, ok)
		}
	}
	if _, ok := table.Quota(object("c", "x")); ok {
		t.Error("a quota without one")
	}
}

func TestPolicyNames(t *testing.T) {
	for _, p := range []Policy{Epoch, LRU, None} {
		if got, err := ParsePolicy(p.String()); err != nil || got != p {
			t.Errorf("%v: %v, %v", p, got, err)
		}
	}
	if _, err := ParsePolicy("mru"); err == nil {
		t.Error("mru is a policy")
	}
}
