package disk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shardwell/shardwell/cache/evict"
	"github.com/shardwell/shardwell/internal/chunk"
)

// walk counts what is on the disk, prefix by prefix, and offers every object to
// sel if that is not nil. It sweeps up what a kill left half made. Memory is
// bounded by the objects of one prefix. A prefix that cannot be read keeps its old
// figure; an object that cannot be looked at counts nothing. Neither stops the walk.
func (d *Dir) walk(ctx context.Context, sel *evict.Selection) error {
	d.walks.Lock()
	defer d.walks.Unlock()
	d.stats.Walks.Add(1)
	var failed error
	for p := range prefixes {
		if err := d.walkPrefix(ctx, p, sel); err != nil {
			failed = err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	if failed == nil {
		d.ledger.allCounted()
	}
	return failed
}

func (d *Dir) walkPrefix(ctx context.Context, p int, sel *evict.Selection) error {
	d.ledger.beginCount(p)
	seen := make(map[chunk.ObjectID]int64)
	err := d.eachName(ctx, p, func(dir FSFile, name string) error {
		id, kind, ok := parseName(name)
		switch {
		case !ok || int(id[0]) != p:
			return nil // not ours: counted by nobody, removed by nobody
		case kind == metaSuffix:
			if err := d.visit(id, seen, sel); err != nil {
				d.log.Warn("count cached object", "object", id, "err", err)
			}
		default:
			if err := d.sweep(dir, id); err != nil {
				d.log.Warn("sweep up half-made object", "object", id, "err", err)
			}
		}
		return nil
	})
	if err != nil {
		seen = nil // keep the old figure
	}
	d.ledger.endCount(seen)
	return err
}

// visit counts one object and offers it for eviction.
func (d *Dir) visit(id chunk.ObjectID, seen map[chunk.ObjectID]int64, sel *evict.Selection) error {
	c := evict.Candidate{ID: id, Class: evict.Copy}
	mode, err := d.measure(&c)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	seen[id] = c.Bytes
	if mode == modeOwned {
		c.Class = evict.Owned
	}
	if sel != nil {
		sel.Offer(c)
	}
	return nil
}

// measure finds out what an object takes and when it was used. Of an object that is
// open it takes what the ledger was told last: later changes are booked as differences
// from that, whatever a write that is under way has allocated already.
func (d *Dir) measure(c *evict.Candidate) (mode fs.FileMode, err error) {
	for {
		// First the disk, then the handle: whoever wrote and closed in between has
		// told the ledger, which remembers it until the count of the prefix ends.
		meta, err := d.fs.Stat(d.metaPath(c.ID))
		if err != nil {
			return 0, err
		}
		data, err := d.fs.Stat(d.dataPath(c.ID))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return 0, err
		}
		c.Bytes, c.LastUse = meta.Used+data.Used, meta.ModTime
		d.mu.Lock()
		f := d.open[c.ID]
		if f != nil {
			c.InUse = f.refs > 0
			c.LastUse = max(c.LastUse, f.lastUse.Load())
		}
		d.mu.Unlock()
		if f == nil {
			return meta.Mode, nil
		}
		if f.measure(c) {
			return meta.Mode, nil
		}
	}
}

// measure sets what the ledger was told of an open object. It reports false when the
// handle went out of use, or has nothing on the disk: then the disk is asked again.
func (f *File) measure(c *evict.Candidate) bool {
	f.mu.Lock() // waits for whoever loads, makes or removes it
	defer f.mu.Unlock()
	f.d.mu.Lock()
	current := f.d.open[f.id] == f
	f.d.mu.Unlock()
	if !current {
		return false
	}
	b := f.body.Load()
	if b == nil {
		// Not loaded yet, or gone. Nobody can change that while mu is held.
		used, modTime := f.d.usedBy(f.id)
		c.Bytes = used
		return modTime != 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	c.Bytes = b.used
	return true
}

// sweep removes a data file without a sidecar, or a sidecar that was not renamed,
// unless somebody is just making it.
func (d *Dir) sweep(dir FSFile, id chunk.ObjectID) error {
	_, err := dir.StatAt(id.String() + metaSuffix)
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, ok := d.claim(id)
	if !ok {
		return nil
	}
	defer f.unclaim()
	if _, err := dir.StatAt(id.String() + metaSuffix); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, name := range [...]string{d.metaPath(id) + tempSuffix, d.dataPath(id)} {
		if err := d.fs.Remove(name); err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	return nil
}

// claim takes an object that nobody uses away from everybody: whoever acquires
// it now waits for unclaim and looks at the disk afresh. No file of it is open.
func (d *Dir) claim(id chunk.ObjectID) (*File, bool) {
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return nil, false
	}
	old := d.open[id]
	if old != nil {
		if old.refs > 0 {
			d.mu.Unlock()
			return nil, false
		}
		d.idle.remove(old)
	}
	f := &File{d: d, id: id, refs: 1}
	f.mu.Lock()
	d.open[id] = f
	d.mu.Unlock()
	if old != nil {
		f.lastUse.Store(old.lastUse.Load())
		old.closeFiles()
	}
	return f, true
}

func (f *File) unclaim() {
	f.mu.Unlock()
	f.Release()
}

// eachName calls visit for every name in a prefix's folder.
func (d *Dir) eachName(ctx context.Context, p int, visit func(dir FSFile, name string) error) error {
	dir, err := d.fs.OpenFile(d.path(objectsName, fmt.Sprintf("%02x", p)), os.O_RDONLY|unix.O_DIRECTORY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	for {
		names, err := dir.Names(walkNames)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		for _, name := range names {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := visit(dir, name); err != nil {
				return err
			}
		}
	}
}

// parseName takes the name of a file below objects/ apart.
func parseName(name string) (id chunk.ObjectID, kind string, ok bool) {
	i := strings.IndexByte(name, '.')
	if i < 0 {
		return id, "", false
	}
	switch kind = name[i:]; kind {
	case dataSuffix, metaSuffix, metaSuffix + tempSuffix:
	default:
		return id, "", false
	}
	id, err := chunk.ParseObjectID(name[:i])
	return id, kind, err == nil && id.String() == name[:i]
}

// relieve evicts until the pressure is gone or nothing is left that may go. Only
// Run calls it.
func (d *Dir) relieve(ctx context.Context) {
	bytes, files := d.ledger.pressure()
	for (bytes > 0 || files > 0) && ctx.Err() == nil {
		if len(d.victims) == 0 && !d.findVictims(ctx) {
			return
		}
		c := d.victims[0]
		d.victims = d.victims[1:]
		freed, err := d.evict(c)
		switch {
		case err != nil:
			d.log.Error("evict", "object", c.ID, "err", err)
		case freed >= 0:
			d.walkAfter = time.Time{}
			bytes -= freed
			files -= 2
		}
	}
}

// findVictims fills d.victims by a walk. While walks find nothing that can go, they
// rest most of the time.
func (d *Dir) findVictims(ctx context.Context) bool {
	start := time.Now()
	if start.Before(d.walkAfter) {
		return false
	}
	sel := evict.NewSelection(maxSpareVictims)
	if err := d.walk(ctx, sel); err != nil && ctx.Err() == nil {
		d.log.Error("look for something to evict", "err", err)
	}
	d.victims = sel.Victims()
	d.walkAfter = time.Now().Add(max(minWalkRest, walkRestMultiple*time.Since(start)))
	return len(d.victims) > 0
}

// evict unlinks one object, whole. It returns what that freed, or -1 when the object
// is in use, was used since it was chosen, or is gone.
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
	if err := d.removeFiles(c.ID, false); err != nil {
		return -1, err
	}
	d.stats.EvictedObjects.Add(1)
	d.stats.EvictedBytes.Add(used)
	d.log.Debug("evicted", "object", c.ID, "bytes", used)
	return used, nil
}
