// Package disk keeps blocks of objects in a cache directory: one sparse file per
// object version, exactly as long as the object, and beside it a sidecar with the
// object's identity, a presence bit and a CRC32C for each block.
//
// It promises that a block it hands out was checked against its CRC, that damage
// of whatever kind (a flipped bit, a truncated or swapped file, a sidecar of another
// version) is a miss with a reason that is counted and logged, that the budget
// and the floors hold, and that a full or failing disk costs hits, never errors
// that a reader sees. It leaves to others where absent blocks come from and
// whether what a caller stores is right: a block comes with the CRC that was
// computed when the origin was read.
//
// # Kills and power cuts
//
// Nothing is synced. [File.Put] writes the data, then the checksum, then the
// presence bit. A process that is killed leaves every completed write in the page
// cache, and the kernel shows them to everybody in the order in which they were
// made: a block whose bit is set is whole. So a kill is not an unclean event, and
// whatever was trusted before is trusted after.
//
// When the kernel itself goes (power, panic, reset, but also an orderly reboot: we
// cannot tell), any subset of the writes may be on the disk. So trust belongs to a
// boot of the kernel. Each sidecar carries a stamp with a boot id and the inode of
// its data file, which says: in that boot, every present block was written or
// checked. If the stamp is of this boot and this inode, the file is trusted. If
// not (a boot since, a copied or swapped data file), each block is checked before its
// first use, remembered in memory, and the stamp is renewed once all are. The mark of
// a clean stop therefore says nothing about data; it only saves counting
// the bytes again.
//
// Whole files are given to the kernel for passthrough, which no checksum guards. So
// the stamp also says "complete", under its own checksum: a presence bit that
// flipped from 0 to 1 cannot make a file with a hole in it look whole. What is
// damaged on the disk after that, under this kernel, passthrough does not notice:
// [VerifyDir] does.
//
// # Open files
//
// Bytes that somebody can see do not change under him, whatever is evicted. An object is in use while
// anybody has acquired it: a reader, the kernel by passthrough or by a mapping (whose handle lasts as long), a
// sender to peers. One in use is not evicted. Of one that was never complete, copies may be given back block by
// block even then, to let a large object slide through: the presence bit goes first, then the
// checksum, then the bytes, and no block that is lent. A file that was complete once may be mapped
// somewhere and is never punched or cut, only unlinked whole; what is owned of it moves to a new file
// before. A file that has to be unlinked while it is in use, for its damage cannot be noted, serves readers and
// the cluster until the last close, and counts as taken until then.
//
// The package is an implementation of the disk tier of package cache.
package disk

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shardwell/shardwell/cache/evict"
	"github.com/shardwell/shardwell/cache/mem"
	"github.com/shardwell/shardwell/internal/chunk"
)

// VerifyMode says which reads are checked.
type VerifyMode uint8

const (
	// VerifyAuto checks every read through this package; complete, trusted files
	// may be read by the kernel alone.
	VerifyAuto VerifyMode = iota
	// VerifyAlways gives no file to the kernel, so that every read is checked.
	VerifyAlways
)

// Config of a cache directory.
type Config struct {
	Path     string         // the directory; made if only its last part is missing
	Geometry chunk.Geometry // a directory is bound to the one it was made with

	// BudgetBytes bounds the space that data and sidecars really take. 0 means all
	// that the file system offers above the floor.
	BudgetBytes int64
	FloorBytes  int64 // free space of the file system that is never touched
	FloorInodes int64 // free inodes likewise, where the file system counts them

	// MaxOpen bounds the objects whose files are held open, two descriptors each.
	// 0 takes a quarter of RLIMIT_NOFILE.
	MaxOpen int

	// TransitBytes is how much of the budget is kept for copies of what other nodes
	// own, so that they pass through however full it is. 0 means [TransitBytes] of it.
	TransitBytes int64
	// Policy says what is owned and what it is worth. Without one, what Acquire says
	// of ownership counts, and nothing is protected.
	Policy Policy

	// CallTimeout is how long one call to the file system may take before it is left
	// behind and the disk counts as failing. 0 waits for ever.
	CallTimeout time.Duration

	Verify VerifyMode
	Logger *slog.Logger // nil discards
	FS     FS           // nil means [OS]
	// BootID tells boots of the kernel apart. "" asks the kernel; tests set it.
	BootID string
}

