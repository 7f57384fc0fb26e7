package disk

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/shardwell/shardwell/internal/chunk"
)

// Names in a cache directory.
const (
	lockName       = "lock"
	layoutName     = "layout"
	nodeIDName     = "node-id"
	cleanName      = "clean"
	objectsName    = "objects"
	quarantineName = "quarantine"
	dataSuffix     = ".data"
	metaSuffix     = ".meta"
	tempSuffix     = ".tmp"

	maxSmallFileBytes = 32 << 10 // of the text files; the clean mark is the longest
)

// path returns a name in the directory.
func (d *Dir) path(name ...string) string {
	return filepath.Join(append([]string{d.cfg.Path}, name...)...)
}

// prepare takes the lock and reads or makes the small files.
func (d *Dir) prepare() error {
	if err := d.fs.Mkdir(d.cfg.Path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return explain("make", err)
	}
	if err := d.takeLock(); err != nil {
		return err
	}
	if err := d.checkLayout(); err != nil {
		return err
	}
	if err := d.readNodeID(); err != nil {
		return err
	}
	fresh := true
	for _, name := range [...]string{quarantineName, objectsName} {
		switch err := d.fs.Mkdir(d.path(name), 0o700); {
		case errors.Is(err, fs.ErrExist):
			fresh = false
		case err != nil:
			return explain("make "+name, err)
		}
	}
	if dir, err := d.fs.OpenFile(d.path(quarantineName), os.O_RDONLY|unix.O_DIRECTORY, 0); err == nil {
		names, _ := dir.Names(maxQuarantined)
		d.quarantined.Store(int32(len(names)))
		dir.Close()
	}
	return d.openLedger(fresh)
}

// takeLock also shows that the directory can be written to.
func (d *Dir) takeLock() error {
	f, err := d.fs.OpenFile(d.path(lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return explain("open lock", err)
	}
	d.lock = f
	err = flock(f, unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		pid := "unknown"
		if text, err := d.readSmall(lockName); err == nil && text != "" {
			pid = text
		}
		return fmt.Errorf("in use by another process (pid %s): stop it, or use another directory", pid)
	}
	if err != nil {
		return explain("lock", err)
	}
	pid := fmt.Appendf(nil, "%d\n", os.Getpid())
	if err = f.Truncate(0); err == nil {
		_, err = f.WriteAt(pid, 0)
	}
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) { // what is in the cache can be read all the same
		d.log.Warn("lock of the cache directory does not tell who has it", "err", err)
		return nil
	}
	return explain("write lock", err)
}

func flock(f FSFile, how int) error {
	file := f.OS()
	if file == nil {
		return nil
	}
	conn, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var lockErr error
	if err := conn.Control(func(fd uintptr) { lockErr = unix.Flock(int(fd), how) }); err != nil {
		return err
	}
	return lockErr
}

// explain turns an error at start into words for the user.
func explain(what string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return fmt.Errorf("not writable by uid %d: %w", os.Geteuid(), err)
	case errors.Is(err, unix.EROFS):
		return told{"on a read-only file system", err}
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return fmt.Errorf("no space: free some, or use another directory: %w", err)
	case errors.Is(err, unix.ENOENT):
		return told{"does not exist and neither does its parent: make it first", err}
	case errors.Is(err, unix.ENOTDIR):
		return told{"not a directory", err}
	}
	return fmt.Errorf("%s: %w", what, err)
}

// blame makes an error of prepare match [ErrFaulty] when it is the disk's. A cache that has become read-only is: file
// systems do so when their disk fails.
func (d *Dir) blame(err error) error {
	for _, fault := range [...]error{unix.EIO, unix.ENXIO, unix.ENODEV, unix.ENODATA, unix.ETIMEDOUT, unix.EUCLEAN, unix.ESTALE, ErrHung} {
		if errors.Is(err, fault) {
			return faulty{err}
		}
	}
	if _, missing := d.fs.Stat(d.path(layoutName)); errors.Is(err, unix.EROFS) && missing == nil {
		return faulty{err}
	}
	return err
}

// faulty is an error that matches [ErrFaulty] as well.
type faulty struct{ error }

func (e faulty) Unwrap() []error { return []error{e.error, ErrFaulty} }

// told is an error that our own words tell in full.
type told struct {
	text string
	error
}

func (e told) Error() string { return e.text }
func (e told) Unwrap() error { return e.error }

// layoutFormat is the text of the file layout: layout version, chunk and block size.
const layoutFormat = "shardwell cache, layout %d, chunk %d, block %d"

func layoutText(g chunk.Geometry) string {
	return fmt.Sprintf(layoutFormat, LayoutVersion, g.ChunkBytes, g.BlockBytes)
}

