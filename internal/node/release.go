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
	// releaseIdle ends a released mount in which nothing has been open for so long: mount namespaces of
	// others may have copies that nobody reads, and would keep it for ever.
	releaseIdle = time.Minute
)

// Release implements control.Node.
func (n *Node) Release(ctx context.Context, dir string) error {
	return n.requests.do(ctx, func(ctx context.Context) error { return n.releaseDir(ctx, fuse.Canonical(dir)) })
}

func (n *Node) releaseDir(ctx context.Context, dir string) error {
	select {
	case <-n.keeping.adopted: // else nobody may answer for it yet
	case <-ctx.Done():
		return ctx.Err()
	}
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
		n.requests.begin(func(ctx context.Context) { m.endWhenIdle(ctx, releaseIdle) })
	case <-ctx.Done():
	}
	return nil
}

// endWhenIdle ends a mount when nothing was open in it for a time, and returns when it has ended, or with ctx.
func (m *mount) endWhenIdle(ctx context.Context, idle time.Duration) {
	const looks = 10 // within the time
	tick := time.NewTicker(idle / looks)
	defer tick.Stop()
	for quiet := 0; ; {
		select {
		case <-m.ended:
			return
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if quiet++; m.session.Stats().OpenFiles.Load() > 0 {
			quiet = 0
		}
		if quiet == looks {
			m.cancel()
		}
	}
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
