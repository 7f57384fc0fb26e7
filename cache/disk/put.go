package disk

import (
	"encoding/binary"
	"fmt"

	"github.com/shardwell/shardwell/cache/evict"
	"github.com/shardwell/shardwell/internal/chunk"
)

// Space that a block costs beside its data: its part of the sidecar, and what the
// file system rounds up.
const blockOverheadBytes = 4096

// newFileBytes is what a sidecar and the file system's own records cost at first.
const newFileBytes = 16 << 10

// Put stores a block whose data were checked against its CRC by the caller. It
// does nothing when the block is there. An error that matches [ErrNotAdmitted]
// leaves the block absent and everything else as it was.
//
// The order of the system calls is what a kill may interrupt anywhere: pwrite of the
// data, pwrite of the checksum, pwrite of the byte with the presence bit.
func (f *File) Put(block chunk.Block) error {
	g := f.d.cfg.Geometry
	if want := g.BlockLen(f.obj.Size, block.Index); want == 0 || len(block.Data) != want {
		return fmt.Errorf("store block %d of %s: %d bytes, want %d", block.Index, f.obj.URI(), len(block.Data), want)
	}
	if f.Has(block.Index) {
		return nil
	}
	class, copied := f.worth(block.Index)
	err := f.put(block, class, copied)
	if err == plainRejects[RejectBudget] && !copied {
		f.d.comes(class)
		f.d.wake()
		class, copied = evict.Copy, true // as a guest
		err = f.put(block, class, copied)
	}
	if err == plainRejects[RejectBudget] {
		err = f.putSliding(block, class, copied)
	}
	if err == nil {
		return nil
	}
	r := rejectOf(err)
	f.d.comes(class)
	f.d.reject(f.id, r)
	if r.Reason == RejectDataset {
		f.d.wantWithin(f.obj, int64(len(block.Data)))
	}
	if r.Err != nil {
		return fmt.Errorf("store block %d of %s: %w", block.Index, f.obj.URI(), r)
	}
	return r
}

// reject counts a block that was not stored, and asks for room where that helps.
func (d *Dir) reject(id chunk.ObjectID, r *RejectError) {
	d.stats.Rejected[r.Reason].Add(1)
	switch r.Reason {
	case RejectIO:
		d.failed("store block", id, r)
	case RejectNoSpace, RejectQuota:
		d.ledger.noSpace()
		d.wake()
	case RejectBudget, RejectFloor, RejectInodes:
		d.wake()
	}
}

// wake makes Run look for something to evict.
func (d *Dir) wake() {
	select {
	case d.kick <- struct{}{}:
	default:
	}
}

func (f *File) put(block chunk.Block, class evict.Class, copied bool) error {
	d := f.d
	switch {
	case class == evict.Unkept:
		return plainRejects[RejectPolicy]
	case d.health.State() == Down:
		return plainRejects[RejectDown]
	case block.CRC == 0:
		return plainRejects[RejectZeroSum]
	case !copied && d.cfg.Policy != nil && !d.cfg.Policy.Admits(f.obj, f.id, int64(len(block.Data))):
		return plainRejects[RejectDataset]
	}
	want, files := int64(len(block.Data))+blockOverheadBytes, int64(0)
	if f.body.Load() == nil {
		want, files = want+newFileBytes, 2
	}
	crowded, reject := d.ledger.reserve(want, files, copied)
	if reject != nil {
		return reject
	}
	defer d.ledger.unreserve(want, copied)
	if crowded {
		d.comes(class)
		d.wake()
	}
	b, err := f.ensure()
	if err != nil {
		return err
	}
	stripe := &f.stripes[block.Index%stripeCount]
	stripe.Lock()
	defer stripe.Unlock()
	if b.has(block.Index) {
		return nil
	}
	_, err = b.data.WriteAt(block.Data, int64(block.Index)*d.cfg.Geometry.BlockBytes)
	if err == nil {
		err = f.publish(b, block.Index, block.CRC, copied)
	}
	d.settle(f, b) // a failed write may have taken space as well
	if err != nil {
		return err
	}
	if copied {
		f.transit.arrived(block.Index)
	}
	d.stats.StoredBlocks.Add(1)
	d.stats.StoredBytes.Add(int64(len(block.Data)))
	return nil
}

// ensure returns the body, and makes it first if there is none.
func (f *File) ensure() (*body, error) {
	if b := f.body.Load(); b != nil {
		return b, nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	var b *body
	err := f.d.retryWithFewer(func() (err error) {
		b, err = f.create()
		return err
	})
	return b, err
}

// publish writes the checksum of a block whose data is written, then its presence bit.
func (f *File) publish(b *body, block, crc uint32, copied bool) error {
	var sum [4]byte
	binary.LittleEndian.PutUint32(sum[:], crc)
	if _, err := b.meta.WriteAt(sum[:], b.l.sums+4*int64(block)); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	word := &b.bits[block/64]
	bit := uint64(1) << (block % 64)
	if err := b.writeBits(block, word.Load()|bit); err != nil {
		return err
	}
	if b.verified != nil {
		b.verified[block/64].Or(bit)
	}
	word.Or(bit)
	if copied {
		b.copies++
		if f.owns(block) {
			b.guests.add(block, b.blocks)
		}
	}
	if b.present.Add(1) == b.blocks && b.unverified.Load() == 0 {
		f.vouch(b)
	}
	return nil
}

// writeBits writes the byte of word that holds block's bit. Callers hold b.mu.
func (b *body) writeBits(block uint32, word uint64) error {
	one := [1]byte{byte(word >> (block % 64 / 8 * 8))}
	_, err := b.meta.WriteAt(one[:], b.l.bits+int64(block/8))
	return err
}

// vouch writes a stamp that says what is known: the present blocks are right, and
// perhaps all are present. If it cannot be written, the next process has to check
// again, no more. Callers hold b.mu.
func (f *File) vouch(b *body) {
	complete := b.present.Load() == b.blocks
	s := stamp{boot: f.d.boot, inode: b.inode, complete: complete, whole: complete || b.whole}
	if err := b.writeStamp(s); err != nil {
		f.d.log.Debug("renew stamp", "object", f.id, "err", err)
	}
}

func (b *body) writeStamp(s stamp) error {
	buf := s.append(make([]byte, 0, stampBytes))
	if _, err := b.meta.WriteAt(buf, stampOffset); err != nil {
		return err
	}
	b.complete, b.whole = s.complete, s.whole
	return nil
}

// settle brings the ledger up to what the files really take.
func (d *Dir) settle(f *File, b *body) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if f.doomed.Load() {
		return // no longer the ledger's to count by name
	}
	data, err := b.data.Stat()
	if err != nil {
		return
	}
	meta, err := b.meta.Stat()
	if err != nil {
		return
	}
	now := b.useOf(data.Used+meta.Used, d.cfg.Geometry.BlockBytes)
	if now != b.use {
		d.ledger.change(f.id, now, b.use)
		b.use = now
	}
	if mode := b.modeOf(f.owned.Load()); mode != b.mode {
		b.mode = mode // tried once: it is a hint
		if err := b.meta.Chmod(mode); err != nil {
			d.log.Debug("note ownership", "object", f.id, "err", err)
		}
	}
}
