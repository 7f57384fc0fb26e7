package disk

import (
	"context"
	"errors"
	"time"

	"github.com/shardwell/shardwell/cache/evict"
	"github.com/shardwell/shardwell/internal/chunk"
)

// A dataset that is kept by recency and has used up its quota makes room within itself: what comes
// displaces what of it was used least recently. One that is kept by epochs does not: there what comes
// is worth no more than what is there.

// Bounds of that.
const (
	maxFullDatasets = 64 // that wait for room; others are told no until it is their turn
	quotaSlackShare = 16 // of what a dataset takes: so much is given up at once
)

var errInUse = errors.New("all that may go is in use")

// wantWithin notes that a dataset has used up its quota and wants n bytes, if it makes room within itself.
func (d *Dir) wantWithin(obj chunk.Object, n int64) {
	ds, ok := d.cfg.Policy.Rotates(obj)
	if !ok {
		return
	}
	d.mu.Lock()
	if d.full == nil {
		d.full = make(map[evict.Dataset]int64)
	}
	if _, there := d.full[ds]; there || len(d.full) < maxFullDatasets {
		d.full[ds] += n
	}
	d.mu.Unlock()
	d.wake()
}

// relieveQuotas makes room within the datasets that want it. While its walks find nothing they rest most
// of the time. Only Run calls it.
func (d *Dir) relieveQuotas(ctx context.Context) {
	start := time.Now()
	if start.Before(d.quotaWalkAfter) {
		return
	}
	d.mu.Lock()
	full := d.full
	d.full = nil
	d.mu.Unlock()
	freed := int64(0)
	for ds, want := range full {
		n, err := d.relieveQuota(ctx, ds, want)
		if freed += n; err != nil && !errors.Is(err, errInUse) && ctx.Err() == nil {
			d.log.Error("look for something to evict", "bucket", ds.Bucket, "prefix", ds.Prefix, "err", err)
		}
		if errors.Is(err, errInUse) { // nobody may ask again: so it is tried again
			d.mu.Lock()
			if d.full == nil {
				d.full = make(map[evict.Dataset]int64)
			}
			d.full[ds] += want
			d.mu.Unlock()
		}
	}
	if len(full) > 0 && freed == 0 {
		d.quotaWalkAfter = time.Now().Add(walkRestMultiple * time.Since(start))
	}
}

// relieveQuota evicts the least recently used objects of a dataset until it takes so many bytes less, and
// returns how many; errInUse says that there are some that could not go now.
func (d *Dir) relieveQuota(ctx context.Context, ds evict.Dataset, want int64) (done int64, _ error) {
	sel, taken := evict.NewSelection(maxSpareVictims), int64(0)
	err := d.Each(ctx, func(e Entry) error {
		if !e.Owned || !ds.Covers(e.Object) {
			return nil
		}
		bytes := min(int64(e.Present)*d.cfg.Geometry.BlockBytes, e.Object.Size)
		taken += bytes
		if class, _ := d.cfg.Policy.Judge(e.Object, e.ID); class <= evict.Recent {
			sel.Offer(evict.Candidate{ID: e.ID, Class: class, LastUse: max(e.LastUse, d.lastUseOf(e.ID)), Bytes: bytes})
		}
		return nil
	})
	if ctx.Err() != nil {
		return 0, err
	}
	if err != nil { // what was seen may go all the same
		d.log.Debug("look for something to evict", "bucket", ds.Bucket, "prefix", ds.Prefix, "err", err)
	}
	want = max(want, taken/quotaSlackShare)
	victims := sel.Victims()
	for _, victim := range victims {
		if done >= want || ctx.Err() != nil {
			break
		}
		switch freed, err := d.evict(victim); {
		case err != nil:
			d.log.Error("evict", "object", victim.ID, "err", err)
		case freed >= 0:
			d.cfg.Policy.Freed(ds, victim.Bytes)
			done += victim.Bytes
		}
	}
	if done == 0 && len(victims) > 0 {
		return 0, errInUse
	}
	return done, nil
}

// lastUseOf returns when an object that is open was used last, 0 for one that is not.
func (d *Dir) lastUseOf(id chunk.ObjectID) int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	if f := d.open[id]; f != nil {
		return f.lastUse.Load()
	}
	return 0
}
