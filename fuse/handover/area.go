package handover

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// LayoutVersion is the version of what lies where in an [Area]. A program reads areas of
// its own version only.
const LayoutVersion = 1

// Bounds of an area.
const (
	MaxRecordBytes = 64 << 10
	MaxPlansBytes  = 4 << 20 // of what readers said they will read
	// MaxHandles are the open files of a mount: what of a million slots is not taken by plans, which
	// earlier programs of this layout knew nothing of.
	MaxHandles   = handleSlots - 2*MaxPlansBytes/handleBytes
	maxInitBytes = 2 << 10 // of a request or reply of INIT
	maxAgain     = 4 << 10 // requests that came again and are not answered
)

// Layout. Numbers are those of the machine: an area never leaves it. Words that say
// that something is there are written last, and singly.
const (
	magic = 0x4c4c455744524853 // "SHRDWELL"

	offMagic       = 0  // u64, written last
	offVersion     = 8  // u32
	offRecord      = 12 // u32, bytes; the highest bit says in which of two places it is
	offInit        = 16 // u32, bytes of the request | bytes of the reply << 16; 0 = not recorded
	offClosing     = 20 // u32, backing id
	offNextHandle  = 24 // u64
	offHandles     = 32 // u32, slots that were ever used
	offLastBacking = 36 // u32
	offDock        = 40 // u64, unique
	offPlans       = 48 // u32, as offRecord

	initOffset    = 4 << 10 // request, then reply, maxInitBytes each
	recordOffset  = initOffset + 2*maxInitBytes
	againOffset   = recordOffset + 2*MaxRecordBytes
	againBytes    = 16 // unique u64 (0 = free), times u32, blame u32
	handlesOffset = againOffset + maxAgain*againBytes
	handleBytes   = 32 // fh, node, unique u64, backing u32, use u32 (0 = free)
	handleSlots   = 1 << 20
	plansOffset   = handlesOffset + MaxHandles*handleBytes // MaxPlansBytes, twice
	areaBytes     = handlesOffset + handleSlots*handleBytes
)

// ErrVersion says that an area was laid out by another version of the program.
var ErrVersion = errors.New("made by another version, whose state this one does not read")

// Handle is an open file as the kernel knows it.
type Handle struct {
	FH      uint64
	NodeID  uint64
	Unique  uint64 // of the OPEN request, bit 63 cleared: the same OPEN may come again
	Backing int32  // id of the file registered for passthrough, 0 for none
	Direct  bool   // its reads come to the server all the same
}

// Uses of a slot of a handle.
const (
	useOpen   = 1
	useDirect = 2
)

// secondRecord marks the second place of a record, or of plans.
const secondRecord = 1 << 31

// Area is what a successor must know of a session, in memory that outlives the
// process: a memfd, sparse, whose pages exist when they were written to. It implements
// fuse.SessionState and fuse.Journal. Methods are safe for concurrent use by one
// process; two never use an area at a time.
type Area struct {
	file *os.File
	mem  []byte

	mu    sync.Mutex
	slots map[uint64]uint32 // of handles, by FH
	free  []uint32          // slots below the highest used
	again map[uint64]uint32 // slots of requests that came again, by unique
	spare []uint32          // of them
	seen  map[uint64]bool   // requests that this process took; others may be gone for good
}

// NewArea makes the area of a new session. record says what the session is, for whoever
// adopts it; it is at most MaxRecordBytes long.
func NewArea(record []byte) (*Area, error) {
	if len(record) > MaxRecordBytes {
		return nil, fmt.Errorf("state of a mount: a description of %d bytes: at most %d", len(record), MaxRecordBytes)
	}
	fd, err := unix.MemfdCreate("shardwell-session", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("state of a mount: %w", err)
	}
	f := os.NewFile(uintptr(fd), "shardwell-session")
	err = unix.Ftruncate(fd, areaBytes)
	if err == nil { // whoever maps it never meets an end that came nearer
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK)
	}
	a := &Area{file: f}
	if err == nil {
		err = a.mapFile()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("state of a mount: %w", err), f.Close())
	}
	_ = a.SetRecord(record) // fits
	a.store32(offVersion, LayoutVersion)
	a.store64(offMagic, magic)
	a.index()
	return a, nil
}

