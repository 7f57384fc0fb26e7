// Package snapshot remembers the entries of directories that a mount has shown: on
// disk, append-only, memory-mapped.
//
// It promises that a node id, once given out, means the same entry for the life of
// the mount and for a successor of the process, that finding an entry by id or by
// name takes constant time, and that a name costs some 16 bytes of memory beside its
// record in the page cache. A record is complete in the file before the call that
// made it returns. Which entries there are, and how fresh, is decided by others.
// It is a part of fuse.
//
// All directories share one file, names.log: records of a mount's directories in
// the order in which they were learnt. A changed entry is a new record, a vanished
// one a record that says so. What is overwritten is when a directory was known in
// full last, and nothing else. Opening reads the file
// once (some 100 ms for a million names). When the disk takes no more, the log goes
// on in memory, in a [Spill] if there is one, which a successor finds as well: a full
// disk costs names nothing, and one that does not answer a moment ([Spill.InTime]). Pages of a file that
// cannot be read any more raise a memory fault: callers run under debug.SetPanicOnFault. Pages that the kernel has to
// read from a disk which does not answer hold whoever looks at them.
package snapshot

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Layout of names.log. Numbers are little-endian.
const (
	segmentBytes = 1 << 20 // mapped at a time; no record crosses from one to the next
	recordAlign  = 8
	headerBytes  = 32
	maxLogBytes  = 1 << 35 // offsets are kept in 32 bits, in units of recordAlign

	offLength = 0  // u32, bytes of the record with padding; written last, 0 = end of log
	offSerial = 4  // u32, directory
	offSize   = 8  // u64
	offTime   = 16 // i64, nanoseconds since 1970; 0 = unknown
	offKind   = 24 // u8
	offFlags  = 25 // u8
	offName   = 26 // u16, bytes
	offETag   = 28 // u16, bytes as stored
)

// Kinds of records beside tree.File and tree.Dir.
const (
	kindGone     = 3 // the name does not exist any more
	kindSerial   = 4 // a directory got a serial: offSize holds its node id, the name is its key prefix
	kindFiller   = 5 // the rest of a segment
	kindIdentity = 6 // first record: whose names these are
	kindListed   = 7 // a directory is known in full as of offTime, which is overwritten when it is again; 0 = it is not
	kindDistrust = 8 // what is known so far of names of a directory that begin with the name counts as never verified
)

// Flags of a record.
const (
	flagReplaces = 1 << iota // an earlier record of the directory has the same name
	flagHexETag              // the ETag is 16 bytes, shown as 32 hexadecimal digits
	flagDoubtful             // it was never verified: the answer was to a question from before a Distrust
)

// RootID is the node id of the mount's own directory, as FUSE has it.
const RootID = 1

// asideID is the node id of the directory of [Store.Aside], which nobody sees.
const asideID = 2

// rootSerial is the serial of the root; entries have ids from 1<<32 on.
const rootSerial = 1

// layoutVersion opens the identity record.
const layoutVersion = "shardwell names 2\n"

// epochBefore is how long before the store was opened answers may come from. Ticks
// since then fit 32 bits for some seven years.
const epochBefore = 400 * 24 * time.Hour

// ErrForeign says that a log belongs to another mount or layout.
var ErrForeign = errors.New("listing snapshot of another mount or version")

// Store keeps the entries of all directories of one mount. It is safe for
// concurrent use. Lock order: Dir.mu, then Store.mu.
type Store struct {
	path    string
	spill   Spill
	epoch   time.Time // of verification times, well before any of them
	created time.Time // of the log; set while it is made or read

	mu        sync.Mutex
	file      *os.File  // names.log, nil when there is none
	end       int64     // of the log; under mu
	onDisk    int64     // segments in file; under mu
	spilled   int64     // segments in spill; under mu
	touched   int64     // page that was made writable last, from 1; under mu
	touchedAt time.Time // when that was; under mu
	segments  atomic.Pointer[[][]byte]
	dirs      map[uint32]*Dir // by serial; under mu
	byNode    map[uint64]*Dir // by node id of the directory; under mu
	serial    uint32          // last given out; under mu

	onLost func(error) // called once, when the log goes on in memory
	lost   bool        // it did; under mu

	records atomic.Int64
	total   Counts // of all directories that exist; under mu
}

// Spill is memory that takes the log when the disk does not: the bytes of a file from
// an offset on. Without a file it is memory of this process, which no successor finds.
type Spill struct {
	File   *os.File // of a memory file system; borrowed
	Offset int64    // multiple of the page size; the file ends there while nothing was spilled
	// InTime says when the disk does not: it has a call come back in time, with an error if need be; then call goes
	// on by itself, and late runs after it. nil: the log waits for the disk.
	InTime func(op string, call func() error, late func()) error
}

