package snapshot

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// grow maps segments until the log may reach to bytes. Room on disk is allocated, not
// only promised: a full disk shows here and not as a fault at the first write.
func (s *Store) grow(to int64) error {
	if to > maxLogBytes {
		return fmt.Errorf("listing snapshot %s: over %d bytes", s.path, int64(maxLogBytes))
	}
	segments := *s.segments.Load()
	for int64(len(segments))*segmentBytes < to {
		m, err := s.segment(int64(len(segments)) * segmentBytes)
		if err != nil {
			return fmt.Errorf("listing snapshot %s: %w", s.path, err)
		}
		segments = append(segments[:len(segments):len(segments)], m)
		s.segments.Store(&segments)
	}
	return nil
}

// segment maps the next segment, in memory when the disk does not take it; mu is held.
func (s *Store) segment(off int64) ([]byte, error) {
	if !s.lost {
		m, err := s.diskSegment(off)
		if err == nil {
			s.onDisk++
			return m, nil
		}
		s.lose(err)
	}
	if s.spill.File != nil {
		at := s.spill.Offset + s.spilled*segmentBytes
		err := allocate(s.spill.File, at, segmentBytes)
		if err != nil {
			return nil, fmt.Errorf("memory: %w", err)
		}
		m, err := mapSegment(s.spill.File, at)
		if err == nil {
			s.spilled++
		}
		return m, err
	}
	m, err := unix.Mmap(-1, 0, segmentBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, fmt.Errorf("map: %w", err)
	}
	return m, nil
}

// diskSegment makes the segment of the file that begins at an offset.
func (s *Store) diskSegment(off int64) ([]byte, error) {
	file, mapped := s.file, new([]byte)
	err := s.spill.inTime("extend listing snapshot", func() (err error) {
		if err = allocate(file, off, segmentBytes); err == nil {
			*mapped, err = mapSegment(file, off)
		}
		return err
	}, func() {
		if *mapped != nil {
			_ = unix.Munmap(*mapped)
		}
	})
	if err != nil {
		return nil, err
	}
	return *mapped, nil
}

func mapSegment(f *os.File, off int64) ([]byte, error) {
	m, err := unix.Mmap(int(f.Fd()), off, segmentBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map: %w", err)
	}
	return m, nil
}

// allocate makes the file's bytes [off, off+n) exist on disk.
func allocate(f *os.File, off, n int64) error {
	err := unix.Fallocate(int(f.Fd()), 0, off, n)
	if !errors.Is(err, unix.EOPNOTSUPP) {
		return err
	}
	_, err = f.WriteAt(make([]byte, n), off)
	return err
}

// at returns the bytes of the log from an offset to the end of its segment.
func (s *Store) at(off int64) []byte {
	return (*s.segments.Load())[off/segmentBytes][off%segmentBytes:]
}

// touchHolds is how long a page counts as writable after it was made so: the kernel begins to write pages to the disk,
// and then asks it again, some seconds later.
const touchHolds = 100 * time.Millisecond

// touch makes the pages of [off, off+n), in one segment, writable without anybody waiting for the disk: a write to a page
// that the file system has to be asked about would hold all who look at names. If the disk does not answer, or fails, the
// rest of the segment is given up, the log goes on in memory, and touch reports false; mu is held.
func (s *Store) touch(off, n int64) bool {
	if off/segmentBytes >= s.onDisk || s.spill.InTime == nil {
		return true
	}
	first, last := off/pageBytes+1, (off+n-1)/pageBytes+1
	if now := time.Now(); first != s.touched || last != s.touched || now.Sub(s.touchedAt) > touchHolds {
		segment := (*s.segments.Load())[off/segmentBytes]
		pages := segment[(first-1)*pageBytes%segmentBytes : (last-1)*pageBytes%segmentBytes+pageBytes]
		if err := s.spill.InTime("write listing snapshot", func() error { return populate(pages) }, func() {}); err != nil {
			if !s.lost {
				s.lose(err)
			}
			s.giveUp(segment, off)
			return false
		}
		s.touched, s.touchedAt = last, now
	}
	return true
}

// giveUp goes on behind a segment of the file, in which the log ends at an offset, and without the file when
// nothing is in it.
func (s *Store) giveUp(segment []byte, off int64) {
	if off > 0 {
		s.end = (off/segmentBytes + 1) * segmentBytes
		return
	}
	_ = unix.Munmap(segment)
	s.segments.Store(&[][]byte{})
	_ = s.spill.inTime("close listing snapshot", s.file.Close, func() {})
	s.file, s.onDisk = nil, 0
}

// pageBytes is at least a page of the kernel's.
var pageBytes = int64(os.Getpagesize())

// populate makes pages present and writable. A kernel before 5.14 does not know how: then the write will wait.
func populate(pages []byte) error {
	if err := unix.Madvise(pages, unix.MADV_POPULATE_WRITE); err != nil && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("write: %w", err)
	}
	return nil
}
