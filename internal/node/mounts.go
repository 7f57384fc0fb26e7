package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/shardwell/shardwell/cache"
	"github.com/shardwell/shardwell/fuse"
	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/internal/config"
	"github.com/shardwell/shardwell/internal/control"
	"github.com/shardwell/shardwell/objstore"
)

// Limits of mounts.
const (
	maxMounts    = 1024
	checkTimeout = 15 * time.Second // for the question whether the dataset is there
	probeAfter   = 4 * time.Second  // without an answer to it, before the origin is asked directly
)

// mounts are the sessions of a node.
type mounts struct {
	n   *Node
	log *slog.Logger

	mu     sync.Mutex
	byDir  map[string]*mount // nil while one is being made
	ctx    context.Context   // of all sessions; nil before Run
	past   totals            // of sessions that ended
	closed bool
	begun  chan struct{} // closed when ctx is set
	group  sync.WaitGroup
}

// mount is one session and what it shows.
type mount struct {
	session *fuse.Session
	uri     string
	bucket  objstore.Bucket
	prefix  string // "" or with one slash at its end
	options config.Config
	since   time.Time
	ended   chan struct{} // closed when the session has gone
	gone    bool          // under mounts.mu: set when it is no longer to be found
}

func newMounts(n *Node) *mounts {
	return &mounts{n: n, log: n.log, byDir: make(map[string]*mount), begun: make(chan struct{})}
}

// Run lets sessions live until ctx ends, and then waits until they have gone.
func (m *mounts) Run(ctx context.Context) error {
	m.mu.Lock()
	m.ctx = ctx
	close(m.begun)
	m.mu.Unlock()
	<-ctx.Done()
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	m.group.Wait()
	return nil
}

// errStopping says that the node ends.
var errStopping = errors.New("the node is stopping")

// reserve keeps a directory for one caller. It returns what is mounted there already.
func (m *mounts) reserve(dir string) (have *mount, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, errStopping
	}
	have, taken := m.byDir[dir]
	switch {
	case taken && have == nil:
		return nil, fmt.Errorf("mountpoint %s: is being mounted by another request right now", dir)
	case taken:
		return have, nil
	case len(m.byDir) >= maxMounts:
		return nil, fmt.Errorf("mountpoint %s: %d mounts are the most a node has", dir, maxMounts)
	}
	m.byDir[dir] = nil
	return nil, nil
}

// settle ends a reservation with a mount, or with nil.
func (m *mounts) settle(dir string, made *mount) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.byDir, dir)
	if made != nil && !made.gone {
		m.byDir[dir] = made
	}
}

// all returns the mounts, by directory.
func (m *mounts) all() []*mount {
	m.mu.Lock()
	defer m.mu.Unlock()
	var list []*mount
	for _, x := range m.byDir {
		if x != nil {
			list = append(list, x)
		}
	}
	slices.SortFunc(list, func(a, b *mount) int { return strings.Compare(a.session.Dir(), b.session.Dir()) })
	return list
}

// Mount implements control.Node.
func (n *Node) Mount(ctx context.Context, req control.MountRequest) (control.MountReply, error) {
	for _, done := range []<-chan struct{}{n.mounts.begun, n.cluster.joined()} {
		select {
		case <-done:
		case <-ctx.Done():
			return control.MountReply{}, ctx.Err()
		}
	}
	want, err := n.plan(req)
	if err != nil {
		return control.MountReply{}, err
	}
	if err := checkMountpoint(req.Dir); err != nil && !n.mounts.has(req.Dir) {
		return control.MountReply{}, err
	}
	have, err := n.mounts.reserve(req.Dir)
	if err != nil {
		return control.MountReply{}, err
	}
	if have != nil {
		if have.same(want) {
			return control.MountReply{Source: have.uri, Existing: true}, nil
		}
		return control.MountReply{}, fmt.Errorf("mountpoint %s: %s is mounted there already: unmount it first", req.Dir, have.uri)
	}
	if err := n.open(ctx, want, req.Dir); err != nil {
		n.mounts.settle(req.Dir, nil)
		return control.MountReply{}, err
	}
	n.mounts.settle(req.Dir, want)
	return control.MountReply{Source: want.uri}, nil
}

// plan works out what a request asks for, without touching anything.
func (n *Node) plan(req control.MountRequest) (*mount, error) {
	cfg, err := n.cfg.WithAttributes(req.Options)
	if err != nil {
		return nil, err
	}
	if cfg.UID < 0 {
		cfg.UID = int(req.Caller.UID)
	}
	if cfg.GID < 0 {
		cfg.GID = int(req.Caller.GID)
	}
	uri, err := config.ParseURI(req.URI)
	if err != nil {
		return nil, err
	}
	if !filepath.IsAbs(req.Dir) || filepath.Clean(req.Dir) != req.Dir {
		return nil, fmt.Errorf("mountpoint %q: must be an absolute path without . and ..", req.Dir)
	}
	bucket, prefix, err := bucketOf(cfg, uri)
	if err != nil {
		return nil, err
	}
	if uri.Dir == "" {
		if err := n.origins.admit(cfg, bucket.Name); err != nil {
			return nil, err
		}
	}
	return &mount{uri: uri.String(), bucket: bucket, prefix: strings.TrimSuffix(prefix, "/"), options: cfg, ended: make(chan struct{})}, nil
}

