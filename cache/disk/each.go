package disk

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/shardwell/shardwell/internal/chunk"
)

// Entry describes one object on the disk.
type Entry struct {
	ID      chunk.ObjectID
	Object  chunk.Object
	Present uint32 // blocks that are on the disk
	Total   uint32 // blocks that the object has
	Bytes   int64  // that its files really take
	Owned   bool
	LastUse int64 // nanoseconds since 1970, as the disk has it
}

// Each calls visit for every object on the disk, in no order, reading sidecars as
// it goes; what is damaged is left out. It ends with the first error of visit or of
// ctx. Objects that come or go meanwhile may be seen or not.
func (d *Dir) Each(ctx context.Context, visit func(Entry) error) error {
	for p := range prefixes {
		err := d.eachName(ctx, p, func(dir FSFile, name string) error {
			id, kind, ok := parseName(name)
			if !ok || kind != metaSuffix {
				return nil
			}
			e, err := d.entry(id)
			if err != nil {
				return nil // gone or damaged: load deals with it
			}
			return visit(e)
		})
		if err != nil {
			return fmt.Errorf("list cache directory %s: %w", d.cfg.Path, err)
		}
	}
	return nil
}

// entry reads the sidecar of one object.
func (d *Dir) entry(id chunk.ObjectID) (Entry, error) {
	meta, err := d.fs.OpenFile(d.metaPath(id), os.O_RDONLY, 0)
	if err != nil {
		return Entry{}, err
	}
	defer meta.Close()
	st, err := meta.Stat()
	if err != nil {
		return Entry{}, err
	}
	head := make([]byte, min(maxHeaderBytes, max(0, st.Size)))
	if _, err := meta.ReadAt(head, 0); err != nil && err != io.EOF {
		return Entry{}, err
	}
	obj, l, _, err := parseHeader(head, d.cfg.Geometry)
	if err == nil && st.Size != l.end {
		err = errSidecar
	}
	if err != nil {
		return Entry{}, err
	}
	b := newBody(nil, meta, 0, l, d.cfg.Geometry.Blocks(obj.Size))
	if err := b.readBits(); err != nil {
		return Entry{}, err
	}
	used, modTime := d.usedBy(id)
	return Entry{ID: id, Object: obj, Present: b.present.Load(), Total: b.blocks, Bytes: used,
		Owned: st.Mode == modeOwned, LastUse: modTime}, nil
}
