package snapshot

import (
	"encoding/binary"
	"strings"
	"sync/atomic"
	"time"
	"unsafe"
)

// longAgo is the tick at which a record was verified of which a log only tells that it was.
const longAgo = 1

// Verified returns when the record with an index was last known to be true, the
// zero time when never.
func (d *Dir) Verified(index uint32) time.Time {
	d.mu.RLock()
	defer d.mu.RUnlock()
	v := d.verified[index]
	if v == 0 {
		return time.Time{}
	}
	return d.store.epoch.Add(time.Duration(v-1) * tick)
}

// Distrust makes the records of names that begin with prefix count as never verified,
// and so what is asked now and not answered yet; nor is the directory known in full any more.
// After an error a successor may trust them again.
func (d *Dir) Distrust(prefix string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.distrustRecords(prefix)
	d.setListed(0)
	if len(d.offsets) == 0 {
		return nil
	}
	_, err := d.store.append(record{serial: d.Serial, kind: kindDistrust, name: prefix})
	return err
}

func (d *Dir) distrustRecords(prefix string) {
	d.distrust++
	if prefix == "" {
		clear(d.verified)
		return
	}
	for i, off := range d.offsets {
		if strings.HasPrefix(string(d.store.view(off, false).Name), prefix) {
			d.verified[i] = 0
		}
	}
}

// Listed returns since when the directory is known in full, the zero time when it is not.
func (d *Dir) Listed() time.Time {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.listed == 0 {
		return time.Time{}
	}
	ns := atomic.LoadInt64(d.store.listedAt(d.listed))
	if ns == 0 {
		return time.Time{}
	}
	return time.Unix(0, ns)
}

// SetListed records that all names of the directory are known as of a time.
func (d *Dir) SetListed(at time.Time) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.listed != 0 {
		d.setListed(at.UnixNano())
		return nil
	}
	off, err := d.store.append(record{serial: d.Serial, kind: kindListed, time: at.UnixNano()})
	if err == nil {
		d.listed = off
	}
	return err
}

// setListed overwrites when the directory was known in full, if it ever was; mu is held. It is one
// word: a process killed at any point leaves the time before or this one.
func (d *Dir) setListed(ns int64) {
	if d.listed != 0 {
		atomic.StoreInt64(d.store.listedAt(d.listed), ns)
	}
}

// listedAt is where a kindListed has its time.
func (s *Store) listedAt(off int64) *int64 { return (*int64)(unsafe.Pointer(&s.at(off)[offTime])) }

// trustListings counts as verified when a directory was listed what its predecessor knew of it. A time
// that is yet to come, for the clock was set back, says nothing. Nobody else has the store.
func (s *Store) trustListings(now time.Time) {
	for _, d := range s.dirs {
		at := d.Listed()
		if at.After(now) {
			d.setListed(0)
		}
		if at.IsZero() || at.After(now) {
			continue
		}
		t := s.ticks(at)
		for i := range d.verified {
			d.verified[i] = max(d.verified[i], t)
		}
	}
}

// ticks is when an answer verified what it says; 0 = never. mu is held.
func (d *Dir) ticks(at time.Time, q Question) uint32 {
	if q != d.distrust {
		return 0
	}
	return d.store.ticks(at)
}

func (s *Store) ticks(at time.Time) uint32 {
	if at.Before(s.epoch) {
		return 0
	}
	return uint32(at.Sub(s.epoch)/tick) + 1
}

// loadNote takes in a record that says how far names of a directory are to be trusted.
func (s *Store) loadNote(b []byte, name string) error {
	d := s.dirs[binary.LittleEndian.Uint32(b[offSerial:])]
	if d == nil {
		return errDamaged
	}
	if b[offKind] == kindListed {
		d.listed = s.end
	} else {
		d.distrustRecords(name)
	}
	return nil
}