// same reports whether two mounts show the same in the same way.
func (m *mount) same(o *mount) bool {
	a, b := m.options, o.options
	return m.bucket == o.bucket && m.prefix == o.prefix && a.UID == b.UID && a.GID == b.GID && a.FileMode == b.FileMode &&
		a.DirMode == b.DirMode && a.AllowOther == b.AllowOther && a.Consistency == b.Consistency && a.VerifyReads == b.VerifyReads
}

// open makes the session of a mount and serves it.
func (n *Node) open(ctx context.Context, m *mount, dir string) (err error) {
	state, err := n.disks.sessionDir(dir)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.RemoveAll(state)
		}
	}()
	cfg := m.options
	m.session, err = fuse.New(fuse.Config{
		Bucket: m.bucket, Prefix: m.prefix, URI: m.uri,
		Names: n.names, Data: data{n.cache}, StateDir: state, Consistency: consistency(cfg.Consistency),
		UID: uint32(cfg.UID), GID: uint32(cfg.GID), FileMode: fs.FileMode(cfg.FileMode), DirMode: fs.FileMode(cfg.DirMode),
		AllowOther: cfg.AllowOther, NoPassthrough: cfg.VerifyReads == "always",
		PrefetchBytes: n.prefetchBytes(), Buffers: n.buffers, Logger: n.log,
	})
	if err != nil {
		return err
	}
	if err := n.check(ctx, m); err != nil {
		return errors.Join(err, m.session.Close())
	}
	if err := m.session.Mount(dir); err != nil {
		return errors.Join(err, m.session.Close())
	}
	m.since = time.Now()
	n.mounts.serve(m, dir, state)
	select {
	case <-m.session.Ready():
		return nil
	case <-m.ended:
		return fmt.Errorf("mountpoint %s: the session ended before it was ready; the log says why", dir)
	case <-ctx.Done():
		_ = m.session.Unmount(true)
		<-m.ended
		return ctx.Err()
	}
}

// check looks whether the dataset is there. An answer that does not come soon is
// not waited for as readers would: the origin is asked once, to hear what is wrong.
func (n *Node) check(ctx context.Context, m *mount) error {
	soon, cancel := context.WithTimeout(ctx, probeAfter)
	defer cancel()
	err := m.session.Check(soon)
	if soon.Err() == nil || ctx.Err() != nil {
		return err
	}
	probe, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	if err := n.origins.probe(probe, m.bucket); err != nil {
		return fmt.Errorf("%s: %w", m.uri, err)
	}
	return m.session.Check(probe)
}

// serve runs a session until it ends, then forgets it.
func (m *mounts) serve(x *mount, dir, state string) {
	m.group.Go(func() {
		defer close(x.ended)
		if err := x.session.Run(m.ctx); err != nil {
			m.log.Error("mount ended", "directory", dir, "uri", x.uri, "error", err)
		}
		m.mu.Lock()
		m.past.add(x.session.Stats())
		x.gone = true
		if m.byDir[dir] == x {
			delete(m.byDir, dir)
		}
		m.mu.Unlock()
		if err := errors.Join(x.session.Close(), os.RemoveAll(state)); err != nil {
			m.log.Warn("mount left something behind", "directory", dir, "error", err)
		}
	})
}

func (m *mounts) has(dir string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, ok := m.byDir[dir]
	return ok
}

// Umount implements control.Node.
func (n *Node) Umount(ctx context.Context, dir string) error {
	n.mounts.mu.Lock()
	m, ok := n.mounts.byDir[dir]
	n.mounts.mu.Unlock()
	if !ok || m == nil {
		return fmt.Errorf("%s: nothing of this node is mounted there", dir)
	}
	if err := m.session.Unmount(false); err != nil {
		return err
	}
	select {
	case <-m.ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// checkMountpoint says why a directory cannot be mounted on.
func checkMountpoint(dir string) error {
	st, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("mountpoint %s: no such directory: make it first", dir)
	case err != nil:
		return fmt.Errorf("mountpoint %s: %w", dir, err)
	case !st.IsDir():
		return fmt.Errorf("mountpoint %s: not a directory: name one", dir)
	}
	if e, ok := fuse.FindMount(dir); ok {
		if e.Ours() {
			return fmt.Errorf("mountpoint %s: %s is mounted there by another process: unmount it first", dir, e.URI())
		}
		return fmt.Errorf("mountpoint %s: is a mountpoint of %s already: choose another directory", dir, e.Source)
	}
	return nil
}

// prefetchBytes bounds what one reader has ahead, so that a few of them leave
// room in the arena.
func (n *Node) prefetchBytes() int64 {
	arena := int64(n.arena.Buffers()) * n.geometry.BlockBytes
	return max(n.geometry.ChunkBytes, min(fuse.DefaultPrefetchBytes, arena/2))
}

func consistency(c config.Consistency) fuse.Consistency {
	switch c.Mode {
	case config.ConsistencyOpen:
		return fuse.Consistency{Mode: fuse.ModeOpen}
	case config.ConsistencyImmutable:
		return fuse.Consistency{Mode: fuse.ModeImmutable}
	}
	return fuse.Consistency{Mode: fuse.ModeTTL, TTL: c.TTL}
}

// data is the cache as the file system wants it.
type data struct{ c *cache.Cache }

// Open implements fuse.Data.
func (d data) Open(obj chunk.Object) (fuse.File, error) {
	f, err := d.c.Open(obj)
	if err != nil {
		return nil, err // not a nil file in an interface
	}
	return f, nil
}
