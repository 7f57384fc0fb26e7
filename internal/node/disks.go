package node

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/shardwell/shardwell/cache"
	"github.com/shardwell/shardwell/cache/disk"
	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/internal/config"
)

// floorInodes are always left free on the file system of a cache directory.
const floorInodes = 1024

// sessionsName is the directory in the first cache directory that holds the state of mounts.
const sessionsName = "sessions"

// disks are the cache directories of a node. An object lives in one of them,
// chosen by its identity, so that each is found without a search. No directories are
// a tier as well: one that holds nothing.
type disks struct {
	log       *slog.Logger
	dirs      []*disk.Dir
	faulty    []string // directories that are done without until the next start: their disks failed at this one
	scrubRate int64    // bytes a second of each
	seeds     []uint64 // of the dirs, by their ids: placement survives a change of their order or paths

	mu   sync.Mutex
	temp string // directory for the state of mounts that no disk takes, "" while there is none
}

var errNoDisk = errors.New("this node has no cache directory")

// openDisks opens the directories of cfg, but those whose disks fail. A node that has none left goes on
// without disks.
func openDisks(cfg config.Config, keep disk.Policy, log *slog.Logger) (*disks, error) {
	d := &disks{log: log, scrubRate: int64(cfg.ScrubRate)}
	for _, c := range cfg.CacheDirs {
		verify := disk.VerifyAuto
		if cfg.VerifyReads == "always" {
			verify = disk.VerifyAlways
		}
		dir, err := disk.Open(disk.Config{
			Path: c.Path, Geometry: cfg.Geometry(), BudgetBytes: int64(c.Budget),
			FloorBytes: int64(cfg.MinFree), FloorInodes: floorInodes,
			TransitBytes: int64(cfg.Transit), Policy: keep, CallTimeout: time.Duration(cfg.DiskTimeout), Verify: verify, Logger: log,
		})
		if errors.Is(err, disk.ErrFaulty) { // a hit less, not a reader's error
			log.Error("cache directory is done without until the next start", "error", err)
			d.faulty = append(d.faulty, c.Path)
			continue
		}
		if err != nil {
			d.Close()
			return nil, err
		}
		h := fnv.New64a()
		_, _ = h.Write([]byte(dir.NodeID()))
		d.dirs, d.seeds = append(d.dirs, dir), append(d.seeds, h.Sum64())
	}
	if len(d.dirs) > 0 { // locked: what is there was left by a process that was killed
		if err := d.removeSession(d.sessions()); err != nil {
			log.Warn("state of earlier mounts stays behind", "error", err)
		}
	}
	return d, nil
}

// nodeID is the ring identity: that of the first directory, "" without one.
func (d *disks) nodeID() string {
	if len(d.dirs) == 0 {
		return ""
	}
	return d.dirs[0].NodeID()
}

// judged says that worths of datasets have changed.
func (d *disks) judged() {
	for _, dir := range d.dirs {
		dir.Judged()
	}
}

// readNote returns a small file of the first directory.
func (d *disks) readNote(name string, maxBytes int64) ([]byte, error) {
	if len(d.dirs) == 0 {
		return nil, errNoDisk
	}
	return d.dirs[0].ReadNote(name, maxBytes)
}

// writeNote replaces a small file of the first directory. Without one there is nothing to remember.
func (d *disks) writeNote(name string, data []byte) error {
	if len(d.dirs) == 0 {
		return nil
	}
	return d.dirs[0].WriteNote(name, data)
}

// tier returns the directories as the cache wants them.
func (d *disks) tier() cache.Tier {
	if len(d.dirs) == 0 {
		return nil
	}
	return cache.TierOf(d)
}

// place returns the directory of an object: the one with the highest score, so
// that one that is added or lost moves only its own share.
func (d *disks) place(id chunk.ObjectID) *disk.Dir {
	var best *disk.Dir
	var high uint64
	for i, dir := range d.dirs {
		h := d.seeds[i]
		for _, b := range id {
			h = (h ^ uint64(b)) * 1099511628211 // FNV-1a
		}
		h ^= h >> 29
		if best == nil || h > high {
			best, high = dir, h
		}
	}
	return best
}

