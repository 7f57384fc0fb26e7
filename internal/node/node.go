// Package node is one Shardwell node: the one place where everything meets. It
// makes the cache directories, the memory arena, the origins, the membership, the
// peer port and the mounts from one [config.Config], joins them by the seams that
// they declare, and ends them in the order that loses nothing.
//
// It promises that what [New] took is given back when [Node.Run] returns, that
// errors of New are in words meant for the user, and that a part that fails ends
// the node rather than limp. It decides nothing about chunks, names or
// placement: that is left to the packages that it joins. It implements [control.Node].
package node

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/shardwell/shardwell/cache"
	"github.com/shardwell/shardwell/cache/mem"
	"github.com/shardwell/shardwell/cache/meta"
	"github.com/shardwell/shardwell/fuse"
	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/internal/config"
)

// Version is the version of the program; the linker sets it.
var Version = "0.1.0-dev"

// Node is one node of a cluster.
type Node struct {
	cfg      config.Config
	log      *slog.Logger
	name     string
	id       string // ring id
	geometry chunk.Geometry
	started  time.Time

	disks   *disks // nil without a cache directory
	arena   *mem.Arena
	buffers *fuse.Buffers // of all mounts
	origins *origins
	names   *meta.Cache
	cache   *cache.Cache
	cluster *cluster
	mounts  *mounts
	watch   *watch // metrics and health
	usage   usage
}

// New makes a node and opens its ports, so that an error that the user can mend
// comes at once. The caller calls Run or Close.
func New(cfg config.Config, log *slog.Logger) (_ *Node, err error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	n := &Node{cfg: cfg, log: log, geometry: cfg.Geometry(), started: time.Now()}
	defer func() {
		if err != nil {
			n.Close()
		}
	}()
	if n.name = cfg.Name; n.name == "" {
		if n.name, err = os.Hostname(); err != nil {
			return nil, fmt.Errorf("name of this node: %w: give --name", err)
		}
	}
	if n.disks, err = openDisks(cfg, log); err != nil {
		return nil, err
	}
	if n.id = n.disks.nodeID(); n.id == "" {
		var random [8]byte
		_, _ = rand.Read(random[:]) // never fails
		n.id = hex.EncodeToString(random[:])
	}
	if err := n.takeMemory(); err != nil {
		return nil, err
	}
	n.origins = newOrigins(cfg, log)
	if n.cluster, err = openCluster(n); err != nil {
		return nil, err
	}
	if err := n.joinLayers(); err != nil {
		return nil, err
	}
	n.mounts = newMounts(n)
	if n.watch, err = openWatch(n); err != nil {
		return nil, err
	}
	return n, nil
}

// joinLayers makes the read path and the names on top of disks, cluster and origins.
func (n *Node) joinLayers() (err error) {
	n.names, err = meta.New(meta.Config{Peers: n.cluster.peers, Origins: n.origins, Logger: n.log})
	if err != nil {
		return fmt.Errorf("names: %w", err)
	}
	n.cache, err = cache.New(cache.Config{
		Geometry:   n.geometry,
		Disk:       n.disks.tier(),
		Arena:      n.arena,
		Peers:      n.cluster.peers,
		Origin:     &cache.OriginFetcher{Geometry: n.geometry, Origins: n.origins, Arena: n.arena},
		Owned:      n.cluster.peers.Owned,
		ReadBudget: time.Duration(n.cfg.OriginTimeout),
		MaxFetches: n.maxFetches(),
		Logger:     n.log,
	})
	if err != nil {
		return err
	}
	return n.cluster.openServer(n)
}

// Run serves until ctx ends: it takes the mounts away, tells the cluster that this
// member restarts, finishes streams under way, and marks the cache directories
// clean. It returns nil then, and the error of the part that failed otherwise.
func (n *Node) Run(ctx context.Context) error {
	defer n.Close()
	group, run := errgroup.WithContext(ctx)
	group.Go(func() error { return n.disks.Run(run) })
	group.Go(func() error { return n.cluster.Run(run) })
	group.Go(func() error { return n.watch.Run(run) })
	group.Go(func() error { return n.mounts.Run(run) })
	n.log.Info("node started", "name", n.name, "id", n.id, "peers", n.cluster.addr(), "version", Version)
	err := group.Wait()
	if ctx.Err() != nil && (err == nil || errors.Is(err, ctx.Err())) {
		n.log.Info("node stopped", "name", n.name, "id", n.id)
		return nil
	}
	return err
}

// Close gives back what New took. Run does it in the end; it may be called again.
func (n *Node) Close() {
	if n.watch != nil {
		n.watch.Close()
	}
	if n.cluster != nil {
		n.cluster.Close()
	}
	if n.cache != nil {
		n.cache.Close()
	}
	if n.names != nil {
		n.names.Close()
	}
	if n.origins != nil {
		n.origins.Close()
	}
	if n.disks != nil {
		n.disks.Close()
	}
	if n.buffers != nil {
		_ = n.buffers.Close()
		n.buffers = nil
	}
	if n.arena != nil {
		_ = n.arena.Close()
		n.arena = nil
	}
}
