// Package node is one Shardwell node: the one place where everything meets. It
// makes the cache directories, the memory arena, the origins, the membership, the
// peer port and the mounts from one [config.Config], joins them by the seams that
// they declare, and ends them in the order that loses nothing.
//
// It promises that what [New] took is given back when [Node.Run] returns, that
// errors of New are in words meant for the user, and that a part that fails ends
// the node rather than limp. It decides nothing about chunks, names or
// placement: that is left to the packages that it joins. It implements
// [control.Node]; internal/control and cmd stand on it.
package node

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"

	"github.com/shardwell/shardwell/cache"
	"github.com/shardwell/shardwell/cache/mem"
	"github.com/shardwell/shardwell/cache/meta"
	"github.com/shardwell/shardwell/fuse"
	"github.com/shardwell/shardwell/fuse/tarindex"
	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/internal/config"
	"github.com/shardwell/shardwell/internal/control"
	"github.com/shardwell/shardwell/peer"
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

	disks   *disks // nil without a cache directory
	arena   *mem.Arena
	buffers *fuse.Buffers // of all mounts
	origins *origins
	budgets *budgets // of the origins
	names   *meta.Cache
	cache   *cache.Cache
	tars    *tarindex.Library
	cluster *cluster
	mounts  *mounts
	keeping *keeping
	watch   *watch   // metrics and health
	foreign *foreign // what others than the node read
	usage   usage

	policy  *policy       // what this node owns and what that is worth
	uses    *datasets     // how datasets are used, here and elsewhere
	fills   fills         // which of them are fetched before they are read
	offer   offer         // of keepOffering, once the node runs
	taking  *rate.Limiter // bytes that others hand on to this node
	left    chan struct{} // closed when the node was drained and is to end
	leaving sync.Once

	jobs     *jobs // warm-ups
	warmed   warmed
	requests *requests
	closing  sync.Once
}

var _ control.Node = (*Node)(nil)

// New makes a node and opens its ports, so that an error that the user can mend
// comes at once. The caller calls Run or Close.
func New(cfg config.Config, log *slog.Logger) (*Node, error) { return Resume(cfg, log, nil) }

// Resume is New for a node that goes on with the mounts of a predecessor, and leaves its
// own to a successor; without a turn its mounts end with it. The caller closes the turn after
// the node, and after all that a successor needs is free.
func Resume(cfg config.Config, log *slog.Logger, turn *Turn) (_ *Node, err error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	n := &Node{cfg: cfg, log: log, geometry: cfg.Geometry(), requests: newRequests(), left: make(chan struct{})}
	n.keeping = newKeeping(n, turn)
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
	n.policy = &policy{geometry: n.geometry, placeWhole: int64(cfg.PlaceWhole)}
	if n.disks, err = openDisks(cfg, n.policy, log); err != nil {
		return nil, err
	}
	n.uses = newDatasets(log, n.disks, n.judged)
	n.policy.datasets = n.uses
	n.policy.held.open(log, n.disks, time.Now())
	if n.id = n.disks.nodeID(); n.id == "" {
		var random [8]byte
		_, _ = rand.Read(random[:]) // never fails
		n.id = hex.EncodeToString(random[:])
	}
	n.policy.self = n.id
	if err := n.takeMemory(); err != nil {
		return nil, err
	}
	if err := checkOriginFiles(cfg, log); err != nil {
		return nil, err
	}
	n.foreign = newForeign(log, n.disks, n.uses.signal)
	n.origins = newOrigins(cfg, log)
	n.origins.foreign = n.foreign.add
	n.recallOffer()
	n.budgets, n.jobs, n.taking = newBudgets(n), newJobs(n), newTaking(cfg)
	n.origins.pace = n.budgets.pace
	if n.cluster, err = openCluster(n); err != nil {
		return nil, err
	}
	if err := n.joinLayers(); err != nil {
		return nil, err
	}
	n.origins.routes.alone = func() bool { return len(n.cluster.directory.All()) < 2 }
	n.mounts = newMounts(n)
	if n.watch, err = openWatch(n); err != nil {
		return nil, err
	}
	return n, nil
}

// judged says that worths of datasets have changed.
func (n *Node) judged() {
	n.disks.judged()
	if n.cache != nil { // none while the node is being made
		n.cache.Judged()
	}
}

