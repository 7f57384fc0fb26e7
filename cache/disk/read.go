package disk

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/shardwell/shardwell/internal/chunk"
)

// maxRunBlocks bounds the blocks of one run, for the checksums that are read with it.
const maxRunBlocks = runBytes / chunk.MinBlockBytes

// sumsPool holds buffers for the checksums of a run, so that reads do not allocate.
var sumsPool = sync.Pool{New: func() any { return new([4 * maxRunBlocks]byte) }}

// errFlawed says that bytes or their checksum could not be read, or do not fit.
var errFlawed = errors.New("flawed")

// ReadAt reads like [io.ReaderAt] from blocks that are all on the disk. It checks
// every block that it touches, also those of which it returns only a part.
//
// The error matches [ErrNotPresent] when a block is absent, [chunk.ErrCorrupt] when one is
// damaged or cannot be read, [ErrHung] when the disk does not answer. After any other
// error but io.EOF a block of the range is absent, so a caller that fetches what [File.Missing] says and asks again gets on.
func (f *File) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, fmt.Errorf("read %s at %d: negative offset", f.obj.URI(), off)
	}
	size := f.obj.Size
	if off >= size {
		return 0, io.EOF
	}
	b := f.body.Load()
	if b == nil {
		return 0, ErrNotPresent
	}
	atEnd := int64(len(p)) > size-off
	if atEnd {
		p = p[:size-off]
	}
	done := 0
	for done < len(p) {
		n, err := f.readSome(b, p[done:], off+int64(done))
		done += n
		if err != nil {
			f.d.stats.ReadBytes.Add(int64(done))
			return done, err
		}
	}
	f.d.stats.ReadBytes.Add(int64(done))
	if atEnd {
		return done, io.EOF
	}
	return done, nil
}

// readSome reads a run of whole blocks straight into p, or a part of one block
// by way of a scratch buffer. p lies within the object.
func (f *File) readSome(b *body, p []byte, off int64) (int, error) {
	g := f.d.cfg.Geometry
	block := uint32(off / g.BlockBytes)
	inBlock := int(off % g.BlockBytes)
	length := g.BlockLen(f.obj.Size, block)
	if inBlock == 0 && len(p) >= length {
		return f.readRun(b, p[:min(len(p), runBytes)], block)
	}
	if !b.has(block) {
		return 0, ErrNotPresent
	}
	buf, err := f.d.scratch.Get(context.Background()) // held only over one read, so its turn comes
	if err != nil {
		return 0, err
	}
	defer f.d.scratch.Put(buf)
	if err := f.readBlock(b, buf[:length], block); err != nil {
		return 0, err
	}
	return copy(p, buf[inBlock:length]), nil
}

// readRun reads and checks as many whole present blocks from first on as fit in p.
func (f *File) readRun(b *body, p []byte, first uint32) (int, error) {
	g := f.d.cfg.Geometry
	count, bytes := uint32(0), 0
	for b.has(first + count) {
		n := g.BlockLen(f.obj.Size, first+count)
		if bytes+n > len(p) {
			break
		}
		count, bytes = count+1, bytes+n
	}
	if count == 0 {
		return 0, ErrNotPresent
	}
	if count == 1 {
		if err := f.readBlock(b, p[:bytes], first); err != nil {
			return 0, err
		}
		return bytes, nil
	}
	sums := sumsPool.Get().(*[4 * maxRunBlocks]byte)
	defer sumsPool.Put(sums)
	_, dataErr := b.data.ReadAt(p[:bytes], int64(first)*g.BlockBytes)
	_, sumsErr := b.meta.ReadAt(sums[:4*count], b.l.sums+4*int64(first))
	if errors.Is(dataErr, ErrHung) || errors.Is(sumsErr, ErrHung) {
		return 0, errors.Join(dataErr, sumsErr)
	}
	done := 0
	for i := range count {
		part := p[done : done+g.BlockLen(f.obj.Size, first+i)]
		want := binary.LittleEndian.Uint32(sums[4*i:])
		// After a failure, one block at a time shows which of them are good.
		if dataErr != nil || sumsErr != nil || chunk.Checksum(part) != want {
			if err := f.readBlock(b, part, first+i); err != nil {
				return done, err
			}
		} else {
			f.checked(b, first+i, len(part))
		}
		done += len(part)
	}
	return done, nil
}

