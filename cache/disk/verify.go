package disk

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/shardwell/shardwell/cache/mem"
	"github.com/shardwell/shardwell/internal/chunk"
)

// maxDamage bounds the findings that a [Report] lists; it counts all of them.
const maxDamage = 1000

// WholeObject is the Block of a [Damage] that concerns all of an object.
const WholeObject = math.MaxUint32

// VerifyOptions of [VerifyDir].
type VerifyOptions struct {
	// Repair drops what is damaged, so that it is fetched again, and notes what was
	// found good. It needs the directory for itself: no node may be using it.
	Repair bool
	// Progress, if not nil, is told now and then how far it is, from one goroutine.
	Progress func(Progress)
}

// Progress of [VerifyDir].
type Progress struct {
	Objects    int64
	Bytes      int64 // checked so far
	TotalBytes int64 // to check: what files took when it began
}

// Report is what [VerifyDir] found.
type Report struct {
	Objects int64
	Blocks  int64 // present ones, all of which were read
	Bytes   int64
	Damaged int64    // findings
	Damage  []Damage // the first 1000 of them
}

// Damage is one finding.
type Damage struct {
	ID     chunk.ObjectID // zero for a folder that cannot be read
	Object string         // URI, "" where the sidecar does not tell
	Block  uint32         // or WholeObject
	File   string         // path
	Offset int64          // of the block in File
	Reason Loss
	Err    error // more about the reason, or nil
}

func (d Damage) String() string {
	name := d.Object
	switch {
	case name != "":
	case d.ID == chunk.ObjectID{}:
		name = "folder of objects"
	default:
		name = "object " + d.ID.String()
	}
	s := fmt.Sprintf("%s: %v: %s", name, d.Reason, d.File)
	if d.Block != WholeObject {
		s = fmt.Sprintf("%s: block %d: %v: %s at offset %d", name, d.Block, d.Reason, d.File, d.Offset)
	}
	if d.Err != nil {
		s += ": " + d.Err.Error()
	}
	return s
}

// verifier is one run of VerifyDir.
type verifier struct {
	d     *Dir
	opts  VerifyOptions
	buf   []byte
	rep   Report
	total int64
}

// VerifyDir reads every block in a cache directory and checks it, past the page
// cache where that is clean. Damage is in the report, not in the error, which says that
// the work could not be done. Without Repair it changes nothing and works
// beside a running node; what that node adds meanwhile may be seen or not.
func VerifyDir(ctx context.Context, path string, opts VerifyOptions) (Report, error) {
	v := &verifier{opts: opts}
	fail := func(err error) (Report, error) {
		return v.rep, fmt.Errorf("verify cache directory %s: %w", path, err)
	}
	g, err := layoutIn(OS{}, path)
	if err != nil {
		return fail(err)
	}
	if opts.Repair {
		if v.d, err = Open(Config{Path: path, Geometry: g}); err != nil {
			return v.rep, err
		}
		defer v.d.Close()
	} else if v.d, err = readOnly(path, g); err != nil {
		return fail(err)
	} else {
		defer v.d.release()
	}
	v.buf = make([]byte, g.BlockBytes)
	_ = v.d.eachObject(ctx, func(id chunk.ObjectID) error {
		used, _ := v.d.usedBy(id)
		v.total += used
		return nil
	})
	if err := v.d.eachPrefix(ctx, func(p int) error { return v.folder(ctx, p) }); err != nil {
		return fail(err)
	}
	return v.rep, nil
}

// folder checks the objects of one folder. Only an end of ctx is an error: a folder that cannot be read is a finding.
func (v *verifier) folder(ctx context.Context, p int) error {
	err := v.d.eachName(ctx, p, func(_ FSFile, name string) error {
		if id, kind, ok := parseName(name); ok && kind == metaSuffix {
			return v.object(ctx, id)
		}
		return nil
	})
	if err != nil && ctx.Err() == nil {
		v.record(Damage{Block: WholeObject, File: v.d.path(objectsName, fmt.Sprintf("%02x", p)), Reason: LossReadError, Err: err})
	}
	return ctx.Err()
}

// readOnly returns a Dir that can only look.
func readOnly(path string, g chunk.Geometry) (*Dir, error) {
	cfg := Config{Path: path, Geometry: g, FS: OS{}}
	d := &Dir{cfg: cfg, fs: cfg.FS, log: slog.New(slog.DiscardHandler), boot: bootID(""), access: os.O_RDONLY,
		open: make(map[chunk.ObjectID]*File)}
	var err error
	d.scratch, err = mem.New(int(g.BlockBytes), int64(runtime.GOMAXPROCS(0))*g.BlockBytes)
	return d, err
}