// OpenArea maps the area of a session that another process began. It takes f over. The
// error matches ErrVersion when that was one of another version.
func OpenArea(f *os.File) (*Area, error) {
	a := &Area{file: f}
	err := a.check()
	if err == nil {
		err = a.mapFile()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("state of a mount: %w", err), f.Close())
	}
	a.index()
	return a, nil
}

// OpenAreaToLook is OpenArea for a session whose server may be at work: the area can be
// asked for Record and Init, and nothing is written to it.
func OpenAreaToLook(f *os.File) (*Area, error) {
	a := &Area{file: f}
	if f == nil {
		return nil, errors.New("state of a mount: no file")
	}
	err := a.check()
	if err == nil {
		a.mem, err = unix.Mmap(int(f.Fd()), 0, areaBytes, unix.PROT_READ, unix.MAP_SHARED)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("state of a mount: %w", err), f.Close())
	}
	return a, nil
}

// check reads the header, and maps nothing that may be shorter than it should be.
func (a *Area) check() error {
	var head [recordOffset]byte
	n, err := a.file.ReadAt(head[:], 0)
	switch {
	case n < len(head):
		return fmt.Errorf("no area of a session: %d bytes (%v)", n, err)
	case binary.NativeEndian.Uint64(head[offMagic:]) != magic:
		return errors.New("no area of a session: its first bytes are of something else")
	}
	if v := binary.NativeEndian.Uint32(head[offVersion:]); v != LayoutVersion {
		return fmt.Errorf("layout %d, not %d: %w", v, LayoutVersion, ErrVersion)
	}
	st, err := a.file.Stat()
	if err != nil {
		return err
	}
	if st.Size() < areaBytes || binary.NativeEndian.Uint32(head[offRecord:])&^secondRecord > MaxRecordBytes ||
		binary.NativeEndian.Uint32(head[offPlans:])&^secondRecord > MaxPlansBytes || binary.NativeEndian.Uint32(head[offHandles:]) > MaxHandles {
		return errors.New("no area of a session: it is damaged")
	}
	return nil
}

func (a *Area) mapFile() (err error) {
	a.mem, err = unix.Mmap(int(a.file.Fd()), 0, areaBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	return err
}

// index finds what is there.
func (a *Area) index() {
	a.slots, a.again = make(map[uint64]uint32), make(map[uint64]uint32)
	a.seen = make(map[uint64]bool)
	for i := range a.load32(offHandles) {
		at := handleAt(i)
		if a.load32(at+28) == 0 {
			a.free = append(a.free, i)
			continue
		}
		a.slots[a.load64(at)] = i
	}
	for i := range uint32(maxAgain) {
		at := againAt(i)
		unique := a.load64(at)
		if unique == 0 {
			a.spare = append(a.spare, i)
			continue
		}
		a.again[unique] = i
	}
}

// File returns the memfd, which is borrowed.
func (a *Area) File() *os.File { return a.file }

// Record returns what NewArea or SetRecord was given last.
func (a *Area) Record() []byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	at, n := recordAt(a.load32(offRecord))
	return append([]byte(nil), a.mem[at:at+n]...)
}

// SetRecord replaces the description of the session.
func (a *Area) SetRecord(record []byte) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(record) > MaxRecordBytes {
		return fmt.Errorf("state of a mount: a description of %d bytes: at most %d", len(record), MaxRecordBytes)
	}
	next := uint32(len(record)) | ^a.load32(offRecord)&secondRecord // the place that is not in use
	at, _ := recordAt(next)
	copy(a.mem[at:], record)
	a.store32(offRecord, next)
	return nil
}

// recordAt returns where a record is.
func recordAt(word uint32) (at, n int) {
	at, n = recordOffset, int(word&^secondRecord)
	if word&secondRecord != 0 {
		at += MaxRecordBytes
	}
	return at, n
}

// Plans implements fuse.PlanState.
func (a *Area) Plans() []byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	at, n := plansAt(a.load32(offPlans))
	return append([]byte(nil), a.mem[at:at+n]...)
}

// SavePlans implements fuse.PlanState.
func (a *Area) SavePlans(plans []byte) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(plans) > MaxPlansBytes {
		return fmt.Errorf("state of a mount: plans of %d bytes: at most %d", len(plans), MaxPlansBytes)
	}
	next := uint32(len(plans)) | ^a.load32(offPlans)&secondRecord // the place that is not in use
	at, _ := plansAt(next)
	copy(a.mem[at:], plans)
	a.store32(offPlans, next)
	return nil
}

