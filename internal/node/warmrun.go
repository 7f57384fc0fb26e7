package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/shardwell/shardwell/cache/evict"
	"github.com/shardwell/shardwell/peer"
	"github.com/shardwell/shardwell/warm"
)

const (
	maxRounds  = 5               // of fetching what is missing again
	roundPause = 2 * time.Second // before the second, and more before each of the others
	roomRetry  = 3 * time.Second // after a member did not say how much room it has
)

// warmRun is a job while this node runs it.
type warmRun struct {
	n      *Node
	list   []byte
	update func(func(*warm.Record)) // changes the record

	s      *survey
	mu     sync.Mutex
	failed map[place]ending // why the last fetch failed, by what and where; of all rounds
	nodes  map[string]*warm.NodeProgress
	order  []string
}

// place is an item at a member.
type place struct {
	node string
	item warm.Item
}

// do runs the job to its end, or until ctx ends; then the error is ctx's. Other errors say why it
// could not be done at all.
func (r *warmRun) do(ctx context.Context, spec warm.Spec) error {
	if err := r.n.waitJoined(ctx); err != nil {
		return err
	}
	var misses []warm.Missing
	s, err := r.n.survey(ctx, spec, r.list, func(m warm.Missing) { misses = append(misses, m) })
	if err != nil {
		return err
	}
	r.s = s
	end, err := r.protect(ctx, spec)
	if err != nil {
		return err
	}
	defer end()
	r.start(misses)
	lost, err := r.rounds(ctx)
	if err != nil {
		return err
	}
	return r.finish(ctx, misses, lost)
}

