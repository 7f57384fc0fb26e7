package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/shardwell/shardwell/cache/evict"
	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/internal/config"
	"github.com/shardwell/shardwell/objstore"
	"github.com/shardwell/shardwell/peer"
)

// How members tell each other which datasets they use: often enough that one who missed
// it hears soon, and so that a node of a large cluster neither makes nor answers more
// than ten calls a second for it.
const (
	tellEvery     = time.Minute
	tellPerMember = 100 * time.Millisecond
	tellTTLs      = 3               // what was said holds for so many periods
	tellPatience  = 2 * time.Second // of a mount with members that do not answer
)

// keeper tells the others what this node uses and hears what they do.
type keeper struct{ n *Node }

var _ peer.Keeper = keeper{}

// Use implements peer.Keeper.
func (k keeper) Use(member string, uses []peer.DatasetUse, ttl time.Duration) {
	k.n.foreign.hear(uses)
	uses = slices.DeleteFunc(uses, func(u peer.DatasetUse) bool { return u.Foreign })
	k.n.uses.hear(member, uses, ttl)
	k.n.fills.hear(member, uses, ttl)
}

// Take implements peer.Keeper.
func (k keeper) Take(ctx context.Context, obj chunk.Object, chunks []uint32) (taken []uint32, err error) {
	err = k.n.requests.do(ctx, func(ctx context.Context) (err error) {
		taken, err = k.n.take(ctx, obj, chunks)
		return err
	})
	return taken, err
}

// Free implements peer.Keeper.
func (k keeper) Free(objs []chunk.Object) { k.n.freeHere(objs) }

// period is how often this node tells the others.
func (n *Node) period() time.Duration {
	return max(tellEvery, time.Duration(len(n.cluster.group.Members()))*tellPerMember)
}

// tell says once what this node uses.
func (n *Node) tell(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, n.period())
	defer cancel()
	if err := n.cluster.peers.Use(ctx, slices.Concat(n.foreign.tell(), n.uses.tell(time.Now()), n.fills.tell()), tellTTLs*n.period()); err != nil && ctx.Err() == nil {
		n.log.Debug("some members did not hear what is used here", "error", oneLine(err))
	}
}

// keepTelling tells the others now and then, and whenever something changes, until ctx ends.
func (n *Node) keepTelling(ctx context.Context) error {
	tick := time.NewTicker(tellEvery)
	defer tick.Stop()
	var last time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-n.uses.news:
		case <-n.cluster.news:
		case <-tick.C:
			n.uses.update(time.Now())
			if time.Since(last) < n.period() {
				continue
			}
		}
		last = time.Now()
		n.tell(ctx)
	}
}

// use says that a mount uses its dataset, and returns when the others know or have had
// time to: from then on their eviction spares it.
func (n *Node) use(ctx context.Context, m *mount) (end func()) {
	end = n.claimUse(m)
	ctx, cancel := context.WithTimeout(ctx, tellPatience)
	defer cancel()
	n.tell(ctx)
	return end
}

// claimUse is use without waiting for the others.
func (n *Node) claimUse(m *mount) (end func()) {
	policy, err := evict.ParsePolicy(m.options.CachePolicy)
	if err != nil {
		policy = evict.Epoch // was validated
	}
	remove := n.uses.add(claim{m.dataset(), policy, int64(m.options.Quota)})
	return func() {
		if !n.mounts.stopping() { // a node that restarts mounts it again
			remove()
		}
	}
}

// dataset returns what a mount shows.
func (m *mount) dataset() evict.Dataset {
	return evict.Dataset{Origin: m.bucket.Origin, Bucket: m.bucket.Name, Prefix: m.prefix}
}

// Pin implements control.Node.
func (n *Node) Pin(ctx context.Context, uri string, ttl time.Duration) (objects, bytes int64, err error) {
	err = n.requests.do(ctx, func(ctx context.Context) (err error) {
		objects, bytes, err = n.pin(ctx, uri, ttl)
		return err
	})
	return objects, bytes, err
}

func (n *Node) pin(ctx context.Context, uri string, ttl time.Duration) (objects, bytes int64, err error) {
	u, err := config.ParseURI(uri)
	if err != nil {
		return 0, 0, err
	}
	bucket, named, err := bucketOf(n.cfg, u)
	if err != nil {
		return 0, 0, err
	}
	ds := evict.Dataset{Origin: bucket.Origin, Bucket: bucket.Name, Prefix: dirPrefix(named)}
	now := time.Now()
	if ttl <= 0 {
		err := n.uses.pin(ds, 0, 0, time.Time{}, now)
		n.tell(ctx)
		return 0, 0, err
	}
	if objects, bytes, err = n.measure(ctx, bucket, ds.Prefix); err != nil {
		return 0, 0, fmt.Errorf("pin %s: %w", u, err)
	}
	capacity, err := n.capacity(ctx)
	if err != nil {
		return 0, 0, fmt.Errorf("pin %s: %w", u, err)
	}
	if err := n.uses.pin(ds, bytes, capacity, now.Add(ttl), now); err != nil {
		return objects, bytes, fmt.Errorf("pin %s: %w", u, err)
	}
	n.tell(ctx)
	return objects, bytes, nil
}

// measure adds up the objects under a prefix.
func (n *Node) measure(ctx context.Context, b objstore.Bucket, prefix string) (objects, bytes int64, err error) {
	release, err := n.origins.admit(n.cfg, b)
	if err != nil {
		return 0, 0, err
	}
	defer release()
	q := objstore.Query{Bucket: b, MaxAge: time.Minute}
	for r := (objstore.ListRequest{Prefix: prefix}); ; {
		page, _, err := n.names.List(ctx, q, r)
		if err != nil {
			return 0, 0, err
		}
		for _, o := range page.Objects {
			objects, bytes = objects+1, bytes+o.Size
		}
		if page.Next == "" {
			break
		}
		r.Token = page.Next
	}
	if objects == 0 {
		return 0, 0, errors.New("there are no such objects")
	}
	return objects, bytes, nil
}
