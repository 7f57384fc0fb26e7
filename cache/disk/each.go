package disk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

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
// ctx. What the disk does not give is passed over, and is an error at the end. Objects that come or
// go meanwhile may be seen or not.
func (d *Dir) Each(ctx context.Context, visit func(Entry) error) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var unread error
	err := d.eachObject(ctx, func(id chunk.ObjectID) error {
		e, err := d.entry(id)
		if errno := syscall.Errno(0); errors.Is(err, ErrHung) || errors.As(err, &errno) && errno != unix.ENOENT && !isNoFile(err) {
			unread = err
		}
		if err != nil {
			return ctx.Err() // else it is gone or damaged: load deals with it
		}
		if err := visit(e); err != nil {
			stop(err)
		}
		return ctx.Err()
	})
	switch {
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case err == nil:
		err = unread
	}
	if err != nil {
		return fmt.Errorf("list cache directory %s: %w", d.cfg.Path, err)
	}
	return nil
}

// eachObject calls visit for each sidecar, folder by folder, until ctx ends. Folders in which that fails are
// left, and the first such error is returned at the end.
func (d *Dir) eachObject(ctx context.Context, visit func(chunk.ObjectID) error) error {
	return d.eachPrefix(ctx, func(p int) error {
		return d.eachName(ctx, p, func(_ FSFile, name string) error {
			if id, kind, ok := parseName(name); ok && kind == metaSuffix {
				return visit(id)
			}
			return nil
		})
	})
}

// entry reads the sidecar of one object.
func (d *Dir) entry(id chunk.ObjectID) (Entry, error) {
	obj, b, err := d.peek(id)
	if err != nil {
		return Entry{}, err
	}
	used, modTime := d.usedBy(id)
	return Entry{ID: id, Object: obj, Present: b.present.Load(), Total: b.blocks, Bytes: used,
		Owned: b.mode == modeOwned || b.mode == modeMixed, LastUse: modTime}, nil
}

// peek reads the sidecar of an object beside whoever has it open. The body has no files.
func (d *Dir) peek(id chunk.ObjectID) (chunk.Object, *body, error) {
	meta, err := d.fs.OpenFile(d.metaPath(id), os.O_RDONLY, 0)
	if err != nil {
		return chunk.Object{}, nil, err
	}
	defer meta.Close()
	obj, l, mode, err := d.header(meta)
	if err != nil {
		return chunk.Object{}, nil, err
	}
	b := newBody(nil, meta, 0, l, d.cfg.Geometry.Blocks(obj.Size))
	b.mode = mode
	err = b.readBits()
	b.meta = nil
	return obj, b, err
}

// header reads which object a sidecar belongs to.
func (d *Dir) header(meta FSFile) (chunk.Object, layout, fs.FileMode, error) {
	st, err := meta.Stat()
	if err != nil {
		return chunk.Object{}, layout{}, 0, err
	}
	head := make([]byte, min(maxHeaderBytes, max(0, st.Size)))
	if _, err := meta.ReadAt(head, 0); err != nil && err != io.EOF {
		return chunk.Object{}, layout{}, 0, err
	}
	obj, l, _, err := parseHeader(head, d.cfg.Geometry)
	if err == nil && st.Size != l.end {
		err = errSidecar
	}
	return obj, l, st.Mode, err
}

// identity returns which object an id belongs to, by its sidecar.
func (d *Dir) identity(id chunk.ObjectID) (chunk.Object, error) {
	meta, err := d.fs.OpenFile(d.metaPath(id), os.O_RDONLY, 0)
	if err != nil {
		return chunk.Object{}, err
	}
	defer meta.Close()
	obj, _, _, err := d.header(meta)
	return obj, err
}
