package disk

import (
	"testing"
	"time"

	"github.com/shardwell/shardwell/cache/evict"
)

// TestSpentCopiesGoFirst: a copy that was read to its end goes before one that is still to be read,
// though that one is older; what is owned is not touched by it, and a later use takes it back.
func TestSpentCopiesGoFirst(t *testing.T) {
	for _, closed := range []bool{false, true} {
		cfg := testConfig(t.TempDir())
		cfg.Policy = &testPolicy{classes: map[string]evict.Class{}}
		d := openDir(t, cfg)
		old := time.Now().Add(-time.Hour).UnixNano()
		unread, read, again, own := newContent("1/copy", 4*testBlock), newContent("2/copy", 4*testBlock), newContent("3/copy", 4*testBlock), newContent("own", 4*testBlock)
		for _, c := range []content{unread, read, again, own} {
			c.store(t, d)
			f := c.acquire(t, d)
			if c.id != unread.id {
				f.ReleaseSpent()
				continue
			}
			f.lastUse.Store(old)
			f.release(old)
		}
		f := again.acquire(t, d)
		f.Release()
		if closed { // by the times on the disk
			if err := d.Close(); err != nil {
				t.Fatal(err)
			}
			d = openDir(t, cfg)
		}
		if !d.findVictims(t.Context(), ofCopies, evict.Idle) {
			t.Fatal("nothing may go")
		}
		list := d.victims[ofCopies].list
		if len(list) != 3 || list[0].ID != read.id || list[1].ID != unread.id || list[2].ID != again.id {
			t.Errorf("closed %v: %d may go, in another order: %+v", closed, len(list), list)
		}
		if freed, err := d.evict(list[0]); err != nil || freed <= 0 {
			t.Errorf("closed %v: evict: %d, %v", closed, freed, err)
		}
		if own := ownVictims(t, d); len(own) != 1 || time.Since(time.Unix(0, own[0].LastUse)) > time.Minute {
			t.Errorf("closed %v: what is owned counts as used at %+v", closed, own)
		}
	}
}

func ownVictims(t *testing.T, d *Dir) []evict.Candidate {
	t.Helper()
	d.findVictims(t.Context(), ofOwned, evict.Pinned)
	return d.victims[ofOwned].list
}
