package cache

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
)

// Without room on the disk, what is fetched ahead of the readers must stay in
// memory until they come, or the origin is asked for it twice.
func TestFetchingAheadWithoutADiskAsksTheOriginOnce(t *testing.T) {
	for _, buffers := range []int{2, 4, 16, 64} {
		for _, readers := range []int{1, 4} {
			t.Run(fmt.Sprintf("%d buffers, %d readers", buffers, readers), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					r := newRig(t, buffers, nil)
					defer r.shut(t)
					r.tier.full = true
					var wg sync.WaitGroup
					var total int64
					for i := range readers {
						obj, data := r.put(fmt.Sprint(i), 6*512<<10-1000*i)
						total += obj.Size
						wg.Go(func() {
							f := r.open(t, obj)
							defer f.Close()
							const step = 2 * block
							for off := 0; off < len(data); off += step {
								wantRead(t, f, data, off, min(step, len(data)-off))
								f.Prefetch(int64(off+step), 512<<10)
							}
						})
					}
					wg.Wait()
					if got := r.origin.Bytes(); got != total {
						t.Errorf("origin bytes: got %d, want %d", got, total)
					}
				})
			})
		}
	}
}
