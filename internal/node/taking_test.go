package node

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/objstore"
)

// TestTakingIsBounded has many hand on to one member at once: what it takes from all of them together keeps to the rate.
func TestTakingIsBounded(t *testing.T) {
	t.Parallel()
	const size, givers, rate = 1 << 20, 6, 2 << 20
	files := make(map[string][]byte)
	for i := range givers {
		files[fmt.Sprint(i)] = randomBytes(size, uint64(i))
	}
	o := newOrigin(t, files)
	cfg := testConfig(t, o.URL())
	cfg.MoveRate = rate
	n := start(t, cfg)
	var objs []chunk.Object
	for key := range files {
		info, _, err := n.names.Head(t.Context(), objstore.Query{Bucket: objstore.Bucket{Origin: o.URL(), Name: "data"}, MaxAge: time.Hour}, key)
		if err != nil {
			t.Fatal(err)
		}
		obj := objectOf(o.URL(), key)
		obj.ETag, obj.Size = info.ETag, size
		objs = append(objs, obj)
	}
	began := time.Now()
	var wg sync.WaitGroup
	for _, obj := range objs {
		wg.Go(func() {
			if taken, err := (keeper{n.Node}).Take(t.Context(), obj, []uint32{0}); err != nil || len(taken) != 1 {
				t.Errorf("%d chunks taken, %v", len(taken), err)
			}
		})
	}
	wg.Wait()
	if took, least := time.Since(began), time.Duration(givers-1)*time.Second*size/rate; took < least {
		t.Errorf("%d chunks were taken within %v, at the rate it takes %v", givers, took, least)
	}
	if taken, err := (keeper{n.Node}).Take(t.Context(), objs[0], []uint32{0}); err != nil || len(taken) != 1 {
		t.Errorf("taken again: %d, %v", len(taken), err)
	}
}
