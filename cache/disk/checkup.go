package disk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Checkups of a disk from which the kernel reads by itself: nobody tells us of its errors. A few
// pages are read past the page cache, which would hide for hours that the disk behind it is gone.
const (
	checkupEvery  = 5 * time.Second // at most; a file is given to the kernel only when the last was so long ago and well
	checkupBytes  = 8 << 10         // more than smallIOBytes, so that a guard's buffer lies as direct I/O wants it
	checkupPoints = 6               // failures that one counts for: a disk is unstable at once, and down after four
)

// checkup reads a part of a file that the kernel is given, unless that was done just now. It
// reports whether the disk is well, as far as that shows; each looks at another part.
func (f *File) checkup(b *body) bool {
	d := f.d
	parts := f.obj.Size / checkupBytes
	if last := d.checkedAt.Load(); d.noDirect.Load() || parts == 0 || last > 0 && time.Since(d.opened)-time.Duration(last) < checkupEvery {
		return true
	}
	part := int64(uint64(d.stats.Checkups.Add(1)) * 0x9e3779b97f4a7c15 % uint64(parts))
	switch err := d.readDirect(d.dataPath(f.id), part*checkupBytes); {
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP):
		d.noDirect.Store(true) // the file system knows no direct I/O
	case errors.Is(err, unix.ENOENT): // unlinked: says nothing about the disk
	case err != nil:
		d.log.Warn("cache disk fails under what the kernel reads by itself", "object", f.obj.URI(), "err", err)
		if !errors.Is(err, ErrHung) { // which was noted
			for range checkupPoints {
				d.noteFailure()
			}
		}
		return false
	}
	d.checkedAt.Store(int64(time.Since(d.opened)))
	return true
}

// readDirect reads checkupBytes of a file past the page cache.
func (d *Dir) readDirect(name string, off int64) error {
	file, err := d.fs.OpenFile(name, os.O_RDONLY|unix.O_DIRECT, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	buf, err := d.scratch.Get(context.Background()) // held only over one read, so its turn comes
	if err != nil {
		return err
	}
	defer d.scratch.Put(buf)
	if n, err := file.ReadAt(buf[:checkupBytes], off); n < checkupBytes {
		return fmt.Errorf("%d bytes of %d: %w", n, checkupBytes, err)
	}
	return nil
}

// checkupInUse does a checkup by a file that the kernel reads now, if there is one.
func (d *Dir) checkupInUse() {
	d.mu.Lock()
	var f *File
	for _, o := range d.open { // in an order of chance
		if o.refs > 0 && o.given.Load() {
			f = o
			f.refs++
			break
		}
	}
	d.mu.Unlock()
	if f == nil {
		return
	}
	if b := f.body.Load(); b != nil && !f.doomed.Load() {
		f.checkup(b)
	}
	f.release(f.lastUse.Load()) // no use
}
