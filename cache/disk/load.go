package disk

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/bits"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shardwell/shardwell/internal/chunk"
)

// Modes of a sidecar. Its x bits tell a walk, which only stats, how much of the object this
// node owned when it last used it: nothing, all, or a part, which happens to objects
// that are placed chunk by chunk. A hint: it decides what goes first, nothing else.
const (
	modeCopy  fs.FileMode = 0o600
	modeOwned fs.FileMode = 0o700
	modeMixed fs.FileMode = 0o710
	modeGuest fs.FileMode = 0o601 // what is owned passes through as well, see [guests]
)

func modeOf(owned bool) fs.FileMode {
	if owned {
		return modeOwned
	}
	return modeCopy
}

// folder returns the folder of an object's files, relative to the directory.
func folder(id chunk.ObjectID) string { return objectsName + "/" + id.String()[:2] }

func (d *Dir) dataPath(id chunk.ObjectID) string {
	return d.path(folder(id), id.String()+dataSuffix)
}

func (d *Dir) metaPath(id chunk.ObjectID) string {
	return d.path(folder(id), id.String()+metaSuffix)
}

// load looks at the disk the first time, and notes the use. obj is nil when the
// caller wants only what exists.
func (f *File) load(obj *chunk.Object, owned bool) error {
	f.lastUse.Store(time.Now().UnixNano())
	return f.look(obj, owned)
}

// look is load that is no use.
func (f *File) look(obj *chunk.Object, owned bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.loaded {
		if f.d.isDoomed(f.id) {
			return errDoomed
		}
		if err := f.d.retryWithFewer(f.readFiles); err != nil {
			f.d.failed("open cached object", f.id, err)
			return err
		}
		f.loaded = true
	}
	b := f.body.Load()
	if obj == nil {
		if b == nil {
			return ErrNotPresent
		}
		return nil
	}
	if !f.known {
		f.obj, f.known = *obj, true
	}
	changed := f.owned.Swap(owned) != owned
	if b != nil && (changed || f.d.cfg.Policy != nil) {
		f.recount(b)
	}
	return nil
}

// errLost carries the kind of loss from where it is found to where it is counted.
type errLost struct {
	loss Loss
	err  error
}

func (e *errLost) Error() string { return e.err.Error() }
func (e *errLost) Unwrap() error { return e.err }

func lost(loss Loss, format string, args ...any) error {
	return &errLost{loss, fmt.Errorf(format, args...)}
}

// readFiles opens what is on the disk. What is damaged is removed, counted and
// logged, and then absent. Callers hold f.mu.
func (f *File) readFiles() error {
	meta, err := f.d.fs.OpenFile(f.d.metaPath(f.id), f.d.access, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR): // or not even a folder
		return nil
	case isNoFile(err):
		err = &errLost{LossSidecar, err}
	case err != nil:
		return err
	default:
		if err = f.readBody(meta); err == nil {
			return nil
		}
		meta.Close()
	}
	var l *errLost
	if !errors.As(err, &l) {
		return err
	}
	f.d.stats.Lost[l.loss].Add(1)
	f.d.log.Warn("drop damaged object from cache", "object", f.id, "reason", l.loss, "err", err)
	return f.d.removeFiles(f.id, true)
}

// isNoFile reports whether opening failed for what there is under the name: a symbolic link, a directory, a
// socket. Somebody else made it; it says nothing about the disk.
func isNoFile(err error) bool {
	return errors.Is(err, unix.ELOOP) || errors.Is(err, unix.EISDIR) || errors.Is(err, unix.ENXIO)
}