// Limits. The bounds on memory are per directory.
const (
	trimAtOnce      = 4       // idle objects that one caller closes when too many are open
	shedAtOnce      = 64      // the same when descriptors run out
	maxOpenDefault  = 8192    // objects; each costs two descriptors and under 1 KiB of memory
	scratchPerCPU   = 4       // blocks that can be checked at once, per CPU
	runBytes        = 4 << 20 // longest single read of whole blocks
	maxQuarantined  = 32      // damaged blocks and sidecars set aside for a look, outside of the budget; the rest is only logged
	spaceMaxAge     = 500 * time.Millisecond
	maxSpareVictims = 4096 // candidates that one eviction walk remembers
	walkNames       = 512  // names read from a directory at a time
	slackShare      = 32   // eviction begins 1/32 of the budget before it is full,
	maxSlackBytes   = 4 << 30
	minSlackBlocks  = 16 // but leaves room for this many blocks unless the budget is tiny, and ends at twice that distance

	pressureEvery    = 5 * time.Second  // looks at the file system, which others fill too
	countRest        = 10 * time.Second // between counts that failed
	minWalkRest      = time.Second      // between walks that found nothing to evict,
	walkRestMultiple = 20               // or this many times as long as the walk took
)

// Errors of this package, to be found with errors.Is.
var (
	// ErrNotAdmitted says that a block was not stored. The reason is in a *[RejectError].
	ErrNotAdmitted = errors.New("not admitted to the disk")
	// ErrNotPresent says that a block of the range is not on the disk.
	ErrNotPresent = errors.New("not on the disk")
	// ErrTooManyOpen says that every open object is in use and their number is at its limit.
	ErrTooManyOpen = errors.New("too many cached objects in use")
	// ErrDown says that the disk failed too often and is left alone for now.
	ErrDown = errors.New("cache disk is down")
	// ErrFaulty says that a directory cannot be opened for what its disk does, not for how it was set up.
	ErrFaulty = errors.New("cache disk is faulty")
	// ErrClosed says that the directory was closed.
	ErrClosed = errors.New("cache directory is closed")
)

// Dir is a cache directory in use by this process. All methods are safe for
// concurrent use.
//
// Locks, outermost first: transit.sliding, File.mu, Dir.mu, File.stripes, transit.mu, body.mu, ledger.mu. Dir.mu
// is never held over I/O. Where Dir.mu or a File.mu is held while another File.mu
// is taken, nobody else can reach that File.
type Dir struct {
	cfg     Config
	fs      FS
	log     *slog.Logger
	boot    [16]byte
	nodeID  string
	lock    FSFile
	access  int // how files are opened: O_RDWR, or O_RDONLY to only look
	scratch *mem.Arena
	guard   *guard // nil without a CallTimeout
	ledger  ledger
	kick    chan struct{} // wakes Run to evict
	walks   sync.Mutex    // one walk at a time

	// Of Run alone.
	victims        [kinds]victims // to go next
	walkedFor      evict.Class    // the class for which they were looked for
	quotaWalkAfter time.Time      // no walk for relieveQuotas before
	countAfter     time.Time      // no count before
	judged         atomic.Bool    // what is known of datasets has not changed since the last walk

	coming atomic.Uint32 // the highest evict.Class that wanted room since the last eviction

	stats       Stats
	health      health
	opened      time.Time
	checkedAt   atomic.Int64 // the last checkup that went well, since opened (in nanoseconds; 0: none), whatever the clock does
	noDirect    atomic.Bool  // there can be none
	quarantined atomic.Int32 // files in quarantine/

	mu     sync.Mutex
	open   map[chunk.ObjectID]*File // referenced or idle
	idle   fileList                 // those without references, least recently used first
	closed bool
	drops  map[chunk.ObjectID]struct{} // to be removed once nobody uses them
	doomed map[chunk.ObjectID]struct{} // could not be unlinked: to be, and not to be looked at before
	full   map[evict.Dataset]int64     // bytes that datasets want beyond their quota, see wantWithin
}