// joinLayers makes the read path and the names on top of disks, cluster and origins.
func (n *Node) joinLayers() (err error) {
	n.names, err = meta.New(meta.Config{Peers: n.cluster.peers, Origins: n.origins, Replaced: n.replaced, QueryBudget: time.Duration(n.cfg.OriginTimeout), Logger: n.log})
	if err != nil {
		return fmt.Errorf("names: %w", err)
	}
	n.tars = n.newTars()
	n.cache, err = cache.New(cache.Config{
		Arrived:    n.tarArrived,
		Geometry:   n.geometry,
		Disk:       n.disks.tier(),
		Arena:      n.arena,
		Memory:     n.policy,
		Peers:      peer.NewTurns(n.cluster.peers, peer.DefaultMaxStreams),
		Origin:     &cache.OriginFetcher{Geometry: n.geometry, Origins: n.origins, Arena: n.arena},
		Owned:      func(r chunk.Request) bool { return n.cluster.peers.Owned(r) || n.cluster.peers.Represents(r) },
		Keeps:      n.cluster.ring.keeps,
		Cut:        n.origins.routes.Cut,
		ReadBudget: time.Duration(n.cfg.OriginTimeout),
		MaxFetches: n.maxFetches(),
		Logger:     n.log,
	})
	if err != nil {
		return err
	}
	return n.cluster.openServer(n)
}

// Run serves until ctx ends, and then ends what stands on others before what it
// stands on: requests and mounts go away, but those that a keeper holds, the other members hear that this one
// restarts, the keeper's mounts are left to it, streams under way finish, and the cache directories are marked clean. It
// returns nil then, and the error of the part that failed otherwise.
func (n *Node) Run(ctx context.Context) error {
	defer n.Close()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	group, run := errgroup.WithContext(ctx)
	rest := context.WithoutCancel(ctx)
	forCluster, stopCluster := context.WithCancel(rest)
	forDisks, stopDisks := context.WithCancel(rest)
	group.Go(func() error {
		defer stopCluster()
		return part(run, "mounts", n.mounts.Run)
	})
	group.Go(func() error {
		defer stopDisks()
		defer n.mounts.leave() // they read on from the disks while the others are told
		defer stop()           // leave waits for the mounts' part, also when this one failed
		return part(forCluster, "cluster", n.cluster.Run)
	})
	group.Go(func() error { return part(forDisks, "cache directories", n.disks.Run) })
	group.Go(func() error { return part(forDisks, "metrics", n.watch.Run) })
	group.Go(func() error { return part(forCluster, "indexes of tars", n.tars.Run) })
	group.Go(func() error { return part(forDisks, "keeper", n.keeping.Run) })
	group.Go(func() error { return part(forCluster, "uses", n.keepTelling) })
	group.Go(func() error { return part(forCluster, "ways to origins", n.keepLooking) })
	group.Go(func() error { return part(forCluster, "moves", n.keepMoving) })
	group.Go(func() error { return part(forCluster, "warm-ups", n.keepJobs) })
	group.Go(func() error { return part(forCluster, "capacity", n.keepOffering) })
	group.Go(func() error { return part(forCluster, "quotas", n.keepCounting) })
	group.Go(func() error { return part(forCluster, "background fill", n.keepFilling) })
	group.Go(func() error { return part(forCluster, "overwritten versions", n.keepFreeing) })
	group.Go(func() error {
		select {
		case <-n.left: // drained
			stop()
		case <-n.keeping.yielded:
			stop()
		case <-run.Done():
		}
		return nil
	})
	n.log.Info("node started", "name", n.name, "id", n.id, "peers", n.cluster.addr(), "version", Version)
	err := group.Wait()
	if err != nil {
		n.log.Error("node failed", "name", n.name, "id", n.id, "error", err)
		return err
	}
	n.log.Info("node stopped", "name", n.name, "id", n.id)
	return nil
}

// drained reports whether the node leaves for good, and its mounts with it.
func (n *Node) drained() bool {
	select {
	case <-n.left:
		return true
	default:
		return false
	}
}

// part runs a part of the node, which is to end with ctx and not before.
func part(ctx context.Context, name string, run func(context.Context) error) error {
	err := run(ctx)
	if err == nil && ctx.Err() == nil {
		err = errors.New("ended by itself")
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// Close gives back what New took. Run does it in the end; it may be called again, but
// not beside Run.
func (n *Node) Close() { n.closing.Do(n.close) }

func (n *Node) close() {
	n.requests.close()
	if n.watch != nil {
		n.watch.Close()
	}
	if n.cluster != nil {
		n.cluster.Close()
	}
	if n.tars != nil {
		n.tars.Close()
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
	var err error
	if n.buffers != nil {
		err = n.buffers.Close()
	}
	if n.arena != nil {
		err = errors.Join(err, n.arena.Close())
	}
	if err != nil { // somebody holds a buffer that we have waited for: a fault of ours
		n.log.Error("memory stays behind", "error", err)
	}
}