// readBody makes f.body from an open sidecar.
func (f *File) readBody(meta FSFile) error {
	d := f.d
	st, err := meta.Stat()
	if err != nil {
		return err
	}
	head := make([]byte, min(maxHeaderBytes, max(0, st.Size)))
	if _, err := meta.ReadAt(head, 0); err != nil && err != io.EOF {
		return err
	}
	obj, l, s, err := parseHeader(head, d.cfg.Geometry)
	switch {
	case errors.Is(err, errVersion):
		return &errLost{LossVersion, err}
	case errors.Is(err, errGeometry):
		return &errLost{LossGeometry, err}
	case err != nil:
		return &errLost{LossSidecar, err}
	case obj.ID() != f.id:
		return lost(LossIdentity, "sidecar belongs to object %v", obj.ID())
	case st.Size != l.end:
		return lost(LossTruncated, "sidecar has %d bytes, want %d", st.Size, l.end)
	}
	data, err := d.fs.OpenFile(d.dataPath(f.id), d.access, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return lost(LossNoData, "sidecar without data")
	case isNoFile(err):
		return &errLost{LossNoData, err}
	case err != nil:
		return err
	}
	dataStat, err := data.Stat()
	if err == nil && dataStat.Size != obj.Size {
		err = lost(LossTruncated, "data has %d bytes, want %d", dataStat.Size, obj.Size)
	}
	var b *body
	if err == nil {
		b = newBody(data, meta, dataStat.Inode, l, d.cfg.Geometry.Blocks(obj.Size))
		err = b.readBits()
	}
	if err != nil {
		data.Close()
		return err
	}
	b.judge(s, d.boot)
	f.obj, f.known = obj, true
	f.owned.Store(st.Mode != modeCopy)
	b.mode = st.Mode
	f.recallGuests(b, st.Mode)
	if b.copies = d.copiesIn(b, f.owns); st.Mode == modeCopy && d.cfg.Policy == nil {
		b.copies = b.present.Load()
	}
	b.use = b.useOf(st.Used+dataStat.Used, d.cfg.Geometry.BlockBytes)
	f.body.Store(b)
	return nil
}

func newBody(data, meta FSFile, inode uint64, l layout, blocks uint32) *body {
	return &body{data: data, meta: meta, inode: inode, l: l, blocks: blocks,
		bits: make([]atomic.Uint64, bitmapBytes(blocks)/8)}
}

// readBits loads the presence bits. A block counts as present only if it has a
// checksum other than 0 as well, so that a flipped bit alone does not make it so.
func (b *body) readBits() error {
	raw := make([]byte, bitmapBytes(b.blocks))
	if _, err := b.meta.ReadAt(raw, b.l.bits); err != nil {
		return err
	}
	var sums []byte
	const groupWords = 256 // 64 KiB of checksums at a time
	for i := range b.bits {
		if i%groupWords == 0 {
			n := min(groupWords*64, b.blocks-uint32(i)*64)
			if sums == nil {
				sums = make([]byte, 4*n)
			}
			sums = sums[:4*n]
			if _, err := b.meta.ReadAt(sums, b.l.sums+4*64*int64(i)); err != nil {
				return err
			}
		}
		word := binary.LittleEndian.Uint64(raw[8*i:])
		if rest := b.blocks - uint32(i)*64; rest < 64 {
			word &= 1<<rest - 1 // bits behind the last block mean nothing
		}
		for left := word; left != 0; left &= left - 1 {
			n := bits.TrailingZeros64(left)
			if binary.LittleEndian.Uint32(sums[4*(i%groupWords*64+n):]) == 0 {
				word &^= 1 << n
			}
		}
		b.bits[i].Store(word)
	}
	b.present.Store(countBits(b.bits))
	return nil
}

// judge decides whether the stamp vouches for the present blocks.
func (b *body) judge(s stamp, boot [16]byte) {
	trusted := s.boot == boot && s.inode == b.inode
	b.complete, b.whole = trusted && s.complete, s.whole
	if trusted && (b.complete || b.present.Load() < b.blocks) {
		return
	}
	b.verified = make([]atomic.Uint64, len(b.bits))
	b.unverified.Store(int64(b.present.Load()))
	b.complete = s.complete
}

// retryWithFewer calls open again after closing idle objects if the process, or the
// machine, has no descriptor left.
func (d *Dir) retryWithFewer(open func() error) error {
	err := open()
	if !errors.Is(err, unix.EMFILE) && !errors.Is(err, unix.ENFILE) {
		return err
	}
	d.trim(0, shedAtOnce)
	return open()
}