// Open prepares a cache directory and locks it. It scans nothing: the time does
// not grow with what is in the cache. Its errors are one line for the user; those that match
// [ErrFaulty] are the disk's.
func Open(cfg Config) (*Dir, error) {
	if err := cfg.Geometry.Validate(); err != nil {
		return nil, fmt.Errorf("cache directory %s: %w", cfg.Path, err)
	}
	if cfg.BudgetBytes < 0 || cfg.FloorBytes < 0 || cfg.FloorInodes < 0 || cfg.TransitBytes < 0 {
		return nil, fmt.Errorf("cache directory %s: budget and floors must not be negative", cfg.Path)
	}
	if cfg.FS == nil {
		cfg.FS = OS{}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.MaxOpen <= 0 {
		cfg.MaxOpen = defaultMaxOpen()
	}
	d := &Dir{
		cfg:    cfg,
		fs:     cfg.FS,
		log:    cfg.Logger.With("cacheDir", cfg.Path),
		boot:   bootID(cfg.BootID),
		opened: time.Now(),
		access: os.O_RDWR,
		kick:   make(chan struct{}, 1),
		open:   make(map[chunk.ObjectID]*File),
	}
	var err error
	blocks := scratchPerCPU * runtime.GOMAXPROCS(0)
	if d.scratch, err = mem.New(int(cfg.Geometry.BlockBytes), int64(blocks)*cfg.Geometry.BlockBytes); err != nil {
		return nil, err
	}
	if cfg.CallTimeout > 0 {
		if d.guard, err = newGuard(cfg.FS, cfg.CallTimeout, int(cfg.Geometry.BlockBytes), d.noteHang); err != nil {
			d.release()
			return nil, fmt.Errorf("cache directory %s: %w", cfg.Path, err)
		}
		d.fs = d.guard
	}
	if err := d.prepare(); err != nil {
		err = d.blame(err)
		d.release()
		return nil, fmt.Errorf("cache directory %s: %w", cfg.Path, err)
	}
	return d, nil
}

// release gives back what Open took.
func (d *Dir) release() {
	if d.lock != nil {
		d.lock.Close()
	}
	if err := d.scratch.Close(); err != nil {
		d.log.Error("close cache directory", "err", err)
	}
	if d.guard != nil {
		if err := d.guard.close(); err != nil {
			d.log.Warn("close cache directory", "err", err)
		}
	}
}

// defaultMaxOpen leaves three quarters of the descriptors to connections and mounts.
func defaultMaxOpen() int {
	var lim unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &lim); err != nil {
		return 128
	}
	return int(min(maxOpenDefault, max(16, lim.Cur/8)))
}

// Path returns the directory's path.
func (d *Dir) Path() string { return d.cfg.Path }

// NodeID returns the ring identity that is kept in the directory: 16 lower-case
// hexadecimal digits, drawn at random when the directory was made.
func (d *Dir) NodeID() string { return d.nodeID }

// Geometry returns the sizes that the directory is bound to.
func (d *Dir) Geometry() chunk.Geometry { return d.cfg.Geometry }

// Stats returns the counters, which go on counting.
func (d *Dir) Stats() *Stats { return &d.stats }

// Acquire returns the file of an object for reading and storing, whether or not
// anything of it is on the disk; nothing is created before the first [File.Put]. id is
// obj.ID(). owned says that this node owns the object by the ring, which keeps it
// longer. The caller releases the file.
//
// An error means that the disk cannot be used for this object now.
func (d *Dir) Acquire(obj chunk.Object, id chunk.ObjectID, owned bool) (*File, error) {
	f, err := d.take(id)
	if err != nil {
		return nil, fmt.Errorf("open %s in cache: %w", obj.URI(), err)
	}
	if err := f.load(&obj, owned); err != nil {
		f.Release()
		return nil, fmt.Errorf("open %s in cache: %w", obj.URI(), err)
	}
	d.trim(d.cfg.MaxOpen, trimAtOnce)
	return f, nil
}

// Find returns the file of an object of which blocks may be on the disk, and
// [ErrNotPresent] when the disk has nothing of it. The caller releases the file.
func (d *Dir) Find(id chunk.ObjectID) (*File, error) {
	f, err := d.take(id)
	if err != nil {
		return nil, fmt.Errorf("open object %s in cache: %w", id, err)
	}
	if err := f.load(nil, false); err != nil {
		f.Release()
		return nil, fmt.Errorf("open object %s in cache: %w", id, err)
	}
	d.trim(d.cfg.MaxOpen, trimAtOnce)
	return f, nil
}

