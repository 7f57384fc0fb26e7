package node

import (
	"context"
	"fmt"
	"time"

	"github.com/shardwell/shardwell/fuse"
	"github.com/shardwell/shardwell/internal/control"
)

// releasePatience is how long a released mount is waited for: most are not in use.
const releasePatience = 2 * time.Second

// Release implements control.Node.
func (n *Node) Release(ctx context.Context, dir string) error {
	return n.requests.do(ctx, func(ctx context.Context) error { return n.releaseDir(ctx, fuse.Canonical(dir)) })
}

func (n *Node) releaseDir(ctx context.Context, dir string) error {
	n.mounts.mu.Lock()
	m, ok := n.mounts.byDir[dir]
	n.mounts.mu.Unlock()
	switch {
	case !ok:
		removeDead(dir)
		return nil
	case m == nil:
		return fmt.Errorf("%s: is being mounted right now: try again", dir)
	}
	defer n.mounts.forget(dir, m)
	if m.attached(dir) {
		if err := m.session.Unmount(true); err != nil {
			return err
		}
	}
	select {
	case <-m.ended:
	case <-time.After(releasePatience): // somebody reads on
	case <-ctx.Done():
	}
	return nil
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
	n.mounts.mu.Lock()
	m := n.mounts.byDir[dir]
	n.mounts.mu.Unlock()
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
