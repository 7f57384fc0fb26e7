package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/time/rate"

	"github.com/shardwell/shardwell/cache"
	"github.com/shardwell/shardwell/cache/disk"
	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/internal/config"
	"github.com/shardwell/shardwell/internal/control"
	"github.com/shardwell/shardwell/objstore"
	"github.com/shardwell/shardwell/peer/member"
	"github.com/shardwell/shardwell/peer/ring"
)

// How what was owned moves to its new owners.
const (
	moveSettle     = 10 * time.Second // without a change, before anything moves
	chunksAtOnce   = 8                // that an owner is asked to take in one call
	drainWait      = 15 * time.Second // for the ring to change after a drain has begun
	drainSpread    = 2 * time.Second  // for the others' rings to change as well
	countQuotas    = time.Minute      // between counts of datasets with a quota
	progressEvery  = 500 * time.Millisecond
	maxMoveRetries = 3 // of one call to an owner
)

// keepMoving hands on what this node owned and does not own any more, each time the ring has
// changed for good, until ctx ends. A member that only restarts keeps its place: then
// no owner changes, and there is nothing to hand on.
func (n *Node) keepMoving(ctx context.Context) error {
	settle := time.NewTimer(moveSettle)
	settle.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-n.cluster.moved:
			settle.Reset(moveSettle)
		case <-settle.C:
			m := mover{n: n, bytesPerSecond: int64(n.cfg.MoveRate)}
			if err := m.run(ctx, n.cluster.moved); err != nil && ctx.Err() == nil {
				n.log.Warn("hand on what others own now", "error", err)
			}
			if m.done > 0 || m.failed > 0 {
				n.log.Info("handed on what others own now", "bytes", m.done, "bytes not taken", m.failed)
			}
			if m.interrupted || m.unreached {
				settle.Reset(moveSettle) // a full owner is not asked again, one that did not answer is
			}
		}
	}
}

// mover hands on chunks once.
type mover struct {
	n              *Node
	bytesPerSecond int64 // 0: no bound
	tell           func(done, total, failed int64)

	total, done, failed int64 // bytes; total only when tell is set
	told                time.Time
	interrupted         bool // the ring has changed meanwhile
	unreached           bool // an owner gave no answer
}

// errInterrupted ends a run because the ring has changed meanwhile.
var errInterrupted = errors.New("the ring has changed")

// run goes through the disks, or through memory where there are none, and offers to their owners the chunks that this node owned before. It ends
// early when changed fires.
func (m *mover) run(ctx context.Context, changed <-chan struct{}) error {
	for _, counting := range []bool{true, false} {
		if counting && m.tell == nil {
			continue
		}
		unread, err := m.n.eachHeld(ctx, func(obj chunk.Object, id chunk.ObjectID) error {
			select {
			case <-changed:
				m.interrupted = true
				return errInterrupted
			default:
			}
			return m.object(ctx, obj, id, counting)
		})
		if errors.Is(err, errInterrupted) {
			return nil
		}
		if err != nil {
			return err
		}
		if !counting {
			m.failed += unread
		}
	}
	m.report(true)
	return nil
}

// eachHeld calls visit for each object of which this node holds something, until it returns an error. Directories that
// cannot be listed, or not in full, are passed over: unread is at most what this node owns there.
func (n *Node) eachHeld(ctx context.Context, visit func(chunk.Object, chunk.ObjectID) error) (unread int64, err error) {
	for _, d := range n.disks.dirs {
		var stop error
		err := d.Each(ctx, func(e disk.Entry) error {
			stop = visit(e.Object, e.ID)
			return stop
		})
		switch {
		case stop != nil || ctx.Err() != nil:
			return unread, err
		case err != nil:
			n.log.Warn("what lies in a cache directory is not known", "error", err)
			owned, _ := d.Capacity()
			unread += owned
		}
	}
	return unread, n.cache.EachInMemory(func(m cache.InMemory) error { return visit(m.Object, m.ID) })
}