// take returns the handle of an object with one more reference.
func (d *Dir) take(id chunk.ObjectID) (*File, error) {
	if d.health.State() == Down {
		return nil, ErrDown
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, ErrClosed
	}
	f := d.open[id]
	switch {
	case f == nil && len(d.open)-d.idle.n >= d.cfg.MaxOpen:
		d.stats.TooManyOpen.Add(1)
		return nil, ErrTooManyOpen
	case f == nil:
		f = &File{d: d, id: id}
		d.open[id] = f
	case f.refs == 0:
		d.idle.remove(f)
	}
	f.refs++
	return f, nil
}

// trim closes idle objects until at most keep objects are open, or at most n.
func (d *Dir) trim(keep, n int) {
	for range n {
		d.mu.Lock()
		old := d.idle.head
		if old == nil || len(d.open) <= keep {
			d.mu.Unlock()
			return
		}
		d.idle.remove(old)
		delete(d.open, old.id)
		d.mu.Unlock()
		old.closeFiles()
	}
}

// Close gives the directory up and notes that its accounting is right. Callers
// have released their files and Run has returned.
func (d *Dir) Close() error {
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return nil
	}
	d.closed = true
	inUse := 0
	files := make([]*File, 0, len(d.open))
	for _, f := range d.open {
		if f.refs > 0 {
			inUse++
			continue
		}
		files = append(files, f)
	}
	d.mu.Unlock()
	for _, f := range files {
		f.closeFiles()
	}
	if err := d.markClean(inUse == 0); err != nil { // a full disk, perhaps: the next start counts
		d.log.Warn("write clean mark", "err", err)
	}
	d.release()
	if inUse > 0 {
		return fmt.Errorf("close cache directory %s: %d objects are still in use", d.cfg.Path, inUse)
	}
	return nil
}

// Usage returns the bytes that the cache takes and the bytes that it may take. Both
// are estimates until Run has counted what an unclean stop left.
func (d *Dir) Usage() (used, budget int64) { return d.ledger.usage() }

// Capacity returns the bytes that what this node owns may take, and does: the budget
// without the transit area. Estimates as those of Usage.
func (d *Dir) Capacity() (owned, limit int64) {
	d.ledger.mu.Lock()
	defer d.ledger.mu.Unlock()
	_ = d.ledger.refresh() // the older figure does as well
	return max(0, d.ledger.owned()), d.ledger.room() - d.ledger.transit()
}

// Judged says that answers of the [Policy] have changed: what could not be evicted
// perhaps can.
func (d *Dir) Judged() {
	d.judged.Store(false)
	d.wake()
}

// Run counts what is on the disk if the last stop was not clean, evicts when the
// budget or a floor is near, and tries a disk that is down again. It returns when
// ctx ends.
func (d *Dir) Run(ctx context.Context) error {
	tick := time.NewTicker(pressureEvery)
	defer tick.Stop()
	for {
		if d.health.State() == Down {
			d.probe()
		} else {
			d.work(ctx)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-d.kick:
		case <-tick.C:
			d.checkupInUse()
		}
	}
}

// work does what there is to do on a disk that works.
func (d *Dir) work(ctx context.Context) {
	d.unlinkDoomed()
	d.dropUnused(ctx)
	if d.ledger.exact() || d.count(ctx) {
		d.relieve(ctx)
		d.relieveQuotas(ctx)
	}
}

// count counts for the first time after an unclean stop. While that fails it rests most of the time.
func (d *Dir) count(ctx context.Context) bool {
	start := time.Now()
	if start.Before(d.countAfter) {
		return false
	}
	if err := d.walk(ctx, nil); err != nil {
		if ctx.Err() == nil {
			d.log.Error("count cached bytes", "err", err)
		}
		d.countAfter = time.Now().Add(max(countRest, walkRestMultiple*time.Since(start)))
		return false
	}
	d.log.Info("counted cached bytes after an unclean stop", "took", time.Since(start))
	return true
}