// create makes the files of an object that is not on the disk: the data, then the
// sidecar under another name, then its rename. A kill in between leaves a data
// file without a sidecar, which means nothing and is replaced or swept up.
func (f *File) create() (*body, error) {
	d := f.d
	if b := f.body.Load(); b != nil {
		return b, nil
	}
	data, err := d.createFile(d.dataPath(f.id), 0o600)
	if err != nil {
		return nil, err
	}
	temp := d.metaPath(f.id) + tempSuffix
	fail := func(err error) (*body, error) {
		data.Close()
		_ = d.fs.Remove(temp)
		_ = d.fs.Remove(d.dataPath(f.id))
		return nil, err
	}
	if err := data.Truncate(f.obj.Size); err != nil {
		return fail(err)
	}
	st, err := data.Stat()
	if err != nil {
		return fail(err)
	}
	meta, err := d.createFile(temp, modeOf(f.owned.Load()))
	if err != nil {
		return fail(err)
	}
	g := d.cfg.Geometry
	head := appendHeader(nil, f.obj, g, stamp{boot: d.boot, inode: st.Inode})
	l := layoutOf(len(f.obj.AppendBinary(nil)), g.Blocks(f.obj.Size))
	if _, err = meta.WriteAt(head, 0); err == nil {
		err = meta.Truncate(l.end)
	}
	if err == nil {
		err = d.fs.Rename(temp, d.metaPath(f.id))
	}
	if err != nil {
		meta.Close()
		return fail(err)
	}
	b := newBody(data, meta, st.Inode, l, g.Blocks(f.obj.Size))
	b.mode = modeOf(f.owned.Load())
	f.body.Store(b)
	return b, nil
}

// createFile makes an empty file, and its folder if need be. What a kill left under
// that name is unlinked, not truncated: the kernel may still show it to a reader.
func (d *Dir) createFile(name string, mode fs.FileMode) (FSFile, error) {
	const flags = os.O_RDWR | os.O_CREATE | os.O_EXCL
	file, err := d.fs.OpenFile(name, flags, mode)
	switch {
	case err == nil:
		return file, nil
	case errors.Is(err, fs.ErrExist):
		err = d.clearName(name)
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
		err = d.makeFolder(filepath.Dir(name))
	}
	if err != nil {
		return nil, err
	}
	return d.fs.OpenFile(name, flags, mode)
}

// makeFolder makes a folder, unless somebody else was faster. What is none but has its name is set aside.
func (d *Dir) makeFolder(name string) error {
	err := d.fs.Mkdir(name, 0o700)
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	dir, err := d.fs.OpenFile(name, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err == nil {
		return dir.Close()
	}
	if !errors.Is(err, unix.ENOTDIR) {
		return err
	}
	d.log.Warn("no folder of the cache: set aside", "name", name)
	if err := d.fs.Rename(name, d.path(quarantineName, filepath.Base(name))); err != nil {
		return err
	}
	return d.fs.Mkdir(name, 0o700)
}

// removeFiles unlinks an object: the sidecar first, so that a kill in between leaves
// nothing that looks like an object. With keep, the sidecar is set aside instead.
// The caller has f.mu of the object's File, or the only reference.
func (d *Dir) removeFiles(id chunk.ObjectID, keep bool) error {
	had := d.booked(id)
	meta := d.metaPath(id)
	err := fs.ErrInvalid
	if keep && d.roomToQuarantine() {
		err = d.fs.Rename(meta, d.path(quarantineName, id.String()+metaSuffix))
	}
	if err != nil {
		err = d.clearName(meta)
	}
	if err == nil {
		err = d.clearName(d.dataPath(id))
	}
	if err == nil {
		d.ledger.change(id, use{}, had)
	}
	return err
}

// clearName takes away what has a name that an object needs. A directory, which is none of ours, is set aside.
func (d *Dir) clearName(name string) error {
	err := d.fs.Remove(name)
	if errors.Is(err, unix.EISDIR) {
		err = d.fs.Rename(name, d.path(quarantineName, filepath.Base(name)))
	}
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// booked returns what an object whose files nobody has open was booked with.
func (d *Dir) booked(id chunk.ObjectID) use {
	meta, _ := d.fs.Stat(d.metaPath(id))
	data, _ := d.fs.Stat(d.dataPath(id))
	u, err := d.useFromDisk(id, meta, data)
	if err != nil {
		d.log.Debug("count a damaged object", "object", id, "err", err)
	}
	return u
}

// usedBy returns what an object takes on the disk and the time that its sidecar
// has, zeros for what is not there.
func (d *Dir) usedBy(id chunk.ObjectID) (used, modTime int64) {
	meta, _ := d.fs.Stat(d.metaPath(id))
	data, _ := d.fs.Stat(d.dataPath(id))
	return meta.Used + data.Used, meta.ModTime
}