// object hands on what is here of one object.
func (m *mover) object(ctx context.Context, obj chunk.Object, id chunk.ObjectID, counting bool) error {
	g := m.n.geometry
	byOwner := make(map[string][]uint32)
	f, err := m.n.cache.Open(obj)
	if err != nil {
		return err
	}
	defer f.Close()
	h := m.n.cluster.ring.history
	for i := range g.Chunks(obj.Size) {
		key := ring.KeyOf(id, obj.Size, int64(m.n.cfg.PlaceWhole), i)
		owner := h.Current().Owner(key)
		if owner == nil || owner.ID == m.n.id || !f.Holds(g.ChunkSpan(obj.Size, i)) {
			continue
		}
		if !slices.ContainsFunc(h.EarlierOwners(key, nil), func(o *ring.Member) bool { return o.ID == m.n.id }) {
			continue // a copy: its owner had it from elsewhere
		}
		byOwner[owner.ID] = append(byOwner[owner.ID], i)
	}
	for owner, chunks := range byOwner {
		for batch := range slices.Chunk(chunks, chunksAtOnce) {
			if counting {
				m.total += m.bytesOf(obj, batch)
				continue
			}
			if err := m.offer(ctx, owner, obj, batch); err != nil {
				return err
			}
		}
	}
	return nil
}

// bytesOf adds up the lengths of chunks.
func (m *mover) bytesOf(obj chunk.Object, chunks []uint32) (sum int64) {
	for _, i := range chunks {
		_, n := m.n.geometry.Bytes(obj.Size, m.n.geometry.ChunkSpan(obj.Size, i))
		sum += n
	}
	return sum
}

