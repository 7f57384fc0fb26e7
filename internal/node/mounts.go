package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shardwell/shardwell/fuse"
	"github.com/shardwell/shardwell/fuse/handover"
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
	ctx   context.Context     // of the node; set before begun is closed
	begun chan struct{}
	quiet chan struct{} // closed when Run has returned

	serving context.Context // of all sessions
	stop    context.CancelFunc
	group   sync.WaitGroup // of live; grows only within a request
}

// mount is one session and what it shows.
type mount struct {
	session *fuse.Session
	uri     string
	bucket  objstore.Bucket
	named   string // the prefix as the user wrote it
	prefix  string // what keys begin with: "" or with a slash at its end
	options config.Config
	who     *principal     // nil: the node itself
	area    *handover.Area // what a successor must know; nil without a keeper
	kept    atomic.Pointer[keptAt]
	cancel  func()        // ends the session; set by serve
	left    atomic.Bool   // to the keeper: it goes on without this node
	filled  func()        // ends that the dataset is to be filled; nil when it is not; under mounts.mu
	release func()        // gives back the origin; may be called again
	ended   chan struct{} // closed when the session has gone and left nothing behind
}

// keptAt is who keeps a mount, and its number there.
type keptAt struct {
	by store
	id uint64
}

// keptBy returns the number of the mount at a store, 0 when that does not keep it.
func (m *mount) keptBy(s store) uint64 {
	if k := m.kept.Load(); k != nil && k.by == s {
		return k.id
	}
	return 0
}

func (m *mount) setKept(by store, id uint64) { m.kept.Store(&keptAt{by, id}) }

func newMounts(n *Node) *mounts {
	serving, stop := context.WithCancel(context.Background())
	return &mounts{serving: serving, stop: stop, n: n, log: n.log, byDir: make(map[string]*mount), live: make(map[*mount]struct{}), begun: make(chan struct{}), quiet: make(chan struct{})}
}

// Run lets sessions live until ctx ends, those that a predecessor left first of all. Then it
// ends all requests, so that none makes a new one, and the sessions that no keeper holds.
// The others go on until leave: their readers are not to wait while this node takes its leave.
func (m *mounts) Run(ctx context.Context) error {
	defer close(m.quiet)
	m.mu.Lock()
	m.ctx = ctx
	close(m.begun)
	m.mu.Unlock()
	m.n.keeping.adoptAll(ctx)
	<-ctx.Done()
	m.n.requests.close()
	var ending []*mount
	for _, x := range m.running() {
		if !m.n.keeping.holds(x) {
			x.cancel()
			ending = append(ending, x)
		}
	}
	for _, x := range ending {
		<-x.ended
	}
	return nil
}

// leave hands over to the keeper what that holds, and returns when no session runs any more.
// Run was called.
func (m *mounts) leave() {
	<-m.quiet
	var handing sync.WaitGroup
	for _, x := range m.running() {
		if m.n.keeping.holds(x) {
			handing.Go(func() { m.handOver(context.Background(), x) })
		}
	}
	handing.Wait()
	m.stop()
	m.group.Wait()
}

// handOver leaves a mount to the keeper.
func (m *mounts) handOver(ctx context.Context, x *mount) {
	ctx, cancel := context.WithTimeout(ctx, handOverWait)
	defer cancel()
	x.left.Store(true)
	dir := x.session.Dir()
	if err := x.session.Leave(ctx); err != nil {
		m.log.Error("mount cannot be left to the keeper", "directory", dir, "error", err)
	} else if !m.n.keeping.holds(x) { // it has ended just now
		m.log.Error("mount ends with the node: its keeper has ended", "directory", dir, "error", fuse.UnmountDir(dir, true))
	}
}

// running returns the mounts whose session runs.
func (m *mounts) running() []*mount {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Keys(m.live))
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
		return e.Dir == dir && e.Ours() && e.URI() == m.uri && e.Device == m.session.DeviceNumber()
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
	for _, done := range []<-chan struct{}{n.mounts.begun, n.keeping.adopted, n.cluster.joined()} {
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
		n.keeping.describe(have, req)
		return control.MountReply{Source: have.uri, Existing: true}, nil
	}
	if err = checkMountpoint(dir); err == nil {
		err = n.open(ctx, want, req, dir)
	}
	if err != nil {
		n.mounts.forget(dir, nil)
		return control.MountReply{}, err
	}
	placed = true
	n.mounts.settle(dir, want)
	return control.MountReply{Source: want.uri}, nil
}

// open makes the session of a mount and serves it. It leaves nothing behind when it fails.
func (n *Node) open(ctx context.Context, m *mount, req control.MountRequest, dir string) (err error) {
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
	if err == nil {
		err = n.keeping.begin(m, req)
	}
	if err != nil {
		m.release()
		return err
	}
	if err := n.prepare(ctx, m, dir, state); err != nil {
		m.release()
		return errors.Join(err, m.closeArea(), n.disks.removeSession(state))
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

func (m *mount) closeArea() error {
	if m.area == nil {
		return nil
	}
	return m.area.Close()
}

// prepare makes a session and attaches it to a directory.
func (n *Node) prepare(ctx context.Context, m *mount, dir, state string) (err error) {
	c := n.fuseConfig(m)
	c.StateDir = state
	if n.disks.onDisk(state) {
		c.InTime = n.disks.inTime
	}
	m.session, err = fuse.New(c)
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

// serve runs a session until it ends, then forgets it. The caller is within a request, or
// within Run.
func (m *mounts) serve(x *mount, dir, state string) {
	ctx, cancel := context.WithCancel(m.serving)
	x.cancel = cancel
	m.mu.Lock()
	m.live[x] = struct{}{}
	m.mu.Unlock()
	m.group.Go(func() {
		defer close(x.ended)
		defer cancel()
		if err := x.session.Run(ctx); err != nil {
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
		if !x.left.Load() {
			m.n.keeping.drop(x)
		}
		x.release()
		if err := errors.Join(x.session.Close(), x.closeArea(), m.n.disks.removeSession(state)); err != nil {
			m.log.Warn("mount left something behind", "directory", dir, "error", err)
		}
	})
	m.n.keeping.serving(x)
}

// Umount implements control.Node.
func (n *Node) Umount(ctx context.Context, dir string) error {
	return n.requests.do(ctx, func(ctx context.Context) error { return n.umount(ctx, fuse.Canonical(dir)) })
}

func (n *Node) umount(ctx context.Context, dir string) error {
	select {
	case <-n.keeping.adopted:
	case <-ctx.Done():
		return ctx.Err()
	}
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
		if n.keeping.holds(x) { // a successor goes on with it
			dirs = slices.DeleteFunc(dirs, func(dir string) bool { return dir == x.session.Dir() })
			continue
		}
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
