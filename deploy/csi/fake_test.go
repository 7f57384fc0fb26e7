package csi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/shardwell/shardwell/fuse"
	"github.com/shardwell/shardwell/internal/control"
)

// fakeMachine is a daemon and a mount table without a kernel.
type fakeMachine struct {
	mu      sync.Mutex
	mounts  []fuse.MountEntry
	dead    map[string]bool // devices without a server
	serial  int
	asked   []control.MountRequest
	down    error                                                   // what every call of the daemon returns
	onMount func(ctx context.Context, r control.MountRequest) error // before a mount is made
	attach_ error                                                   // what attach returns
}

func newFake() *fakeMachine { return &fakeMachine{dead: map[string]bool{}} }

func (f *fakeMachine) Mount(ctx context.Context, r control.MountRequest) (control.MountReply, error) {
	f.mu.Lock()
	hook, down := f.onMount, f.down
	f.asked = append(f.asked, r)
	f.mu.Unlock()
	if down != nil {
		return control.MountReply{}, down
	}
	if hook != nil {
		if err := hook(ctx, r); err != nil {
			return control.MountReply{}, err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if e, ok := topmost(f.mounts, r.Dir); ok && !f.dead[e.Device] {
		return control.MountReply{Source: r.URI, Existing: true}, nil
	}
	f.mounts = slices.DeleteFunc(f.mounts, func(e fuse.MountEntry) bool { return e.Dir == r.Dir })
	f.serial++
	f.mounts = append(f.mounts, fuse.MountEntry{Dir: r.Dir, Device: fmt.Sprintf("0:%d", f.serial), Type: "fuse.shardwell", Source: "shardwell#" + r.URI})
	return control.MountReply{Source: r.URI}, nil
}

func (f *fakeMachine) Release(_ context.Context, dir string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.down != nil {
		return f.down
	}
	f.mounts = slices.DeleteFunc(f.mounts, func(e fuse.MountEntry) bool { return e.Dir == dir })
	return nil
}

func (f *fakeMachine) Usage(context.Context, string) (control.Usage, error) {
	return control.Usage{}, f.down
}

func (f *fakeMachine) Version(context.Context) (control.Version, error) {
	return control.Version{Version: "test"}, f.down
}

func (f *fakeMachine) table() ([]fuse.MountEntry, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.mounts), nil
}

func (f *fakeMachine) attach(source, target string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	e, ok := topmost(f.mounts, source)
	switch {
	case f.attach_ != nil:
		return f.attach_
	case !ok:
		return errors.New("not mounted")
	}
	e.Dir = target
	f.mounts = append(f.mounts, e)
	return nil
}

func (f *fakeMachine) detach(target string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mounts = slices.DeleteFunc(f.mounts, func(e fuse.MountEntry) bool { return e.Dir == target })
	return nil
}

func (f *fakeMachine) alive(dir string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	e, ok := topmost(f.mounts, dir)
	return ok && !f.dead[e.Device]
}

func (f *fakeMachine) abort(dir string) error { return f.detach(dir) }

// die ends the daemon as a kill does: its mounts stay, and nobody answers.
func (f *fakeMachine) die() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range f.mounts {
		f.dead[e.Device] = true
	}
}

func (f *fakeMachine) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// last returns the credentials that the daemon was given last, and how often it was asked.
func (f *fakeMachine) last() (control.Credentials, int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.asked) == 0 {
		return control.Credentials{}, 0
	}
	return f.asked[len(f.asked)-1].Credentials, len(f.asked)
}

// fakeDriver returns the Node service over a fake machine, and what it logs.
func fakeDriver(t testing.TB, f *fakeMachine, policy Policy) (*nodeService, *lines) {
	t.Helper()
	log := &lines{}
	logger := slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	kubelet := fuse.Canonical(t.TempDir())
	v, err := openVolumes(volumesConfig{
		daemon: f, host: f, log: logger, maxVolumes: 100, root: kubelet, dir: filepath.Join(kubelet, "plugins", DriverName),
	})
	if err != nil {
		t.Fatal(err)
	}
	d := &Driver{cfg: Config{NodeID: "node-1", KubeletDir: kubelet, Daemon: f, MaxVolumes: 100, Policy: policy}, log: logger, volumes: v}
	return &nodeService{driver: d}, log
}

// at is a target of a Pod in a driver's directory.
func (s *nodeService) at(pod string) string {
	return filepath.Join(s.driver.cfg.KubeletDir, "pods", pod, "volumes", "data", "mount")
}
