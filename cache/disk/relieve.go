package disk

import (
	"context"
	"math"
	"time"

	"github.com/shardwell/shardwell/cache/evict"
	"github.com/shardwell/shardwell/internal/chunk"
)

// comes notes that a block of a class wants room, which decides what may go for it.
func (d *Dir) comes(class evict.Class) {
	for {
		old := d.coming.Load()
		if uint32(class) <= old || d.coming.CompareAndSwap(old, uint32(class)) {
			return
		}
	}
}

// offer considers an object for eviction: the copies in it, and what this node owns of it.
func (d *Dir) offer(m measured, sel *selections) {
	c := m.Candidate
	if m.use.copies > 0 {
		c.Class, c.Bytes = evict.Copy, m.use.copies
		sel[ofCopies].Offer(c)
	}
	if m.use.copies == m.use.used && (m.mode == modeCopy || m.mode == modeGuest) {
		return
	}
	c.Class, c.Bytes = evict.Idle, m.use.used
	if p := d.cfg.Policy; p != nil && !c.InUse {
		obj, err := d.identity(c.ID)
		if err != nil {
			return // gone or damaged: load deals with it
		}
		c.Class, c.Rank = p.Judge(obj, c.ID)
		if c.Class > evict.Stale && m.use.copies == 0 && !d.ownsAny(obj, c.ID) {
			c.Class = evict.Copy // not any more
		}
	}
	if c.Class < evict.Protected || evict.Displaces(d.walkedFor, c.Class) {
		sel[kindOf(c.Class)].Offer(c)
	}
}

// ownsAny reports whether this node owns any chunk of an object.
func (d *Dir) ownsAny(obj chunk.Object, id chunk.ObjectID) bool {
	perChunk := d.cfg.Geometry.BlocksPerChunk()
	for first := uint32(0); first < d.cfg.Geometry.Blocks(obj.Size); first += perChunk {
		if d.cfg.Policy.Owns(obj, id, first) {
			return true
		}
	}
	return false
}

// victims are what goes next of one kind. Of Run alone.
type victims struct {
	list      []evict.Candidate
	walkAfter time.Time // no walk for more before
}

// The kinds of victims.
const (
	ofCopies = iota // what other nodes own as well
	ofOwned
	kinds
)

func kindOf(c evict.Class) int {
	if c <= evict.Copy {
		return ofCopies
	}
	return ofOwned
}

// selections are where a walk puts what may go, by kind.
type selections [kinds]*evict.Selection

// relieve evicts until the pressure is gone or nothing is left that may go. Only
// Run calls it.
func (d *Dir) relieve(ctx context.Context) {
	need := d.ledger.pressure()
	if !need.any() {
		return
	}
	if !d.judged.Swap(true) {
		d.victims = [kinds]victims{}
	}
	coming := max(evict.Idle, evict.Class(d.coming.Swap(0)))
	if coming > d.walkedFor {
		d.victims[ofOwned] = victims{} // more may go than the last walk looked for
	}
	for kind := range kinds {
		for need.wants(kind) && ctx.Err() == nil {
			v := &d.victims[kind]
			if len(v.list) == 0 && !d.findVictims(ctx, kind, coming) {
				break
			}
			c := v.list[0]
			v.list = v.list[1:]
			if !mayGo(c.Class, coming, need) {
				continue
			}
			freed, err := d.evict(c)
			switch {
			case err != nil:
				d.log.Error("evict", "object", c.ID, "err", err)
			case freed >= 0:
				v.walkAfter = time.Time{}
				need = need.less(kind, freed, 2)
			}
		}
	}
}

// mayGo reports whether something is worth less than what comes. Space that the
// file system lacks is taken from anything but what is protected.
func mayGo(there, coming evict.Class, need demand) bool {
	if there < evict.Protected && (need.bytes > 0 || need.files > 0) {
		return true
	}
	return there <= evict.Copy || evict.Displaces(coming, there)
}

// findVictims looks by a walk for what may go, and reports whether there is some of a
// kind. While walks find nothing of it, they rest most of the time.
func (d *Dir) findVictims(ctx context.Context, kind int, coming evict.Class) bool {
	start := time.Now()
	if start.Before(d.victims[kind].walkAfter) {
		return false
	}
	var sel selections
	for i := range sel {
		sel[i] = evict.NewSelection(maxSpareVictims)
	}
	d.walkedFor = coming
	if err := d.walk(ctx, &sel); err != nil && ctx.Err() == nil {
		d.log.Error("look for something to evict", "err", err)
	}
	for i := range sel {
		d.victims[i].list = sel[i].Victims()
	}
	d.victims[kind].walkAfter = time.Now().Add(max(minWalkRest, walkRestMultiple*time.Since(start)))
	return len(d.victims[kind].list) > 0
}

// evict drops one object, whole, or of one of which a part is owned the copies. It
// returns what that freed, or -1 when the object is in use, was used since it was
// chosen, or is gone.
func (d *Dir) evict(c evict.Candidate) (int64, error) {
	f, ok := d.claim(c.ID)
	if !ok {
		return -1, nil
	}
	defer f.unclaim()
	if f.lastUse.Load() > c.LastUse {
		return -1, nil
	}
	used, modTime := d.usedBy(c.ID)
	if modTime == 0 || modTime > c.LastUse {
		return -1, nil
	}
	if meta, err := d.fs.Stat(d.metaPath(c.ID)); err == nil && meta.Mode == modeMixed && c.Class == evict.Copy {
		if err := f.evictCopies(); err != nil {
			return -1, err
		}
		left, _ := d.usedBy(c.ID)
		d.stats.EvictedBytes.Add(used - left)
		return used - left, nil
	}
	if err := d.removeFiles(c.ID, false); err != nil {
		return -1, err
	}
	d.stats.EvictedObjects.Add(1)
	d.stats.EvictedBytes.Add(used)
	d.log.Debug("evicted", "object", c.ID, "bytes", used)
	return used, nil
}

// maxDrops bounds the objects that wait to be dropped; more are left to eviction.
const maxDrops = 64 << 10

// Drop removes an object when nobody uses it any more, soon after.
func (d *Dir) Drop(id chunk.ObjectID) {
	d.mu.Lock()
	if d.drops == nil {
		d.drops = make(map[chunk.ObjectID]struct{})
	}
	if len(d.drops) < maxDrops {
		d.drops[id] = struct{}{}
	}
	d.mu.Unlock()
	d.wake()
}

// dropUnused removes what is to be dropped and not in use. Only Run calls it.
func (d *Dir) dropUnused(ctx context.Context) {
	d.mu.Lock()
	var ids []chunk.ObjectID
	for id := range d.drops {
		if f := d.open[id]; f == nil || f.refs == 0 {
			ids = append(ids, id)
		}
	}
	d.mu.Unlock()
	for _, id := range ids {
		if ctx.Err() != nil {
			return
		}
		freed, err := d.evict(evict.Candidate{ID: id, Class: evict.Stale, LastUse: math.MaxInt64})
		if err != nil {
			d.log.Warn("drop an object", "object", id, "err", err)
		}
		d.mu.Lock()
		if f := d.open[id]; freed >= 0 || err != nil || f == nil || f.refs == 0 {
			delete(d.drops, id)
		}
		d.mu.Unlock()
	}
}
