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

	"github.com/shardwell/shardwell/fuse"
	"github.com/shardwell/shardwell/internal/config"
	"github.com/shardwell/shardwell/internal/control"
	"github.com/shardwell/shardwell/objstore"
)

// maxMounts bounds the mounts of a node.
const maxMounts = 1024

// mounts are the sessions of a node. Lock order: none is held while another is taken.
type mounts struct {
	n   *Node
	log *slog.Logger

	mu    sync.Mutex
	byDir map[string]*mount   // by [fuse.Canonical] directory; nil while one is being made
	live  map[*mount]struct{} // whose session runs, those detached from their directory included
	past  totals              // of sessions that ended
	ctx   context.Context     // of all sessions; set before begun is closed
	begun chan struct{}
	group sync.WaitGroup // of live; grows only within a request
}

// mount is one session and what it shows.
type mount struct {
	session *fuse.Session
	uri     string
	bucket  objstore.Bucket
	named   string // the prefix as the user wrote it
	prefix  string // what keys begin with: "" or with a slash at its end
	options config.Config
	who     *principal    // nil: the node itself
	release func()        // gives back the origin; may be called again
	filled  func()        // ends that the dataset is to be filled; nil when it is not; under mounts.mu
	ended   chan struct{} // closed when the session has gone and left nothing behind
}

func newMounts(n *Node) *mounts {
	return &mounts{n: n, log: n.log, byDir: make(map[string]*mount), live: make(map[*mount]struct{}), begun: make(chan struct{})}
}

// Run lets sessions live until ctx ends. Then it ends all requests, so that
// none makes a new one, and waits until the sessions have gone.
func (m *mounts) Run(ctx context.Context) error {
	m.mu.Lock()
	m.ctx = ctx
	close(m.begun)
	m.mu.Unlock()
	<-ctx.Done()
	m.n.requests.close()
	m.group.Wait()
	return nil
}

// stopping reports whether sessions end because the node does.
func (m *mounts) stopping() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ctx != nil && m.ctx.Err() != nil
}

// reserve keeps a directory for one caller. It returns what is mounted there already.
func (m *mounts) reserve(dir string) (have *mount, err error) {
	for {
		have, err := m.tryReserve(dir)
		if have == nil || err != nil || have.attached(dir) {
			return have, err
		}
		// Somebody has unmounted it without asking us: the session ends when its last user goes.
		m.forget(dir, have)
	}
}

func (m *mounts) tryReserve(dir string) (have *mount, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	have, taken := m.byDir[dir]
	switch {
	case taken && have == nil:
		return nil, fmt.Errorf("mountpoint %s: is being mounted by another request right now: try again", dir)
	case taken:
		return have, nil
	case len(m.byDir) >= maxMounts:
		return nil, fmt.Errorf("mountpoint %s: %d mounts are the most a node has: unmount what you can spare", dir, maxMounts)
	}
	m.byDir[dir] = nil
	return nil, nil
}

// attached reports whether the mount table still has the mount.
func (m *mount) attached(dir string) bool {
	all, err := fuse.Mounts()
	return err != nil || slices.ContainsFunc(all, func(e fuse.MountEntry) bool {
		return e.Dir == dir && e.Ours() && e.URI() == m.uri
	})
}

// forget makes a directory free if x has it.
func (m *mounts) forget(dir string, x *mount) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if have, ok := m.byDir[dir]; ok && have == x {
		delete(m.byDir, dir)
	}
}

