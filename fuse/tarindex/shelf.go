package tarindex

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/shardwell/shardwell/internal/chunk"
)

// shelf keeps encoded indexes in a directory, one file each, named by the object. There is no
// fsync: an index that did not come out whole is a miss. It takes at most DirBytes; beyond that
// some give way, whichever.
type shelf struct {
	dir   string
	limit int64
	room  func(int64) bool
	stats *Stats
	log   *slog.Logger

	timeout time.Duration
	busy    chan struct{} // full while the disk is at work

	mu    sync.Mutex
	hung  bool                     // the disk has been at work for longer than timeout
	files map[chunk.ObjectID]int64 // bytes that they take
	sum   int64
}

const (
	suffix     = ".index"
	fileUnit   = 4096    // what a file takes is a multiple of it
	maxFiles   = 1 << 18 // on a shelf
	tempPrefix = "new-"
)

func newShelf(cfg Config, stats *Stats) *shelf {
	s := &shelf{timeout: cfg.DiskTimeout, dir: cfg.Dir, limit: cfg.DirBytes, room: cfg.Room, stats: stats, log: cfg.Logger, busy: make(chan struct{}, 1), files: make(map[chunk.ObjectID]int64)}
	if s.room == nil {
		s.room = func(int64) bool { return true }
	}
	return s
}

func (s *shelf) path(id chunk.ObjectID) string { return filepath.Join(s.dir, id.String()+suffix) }

// count takes note of what is there from before, and removes what was not finished.
func (s *shelf) count() {
	if s.dir == "" {
		return
	}
	s.try(func() error {
		entries, err := os.ReadDir(s.dir)
		if errors.Is(err, fs.ErrNotExist) {
			return nil // none yet
		}
		for _, e := range entries {
			s.note(e)
		}
		return err
	})
}

func (s *shelf) note(e fs.DirEntry) {
	name, ok := strings.CutSuffix(e.Name(), suffix)
	id, err := chunk.ParseObjectID(name)
	if !ok || err != nil {
		if strings.HasPrefix(e.Name(), tempPrefix) {
			_ = os.Remove(filepath.Join(s.dir, e.Name()))
		}
		return
	}
	info, err := e.Info()
	if err != nil || s.has(id) {
		return
	}
	gone, ok := s.book(id, info.Size())
	if !ok {
		gone = append(gone, id)
	}
	s.delete(gone)
}

// book makes room for a file and counts it. It returns the files that give way.
func (s *shelf) book(id chunk.ObjectID, bytes int64) (gone []chunk.ObjectID, ok bool) {
	n := (bytes + fileUnit - 1) / fileUnit * fileUnit
	s.mu.Lock()
	defer s.mu.Unlock()
	for other := range s.files {
		if s.sum+n <= s.limit && len(s.files) < maxFiles {
			break
		}
		gone = append(gone, other)
		s.forget(other)
	}
	if s.files[id] != 0 || s.sum+n > s.limit || !s.room(n) {
		return gone, false
	}
	s.files[id] = n
	s.sum += n
	return gone, true
}

// forget counts a file no more; mu is held.
func (s *shelf) forget(id chunk.ObjectID) {
	if n := s.files[id]; n != 0 {
		delete(s.files, id)
		s.sum -= n
		s.room(-n)
	}
}

// delete takes files away that are not counted any more.
func (s *shelf) delete(ids []chunk.ObjectID) {
	for _, id := range ids {
		if err := os.Remove(s.path(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			s.log.Warn("index of a tar stays behind", "file", s.path(id), "error", err)
		}
	}
}

// has reports whether there is an index of an object, which may be damaged.
func (s *shelf) has(id chunk.ObjectID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.files[id] != 0
}

// load returns an index, nil when there is none. A damaged one is taken away.
func (s *shelf) load(id chunk.ObjectID, size int64) *Index {
	if s.dir == "" {
		return nil
	}
	found := make(chan *Index, 1)
	if !s.try(func() error { return s.read(id, size, found) }) {
		return nil
	}
	return <-found
}

func (s *shelf) read(id chunk.ObjectID, size int64, to chan<- *Index) error {
	defer close(to)
	info, err := os.Stat(s.path(id))
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return err
	}
	if info.Size() > maxEncodedBytes {
		return nil
	}
	b, err := os.ReadFile(s.path(id))
	if err != nil {
		return err
	}
	x, err := decode(b, id, size)
	if err == nil {
		s.stats.Loaded.Add(1)
		to <- x
		return nil
	}
	s.stats.Damaged.Add(1)
	s.log.Warn("damaged index of a tar is made again", "file", s.path(id), "error", err)
	s.mu.Lock()
	s.forget(id)
	s.mu.Unlock()
	s.delete([]chunk.ObjectID{id})
	return nil
}

// keep stores an index; when it cannot, that costs a miss later.
func (s *shelf) keep(id chunk.ObjectID, b []byte) {
	if s.dir == "" || len(b) > maxEncodedBytes {
		return
	}
	gone, ok := s.book(id, int64(len(b)))
	s.try(func() error {
		s.delete(gone)
		if !ok {
			return nil
		}
		err := s.write(id, b)
		if err != nil {
			s.mu.Lock()
			s.forget(id)
			s.mu.Unlock()
		}
		return err
	})
}

// write makes the file complete before it has its name.
func (s *shelf) write(id chunk.ObjectID, b []byte) error {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(s.dir, tempPrefix)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), s.path(id))
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}

// try does something with the disk beside the caller, who goes on without it when it takes
// too long. Until it has come back nothing else is tried. It reports whether f is done.
func (s *shelf) try(f func() error) bool {
	timer := time.NewTimer(s.timeout)
	defer timer.Stop()
	s.mu.Lock()
	hung := s.hung
	s.mu.Unlock()
	if hung {
		return false
	}
	select {
	case s.busy <- struct{}{}:
	default:
		select {
		case s.busy <- struct{}{}:
		case <-timer.C:
			return false
		}
	}
	done := make(chan struct{})
	go func() {
		defer func() { <-s.busy }()
		if err := f(); err != nil {
			s.log.Info("indexes of tars are not kept on disk for now", "directory", s.dir, "error", err)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.hung = false
		close(done)
	}()
	select {
	case <-done:
		return true
	case <-timer.C:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-done:
		return true
	default:
	}
	s.hung = true
	s.log.Warn("the disk with indexes of tars does not answer", "directory", s.dir)
	return false
}
