package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/shardwell/shardwell/fuse"
	"github.com/shardwell/shardwell/fuse/handover"
	"github.com/shardwell/shardwell/internal/control"
)

// How a node deals with its keeper.
const (
	keeperRetry   = 500 * time.Millisecond // between attempts to reach one
	adoptRetry    = time.Second            // between attempts to go on with a mount
	adoptPatience = 250 * time.Millisecond // with seeds that do not answer: readers wait
	handOverWait  = 10 * time.Second       // for a session to stop serving
	servingEvery  = 15 * time.Second       // the keeper is told that mounts are served: it gives up those of a process that hangs
)

// store is where sessions are kept while no node serves them.
type store interface {
	Deposit(s handover.Session) (id uint64, err error)
	Serving(id uint64) error
	Drop(id uint64) error
}

// keeping sees to it that the mounts of a node outlive it. Without a keeper in the
// configuration it does nothing.
type keeping struct {
	n      *Node
	log    *slog.Logger
	socket string // of the keeper; "" when there is none or it is the service manager
	turn   *Turn  // nil when no keeper is configured

	adopted chan struct{} // closed when what a predecessor left was tried once
	yielded chan struct{} // closed when a successor wants to take over
	yield   sync.Once

	mu     sync.Mutex
	taking int // mounts of a predecessor that are not served yet
}

func newKeeping(n *Node, t *Turn) *keeping {
	k := &keeping{n: n, log: n.log, turn: t, adopted: make(chan struct{}), yielded: make(chan struct{})}
	if t == nil {
		return k
	}
	if t.manager == nil {
		k.socket = n.cfg.KeeperSocket
	}
	k.taking = len(t.sessions)
	return k
}

// current returns who keeps mounts now, nil for nobody, and the same when it is a keeper.
func (k *keeping) current() (store, *handover.Client) {
	if k.turn == nil {
		return nil, nil
	}
	if k.turn.manager != nil {
		return k.turn.manager, nil
	}
	if client := k.turn.current(); client != nil {
		return client, client
	}
	return nil, nil
}

// takingOver returns how many mounts of a predecessor are not served yet.
func (k *keeping) takingOver() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.taking
}

// state describes the keeper as status documents have it.
func (k *keeping) state() string {
	store, _ := k.current()
	switch {
	case k.turn == nil:
		return ""
	case store == nil:
		return "absent"
	}
	return "connected"
}

// Run stays in touch with the keeper until ctx ends: when it ends the mounts go on,
// and are deposited with the next.
func (k *keeping) Run(ctx context.Context) error {
	var telling sync.WaitGroup
	defer telling.Wait()
	telling.Go(func() { k.sayServing(ctx) })
	for k.socket != "" {
		_, client := k.current()
		if client == nil {
			k.reach(ctx)
			if pause(ctx, keeperRetry) != nil {
				return nil
			}
			continue
		}
		select {
		case <-client.Yield():
			k.yield.Do(func() {
				k.log.Info("keeper: a successor takes over")
				close(k.yielded)
			})
			select {
			case <-client.Gone():
			case <-ctx.Done():
				return nil
			}
		case <-client.Gone():
		case <-ctx.Done():
			return nil
		}
		k.lose(client)
	}
	<-ctx.Done()
	return nil
}

// sayServing tells the keeper again and again that mounts are served, until ctx ends.
func (k *keeping) sayServing(ctx context.Context) {
	for k.socket != "" && pause(ctx, servingEvery) == nil {
		for _, m := range k.n.mounts.running() {
			if _, client := k.current(); client != nil && m.keptBy(client) != 0 {
				_ = client.Serving(m.keptBy(client)) // an error is that it has ended, which Run sees
			}
		}
	}
}

func (k *keeping) lose(client *handover.Client) {
	client.Close()
	k.turn.replace(nil)
	k.log.Warn("keeper: it has ended: mounts go on, and are deposited with the next", "socket", k.socket)
}