// inTime is InTime, if there is one.
func (s *Spill) inTime(op string, call func() error, late func()) error {
	if s.InTime == nil {
		return call()
	}
	return s.InTime(op, call, late)
}

// Create starts an empty store in dir for the mount that identity names, whatever
// was there before. rootPrefix is the key prefix of the root directory. onLost is told
// when the log cannot be, or not stay, on disk.
func Create(dir, identity, rootPrefix string, now time.Time, spill Spill, onLost func(error)) (*Store, error) {
	path := filepath.Join(dir, "names.log")
	made := new(*os.File)
	err := spill.inTime("make listing snapshot", func() (err error) {
		*made, err = createFile(dir, path)
		return err
	}, func() {
		if *made != nil {
			_ = (*made).Close()
		}
	})
	s := newStore(path, nil, now, spill, onLost)
	if err != nil {
		s.lose(err)
	} else {
		s.file = *made
	}
	s.created = time.Unix(0, now.UnixNano())
	if _, err := s.append(record{kind: kindIdentity, time: now.UnixNano(), name: layoutVersion + identity}); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	if _, err := s.newDir(RootID, rootPrefix); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// createFile makes a new file: an old one may still be mapped by a process that is on
// its way out.
func createFile(dir, path string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	return os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
}

// lose makes the log go on in memory; mu is held, or nobody else has the store.
func (s *Store) lose(err error) {
	s.lost = true
	s.onLost(fmt.Errorf("listing snapshot %s: %w", s.path, err))
}

// Open reads the store that another process made in dir for the same mount and does
// not write any more. What it knew counts as verified long ago, and where a directory was listed,
// as of then.
func Open(dir, identity string, now time.Time, spill Spill, onLost func(error)) (*Store, error) {
	f, err := os.OpenFile(filepath.Join(dir, "names.log"), os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("open listing snapshot: %w", err)
	}
	return OpenFile(f, identity, now, spill, onLost)
}

// OpenFile is Open for a names.log that is open already, nil when all is in spill. It
// takes the file over.
func OpenFile(f *os.File, identity string, now time.Time, spill Spill, onLost func(error)) (*Store, error) {
	path := "in memory"
	if f != nil {
		path = f.Name()
	}
	s := newStore(path, f, now, spill, onLost)
	if err := s.load(identity, now); err != nil {
		return nil, errors.Join(fmt.Errorf("open listing snapshot %s: %w", path, err), s.Close())
	}
	return s, nil
}

func newStore(path string, f *os.File, now time.Time, spill Spill, onLost func(error)) *Store {
	s := &Store{path: path, file: f, spill: spill, onLost: onLost, epoch: now.Add(-epochBefore), dirs: make(map[uint32]*Dir), byNode: make(map[uint64]*Dir)}
	s.segments.Store(&[][]byte{})
	return s
}

// File returns names.log, nil when the log is in memory from its beginning. It is
// borrowed.
func (s *Store) File() *os.File { return s.file }

// Close unmaps the log; nothing of the store may be in use.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, m := range *s.segments.Load() {
		errs = append(errs, unix.Munmap(m))
	}
	s.segments.Store(&[][]byte{})
	if s.file != nil {
		errs = append(errs, s.spill.inTime("close listing snapshot", s.file.Close, func() {}))
	}
	return errors.Join(errs...)
}

// Records returns how many entries were recorded, superseded ones included.
func (s *Store) Records() int64 { return s.records.Load() }

// Created returns when the log was begun, also by an earlier process.
func (s *Store) Created() time.Time { return s.created }

// Counts returns what exists, as far as is known: what lies in a directory that
// vanished does not.
func (s *Store) Counts() Counts {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.total
}

// Root returns the mount's own directory.
func (s *Store) Root() *Dir {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dirs[rootSerial]
}

// Owner returns the directory that has the entry with a node id, and the entry's
// index there; nil for the root and for ids that were never given out.
func (s *Store) Owner(id uint64) (*Dir, uint32) {
	s.mu.Lock()
	d := s.dirs[uint32(id>>32)]
	s.mu.Unlock()
	if d == nil || uint32(id) >= d.Len() {
		return nil, 0
	}
	return d, uint32(id)
}

// Dir returns the directory with a serial, nil when there is none.
func (s *Store) Dir(serial uint32) *Dir {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dirs[serial]
}

// Known returns the directory with a node id when its entries have a place already.
func (s *Store) Known(id uint64) *Dir {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byNode[id]
}

