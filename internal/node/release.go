package node

import (
	"context"
	"fmt"
	"time"

	"github.com/shardwell/shardwell/fuse"
	"github.com/shardwell/shardwell/internal/control"
)

const (
	releasePatience = 2 * time.Second       // with a released mount: most are not in use
	releasePoll     = 50 * time.Millisecond // for one that is being made
)

// Release implements control.Node.
func (n *Node) Release(ctx context.Context, dir string) error {
	return n.requests.do(ctx, func(ctx context.Context) error { return n.releaseDir(ctx, fuse.Canonical(dir)) })
}

func (n *Node) releaseDir(ctx context.Context, dir string) error {
	patience := time.After(releasePatience)
	for {
		m, ok := n.mounts.at(dir)
		if !ok {
			removeDead(dir)
			return nil
		}
		if m != nil {
			return n.releaseMount(ctx, m, dir, patience)
		}
		select {
		case <-time.After(releasePoll): // whoever is making it may have been told to stop
		case <-patience:
			return fmt.Errorf("%s: is being mounted right now: try again", dir)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (n *Node) releaseMount(ctx context.Context, m *mount, dir string, patience <-chan time.Time) error {
	defer n.mounts.forget(dir, m)
	if m.attached(dir) {
		if err := m.session.Unmount(true); err != nil {
			return err
		}
	}
	select {
	case <-m.ended:
	case <-patience: // somebody reads on
	case <-ctx.Done():
	}
	return nil
}

// at returns what is mounted on a directory, nil while that is being made.
func (m *mounts) at(dir string) (have *mount, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	have, ok = m.byDir[dir]
	return have, ok
}

// Usage implements control.Node.
func (n *Node) Usage(ctx context.Context, dir string) (u control.Usage, err error) {
	err = n.requests.do(ctx, func(ctx context.Context) (err error) {
		u, err = n.usageOf(ctx, fuse.Canonical(dir))
		return err
	})
	return u, err
}

func (n *Node) usageOf(ctx context.Context, dir string) (u control.Usage, err error) {
	m, _ := n.mounts.at(dir)
	if m == nil {
		return u, fmt.Errorf("%s: nothing of this node is mounted there", dir)
	}
	here, err := n.shares(ctx)
	if err != nil {
		return u, err
	}
	u.Objects, u.Bytes = m.session.Listed()
	u.LocalBytes, _ = under(here, m.bucket, m.prefix)
	return u, nil
}
