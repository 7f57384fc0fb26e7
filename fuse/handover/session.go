package handover

import (
	"errors"
	"os"
)

// Session is what is kept of a mount. Whoever has it closes it.
type Session struct {
	ID       uint64   // the keeper's
	Dir      string   // where it is mounted
	Device   string   // of the file system, "major:minor"
	Dev      *os.File // the kernel's end; nil when it was only looked at
	Area     *os.File // for OpenArea
	Listings *os.File // nil when all of them are in the area
}

// Close closes the files of the session.
func (s *Session) Close() error {
	var errs []error
	for _, f := range []**os.File{&s.Dev, &s.Area, &s.Listings} {
		if *f != nil {
			errs = append(errs, (*f).Close())
			*f = nil
		}
	}
	return errors.Join(errs...)
}

// Ended reports whether the mount is gone or was aborted.
func (s *Session) Ended() bool {
	gone := false
	if raw, err := s.Dev.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { gone = ended(int(fd)) })
	}
	return gone
}

// descriptors returns the files as a message carries them.
func (s *Session) descriptors() ([]int, error) {
	var all []int
	for _, f := range []*os.File{s.Dev, s.Area, s.Listings} {
		if f == nil {
			continue
		}
		raw, err := f.SyscallConn()
		if err != nil {
			return nil, err
		}
		if err := raw.Control(func(fd uintptr) { all = append(all, int(fd)) }); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// sessionOf takes the files of a message; with says that the kernel's end is among them.
func sessionOf(m message, with bool) (Session, error) {
	s := Session{ID: m.id, Dir: m.text(0), Device: m.text(1)}
	want := 1
	if with {
		want = 2
	}
	if n := len(m.files); n < want || n > want+1 {
		m.closeFiles()
		return s, errMessage
	}
	files := m.files
	if with {
		s.Dev, files = fileOf(files[0], "/dev/fuse"), files[1:]
	}
	s.Area = fileOf(files[0], "shardwell-session")
	if len(files) > 1 {
		s.Listings = fileOf(files[1], "names.log")
	}
	return s, nil
}