// DirOf returns the directory whose own node id is id and whose key prefix is
// prefix; it gives the entries a place (a serial) at first.
func (s *Store) DirOf(id uint64, prefix string) (*Dir, error) {
	if d := s.Known(id); d != nil {
		return d, nil
	}
	return s.newDir(id, prefix)
}

// Aside returns the directory above all that stand for no keys of the bucket. What is below it is not
// counted, and Dirs does not name it.
func (s *Store) Aside() (*Dir, error) { return s.DirOf(asideID, "") }

// Dirs calls f for each directory of keys that has a place, until it returns false.
func (s *Store) Dirs(f func(*Dir) bool) {
	s.mu.Lock()
	all := make([]*Dir, 0, len(s.dirs))
	for _, d := range s.dirs {
		if !d.Aside {
			all = append(all, d)
		}
	}
	s.mu.Unlock()
	for _, d := range all {
		if !f(d) {
			return
		}
	}
}

func (s *Store) newDir(id uint64, prefix string) (*Dir, error) {
	owner, index := s.Owner(id) // nil for the root
	if owner != nil {
		owner.mu.RLock() // until the entry cannot vanish unnoticed
		defer owner.mu.RUnlock()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if d := s.byNode[id]; d != nil {
		return d, nil
	}
	serial := s.serial + 1
	if _, err := s.appendLocked(record{serial: serial, kind: kindSerial, size: id, name: prefix}); err != nil {
		return nil, err
	}
	s.serial = serial
	return s.addDir(serial, id, prefix, owner, index), nil
}

// addDir gives a place to the directory that is the entry index of owner. s.mu and
// owner.mu are held, or nobody else has the store.
func (s *Store) addDir(serial uint32, id uint64, prefix string, owner *Dir, index uint32) *Dir {
	d := &Dir{store: s, Serial: serial, ID: id, Prefix: prefix, Aside: id == asideID}
	d.vanished = d.Aside // it is not counted
	s.dirs[serial], s.byNode[id] = d, d
	if owner != nil {
		d.Aside = owner.Aside
		owner.children = append(owner.children, d)
		d.vanished = owner.vanished || owner.current(index) != index
	}
	return d
}

// record is what append writes.
type record struct {
	serial uint32
	kind   uint8
	flags  uint8
	size   uint64
	time   int64
	name   string
	etag   string
}

func (s *Store) append(r record) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.appendLocked(r)
}

// appendLocked writes r and returns its offset. The length, which makes it exist,
// is written last: a process killed at any point leaves whole records.
func (s *Store) appendLocked(r record) (int64, error) {
	etag := r.etag
	var packed [16]byte
	if packHex(&packed, etag) {
		etag, r.flags = string(packed[:]), r.flags|flagHexETag
	}
	n := (headerBytes + len(r.name) + len(etag) + recordAlign - 1) &^ (recordAlign - 1)
	if len(r.name) > 1<<16-1 || len(etag) > 1<<16-1 || n > segmentBytes {
		return 0, fmt.Errorf("listing snapshot: name of %d bytes is too long", len(r.name))
	}
	if room := segmentBytes - s.end%segmentBytes; int64(n) > room && room < segmentBytes {
		if s.touch(s.end, min(room, headerBytes)) {
			s.fill(room)
		}
	}
	if err := s.grow(s.end + int64(n)); err != nil {
		return 0, err
	}
	if !s.touch(s.end, int64(n)) {
		if err := s.grow(s.end + int64(n)); err != nil {
			return 0, err
		}
	}
	at := s.end
	b := s.at(at)[:n]
	binary.LittleEndian.PutUint32(b[offSerial:], r.serial)
	binary.LittleEndian.PutUint64(b[offSize:], r.size)
	binary.LittleEndian.PutUint64(b[offTime:], uint64(r.time))
	b[offKind], b[offFlags] = r.kind, r.flags
	binary.LittleEndian.PutUint16(b[offName:], uint16(len(r.name)))
	binary.LittleEndian.PutUint16(b[offETag:], uint16(len(etag)))
	copy(b[headerBytes:], r.name)
	copy(b[headerBytes+len(r.name):], etag)
	setLength(b, uint32(n))
	s.end += int64(n)
	return at, nil
}

// fill closes a segment whose rest is too small. The rest is a multiple of 8
// bytes, so there is always room for length and serial; a filler has no more.
func (s *Store) fill(room int64) {
	b := s.at(s.end)
	if room >= headerBytes {
		b[offKind] = kindFiller
	}
	setLength(b, uint32(room))
	s.end += room
}

func setLength(b []byte, n uint32) {
	atomic.StoreUint32((*uint32)(unsafe.Pointer(&b[offLength])), n)
}
