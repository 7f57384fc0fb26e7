package disk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/shardwell/shardwell/cache/evict"
	"github.com/shardwell/shardwell/internal/chunk"
)

// walk counts what is on the disk, prefix by prefix, and offers every object to
// sel if that is not nil. It sweeps up what a kill left half made. Memory is
// bounded by the objects of one prefix. A prefix that cannot be read keeps its old
// figure, or gets an estimate when it has none; an object that cannot be looked at counts
// nothing. Neither stops the walk. An error means that nothing is known by it.
func (d *Dir) walk(ctx context.Context, sel *selections) error {
	d.walks.Lock()
	defer d.walks.Unlock()
	d.stats.Walks.Add(1)
	var unread []int
	err := d.eachPrefix(ctx, func(p int) error {
		err := d.walkPrefix(ctx, p, sel)
		if err != nil {
			unread = append(unread, p)
		}
		return err
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if len(unread) > 0 {
		d.noteFailure()
	}
	if len(unread) > prefixes/2 {
		return fmt.Errorf("%d folders cannot be read: %w", len(unread), err)
	}
	if err != nil {
		d.log.Warn("some folders of the cache cannot be read", "folders", len(unread), "err", err)
	}
	d.ledger.allCounted(unread)
	return nil
}

// eachPrefix calls visit for every prefix, whatever it returns, until ctx ends. It
// returns ctx's error, or the first of visit.
func (d *Dir) eachPrefix(ctx context.Context, visit func(p int) error) (first error) {
	for p := range prefixes {
		if err := visit(p); err != nil && first == nil {
			first = err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return first
}

func (d *Dir) walkPrefix(ctx context.Context, p int, sel *selections) error {
	d.ledger.beginCount(p)
	seen := make(map[chunk.ObjectID]use)
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
func (d *Dir) visit(id chunk.ObjectID, seen map[chunk.ObjectID]use, sel *selections) error {
	m := measured{Candidate: evict.Candidate{ID: id}}
	err := d.measure(&m)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	seen[id] = m.use
	if sel != nil {
		d.offer(m, sel)
	}
	return nil
}

// measured is what a walk found out about one object.
type measured struct {
	evict.Candidate
	use  use
	mode fs.FileMode
}

// measure finds out what an object takes and when it was used. Of an object that is
// open it takes what the ledger was told last: later changes are booked as differences
// from that, whatever a write that is under way has allocated already.
func (d *Dir) measure(m *measured) error {
	for {
		// First the disk, then the handle: whoever wrote and closed in between has
		// told the ledger, which remembers it until the count of the prefix ends.
		meta, err := d.fs.Stat(d.metaPath(m.ID))
		if err != nil {
			return err
		}
		data, err := d.fs.Stat(d.dataPath(m.ID))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		m.LastUse, m.mode = meta.ModTime, meta.Mode
		d.mu.Lock()
		f := d.open[m.ID]
		if f != nil {
			m.InUse = f.refs > 0
			if used := f.lastUse.Load(); f.spent.Load() || used > m.LastUse {
				m.LastUse = used
			}
		}
		d.mu.Unlock()
		if f == nil {
			m.use, err = d.useFromDisk(m.ID, meta, data)
			return err
		}
		if f.measure(m) {
			return nil
		}
	}
}

// measure sets what the ledger was told of an open object. It reports false when the
// handle went out of use, or has nothing on the disk: then the disk is asked again.
func (f *File) measure(m *measured) bool {
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
		meta, err := f.d.fs.Stat(f.d.metaPath(f.id))
		if err != nil {
			return false
		}
		data, _ := f.d.fs.Stat(f.d.dataPath(f.id))
		m.use, err = f.d.useFromDisk(f.id, meta, data)
		return err == nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	m.use = b.use
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
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil // there is none yet; what has its name is none of ours
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