// settle ends a reservation with a mount, unless its session has ended meanwhile.
func (m *mounts) settle(dir string, made *mount) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.byDir, dir)
	if _, ok := m.live[made]; ok {
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
func (n *Node) Mount(ctx context.Context, req control.MountRequest) (reply control.MountReply, err error) {
	err = n.requests.do(ctx, func(ctx context.Context) (err error) {
		reply, err = n.mount(ctx, req)
		return err
	})
	return reply, err
}

func (n *Node) mount(ctx context.Context, req control.MountRequest) (control.MountReply, error) {
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
	if want.who, err = n.identify(ctx, want.options, req.Credentials, want.bucket); err != nil {
		return control.MountReply{}, err
	}
	placed := false
	defer func() {
		if !placed {
			want.who.close()
		}
	}()
	dir := fuse.Canonical(req.Dir)
	have, err := n.mounts.reserve(dir)
	switch {
	case err != nil:
		return control.MountReply{}, err
	case have == nil:
	case !have.sameData(want):
		return control.MountReply{}, fmt.Errorf("mountpoint %s: %s is mounted there already: unmount it first", dir, have.uri)
	case !have.sameOptions(want):
		return control.MountReply{}, fmt.Errorf("mountpoint %s: %s is mounted there already, with other options: unmount it first", dir, have.uri)
	default:
		have.who.adopt(want.who)
		return control.MountReply{Source: have.uri, Existing: true}, nil
	}
	if err = checkMountpoint(dir); err == nil {
		err = n.open(ctx, want, dir)
	}
	if err != nil {
		n.mounts.forget(dir, nil)
		return control.MountReply{}, err
	}
	placed = true
	n.mounts.settle(dir, want)
	return control.MountReply{Source: want.uri}, nil
}

// plan works out what a request asks for, without touching anything.
func (n *Node) plan(req control.MountRequest) (*mount, error) {
	cfg, err := n.configFor(req.Options)
	if err != nil {
		return nil, err
	}
	if cfg.OriginTimeout != n.cfg.OriginTimeout {
		return nil, &config.Error{What: fmt.Sprintf("this node waits %v for the origin on behalf of all its mounts", n.cfg.OriginTimeout),
			Do: "set --origin-timeout where the node is started"}
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
		return nil, &config.Error{What: fmt.Sprintf("mountpoint %q is not an absolute path without . and ..", req.Dir)}
	}
	bucket, named, err := bucketOf(cfg, uri)
	if err != nil {
		return nil, err
	}
	return &mount{uri: uri.String(), bucket: bucket, named: named, prefix: dirPrefix(named), options: cfg, ended: make(chan struct{})}, nil
}

// dirPrefix returns what the keys of a directory begin with.
func dirPrefix(named string) string {
	if named == "" || strings.HasSuffix(named, "/") {
		return named
	}
	return named + "/"
}

// sameData reports whether two mounts show the same.
func (m *mount) sameData(o *mount) bool { return m.bucket == o.bucket && m.prefix == o.prefix }

// sameOptions reports whether two mounts show things in the same way.
func (m *mount) sameOptions(o *mount) bool {
	a, b := m.options, o.options
	return (m.who == nil) == (o.who == nil) && sameWay(s3Config(a, "", nil), s3Config(b, "", nil)) && a.UID == b.UID && a.GID == b.GID && a.FileMode == b.FileMode && a.DirMode == b.DirMode &&
		a.AllowOther == b.AllowOther && a.Consistency == b.Consistency && a.VerifyReads == b.VerifyReads &&
		a.CachePolicy == b.CachePolicy && a.Quota == b.Quota && a.PrefetchShards == b.PrefetchShards && a.TarView == b.TarView && a.BackgroundFill == b.BackgroundFill
}

// open makes the session of a mount and serves it. It leaves nothing behind when it fails.
func (n *Node) open(ctx context.Context, m *mount, dir string) (err error) {
	admitted, err := n.origins.admit(m.options, m.bucket)
	if err != nil {
		return err
	}
	end := n.use(ctx, m)
	m.release = func() {
		end()
		admitted()
		m.who.close()
	}
	state, err := n.disks.sessionDir()
	if err != nil {
		m.release()
		return err
	}
	if err := n.prepare(ctx, m, dir, state); err != nil {
		m.release()
		return errors.Join(err, os.RemoveAll(state))
	}
	n.mounts.serve(m, dir, state)
	select {
	case <-m.session.Ready():
		return nil
	case <-m.ended:
		return fmt.Errorf("mountpoint %s: the session ended before it was ready: the node's log says why", dir)
	case <-ctx.Done():
		_ = m.session.Unmount(true) // gone already, perhaps
		<-m.ended
		return ctx.Err()
	}
}

// prepare makes a session and attaches it to a directory.
func (n *Node) prepare(ctx context.Context, m *mount, dir, state string) (err error) {
	cfg := m.options
	var tars fuse.Tars
	if cfg.TarView {
		tars = tarView{n, m.who}
	}
	m.session, err = fuse.New(fuse.Config{
		Tars: tars, Bucket: m.bucket, Prefix: m.named, URI: m.uri, UTF8Keys: m.bucket.Name != "", // a directory has any
		Names: asking{n.names, m.who}, Data: data{n.cache, m.who}, Prove: func() time.Duration { return n.proveWithin(m.who, m.bucket) }, StateDir: state, Consistency: consistency(cfg.Consistency),
		UID: uint32(cfg.UID), GID: uint32(cfg.GID), FileMode: fs.FileMode(cfg.FileMode), DirMode: fs.FileMode(cfg.DirMode),
		AllowOther: cfg.AllowOther, NoPassthrough: cfg.VerifyReads == "always",
		PrefetchBytes: n.prefetchBytes(), NextFiles: nextFiles(cfg.PrefetchShards), NameBudget: time.Duration(n.cfg.OriginTimeout), Buffers: n.buffers, Logger: n.log,
	})
	if err != nil {
		return err
	}
	if err = n.origins.promptly(ctx, openKey{m.bucket, m.who.identity()}, m.session.Check); err == nil {
		err = m.session.Mount(dir)
	}
	if err != nil {
		return errors.Join(err, m.session.Close())
	}
	return nil
}

// serve runs a session until it ends, then forgets it. The caller is within a request.
func (m *mounts) serve(x *mount, dir, state string) {
	m.mu.Lock()
	m.live[x] = struct{}{}
	m.mu.Unlock()
	m.group.Go(func() {
		defer close(x.ended)
		if err := x.session.Run(m.ctx); err != nil {
			m.log.Error("mount ended", "directory", dir, "uri", x.uri, "error", err)
		}
		m.mu.Lock()
		m.past.add(x.session.Stats())
		delete(m.live, x)
		filled := x.filled
		m.mu.Unlock()
		if filled != nil {
			filled()
		}
		m.forget(dir, x)
		x.release()
		if err := errors.Join(x.session.Close(), os.RemoveAll(state)); err != nil {
			m.log.Warn("mount left something behind", "directory", dir, "error", err)
		}
	})
}

// Umount implements control.Node.
func (n *Node) Umount(ctx context.Context, dir string) error {
	return n.requests.do(ctx, func(ctx context.Context) error { return n.umount(ctx, fuse.Canonical(dir)) })
}

func (n *Node) umount(ctx context.Context, dir string) error {
	n.mounts.mu.Lock()
	m, ok := n.mounts.byDir[dir]
	n.mounts.mu.Unlock()
	switch {
	case !ok && removeDead(dir):
		n.log.Info("took away the mount of a node that had died", "directory", dir)
		return nil
	case !ok:
		return fmt.Errorf("%s: nothing of this node is mounted there", dir)
	case m == nil:
		return fmt.Errorf("%s: is being mounted right now: try again", dir)
	case !m.attached(dir):
		n.mounts.forget(dir, m)
		return fmt.Errorf("%s: nothing is mounted there any more", dir)
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

// Detach takes the mounts of this node away from their directories without waiting for
// anybody, those being made included: for a process that ends without [Node.Run]
// having returned. Who has files open there gets errors when the process ends.
func (n *Node) Detach() {
	n.mounts.mu.Lock()
	var dirs []string
	for dir := range n.mounts.byDir {
		dirs = append(dirs, dir)
	}
	for x := range n.mounts.live {
		if dir := x.session.Dir(); !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
	}
	n.mounts.mu.Unlock()
	for _, dir := range dirs {
		if e, ok := fuse.FindMount(dir); !ok || !e.Ours() {
			continue
		}
		if err := fuse.UnmountDir(dir, true); err != nil {
			n.log.Error("mount stays behind", "directory", dir, "error", err)
		}
	}
}

// checkMountpoint says why a directory cannot be mounted on. It asks the mount table
// first: a mount that has lost its server does not answer.
func checkMountpoint(dir string) error {
	removeDead(dir)
	if e, ok := fuse.FindMount(dir); ok {
		if e.Ours() {
			return fmt.Errorf("mountpoint %s: %s is mounted there by another process: unmount it first", dir, e.URI())
		}
		return fmt.Errorf("mountpoint %s: busy: %s (%s) is mounted there: choose another directory", dir, e.Source, e.Type)
	}
	st, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("mountpoint %s: no such directory: make it first", dir)
	case err != nil:
		return fmt.Errorf("mountpoint %s: %w", dir, errors.Unwrap(err))
	case !st.IsDir():
		return fmt.Errorf("mountpoint %s: not a directory: name one", dir)
	}
	return nil
}

// longestTTL returns for how long a mount of this node may still show a version that
// was overwritten.
func (m *mounts) longestTTL() (ttl time.Duration) {
	for _, x := range m.all() {
		switch c := x.options.Consistency; c.Mode {
		case config.ConsistencyTTL:
			ttl = max(ttl, c.TTL)
		case config.ConsistencyImmutable:
			ttl = staleFor
		}
	}
	return ttl
}

// removeDead takes a mount of ours away whose server has died, as a node does that
// was killed and started again. It reports whether there was one.
func removeDead(dir string) bool {
	e, ok := fuse.FindMount(dir)
	return ok && e.Ours() && !fuse.Served(e.Dir) && fuse.UnmountDir(e.Dir, true) == nil
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