// plansAt returns where plans are.
func plansAt(word uint32) (at, n int) {
	at, n = plansOffset, int(word&^secondRecord)
	if word&secondRecord != 0 {
		at += MaxPlansBytes
	}
	return at, n
}

// Spill returns the file and the offset from which on it is free for the listings that
// a full disk does not take.
func (a *Area) Spill() (*os.File, int64) { return a.file, areaBytes }

// Close unmaps the area. What is in it lives as long as anybody has the file.
func (a *Area) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mem == nil {
		return nil
	}
	err := unix.Munmap(a.mem)
	a.mem = nil
	return errors.Join(err, a.file.Close())
}

// Init implements fuse.SessionState.
func (a *Area) Init() (request, reply []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	lengths := a.load32(offInit)
	n, m := int(lengths&0xffff), int(lengths>>16)
	if n == 0 || n > maxInitBytes || m > maxInitBytes {
		return nil, nil
	}
	request = append(request, a.mem[initOffset:initOffset+n]...)
	return request, append(reply, a.mem[initOffset+maxInitBytes:initOffset+maxInitBytes+m]...)
}

// SaveInit implements fuse.SessionState. The kernel agrees once; a request that comes
// again changes nothing but its id.
func (a *Area) SaveInit(request, reply []byte) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(request) > maxInitBytes || len(reply) > maxInitBytes {
		return fmt.Errorf("state of a mount: INIT of %d and %d bytes: at most %d", len(request), len(reply), maxInitBytes)
	}
	if a.load32(offInit) != 0 {
		return nil
	}
	copy(a.mem[initOffset:], request)
	copy(a.mem[initOffset+maxInitBytes:], reply)
	a.store32(offInit, uint32(len(request))|uint32(len(reply))<<16)
	return nil
}

// NextHandle implements fuse.SessionState.
func (a *Area) NextHandle() uint64 { return atomic.AddUint64(a.word64(offNextHandle), 1) }

// Put implements fuse.SessionState. ENFILE says that MaxHandles are open.
func (a *Area) Put(h Handle) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	i := a.load32(offHandles)
	if n := len(a.free); n > 0 {
		i, a.free = a.free[n-1], a.free[:n-1]
	} else if i >= MaxHandles {
		return fmt.Errorf("%d files of the mount are open: %w", i, syscall.ENFILE)
	} else {
		a.store32(offHandles, i+1) // an unused slot for whoever looks now
	}
	at := handleAt(i)
	a.store64(at, h.FH)
	a.store64(at+8, h.NodeID)
	a.store64(at+16, h.Unique)
	a.store32(at+24, uint32(h.Backing))
	use := uint32(useOpen)
	if h.Direct {
		use |= useDirect
	}
	a.store32(at+28, use)
	a.slots[h.FH] = i
	return nil
}

// Drop implements fuse.SessionState.
func (a *Area) Drop(fh uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	i, ok := a.slots[fh]
	if !ok {
		return
	}
	a.store32(handleAt(i)+28, 0)
	delete(a.slots, fh)
	a.free = append(a.free, i)
}

// Handles implements fuse.SessionState.
func (a *Area) Handles() []Handle {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := make([]Handle, 0, len(a.slots))
	for _, i := range a.slots {
		at := handleAt(i)
		all = append(all, Handle{FH: a.load64(at), NodeID: a.load64(at + 8), Unique: a.load64(at + 16), Backing: int32(a.load32(at + 24)), Direct: a.load32(at+28)&useDirect != 0})
	}
	return all
}

func handleAt(i uint32) int { return handlesOffset + int(i)*handleBytes }
func againAt(i uint32) int  { return againOffset + int(i)*againBytes }

func (a *Area) word32(at int) *uint32 { return (*uint32)(unsafe.Pointer(&a.mem[at])) }
func (a *Area) word64(at int) *uint64 { return (*uint64)(unsafe.Pointer(&a.mem[at])) }

func (a *Area) load32(at int) uint32     { return atomic.LoadUint32(a.word32(at)) }
func (a *Area) load64(at int) uint64     { return atomic.LoadUint64(a.word64(at)) }
func (a *Area) store32(at int, v uint32) { atomic.StoreUint32(a.word32(at), v) }
func (a *Area) store64(at int, v uint64) { atomic.StoreUint64(a.word64(at), v) }
