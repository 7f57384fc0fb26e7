package disk

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shardwell/shardwell/internal/chunk"
)

// When scrubbing rests.
const (
	scrubBusyBytes = 32 << 20    // moved for others within scrubLook: the disk has better things to do
	scrubLook      = time.Second // between looks at that
	scrubRest      = time.Hour   // between the starts of two rounds, at least
	directAlign    = 4096        // of offsets and lengths past the page cache
)

// Scrub reads every block and checks it, round after round, at most bytesPerSecond,
// until ctx ends. It reads past the page cache where the file system lets it, so that
// it sees what is on the disk and crowds nothing out. It rests while the disk is busy
// or fails. A damaged block is dropped, counted and logged, as by a read, and so found
// where the kernel reads by itself.
func (d *Dir) Scrub(ctx context.Context, bytesPerSecond int64) error {
	if bytesPerSecond <= 0 {
		return nil
	}
	s := scrubber{d: d, rate: bytesPerSecond}
	for {
		began := time.Now()
		if err := s.round(ctx); ctx.Err() != nil {
			return nil
		} else if err != nil {
			d.log.Warn("scrub", "err", err)
		} else {
			d.stats.ScrubRounds.Add(1)
		}
		if !sleep(ctx, scrubRest-time.Since(began)) {
			return nil
		}
	}
}

// sleep waits and reports false when ctx ended before.
func sleep(ctx context.Context, t time.Duration) bool {
	if t <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(t)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// scrubber is one Scrub.
type scrubber struct {
	d    *Dir
	rate int64 // bytes a second

	looked time.Time // when moved was right
	moved  int64     // bytes that the directory had moved for others
	due    time.Time // when the next block may be read
}

// round checks everything once. What cannot be opened is left to reads.
func (s *scrubber) round(ctx context.Context) error {
	return s.d.eachObject(ctx, func(id chunk.ObjectID) error { return s.object(ctx, id) })
}

// object checks one object. Its error is ctx's.
func (s *scrubber) object(ctx context.Context, id chunk.ObjectID) error {
	if !s.quiet(ctx) {
		return ctx.Err()
	}
	used := s.lastUse(id)
	f, err := s.d.take(id)
	if err != nil {
		return nil
	}
	defer f.release(used) // looking is no use
	if err := f.look(nil, false); err != nil {
		return nil // gone, or damaged: then it was dealt with
	}
	b := f.body.Load()
	direct, err := s.d.fs.OpenFile(s.d.dataPath(id), os.O_RDONLY|unix.O_DIRECT, 0)
	if err != nil {
		direct = b.data // by way of the page cache
	} else {
		defer direct.Close()
	}
	for block := range b.blocks {
		if !b.has(block) {
			continue
		}
		if !s.quiet(ctx) {
			return ctx.Err()
		}
		if err := s.block(ctx, f, b, direct, block); err != nil {
			return err
		}
	}
	return nil
}

// lastUse returns when an object was used last, 0 if that is not known.
func (s *scrubber) lastUse(id chunk.ObjectID) int64 {
	_, used := s.d.usedBy(id)
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	if f := s.d.open[id]; f != nil {
		used = max(used, f.lastUse.Load())
	}
	return used
}

// block checks one present block.
func (s *scrubber) block(ctx context.Context, f *File, b *body, direct FSFile, block uint32) error {
	buf, err := s.d.scratch.Get(ctx)
	if err != nil {
		return err
	}
	defer s.d.scratch.Put(buf)
	length := s.d.cfg.Geometry.BlockLen(f.obj.Size, block)
	err = s.compare(b, direct, buf, length, block)
	s.d.stats.ScrubbedBytes.Add(int64(length))
	s.due = s.due.Add(time.Duration(float64(length) / float64(s.rate) * float64(time.Second)))
	if err == nil {
		f.checked(b, block, length)
		return nil
	}
	if errors.Is(err, ErrHung) {
		return nil
	}
	stripe := &f.stripes[block%stripeCount] // a second look with writers kept out
	stripe.Lock()
	defer stripe.Unlock()
	if !b.has(block) {
		return nil
	}
	if err = s.compare(b, direct, buf, length, block); err != nil && !errors.Is(err, ErrHung) {
		s.d.stats.ScrubDamaged.Add(1)
		_ = f.drop(b, buf[:length], block, err) // has counted and logged it
	}
	return nil
}

// compare reads a block and its checksum.
func (s *scrubber) compare(b *body, direct FSFile, buf []byte, length int, block uint32) error {
	aligned := (length + directAlign - 1) / directAlign * directAlign
	n, err := direct.ReadAt(buf[:aligned], int64(block)*s.d.cfg.Geometry.BlockBytes)
	if n < length {
		if err == nil || err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return err
	}
	var sum [4]byte
	if _, err := b.meta.ReadAt(sum[:], b.l.sums+4*int64(block)); err != nil {
		return err
	}
	if chunk.Checksum(buf[:length]) != binary.LittleEndian.Uint32(sum[:]) {
		return errFlawed
	}
	return nil
}

// quiet waits until the next block may be read. False means that ctx has ended.
func (s *scrubber) quiet(ctx context.Context) bool {
	if now := time.Now(); s.due.Before(now.Add(-scrubLook)) {
		s.due = now // what was not read in time is not caught up with
	}
	if !sleep(ctx, time.Until(s.due)) {
		return false
	}
	for {
		if since := time.Since(s.looked); since < scrubLook {
			return ctx.Err() == nil
		}
		moved := s.d.stats.ReadBytes.Load() + s.d.stats.StoredBytes.Load()
		busy := moved-s.moved > scrubBusyBytes
		s.looked, s.moved = time.Now(), moved
		if !busy && s.d.State() == Normal {
			return ctx.Err() == nil
		}
		s.d.stats.ScrubPauses.Add(1)
		if !sleep(ctx, scrubLook) {
			return false
		}
	}
}
