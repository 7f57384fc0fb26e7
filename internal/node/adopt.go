package node

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/shardwell/shardwell/fuse"
	"github.com/shardwell/shardwell/fuse/handover"
	"github.com/shardwell/shardwell/internal/config"
	"github.com/shardwell/shardwell/internal/control"
	"github.com/shardwell/shardwell/objstore"
	"github.com/shardwell/shardwell/objstore/s3"
)

// adoptAll goes on with all mounts that a predecessor left, until ctx ends. Those that fail
// are tried again: what they need may come.
func (k *keeping) adoptAll(ctx context.Context) {
	var left []handover.Session
	if k.turn != nil {
		left, k.turn.sessions = k.turn.sessions, nil
	}
	if len(left) == 0 {
		close(k.adopted)
		return
	}
	select { // with the other members known fewer bytes come from the origin
	case <-k.n.cluster.joined():
	case <-time.After(adoptPatience):
	case <-ctx.Done():
	}
	began := time.Now()
	var once, all sync.WaitGroup
	for _, s := range left {
		once.Add(1)
		all.Go(func() { k.keepAdopting(ctx, s, sync.OnceFunc(once.Done)) })
	}
	once.Wait()
	close(k.adopted)
	k.log.Info("keeper: took over", "mounts", len(left)-k.takingOver(), "of", len(left), "after", time.Since(began))
	all.Wait()
}

// keepAdopting goes on with one mount; tried is called after the first attempt. When that
// cannot be for as long as a node may take to start, or the keeper has given the mount up, it
// is let go, and its readers get errors.
func (k *keeping) keepAdopting(ctx context.Context, s handover.Session, tried func()) {
	defer s.Close()
	said := ""
	for end := time.Now().Add(handover.DefaultStartWithin); ; {
		err := k.n.adopt(ctx, &s)
		late := err != nil && (s.Ended() || time.Now().After(end))
		if err == nil || late {
			k.mu.Lock()
			k.taking--
			k.mu.Unlock()
		}
		tried()
		if err == nil {
			return
		}
		if err.Error() != said || late {
			said = err.Error()
			k.log.Error("keeper: cannot go on with a mount, whose readers wait", "directory", s.Dir, "error", err, "given up", late)
		}
		if late {
			if store, _ := k.current(); store != nil && store == k.turn.from {
				_ = store.Drop(s.ID) // there is nothing more to be done
			}
			return
		}
		if pause(ctx, adoptRetry) != nil {
			return
		}
	}
}

// adopt goes on with a mount. The files of s stay the caller's.
func (n *Node) adopt(ctx context.Context, s *handover.Session) (err error) {
	area, err := handover.OpenArea(duplicate(s.Area))
	if err != nil {
		return err
	}
	r, err := recordOf(area.Record(), n.cfg)
	var m *mount
	if err == nil {
		m, err = n.plan(r.request())
	}
	if err == nil {
		m.who, err = n.recall(ctx, m.options, r.Credentials, m.bucket)
	}
	if err != nil {
		return errors.Join(err, area.Close())
	}
	m.area = area
	m.setKept(n.keeping.turn.from, s.ID)
	dir := fuse.Canonical(r.Dir)
	admitted, err := n.origins.admit(m.options, m.bucket)
	if err != nil {
		m.who.close()
		return errors.Join(err, area.Close())
	}
	end := n.claimUse(m)
	m.release = func() {
		end()
		admitted()
		m.who.close()
	}
	c := n.fuseConfig(m)
	c.Resume, c.Listings, c.Crashed = true, duplicate(s.Listings), n.keeping.turn.crashed
	c.InTime = n.disks.inTime
	if m.session, err = fuse.New(c); err == nil {
		if err = m.session.Adopt(duplicate(s.Dev), dir, s.Device); err != nil {
			err = errors.Join(err, m.session.Close())
		}
	}
	if err != nil {
		m.release()
		return errors.Join(err, area.Close())
	}
	n.mounts.serve(m, dir, "")
	if m.attached(dir) { // else it was detached while it was in use, and another may be there
		n.mounts.settle(dir, m)
	}
	return nil
}

// recall is identify for a mount that a predecessor made: what it was given was proven to it,
// and may not be good for another proof.
func (n *Node) recall(ctx context.Context, cfg config.Config, given control.Credentials, b objstore.Bucket) (*principal, error) {
	if given.WebIdentityToken == "" {
		return n.identify(ctx, cfg, given, b)
	}
	web := s3.Credentials{Source: s3.SourceWebIdentity, Token: s3.NewToken(given.WebIdentityToken), RoleARN: given.RoleARN, STSEndpoint: given.STSEndpoint}
	p := &principal{n: n}
	n.foreign.add(b) // a node without a cache directory has forgotten
	return p, p.take(n.origins.ids.ofToken(web, given.WebIdentityToken), web, "")
}