// Acquire implements cache.Tier.
func (d *disks) Acquire(obj chunk.Object, id chunk.ObjectID, owned bool) (*disk.File, error) {
	if len(d.dirs) == 0 {
		return nil, errNoDisk
	}
	return d.place(id).Acquire(obj, id, owned)
}

// Find implements cache.Tier.
func (d *disks) Find(id chunk.ObjectID) (*disk.File, error) {
	if len(d.dirs) == 0 {
		return nil, errNoDisk
	}
	return d.place(id).Find(id)
}

// Run keeps the directories within their budgets until ctx ends.
func (d *disks) Run(ctx context.Context) error {
	group, run := errgroup.WithContext(ctx)
	for _, dir := range d.dirs {
		group.Go(func() error { return part(run, dir.Path(), dir.Run) })
		if d.scrubRate > 0 {
			group.Go(func() error {
				return part(run, dir.Path(), func(ctx context.Context) error { return dir.Scrub(ctx, d.scrubRate) })
			})
		}
	}
	if err := group.Wait(); err != nil {
		return err
	}
	<-ctx.Done() // at once, unless there are none
	return nil
}

// Close removes the state of mounts and marks the directories clean.
func (d *disks) Close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, dir := range [...]string{d.sessions(), d.temp} {
		if dir == "" {
			continue
		}
		if err := d.removeSession(dir); err != nil {
			d.log.Warn("state of mounts stays behind", "error", err)
		}
	}
	d.temp = ""
	for _, dir := range d.dirs {
		if err := dir.Close(); err != nil {
			d.log.Warn("close cache directory", "directory", dir.Path(), "error", err)
		}
	}
	d.dirs = nil
}

// sessions is where the state of mounts is kept: in the first cache directory. "" without one.
func (d *disks) sessions() string {
	if len(d.dirs) == 0 {
		return ""
	}
	return filepath.Join(d.dirs[0].Path(), sessionsName)
}

// sessionDir makes a directory for the state of one mount, in the first cache directory
// or, when that takes nothing, among temporary files. Whoever asked gives it to removeSession.
func (d *disks) sessionDir() (string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.dirs) > 0 {
		dir, err := d.sessionOnDisk(d.sessions())
		if err == nil {
			return dir, nil
		}
		d.log.Warn("cache directory takes no state of mounts", "error", err)
	}
	if d.temp == "" {
		var err error
		if d.temp, err = os.MkdirTemp("", "shardwell-"); err != nil {
			return "", fmt.Errorf("state of a mount: %w", err)
		}
	}
	dir, err := os.MkdirTemp(d.temp, "mount-")
	if err != nil {
		return "", fmt.Errorf("state of a mount: %w", err)
	}
	return dir, nil
}

// sessionOnDisk makes a directory in the first cache directory; a disk that does not answer is an error in time.
func (d *disks) sessionOnDisk(sessions string) (string, error) {
	made := new(string)
	err := d.inTime("make state of a mount", func() error {
		err := os.Mkdir(sessions, 0o700)
		if err == nil || errors.Is(err, fs.ErrExist) {
			*made, err = os.MkdirTemp(sessions, "mount-")
		}
		return err
	}, func() {
		if *made != "" {
			_ = os.RemoveAll(*made) // swept up at the next start else
		}
	})
	if err != nil {
		return "", err
	}
	return *made, nil
}

// removeSession removes the state of a mount, wherever it is. A disk that does not answer is an error in time.
func (d *disks) removeSession(dir string) error {
	if !d.onDisk(dir) {
		return os.RemoveAll(dir)
	}
	return d.inTime("remove state of mounts", func() error { return os.RemoveAll(dir) }, func() {})
}

// onDisk reports whether the state of a mount is in the first cache directory.
func (d *disks) onDisk(dir string) bool {
	sessions := d.sessions()
	return sessions != "" && strings.HasPrefix(dir, sessions)
}

// inTime has a call to the first cache directory come back in time, see [disk.Dir.InTime]. Without one there is nothing to
// wait for.
func (d *disks) inTime(op string, call func() error, late func()) error {
	if len(d.dirs) == 0 {
		return call()
	}
	return d.dirs[0].InTime(op, call, late)
}