// readBlock reads and checks one present block. A block that is no good is
// dropped, unless a second look, with writers kept out, finds it good.
func (f *File) readBlock(b *body, p []byte, block uint32) error {
	switch err := f.tryBlock(b, p, block); {
	case err == nil:
		f.checked(b, block, len(p))
		return nil
	case errors.Is(err, ErrHung):
		return err // it says nothing about the block
	}
	stripe := &f.stripes[block%stripeCount]
	stripe.Lock()
	defer stripe.Unlock()
	if !b.has(block) {
		return ErrNotPresent
	}
	err := f.tryBlock(b, p, block)
	if err == nil {
		f.checked(b, block, len(p))
		return nil
	}
	if errors.Is(err, ErrHung) {
		return err
	}
	return f.drop(b, p, block, err)
}

// tryBlock reads a block and its checksum and compares.
func (f *File) tryBlock(b *body, p []byte, block uint32) error {
	sums := sumsPool.Get().(*[4 * maxRunBlocks]byte)
	defer sumsPool.Put(sums)
	if _, err := b.data.ReadAt(p, int64(block)*f.d.cfg.Geometry.BlockBytes); err != nil {
		return err
	}
	if _, err := b.meta.ReadAt(sums[:4], b.l.sums+4*int64(block)); err != nil {
		return err
	}
	if chunk.Checksum(p) != binary.LittleEndian.Uint32(sums[:4]) {
		return errFlawed
	}
	return nil
}

// checked notes that a block was found good.
func (f *File) checked(b *body, block uint32, n int) {
	f.d.stats.VerifiedBytes.Add(int64(n))
	if b.isVerified(block) {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	bit := uint64(1) << (block % 64)
	if !b.has(block) || b.verified[block/64].Or(bit)&bit != 0 {
		return
	}
	if b.unverified.Add(-1) == 0 {
		f.vouch(b)
	}
}

// drop makes a damaged block absent: first the stamp stops saying "complete", then
// the bit goes, then the checksum, so that a bit alone never brings it back. Callers
// hold the block's stripe; p has what was read.
func (f *File) drop(b *body, p []byte, block uint32, cause error) error {
	loss, what := LossReadError, cause
	if errors.Is(cause, errFlawed) {
		loss, what = LossChecksum, nil
		f.d.quarantineBlock(f.id, block, p)
	}
	if loss == LossReadError {
		f.d.noteFailure()
	}
	f.d.stats.Lost[loss].Add(1)
	off := int64(block) * f.d.cfg.Geometry.BlockBytes
	f.d.log.Warn("drop damaged block from cache", "object", f.obj.URI(), "id", f.id, "block", block,
		"offset", off, "reason", loss, "err", what)
	if err := f.clear(b, block); err != nil {
		f.doom(b, err)
	}
	if what == nil {
		return fmt.Errorf("read block %d (offset %d) of %s from cache: %w", block, off, f.obj.URI(), chunk.ErrCorrupt)
	}
	return fmt.Errorf("read block %d (offset %d) of %s from cache: %w: %w", block, off, f.obj.URI(), chunk.ErrCorrupt, what)
}

// clear takes away the presence of a block, in memory in any case.
func (f *File) clear(b *body, block uint32) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	bit := uint64(1) << (block % 64)
	word := b.bits[block/64].And(^bit) &^ bit
	b.present.Add(^uint32(0))
	if (b.guests.remove(block) || !f.owns(block)) && b.copies > 0 {
		b.copies--
	}
	wasUnverified := b.verified != nil && b.verified[block/64].And(^bit)&bit == 0
	if wasUnverified {
		b.unverified.Add(-1)
	}
	if b.complete {
		s := stamp{inode: b.inode, whole: true}
		if b.verified == nil || b.unverified.Load() == 0 {
			s.boot = f.d.boot
		}
		if err := b.writeStamp(s); err != nil {
			return err
		}
	}
	if err := b.writeBits(block, word); err != nil {
		return err
	}
	_, err := b.meta.WriteAt(make([]byte, 4), b.l.sums+4*int64(block))
	return err
}

