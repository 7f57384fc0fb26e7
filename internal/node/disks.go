package node

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"os"
	"path/filepath"

	"golang.org/x/sync/errgroup"

	"github.com/shardwell/shardwell/cache"
	"github.com/shardwell/shardwell/cache/disk"
	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/internal/config"
)

// floorInodes are always left free on the file system of a cache directory.
const floorInodes = 1024

// disks are the cache directories of a node. An object lives in one of them,
// chosen by its identity, so that each is found without a search. No directories are
// a tier as well: one that holds nothing.
type disks struct {
	dirs  []*disk.Dir
	seeds []uint64 // of the dirs, by their path: placement survives a change of their order
}

var errNoDisk = errors.New("this node has no cache directory")

// openDisks opens the directories of cfg.
func openDisks(cfg config.Config, log *slog.Logger) (*disks, error) {
	d := &disks{}
	for _, c := range cfg.CacheDirs {
		verify := disk.VerifyAuto
		if cfg.VerifyReads == "always" {
			verify = disk.VerifyAlways
		}
		dir, err := disk.Open(disk.Config{
			Path: c.Path, Geometry: cfg.Geometry(), BudgetBytes: int64(c.Budget),
			FloorBytes: int64(cfg.MinFree), FloorInodes: floorInodes, Verify: verify, Logger: log,
		})
		if err != nil {
			d.Close()
			return nil, err
		}
		h := fnv.New64a()
		_, _ = h.Write([]byte(dir.NodeID()))
		d.dirs, d.seeds = append(d.dirs, dir), append(d.seeds, h.Sum64())
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
	var group errgroup.Group // not of ctx: one that fails leaves the others
	for _, dir := range d.dirs {
		group.Go(func() error {
			if err := dir.Run(ctx); err != nil && ctx.Err() == nil {
				return fmt.Errorf("cache directory %s: %w", dir.Path(), err)
			}
			return nil
		})
	}
	return group.Wait()
}

// Close marks the directories clean.
func (d *disks) Close() {
	for _, dir := range d.dirs {
		_ = dir.Close() // logged there
	}
	d.dirs = nil
}

// sessionDir returns an empty directory for the state of a mount, by a name that is a function of
// the mountpoint, and removes what an earlier life left there.
func (d *disks) sessionDir(mountpoint string) (string, error) {
	base := filepath.Join(os.TempDir(), fmt.Sprintf("shardwell-%d", os.Getpid()))
	if len(d.dirs) > 0 {
		base = filepath.Join(d.dirs[0].Path(), "sessions")
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(mountpoint))
	dir := filepath.Join(base, fmt.Sprintf("%016x", h.Sum64()))
	if err := os.RemoveAll(dir); err != nil {
		return "", fmt.Errorf("state of mount %s: %w", mountpoint, err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("state of mount %s: %w", mountpoint, err)
	}
	return dir, nil
}