// offer asks one owner to take chunks, at the rate that is set. Its error is ctx's.
func (m *mover) offer(ctx context.Context, owner string, obj chunk.Object, chunks []uint32) error {
	began := time.Now()
	var taken []uint32
	var err error
	for range maxMoveRetries {
		if taken, err = m.n.cluster.peers.Take(ctx, owner, obj, chunks); err == nil || ctx.Err() != nil {
			break
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		m.unreached = true
		m.n.log.Debug("owner takes nothing", "object", obj.URI(), "peer", owner, "error", err)
	}
	done := m.bytesOf(obj, taken)
	m.done += done
	m.failed += m.bytesOf(obj, chunks) - done
	m.report(false)
	if m.bytesPerSecond <= 0 {
		return nil
	}
	// What was not taken may have been sent, too.
	pause := time.Duration(float64(m.bytesOf(obj, chunks))/float64(m.bytesPerSecond)*float64(time.Second)) - time.Since(began)
	if pause <= 0 {
		return nil
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (m *mover) report(now bool) {
	if m.tell != nil && (now || time.Since(m.told) > progressEvery) {
		m.told = time.Now()
		m.tell(m.done, m.total, m.failed)
	}
}

// take gets chunks that this node owns from whoever held them, and returns those that it keeps.
func (n *Node) take(ctx context.Context, obj chunk.Object, chunks []uint32) (taken []uint32, err error) {
	f, err := n.cache.Open(obj)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	for _, i := range chunks {
		span := n.geometry.ChunkSpan(obj.Size, i)
		if !n.policy.Owns(obj, obj.ID(), span.First) {
			continue // the rings differ: the caller asks again when they do not
		}
		if !f.Holds(span) {
			if !n.roomFor(obj.ID()) {
				break // what would be fetched would not be kept
			}
			if err = n.mayTake(ctx, obj, span); err != nil {
				return taken, err
			}
			if err = f.Bring(ctx, i, false); err != nil {
				return taken, err
			}
		}
		if f.Holds(span) {
			taken = append(taken, i)
		}
	}
	return taken, nil
}

// newTaking bounds what a node takes from all who hand on to it.
func newTaking(cfg config.Config) *rate.Limiter {
	if cfg.MoveRate <= 0 {
		return rate.NewLimiter(rate.Inf, 0)
	}
	return rate.NewLimiter(rate.Limit(cfg.MoveRate), int(cfg.Geometry().ChunkBytes))
}

// mayTake waits until a chunk may be taken: however many members hand on to a newcomer, its link and its disk have readers as well. Who
// drains is in a hurry, and not waited with.
func (n *Node) mayTake(ctx context.Context, obj chunk.Object, span chunk.Span) error {
	for _, m := range n.cluster.group.Members() {
		if m.Draining && m.State != member.Down {
			return nil
		}
	}
	_, bytes := n.geometry.Bytes(obj.Size, span)
	return n.taking.WaitN(ctx, int(bytes))
}

// roomFor reports whether the directory of an object takes more of what this node owns.
func (n *Node) roomFor(id chunk.ObjectID) bool {
	if len(n.disks.dirs) == 0 {
		return n.cache.MemoryRoom()
	}
	owned, limit := n.disks.place(id).Capacity()
	return owned+n.geometry.BlockBytes <= limit
}

// Drain implements control.Node: the node owns nothing from now on, hands on what it owned, and
// ends. tell is called now and then.
func (n *Node) Drain(ctx context.Context, tell func(control.DrainProgress) error) error {
	err := n.requests.do(ctx, func(ctx context.Context) error { return n.drain(ctx, tell) })
	if err == nil {
		n.leave()
	}
	return err
}

func (n *Node) drain(ctx context.Context, tell func(control.DrainProgress) error) error {
	if err := n.cluster.group.Drain(ctx); err != nil {
		return err
	}
	deadline := time.Now().Add(drainWait)
	for n.cluster.ring.history.Current().OwnedShare(n.id) > 0 && n.cluster.ring.history.Current().Len() > 1 {
		if time.Now().After(deadline) {
			return fmt.Errorf("drain: the ring has not changed within %v", drainWait)
		}
		if err := pause(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
	if err := pause(ctx, drainSpread); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	m := mover{n: n, tell: func(done, total, failed int64) {
		if err := tell(control.DrainProgress{DoneBytes: done, TotalBytes: total, FailedBytes: failed}); err != nil {
			cancel(err)
		}
	}}
	if err := m.run(ctx, nil); err != nil {
		return fmt.Errorf("drain: %w", err)
	}
	n.log.Info("drained", "bytes", m.done, "bytes not taken", m.failed)
	return nil
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// leave makes Run end.
func (n *Node) leave() { n.leaving.Do(func() { close(n.left) }) }

// capacity adds up what all members keep. Members that do not answer count nothing.
func (n *Node) capacity(ctx context.Context) (int64, error) {
	ask, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	answers, err := n.cluster.peers.Statuses(ask)
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	if err != nil {
		n.log.Warn("capacity of the cluster: some members did not answer", "error", oneLine(err))
	}
	sum := n.capacityHere()
	for _, doc := range answers {
		var r report
		if json.Unmarshal(doc, &r) == nil {
			sum += r.CapacityBytes
		}
	}
	return sum, nil
}

// keepCounting counts datasets with a quota until ctx ends.
func (n *Node) keepCounting(ctx context.Context) error {
	tick := time.NewTicker(countQuotas)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if !n.policy.hasQuota() {
			continue
		}
		if shares, err := n.shares(ctx); err == nil {
			n.policy.count(shares)
		}
	}
}

// replaced hears of versions that are current no more, frees them here and tells the others.
func (n *Node) replaced(b objstore.Bucket, old []objstore.Info) {
	objs := make([]chunk.Object, 0, len(old))
	for _, i := range old {
		objs = append(objs, chunk.Object{Origin: b.Origin, Bucket: b.Name, Key: i.Key, ETag: i.ETag, Size: i.Size})
	}
	n.requests.begin(func(ctx context.Context) {
		n.freeHere(objs)
		if err := n.cluster.peers.Free(ctx, objs); err != nil && ctx.Err() == nil {
			n.log.Debug("some members keep overwritten versions for now", "error", oneLine(err))
		}
	})
}

// freeHere drops versions that were overwritten, each when its last reader has gone
// and no mount of this node may show it any more. Until then they go first when space is needed.
func (n *Node) freeHere(objs []chunk.Object) {
	after := n.mounts.longestTTL()
	for _, o := range objs {
		id := o.ID()
		n.policy.stale.add(id, after)
		if after == 0 {
			n.drop(id)
		}
	}
}

func (n *Node) drop(id chunk.ObjectID) {
	if len(n.disks.dirs) > 0 {
		n.disks.place(id).Drop(id)
	}
}

// keepFreeing drops overwritten versions when their time has come, until ctx ends.
func (n *Node) keepFreeing(ctx context.Context) error {
	tick := time.NewTicker(freeEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-tick.C:
			for _, id := range n.policy.stale.due(now) {
				n.drop(id)
			}
		}
	}
}