func parseLayout(text string) (g chunk.Geometry, err error) {
	var version int
	if _, err := fmt.Sscanf(text, layoutFormat, &version, &g.ChunkBytes, &g.BlockBytes); err != nil || version != LayoutVersion {
		return g, fmt.Errorf("layout is %q, which this version does not know", text)
	}
	return g, g.Validate()
}

func (d *Dir) checkLayout() error {
	want := layoutText(d.cfg.Geometry)
	switch got, err := d.readSmall(layoutName); {
	case errors.Is(err, fs.ErrNotExist), err == nil && got == "":
		return explain("write layout", d.writeSmall(layoutName, want))
	case err != nil:
		return explain("read layout", err)
	case got != want:
		if _, err := parseLayout(got); err != nil {
			return fmt.Errorf("%w: empty the directory, or use another", err)
		}
		return fmt.Errorf("made for other sizes (%q, this node uses %q): empty it, or use another directory", got, want)
	}
	return nil
}

// readNodeID reads the ring identity, or draws a new one when there is none or it
// is no identity (a power cut can leave an empty file).
func (d *Dir) readNodeID() error {
	text, err := d.readSmall(nodeIDName)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return explain("read node-id", err)
	}
	if raw, err := hex.DecodeString(text); err == nil && len(raw) == 8 && text == strings.ToLower(text) {
		d.nodeID = text
		return nil
	}
	if err == nil {
		d.log.Warn("node-id is damaged, drawing a new one", "found", text)
	}
	var raw [8]byte
	rand.Read(raw[:])
	d.nodeID = hex.EncodeToString(raw[:])
	return explain("write node-id", d.writeSmall(nodeIDName, d.nodeID))
}

// openLedger starts the accounting: from nothing in a fresh directory, from the
// mark of a clean stop, or else to be counted by Run. The mark is removed: from
// now on it is not true.
func (d *Dir) openLedger(fresh bool) error {
	l := &d.ledger
	*l = ledger{fs: d.fs, path: d.cfg.Path, budget: d.cfg.BudgetBytes, share: d.cfg.TransitBytes, floor: d.cfg.FloorBytes,
		inodes: d.cfg.FloorInodes, block: d.cfg.Geometry.BlockBytes, walking: -1, counted: fresh}
	if err := l.refresh(); err != nil {
		return explain("statfs", err)
	}
	l.foreign = l.space.UsedBytes
	text, err := d.readSmall(cleanName)
	if err != nil {
		return nil // Run counts
	}
	if err := d.fs.Remove(d.path(cleanName)); err != nil {
		return explain("remove clean mark", err)
	}
	if used, ok := parseClean(text); ok {
		l.byPrefix, l.counted = used, true
		for _, n := range used {
			l.sum = l.sum.plus(n)
		}
	}
	return nil
}

// The clean mark: one line "clean 2", then bytes by prefix, one a line, in all and of
// copies, then "end". A mark cut short does not count.
func parseClean(text string) (used [prefixes]use, ok bool) {
	lines := strings.Split(text, "\n")
	if len(lines) != prefixes+2 || lines[0] != "clean 2" || lines[prefixes+1] != "end" {
		return used, false
	}
	for i := range used {
		all, copies, _ := strings.Cut(lines[i+1], " ")
		n, err := strconv.ParseInt(all, 10, 64)
		m, err2 := strconv.ParseInt(copies, 10, 64)
		if err != nil || err2 != nil || m < 0 || n < m {
			return [prefixes]use{}, false
		}
		used[i] = use{n, m}
	}
	return used, true
}

func formatClean(used [prefixes]use) string {
	var b strings.Builder
	b.WriteString("clean 2\n")
	for _, n := range used {
		fmt.Fprintf(&b, "%d %d\n", max(0, n.used), max(0, min(n.copies, n.used)))
	}
	b.WriteString("end")
	return b.String()
}

// markClean writes the mark if the accounting is right.
func (d *Dir) markClean(quiet bool) error {
	d.ledger.mu.Lock()
	used, counted := d.ledger.byPrefix, d.ledger.counted
	d.ledger.mu.Unlock()
	if !quiet || !counted {
		return nil
	}
	return d.writeSmall(cleanName, formatClean(used))
}

// bootID returns the kernel's boot id, hashed to 16 bytes. When the kernel does not tell, it
// draws one, so that nothing from before is trusted.
func bootID(override string) (id [16]byte) {
	text := override
	if text == "" {
		if data, err := os.ReadFile("/proc/sys/kernel/random/boot_id"); err == nil {
			text = strings.TrimSpace(string(data))
		}
	}
	if text == "" {
		rand.Read(id[:])
		return id
	}
	raw, err := hex.DecodeString(strings.ReplaceAll(text, "-", ""))
	if err != nil || len(raw) != len(id) {
		raw = fmt.Appendf(nil, "%016x%016x", chunk.Checksum([]byte(text)), len(text))
	}
	copy(id[:], raw)
	return id
}