// doom unlinks an object whose damage could not be noted in its sidecar, so that
// no later process takes it for good. Whoever has it open reads on; its space goes
// free when the last of them releases it. If it cannot be unlinked, it is not looked at again before
// it is.
func (f *File) doom(b *body, cause error) {
	if f.doomed.Swap(true) {
		return
	}
	f.d.log.Warn("unlink object from cache", "object", f.id, "err", cause)
	for _, name := range [...]string{f.d.metaPath(f.id), f.d.dataPath(f.id)} {
		if err := f.d.fs.Remove(name); err != nil && !errors.Is(err, unix.ENOENT) {
			f.d.failed("unlink object from cache", f.id, err)
			f.d.condemn(f.id)
			return // its space stays booked
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.unlinked = true
	f.d.ledger.change(f.id, use{}, b.use)
	f.d.ledger.orphan(b.use.used)
}

// errDoomed says that an object waits to be unlinked.
var errDoomed = errors.New("damaged, and not unlinked yet")

// condemn notes an object that is to be unlinked when the disk lets it.
func (d *Dir) condemn(id chunk.ObjectID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.doomed == nil {
		d.doomed = make(map[chunk.ObjectID]struct{})
	}
	if len(d.doomed) < maxDrops {
		d.doomed[id] = struct{}{}
	}
}

func (d *Dir) isDoomed(id chunk.ObjectID) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, doomed := d.doomed[id]
	return doomed
}

// unlinkDoomed unlinks what could not be and is in use no more. Only Run calls it.
func (d *Dir) unlinkDoomed() {
	d.mu.Lock()
	ids := slices.Collect(maps.Keys(d.doomed))
	d.mu.Unlock()
	for _, id := range ids {
		f, ok := d.claim(id)
		if !ok {
			continue
		}
		err := d.removeFiles(id, false)
		f.unclaim()
		if err != nil {
			d.log.Debug("unlink damaged object from cache", "object", id, "err", err)
			continue
		}
		d.mu.Lock()
		delete(d.doomed, id)
		d.mu.Unlock()
	}
}

// quarantineBlock keeps the bytes of a damaged block for a look, the first few.
func (d *Dir) quarantineBlock(id chunk.ObjectID, block uint32, p []byte) {
	if !d.roomToQuarantine() {
		return
	}
	name := d.path(quarantineName, fmt.Sprintf("%v.%d", id, block))
	out, err := d.fs.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err == nil {
		_, err = out.WriteAt(p, 0)
		out.Close()
	}
	if err != nil {
		d.log.Debug("set damaged block aside", "name", name, "err", err)
	}
}

// roomToQuarantine takes one place in the quarantine, if there is one left.
func (d *Dir) roomToQuarantine() bool {
	return d.quarantined.Add(1) <= maxQuarantined
}

// Lend returns where a present block lies, for the kernel to send. The piece is
// valid until [File.Return]: until then the block is not given back to the file system. A block
// that was not checked in this boot is checked first. ok is false when the block is absent.
func (f *File) Lend(block uint32) (_ chunk.Piece, ok bool) {
	if !f.transit.lend(block) {
		return chunk.Piece{}, false
	}
	p, ok := f.lend(block)
	if !ok {
		f.Return(block)
	}
	return p, ok
}

// Hold keeps a present block until [File.Return], as Lend does, without looking at it.
func (f *File) Hold(block uint32) bool {
	if !f.transit.lend(block) {
		return false
	}
	if !f.Has(block) {
		f.Return(block)
		return false
	}
	return true
}

// Return ends one Lend, or Hold, that returned true.
func (f *File) Return(block uint32) { f.transit.giveBack(block) }

func (f *File) lend(block uint32) (_ chunk.Piece, ok bool) {
	b := f.body.Load()
	if !b.has(block) || (!b.isVerified(block) && f.verify(b, block) != nil) {
		return chunk.Piece{}, false
	}
	sums := sumsPool.Get().(*[4 * maxRunBlocks]byte)
	defer sumsPool.Put(sums)
	if _, err := b.meta.ReadAt(sums[:4], b.l.sums+4*int64(block)); err != nil {
		return chunk.Piece{}, false
	}
	crc := binary.LittleEndian.Uint32(sums[:4])
	if crc == 0 || !b.has(block) {
		return chunk.Piece{}, false // dropped meanwhile
	}
	return chunk.Piece{
		Index:  block,
		CRC:    crc,
		Len:    f.d.cfg.Geometry.BlockLen(f.obj.Size, block),
		File:   b.data.OS(),
		Offset: int64(block) * f.d.cfg.Geometry.BlockBytes,
	}, true
}

// Suspect checks a block now and drops it if it is damaged.
func (f *File) Suspect(block uint32) {
	if b := f.body.Load(); b.has(block) {
		_ = f.verify(b, block) // has dropped, counted and logged what is damaged
	}
}

// verify reads a block for its checksum only.
func (f *File) verify(b *body, block uint32) error {
	buf, err := f.d.scratch.Get(context.Background())
	if err != nil {
		return err
	}
	defer f.d.scratch.Put(buf)
	return f.readBlock(b, buf[:f.d.cfg.Geometry.BlockLen(f.obj.Size, block)], block)
}
