package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"runtime/debug"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/shardwell/shardwell/fuse"
	"github.com/shardwell/shardwell/fuse/handover"
	"github.com/shardwell/shardwell/internal/config"
	"github.com/shardwell/shardwell/internal/control"
)

// byManager is the value of --keeper-socket that names the service manager.
const byManager = "systemd"

// TakeOver says what a node does about one that has the mounts of its keeper still.
type TakeOver string

// The ways to take over.
const (
	TakeOverWait  TakeOver = "wait"  // until it ends
	TakeOverNow   TakeOver = "now"   // tell it to end, and wait
	TakeOverCheck TakeOver = "check" // only find out whether this one could go on
)

// Turn is a node's right to serve the mounts that a keeper holds, and what those are. There
// is one at a time.
type Turn struct {
	manager  *handover.Manager // nil: it is no service manager
	crashed  bool              // the predecessor ended by a fault of its own
	from     store             // whose the sessions are; nil when there are none
	sessions []handover.Session

	mu     sync.Mutex
	client *handover.Client // nil: no keeper answers, or it is the service manager
}

// Close gives the mounts back, which this process serves no more by then: the keeper takes
// it for the end of the process. It comes after the ports and sockets that a successor needs
// are free. It may be called again, and for nil.
func (t *Turn) Close() {
	if t == nil {
		return
	}
	for i := range t.sessions {
		_ = t.sessions[i].Close()
	}
	if client := t.replace(nil); client != nil {
		client.Close()
	}
}

// current returns the connection to the keeper.
func (t *Turn) current() *handover.Client {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.client
}

// replace sets it and returns the one before.
func (t *Turn) replace(c *handover.Client) (old *handover.Client) {
	t.mu.Lock()
	defer t.mu.Unlock()
	old, t.client = t.client, c
	return old
}

// AwaitTurn returns when no other process serves the mounts that the keeper of cfg holds;
// nil without an error when cfg names none, or how is TakeOverCheck. Before it waits it sees to
// it that this program can go on with those mounts, so that an error comes while they are served.
func AwaitTurn(ctx context.Context, cfg config.Config, how TakeOver, log *slog.Logger) (*Turn, error) {
	switch cfg.KeeperSocket {
	case "":
		return nil, nil
	case byManager:
		m, sessions, err := handover.OpenManager()
		if err != nil {
			return nil, err
		}
		return &Turn{manager: m, from: m, sessions: sessions, crashed: lastWords(cfg, log)}, nil
	}
	client, err := handover.Dial(cfg.KeeperSocket, fmt.Sprintf("shardwell %s (pid %d)", Version, os.Getpid()))
	if errors.Is(err, handover.ErrNoKeeper) && how != TakeOverCheck {
		log.Warn("keeper: none answers: until one does, mounts end with this process", "socket", cfg.KeeperSocket)
		return &Turn{crashed: lastWords(cfg, log)}, nil
	}
	if err != nil {
		return nil, err
	}
	t := &Turn{client: client, from: client}
	seen, err := client.Look()
	for i := range seen {
		if err == nil {
			err = checkSession(cfg, &seen[i], log)
		}
		_ = seen[i].Close()
	}
	if err != nil || how == TakeOverCheck {
		t.Close()
		return nil, err
	}
	if len(seen) > 0 {
		log.Info("keeper: this program can go on with its mounts, and does when nobody serves them any more", "socket", cfg.KeeperSocket, "mounts", len(seen))
	}
	if t.sessions, err = client.Claim(ctx, how == TakeOverNow); err != nil {
		t.Close()
		return nil, err
	}
	t.crashed = lastWords(cfg, log) // the predecessor is gone by now
	return t, nil
}

// maxWords bounds what is read of a crash.
const maxWords = 4 << 10

// lastWords reports whether the process before this one crashed, logs what it said, and has
// this one say it in the same place, beside the control socket.
func lastWords(cfg config.Config, log *slog.Logger) (crashed bool) {
	f, err := os.OpenFile(cfg.ControlSocket+".crash", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		log.Warn("keeper: a crash would not be told from a kill", "error", err)
		return false
	}
	defer f.Close()
	words := make([]byte, maxWords)
	n, _ := f.ReadAt(words, 0)
	if crashed = n > 0; crashed {
		log.Error("the process before this one crashed", "said", string(words[:n]))
	}
	if err := errors.Join(f.Truncate(0), debug.SetCrashOutput(f, debug.CrashOptions{})); err != nil {
		log.Warn("keeper: a crash would not be told from a kill", "error", err)
	}
	return crashed
}

// checkSession says why this program could not go on with a mount.
func checkSession(cfg config.Config, s *handover.Session, log *slog.Logger) error {
	refuse := func(err error) error {
		return fmt.Errorf("the mount on %s: %w: it stays with the node that serves it; end that mount first, or start a version that knows it", s.Dir, err)
	}
	area, err := handover.OpenAreaToLook(duplicate(s.Area))
	if err != nil {
		return refuse(err)
	}
	defer area.Close()
	r, err := recordOf(area.Record(), cfg)
	if err != nil {
		return refuse(err)
	}
	m, err := planMount(cfg, r.request())
	if err != nil {
		return refuse(err)
	}
	c := mountConfig(m)
	c.Logger = log
	if err := fuse.CheckResume(c, area, s.Listings); err != nil {
		return refuse(err)
	}
	return nil
}

// duplicate returns a descriptor of its own for f, nil for nil or when there are no more.
func duplicate(f *os.File) *os.File {
	if f == nil {
		return nil
	}
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	return os.NewFile(uintptr(fd), f.Name())
}

// recordVersion is the version of a record.
const recordVersion = 1

// record is what a node's successor must know of a mount besides what the file system
// remembers. It lies in memory and never on a disk: there are secrets in it.
type record struct {
	Version     int                 `json:"version"`
	Node        string              `json:"node"` // its control socket
	URI         string              `json:"uri"`
	Dir         string              `json:"dir"`
	Options     map[string]string   `json:"options"`
	Caller      control.Caller      `json:"caller"`
	Credentials control.Credentials `json:"credentials"`
}

// recordFor describes a mount that was planned for a request. Options that the node decided
// are spelled out: its successor may have others.
func recordFor(cfg config.Config, m *mount, req control.MountRequest) ([]byte, error) {
	options := m.options.MountAttributes()
	maps.Copy(options, req.Options)
	return json.Marshal(record{
		Version: recordVersion, Node: cfg.ControlSocket, URI: req.URI, Dir: req.Dir, Options: options, Caller: req.Caller, Credentials: req.Credentials,
	})
}

// recordOf reads a record and makes sure that it is of this node.
func recordOf(text []byte, cfg config.Config) (r record, err error) {
	if err := json.Unmarshal(text, &r); err != nil {
		return r, fmt.Errorf("its description cannot be read: %w", handover.ErrVersion)
	}
	switch {
	case r.Version != recordVersion:
		return r, fmt.Errorf("description %d, not %d: %w", r.Version, recordVersion, handover.ErrVersion)
	case r.Node != cfg.ControlSocket:
		return r, fmt.Errorf("it belongs to the node behind %s: give this node a keeper of its own", r.Node)
	}
	return r, nil
}

func (r record) request() control.MountRequest {
	return control.MountRequest{URI: r.URI, Dir: r.Dir, Options: r.Options, Caller: r.Caller, Credentials: r.Credentials}
}