// reach connects to a keeper that has come, and deposits what is mounted.
func (k *keeping) reach(ctx context.Context) {
	client, err := handover.Dial(k.socket, fmt.Sprintf("shardwell %s (pid %d)", Version, os.Getpid()))
	if err != nil {
		return // once a while it comes
	}
	sessions, err := client.Claim(ctx, false)
	strangers := 0
	for i := range sessions {
		if m := k.ours(&sessions[i]); m != nil { // the keeper lives, and it was the connection that ended
			m.setKept(client, sessions[i].ID)
		} else if !sessions[i].Ended() {
			strangers++
		}
		_ = sessions[i].Close()
	}
	if strangers > 0 {
		err = fmt.Errorf("it holds %d mounts that are not of this node", strangers)
	}
	if err != nil {
		client.Close()
		k.log.Warn("keeper: cannot be used", "socket", k.socket, "error", err)
		return
	}
	k.turn.replace(client)
	all := k.n.mounts.running()
	for _, m := range all {
		k.serving(m)
	}
	k.log.Info("keeper: it holds the mounts from now on", "socket", k.socket, "mounts", len(all))
}

// ours returns the mount that a session is, nil when it is not of this node.
func (k *keeping) ours(s *handover.Session) *mount {
	area, err := s.Area.Stat()
	if err != nil {
		return nil
	}
	for _, m := range k.n.mounts.running() {
		if m.area == nil {
			continue
		}
		if st, err := m.area.File().Stat(); err == nil && os.SameFile(st, area) {
			return m
		}
	}
	return nil
}

// deposit has a mount kept that is not, when there is somebody to do it.
func (k *keeping) deposit(m *mount) {
	store, _ := k.current()
	if store == nil || m.area == nil || m.keptBy(store) != 0 {
		return
	}
	dev, err := m.session.Device()
	if err == nil {
		var id uint64
		id, err = store.Deposit(handover.Session{Dir: m.session.Dir(), Device: m.session.DeviceNumber(), Dev: dev, Area: m.area.File(), Listings: m.session.ListingsFile()})
		err = errors.Join(err, dev.Close())
		if err == nil {
			m.setKept(store, id)
			err = store.Serving(id)
		}
	}
	if err != nil {
		k.log.Warn("keeper: does not take a mount, which ends with this process", "directory", m.session.Dir(), "error", err)
	}
}

// serving says that the requests of a mount are read.
func (k *keeping) serving(m *mount) {
	store, _ := k.current()
	if id := m.keptBy(store); store != nil && id != 0 {
		if err := store.Serving(id); err != nil {
			k.log.Warn("keeper: cannot be told that a mount is served", "directory", m.session.Dir(), "error", err)
		}
		return
	}
	k.deposit(m)
}

// drop says that a mount has ended.
func (k *keeping) drop(m *mount) {
	store, _ := k.current()
	if id := m.keptBy(store); store != nil && id != 0 {
		m.setKept(nil, 0)
		if err := store.Drop(id); err != nil {
			k.log.Warn("keeper: cannot be told that a mount has ended", "directory", m.session.Dir(), "error", err)
		}
	}
}

// holds reports whether a mount goes on when this process ends.
func (k *keeping) holds(m *mount) bool {
	store, _ := k.current()
	return store != nil && m.keptBy(store) != 0 && !k.n.drained()
}

// begin gives a mount that is about to be made what its successors need.
func (k *keeping) begin(m *mount, req control.MountRequest) error {
	if k.turn == nil {
		return nil
	}
	text, err := recordFor(k.n.cfg, m, req)
	if err == nil {
		m.area, err = handover.NewArea(text)
	}
	return err
}

// describe replaces what successors know of a mount that was asked for again.
func (k *keeping) describe(m *mount, req control.MountRequest) {
	if m.area == nil {
		return
	}
	text, err := recordFor(k.n.cfg, m, req)
	if err == nil {
		err = m.area.SetRecord(text)
	}
	if err != nil {
		k.log.Warn("keeper: a restart will use the credentials from before", "directory", m.session.Dir(), "error", err)
	}
}

// mounter mounts by way of the keeper.
type mounter struct {
	k *keeping
	m *mount
}

// Mount implements fuse.Mounter. While there is no keeper this process mounts, and the next
// keeper gets it.
func (b mounter) Mount(dir, source, options string, flags uintptr) (*os.File, error) {
	if _, client := b.k.current(); client != nil {
		id, dev, err := client.Mount(dir, source, options, flags, b.m.area.File(), b.m.session.ListingsFile())
		if err == nil {
			b.m.setKept(client, id)
			return dev, nil
		}
		select {
		case <-client.Gone():
		default:
			return nil, err
		}
	}
	removeDead(dir) // what a keeper made that ended before it could tell
	fd, err := handover.MountFUSE(dir, source, options, flags)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "/dev/fuse"), nil
}

var _ fuse.Mounter = mounter{}