// layoutIn reads for which geometry a directory was made.
func layoutIn(fsys FS, path string) (g chunk.Geometry, err error) {
	d := &Dir{cfg: Config{Path: path}, fs: fsys}
	text, err := d.readSmall(layoutName)
	if errors.Is(err, fs.ErrNotExist) {
		return g, errors.New("no cache directory: it has no file named layout")
	}
	if err != nil {
		return g, err
	}
	return parseLayout(text)
}

// object checks one object. Only an end of ctx is an error.
func (v *verifier) object(ctx context.Context, id chunk.ObjectID) error {
	f, err := v.look(id)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // evicted meanwhile
	}
	v.rep.Objects++
	if err != nil {
		v.whole(id, err)
		return nil
	}
	defer f.closeLook()
	if v.opts.Repair {
		if f, err = v.d.Find(id); err != nil {
			v.whole(id, err)
			return nil
		}
		defer f.Release()
	}
	b := f.body.Load()
	dropCache(b.data)
	defer dropCache(b.data)
	for block := range b.blocks {
		if !b.has(block) {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		v.block(f, b, block)
	}
	v.progress()
	return nil
}

// look opens an object without changing anything.
func (v *verifier) look(id chunk.ObjectID) (*File, error) {
	f := &File{d: v.d, id: id}
	meta, err := v.d.fs.OpenFile(v.d.metaPath(id), os.O_RDONLY, 0)
	if err == nil {
		if err = f.readBody(meta); err == nil {
			return f, nil
		}
		meta.Close()
	}
	if _, gone := v.d.fs.Stat(v.d.metaPath(id)); errors.Is(gone, fs.ErrNotExist) {
		return nil, gone // evicted between the opening of its two files
	}
	if v.opts.Repair {
		if again, findErr := v.d.Find(id); findErr == nil {
			again.Release()
		}
	}
	return nil, err
}

func (f *File) closeLook() { f.body.Load().close() }

// whole records damage to all of an object.
func (v *verifier) whole(id chunk.ObjectID, err error) {
	dmg := Damage{ID: id, Block: WholeObject, File: v.d.metaPath(id), Reason: LossReadError, Err: err}
	var l *errLost
	if errors.As(err, &l) {
		dmg.Reason = l.loss
	}
	v.record(dmg)
}

func (v *verifier) record(dmg Damage) {
	v.rep.Damaged++
	if len(v.rep.Damage) < maxDamage {
		v.rep.Damage = append(v.rep.Damage, dmg)
	}
}

// block checks one present block.
func (v *verifier) block(f *File, b *body, block uint32) {
	p := v.buf[:v.d.cfg.Geometry.BlockLen(f.obj.Size, block)]
	v.rep.Blocks++
	v.rep.Bytes += int64(len(p))
	if v.rep.Blocks%1024 == 0 {
		v.progress()
	}
	err := f.tryBlock(b, p, block)
	if err != nil && !v.opts.Repair && b.readBits() == nil {
		// The node beside us may just have dropped and stored it again.
		if !b.has(block) {
			return
		}
		err = f.tryBlock(b, p, block)
	}
	if v.opts.Repair {
		if err == nil {
			f.checked(b, block, len(p))
		} else {
			f.Suspect(block)
		}
	}
	if err == nil {
		return
	}
	dmg := Damage{ID: f.id, Object: f.obj.URI(), Block: block, File: v.d.dataPath(f.id),
		Offset: int64(block) * v.d.cfg.Geometry.BlockBytes, Reason: LossReadError, Err: err}
	if errors.Is(err, errFlawed) {
		dmg.Reason, dmg.Err = LossChecksum, nil
	}
	v.record(dmg)
}

func (v *verifier) progress() {
	if v.opts.Progress != nil {
		v.opts.Progress(Progress{Objects: v.rep.Objects, Bytes: v.rep.Bytes, TotalBytes: max(v.total, v.rep.Bytes)})
	}
}

// dropCache asks the kernel to forget clean pages of a file, so that the disk is
// read and not memory, and so that a check of everything does not crowd memory.
func dropCache(f FSFile) {
	if file := f.OS(); file != nil {
		if conn, err := file.SyscallConn(); err == nil {
			_ = conn.Control(func(fd uintptr) { _ = unix.Fadvise(int(fd), 0, 0, unix.FADV_DONTNEED) })
		}
	}
}