// waitJoined waits until the cluster was looked for: before, this node would own everything.
func (n *Node) waitJoined(ctx context.Context) error {
	select {
	case <-n.cluster.joined():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// protect sees that what is brought fits and stays, until the returned function is called.
func (r *warmRun) protect(ctx context.Context, spec warm.Spec) (end func(), err error) {
	if !spec.Force {
		short, err := r.room(ctx)
		if err != nil {
			return nil, err
		}
		if len(short) > 0 {
			return nil, errors.New(tooLarge(short))
		}
	}
	if spec.Pin > 0 {
		if err := r.s.pin(ctx, spec.Pin); err != nil {
			return nil, err
		}
	}
	var removes []func()
	for _, d := range r.s.sets {
		removes = append(removes, r.n.uses.add(claim{evict.Dataset(d), evict.Epoch, 0}))
	}
	ctx, cancel := context.WithTimeout(ctx, tellPatience)
	defer cancel()
	r.n.tell(ctx)
	return func() {
		for _, f := range removes {
			f()
		}
	}, nil
}

// room returns who has too little room. A member that does not answer may be about to be found dead: then what it
// was to hold is for others.
func (r *warmRun) room(ctx context.Context) (short []warm.Short, err error) {
	for range bringTries {
		if short, err = r.s.short(ctx); err == nil || pause(ctx, roomRetry) != nil {
			return short, err
		}
		loads, err := r.s.assign()
		if err != nil {
			return nil, err
		}
		r.s.loads = loads
	}
	return short, err
}

// tooLarge says that a warm-up does not fit.
func tooLarge(short []warm.Short) string {
	var parts []string
	for _, s := range short[:min(len(short), 3)] {
		parts = append(parts, fmt.Sprintf("%s would have to keep %.1f MiB and has room for %.1f MiB", s.Node, mib(s.NeedBytes), mib(s.RoomBytes)))
	}
	more := ""
	if len(short) > len(parts) {
		more = fmt.Sprintf("; and %d more", len(short)-len(parts))
	}
	return "it does not fit: " + strings.Join(parts, "; ") + more + ": name less, or go on all the same with --force"
}

func mib(bytes int64) float64 { return float64(bytes) / (1 << 20) }

// pinBytes returns how much of what a survey is about lies in each of its sets.
func (s *survey) pinBytes() []int64 {
	copies := int64(1)
	if s.spec.EveryNode {
		copies = int64(len(s.loads))
	}
	bytes := make([]int64, len(s.sets))
	for _, o := range s.found.manifest.All() {
		for i, d := range s.sets {
			if d.Covers(o) {
				bytes[i] += o.Size * copies
				break
			}
		}
	}
	return bytes
}

// tryPin says why a pin for so long would be refused.
func (s *survey) tryPin(ctx context.Context, ttl time.Duration) error {
	capacity, err := s.n.capacity(ctx)
	if err != nil {
		return err
	}
	table, now := s.n.uses.now(), time.Now()
	for i, bytes := range s.pinBytes() {
		ds := evict.Dataset(s.sets[i])
		if until, ok := s.n.uses.pinnedUntil(ds); ok && until.After(now.Add(ttl)) {
			continue
		}
		if table, err = table.Pin(ds, bytes, capacity, now.Add(ttl).UnixNano(), now.UnixNano()); err != nil {
			return fmt.Errorf("pin %s: %w", uriOf(bucketOfDataset(ds), ds.Prefix), err)
		}
	}
	return nil
}

// pin pins what a survey is about, for so long from now.
func (s *survey) pin(ctx context.Context, ttl time.Duration) error {
	capacity, err := s.n.capacity(ctx)
	if err != nil {
		return err
	}
	bytes := s.pinBytes()
	now := time.Now()
	var made []evict.Dataset
	for i, d := range s.sets {
		ds := evict.Dataset(d)
		until, before := s.n.uses.pinnedUntil(ds)
		if before && until.After(now.Add(ttl)) {
			continue // longer, by somebody else's wish
		}
		if err := s.n.uses.pin(ds, bytes[i], capacity, now.Add(ttl), now); err != nil {
			for _, x := range made { // all or none
				err = errors.Join(err, s.n.uses.pin(x, 0, 0, time.Time{}, now))
			}
			return fmt.Errorf("pin %s: %w", uriOf(bucketOfDataset(ds), d.Prefix), err)
		}
		if !before {
			made = append(made, ds)
		}
	}
	s.n.tell(ctx)
	return nil
}

// pinnedUntil returns until when all that a survey is about is pinned, in nanoseconds since 1970; 0: some of it is not.
func (s *survey) pinnedUntil() (first int64) {
	for i, d := range s.sets {
		until, ok := s.n.uses.pinnedUntil(evict.Dataset(d))
		if !ok {
			return 0
		}
		if at := until.UnixNano(); i == 0 || at < first {
			first = at
		}
	}
	return first
}

// start notes what is to be done.
func (r *warmRun) start(misses []warm.Missing) {
	parts, bytes := total(r.s.loads)
	r.nodes = make(map[string]*warm.NodeProgress)
	for id, l := range r.s.loads {
		r.nodes[id] = &warm.NodeProgress{Node: r.n.nameOf(id), Bytes: l.Bytes}
		r.order = append(r.order, id)
	}
	slices.SortFunc(r.order, func(a, b string) int { return strings.Compare(r.nodes[a].Node, r.nodes[b].Node) })
	r.update(func(rec *warm.Record) {
		rec.Progress = warm.Progress{Objects: int64(r.s.found.manifest.Len()) + int64(len(misses)), Bytes: bytes, Parts: parts, FailedParts: int64(len(misses))}
		for _, id := range r.order {
			rec.Progress.Nodes = append(rec.Progress.Nodes, *r.nodes[id])
		}
	})
}

// moved counts bytes that a member holds.
func (r *warmRun) moved(node string, held, fetched int64) {
	r.mu.Lock()
	if p := r.nodes[node]; p != nil {
		p.DoneBytes = min(p.Bytes, p.DoneBytes+held)
	}
	r.mu.Unlock()
	r.update(func(rec *warm.Record) {
		rec.Progress.DoneBytes = min(rec.Progress.Bytes, rec.Progress.DoneBytes+held)
		rec.Progress.FetchedBytes += fetched
		r.copyNodes(&rec.Progress)
	})
}

func (r *warmRun) copyNodes(p *warm.Progress) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p.Nodes = p.Nodes[:0:0]
	for _, id := range r.order {
		p.Nodes = append(p.Nodes, *r.nodes[id])
	}
}

// rounds fetches, checks, and fetches again what may still be had. It returns what is missing in the end.
func (r *warmRun) rounds(ctx context.Context) (lost map[place]ending, err error) {
	todo := r.s.loads
	r.failed = make(map[place]ending)
	for round := 1; ; round++ {
		if err := r.s.sweep(ctx, r.fetchOrder(todo)); err != nil {
			return nil, err
		}
		if r.s.loads, err = r.s.assign(); err != nil { // members may have come and gone
			return nil, err
		}
		if lost, err = r.check(ctx); err != nil || len(lost) == 0 {
			return lost, err
		}
		todo = r.again(lost, round)
		if len(todo) == 0 || round == maxRounds {
			return lost, nil
		}
		if takesTime(lost) {
			if err := pause(ctx, time.Duration(round)*r.n.jobs.roundPause); err != nil {
				return nil, err
			}
		}
		r.update(func(rec *warm.Record) { rec.Progress.Checking = false })
	}
}

// takesTime reports whether some is missing for a reason that passes by itself: a member that restarts, an origin that
// does not answer.
func takesTime(lost map[place]ending) bool {
	for _, v := range lost {
		if v.reason == warm.NodeLost || v.reason == warm.Unavailable {
			return true
		}
	}
	return false
}

// fetchOrder is the order by which members bring loads.
func (r *warmRun) fetchOrder(loads map[string]*warm.Load) order {
	spec := r.s.spec
	b := peer.Bring{Do: peer.DoFetch, Fill: spec.EveryNode, AtOnce: spec.Parallel, MaxRate: spec.OriginRate}
	if spec.EveryNode { // all ask for the same, which leaves the origin once
		b.Hold, b.HoldFor = r.s.prefixes(), holdWhile
	} else if spec.OriginRate > 0 {
		b.MaxRate = max(1, spec.OriginRate/int64(max(1, len(loads))))
	}
	return order{Bring: b, loads: loads, moved: r.moved, done: func(v ending) {
		if v.reason == "" {
			r.mu.Lock()
			delete(r.failed, place{v.node, v.item})
			r.mu.Unlock()
			r.update(func(rec *warm.Record) { rec.Progress.DoneObjects = min(rec.Progress.Parts, rec.Progress.DoneObjects+1) })
			return
		}
		r.mu.Lock()
		r.failed[place{v.node, v.item}] = v
		if v.reason == notOwnedHere { // no failure: it is somebody else's now
			r.mu.Unlock()
			return
		}
		if p := r.nodes[v.node]; p != nil {
			p.Failed++
		}
		r.mu.Unlock()
		r.update(func(rec *warm.Record) {
			rec.Progress.FailedParts++
			r.copyNodes(&rec.Progress)
		})
	}}
}

// check asks all members whether they hold what they should.
func (r *warmRun) check(ctx context.Context) (lost map[place]ending, err error) {
	r.update(func(rec *warm.Record) { rec.Progress.Checking = true })
	lost = make(map[place]ending)
	held := make(map[string]int64)
	parts := int64(0)
	err = r.s.sweep(ctx, order{Bring: peer.Bring{Do: peer.DoCheck}, loads: r.s.loads,
		moved: func(node string, n, _ int64) {
			r.mu.Lock()
			defer r.mu.Unlock()
			held[node] += n
		},
		done: func(v ending) {
			r.mu.Lock()
			defer r.mu.Unlock()
			if v.reason == "" {
				parts++
				return
			}
			at := place{v.node, v.item}
			if why, ok := r.failed[at]; ok && v.reason == warm.NotCached && why.reason != notOwnedHere {
				v.reason, v.detail = why.reason, why.detail
			}
			lost[at] = v
		}})
	if err != nil {
		return nil, err
	}
	all, bytes := total(r.s.loads)
	r.mu.Lock()
	sum := int64(0)
	r.nodes, r.order = make(map[string]*warm.NodeProgress), nil
	for id, l := range r.s.loads {
		r.nodes[id] = &warm.NodeProgress{Node: r.n.nameOf(id), Bytes: l.Bytes, DoneBytes: held[id]}
		r.order = append(r.order, id)
		sum += held[id]
	}
	for at := range lost {
		r.nodes[at.node].Failed++
	}
	slices.SortFunc(r.order, func(a, b string) int { return strings.Compare(r.nodes[a].Node, r.nodes[b].Node) })
	r.mu.Unlock()
	r.update(func(rec *warm.Record) {
		p := &rec.Progress
		p.Parts, p.Bytes, p.DoneObjects, p.DoneBytes, p.FailedParts = all, bytes, parts, sum, rec.Progress.Objects-int64(r.s.found.manifest.Len())+int64(len(lost))
		r.copyNodes(p)
	})
	return lost, nil
}

// again returns what of lost may be had after all. A place that is full once may have been full of what
// was about to go.
func (r *warmRun) again(lost map[place]ending, round int) map[string]*warm.Load {
	loads := make(map[string]*warm.Load)
	for at, v := range lost {
		switch v.reason {
		case warm.Forbidden, warm.NotFound, warm.Changed, warm.DiskFailed:
			continue
		case warm.NoRoom:
			if round > 1 {
				continue
			}
		}
		l := loads[at.node]
		if l == nil {
			l = &warm.Load{}
			loads[at.node] = l
		}
		l.Items = append(l.Items, at.item)
		l.Bytes += at.item.BytesOf(r.n.geometry, r.s.found.manifest.At(int(at.item.Object)))
	}
	for _, l := range loads {
		slices.SortFunc(l.Items, warm.Item.Compare)
	}
	return loads
}

// finish pins for the time that was asked for, and writes down how the job has ended.
func (r *warmRun) finish(ctx context.Context, misses []warm.Missing, lost map[place]ending) error {
	var pin time.Duration
	r.update(func(rec *warm.Record) { pin = rec.Spec.Pin }) // who has joined may have asked for one
	if pin > 0 {
		if err := r.s.pin(ctx, pin); err != nil {
			return err
		}
	}
	if r.s.spec.EveryNode && pin > 0 { // else it ends by itself, so that what holds for longer by another's wish stays
		if err := r.s.holdOn(ctx, pin); err != nil {
			return err
		}
	}
	until := r.s.pinnedUntil()
	for _, v := range lost {
		r.s.missing(v, func(m warm.Missing) { misses = append(misses, m) })
	}
	slices.SortFunc(misses, warm.Missing.Compare)
	r.update(func(rec *warm.Record) {
		for _, m := range misses {
			rec.Miss(m)
		}
		rec.PinnedUntil = until
		rec.State = warm.Done
		if rec.Lost() > 0 {
			rec.State = warm.Partly
		}
	})
	return nil
}

// holdOn tells all members for how long they are to hold what a survey is about as if they owned it.
func (s *survey) holdOn(ctx context.Context, ttl time.Duration) error {
	group, inner := errgroup.WithContext(ctx)
	group.SetLimit(membersAtOnce)
	for id := range s.loads {
		group.Go(func() error {
			b := peer.Bring{Do: peer.DoCheck, Hold: s.prefixes(), HoldFor: ttl}
			err := s.n.bring(inner, id, b, func(peer.Brought) error { return nil })
			if err != nil && ctx.Err() == nil {
				s.n.log.Warn("a member was not told how long to hold what was warmed up", "peer", id, "error", err)
			}
			return ctx.Err()
		})
	}
	return group.Wait()
}
