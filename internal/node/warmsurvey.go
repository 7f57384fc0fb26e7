package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/shardwell/shardwell/internal/config"
	"github.com/shardwell/shardwell/objstore"
	"github.com/shardwell/shardwell/peer"
	"github.com/shardwell/shardwell/peer/member"
	"github.com/shardwell/shardwell/warm"
)

// How work is given to members.
const (
	partsAtOnce   = 1024             // of one call
	membersAtOnce = 256              // that work for one job
	bringTries    = 3                // of a call to a member that is one
	bringPause    = time.Second      // between them
	holdWhile     = 30 * time.Minute // what every node is to hold while a job runs
)

// survey is what a warm-up is about: which objects, and who is to hold what of them.
type survey struct {
	n     *Node
	spec  warm.Spec
	found *resolver
	sets  []warm.Dataset
	loads map[string]*warm.Load // by ring id
}

// survey looks up what a spec names, and who is to hold it.
func (n *Node) survey(ctx context.Context, spec warm.Spec, list []byte, miss func(warm.Missing)) (*survey, error) {
	s := &survey{n: n, spec: spec}
	if _, err := s.members(); err != nil {
		return nil, err
	}
	misses := 0
	var err error
	if s.found, err = n.resolve(ctx, spec, list, func(m warm.Missing) {
		misses++
		miss(m)
	}); err != nil {
		return nil, n.named(err)
	}
	if s.found.manifest.Len()+misses == 0 {
		return nil, &config.Error{What: "the list names nothing", Where: "-f"}
	}
	s.sets = warm.Datasets(&s.found.manifest, s.found.dirs)
	s.loads, err = s.assign()
	return s, err
}

// members returns the ring ids of the members that the spec is about. Who is to have a copy of its own is one of them
// also while it is away: it keeps its place, and lacks the copy when it is back.
func (s *survey) members() ([]string, error) {
	named := func(id, name string) bool {
		return len(s.spec.Nodes) == 0 || slices.Contains(s.spec.Nodes, id) || slices.Contains(s.spec.Nodes, name)
	}
	all := s.n.cluster.group.Members()
	var ids, unknown []string
	for _, m := range all {
		_, here := s.n.cluster.directory.Lookup(m.ID)
		switch {
		case !named(m.ID, m.Name):
		case m.Draining && len(s.spec.Nodes) > 0:
			return nil, fmt.Errorf("member %s is about to leave: leave it out of --nodes", m.Name)
		case m.Draining:
		case here, s.spec.EveryNode:
			ids = append(ids, m.ID)
		case len(s.spec.Nodes) > 0:
			return nil, fmt.Errorf("member %s is away, and others act for it: leave it out of --nodes, or wait until it is back", m.Name)
		}
	}
	for _, want := range s.spec.Nodes {
		if !slices.ContainsFunc(all, func(m member.Member) bool { return m.ID == want || m.Name == want }) {
			unknown = append(unknown, want)
		}
	}
	if len(unknown) > 0 {
		return nil, &config.Error{What: fmt.Sprintf("no such member: %s", strings.Join(unknown, ", ")), Where: "--nodes", Do: "see `shardwell status`"}
	}
	return ids, nil
}

// assign says who is to hold what, as the ring is now.
func (s *survey) assign() (map[string]*warm.Load, error) {
	ids, err := s.members()
	if err != nil {
		return nil, err
	}
	if s.spec.EveryNode {
		return warm.Everywhere(&s.found.manifest, ids), nil
	}
	if s.n.cluster.ring.history.Current().Owner(0) == nil {
		return nil, errors.New("no member owns anything (--no-owner): there is nobody to hold it")
	}
	loads := warm.Assign(&s.found.manifest, s.n.geometry, int64(s.n.cfg.PlaceWhole), s.n.placeOf)
	if len(s.spec.Nodes) > 0 {
		maps.DeleteFunc(loads, func(id string, _ *warm.Load) bool { return !slices.Contains(ids, id) })
	}
	return loads, nil
}

// total adds up loads.
func total(loads map[string]*warm.Load) (parts, bytes int64) {
	for _, l := range loads {
		parts, bytes = parts+int64(len(l.Items)), bytes+l.Bytes
	}
	return parts, bytes
}

// prefixes is sets as members are told of them.
func (s *survey) prefixes() (out []peer.Prefix) {
	for _, d := range s.sets {
		out = append(out, peer.Prefix{Bucket: objstore.Bucket{Origin: d.Origin, Name: d.Bucket}, Prefix: d.Prefix})
	}
	return out
}

// short returns who has too little room. What is for a member that is away, or for nobody, is found missing later.
func (s *survey) short(ctx context.Context) ([]warm.Short, error) {
	rooms := make(map[string]warm.Room)
	var mu sync.Mutex
	group, inner := errgroup.WithContext(ctx)
	group.SetLimit(membersAtOnce)
	asked := maps.Clone(s.loads)
	maps.DeleteFunc(asked, func(id string, _ *warm.Load) bool {
		_, here := s.n.cluster.directory.Lookup(id)
		return id == "" || s.spec.EveryNode && !here
	})
	for id := range asked {
		group.Go(func() error {
			var r warm.Room
			var err error
			if id == s.n.id {
				r.LimitBytes, r.TakenBytes, err = worker{s.n}.Room(inner, s.prefixes())
			} else {
				r.LimitBytes, r.TakenBytes, err = s.n.cluster.peers.Room(inner, id, s.prefixes())
			}
			if err != nil {
				return fmt.Errorf("ask %s how much room it has: %w", s.n.nameOf(id), err)
			}
			mu.Lock()
			defer mu.Unlock()
			rooms[id] = r
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	short := warm.Fit(asked, rooms)
	for i := range short {
		short[i].Node = s.n.nameOf(short[i].Node)
	}
	return short, nil
}

// nameOf returns the name of a member, for people.
func (n *Node) nameOf(id string) string {
	if m, ok := n.cluster.directory.Lookup(id); ok && m.Name != "" {
		return m.Name
	}
	if id == "" {
		return "(nobody)"
	}
	for _, m := range n.cluster.group.Members() { // it may be away
		if m.ID == id && m.Name != "" {
			return m.Name
		}
	}
	return id
}

// ending is how one item ended at a member.
type ending struct {
	node    string
	item    warm.Item
	missing []uint32
	reason  warm.Reason // "": it is as it should be
	detail  string
}

// order is what all members of a sweep are to do.
type order struct {
	peer.Bring // without its parts
	loads      map[string]*warm.Load
	moved      func(node string, held, fetched int64) // bytes; may be nil
	done       func(ending)                           // of each item, once
}

// sweep has members do their loads, all at once. moved and done are called from several
// goroutines. Its error is ctx's.
func (s *survey) sweep(ctx context.Context, o order) error {
	group, inner := errgroup.WithContext(ctx)
	group.SetLimit(membersAtOnce)
	for id, l := range o.loads {
		group.Go(func() error { return s.one(inner, id, l.Items, o) })
	}
	return group.Wait()
}

// one has one member do its load, some parts at a time. When it is lost, or its origin is silent, the rest is not
// tried: each part would take as long as the first to fail.
func (s *survey) one(ctx context.Context, node string, items []warm.Item, o order) error {
	for len(items) > 0 {
		b, of := s.batch(items)
		count := 0
		for _, its := range of {
			count += len(its)
		}
		heard := &hearing{order: o}
		open, err := s.call(ctx, node, b, of, heard.listen())
		if err != nil && ctx.Err() != nil {
			return ctx.Err()
		}
		items = items[count:]
		v := ending{node: node, reason: warm.NodeLost}
		switch {
		case err != nil:
			v.detail = short(err)
		case heard.silence():
			v.reason, v.detail = warm.Unavailable, "not tried: the origin did not answer for what came before"
		default:
			continue
		}
		for _, its := range append(open, items) {
			for _, v.item = range its {
				o.done(v)
			}
		}
		return nil
	}
	return nil
}

// hearing counts what a member says of one call.
type hearing struct {
	order
	fetched, unavailable atomic.Int64
}

// listen returns the order with which the call is made.
func (h *hearing) listen() order {
	o := h.order
	o.moved = func(node string, held, fetched int64) {
		h.fetched.Add(fetched)
		if h.order.moved != nil {
			h.order.moved(node, held, fetched)
		}
	}
	o.done = func(v ending) {
		if v.reason == warm.Unavailable {
			h.unavailable.Add(1)
		}
		h.order.done(v)
	}
	return o
}

// silence reports whether the origin did not answer and nothing came from elsewhere.
func (h *hearing) silence() bool { return h.unavailable.Load() > 0 && h.fetched.Load() == 0 }

// batch makes parts of the first items: chunks of one object that follow each other are one part.
func (s *survey) batch(items []warm.Item) (parts []peer.Part, of [][]warm.Item) {
	for _, it := range items {
		last := len(of) - 1
		if last >= 0 && it.Chunk != warm.Whole && of[last][0].Object == it.Object {
			parts[last].Chunks = append(parts[last].Chunks, it.Chunk)
			of[last] = append(of[last], it)
			continue
		}
		if len(parts) == partsAtOnce {
			break
		}
		p := peer.Part{Object: s.found.manifest.At(int(it.Object))}
		if it.Chunk != warm.Whole {
			p.Chunks = []uint32{it.Chunk}
		}
		parts, of = append(parts, p), append(of, []warm.Item{it})
	}
	return parts, of
}

// call has a member do some parts. It returns the items of which nothing was heard, with the
// error that it was.
func (s *survey) call(ctx context.Context, node string, parts []peer.Part, of [][]warm.Item, o order) (open [][]warm.Item, err error) {
	for try := range bringTries {
		if try > 0 && pause(ctx, bringPause) != nil {
			break
		}
		ended := make([]bool, len(parts))
		b := o.Bring
		b.Parts = parts
		err = s.n.bring(ctx, node, b, func(news peer.Brought) error {
			if o.moved != nil {
				o.moved(node, news.HeldBytes, news.FetchedBytes)
			}
			for _, out := range news.Outcomes {
				if !ended[out.Part] {
					ended[out.Part] = true
					s.judge(node, of[out.Part], out, o.done)
				}
			}
			return nil
		})
		var left []peer.Part
		open = nil
		for i := range parts {
			if !ended[i] {
				left, open = append(left, parts[i]), append(open, of[i])
			}
		}
		if parts, of = left, open; len(parts) == 0 {
			return nil, nil
		}
		if err == nil {
			err = fmt.Errorf("%s did not say how %d parts ended", s.n.nameOf(node), len(parts))
		}
		if _, ok := s.n.cluster.directory.Lookup(node); !ok {
			break
		}
	}
	return open, err
}

// judge tells how the items of a part ended.
func (s *survey) judge(node string, items []warm.Item, out peer.Outcome, done func(ending)) {
	for _, it := range items {
		v := ending{node: node, item: it}
		if it.Chunk == warm.Whole && out.Reason != "" {
			v.missing = out.Missing
		}
		if out.Reason != "" && (it.Chunk == warm.Whole || len(out.Missing) == 0 || slices.Contains(out.Missing, it.Chunk)) {
			v.reason, v.detail = warm.Reason(out.Reason), out.Detail
		}
		done(v)
	}
}

// bring has a member do something; this node is one of them.
func (n *Node) bring(ctx context.Context, node string, b peer.Bring, tell func(peer.Brought) error) error {
	if node == n.id {
		return worker{n}.Bring(ctx, b, tell)
	}
	if node == "" {
		return errors.New("its owner is away, and so are all who would act for it")
	}
	return n.cluster.peers.Bring(ctx, node, b, tell)
}

// missing is what users are told of a ending.
func (s *survey) missing(v ending, yield func(warm.Missing)) {
	o := s.found.manifest.At(int(v.item.Object))
	m := warm.Missing{URI: o.URI(), Node: s.n.nameOf(v.node), Reason: v.reason, Detail: v.detail}
	chunks := v.missing
	if v.item.Chunk != warm.Whole {
		chunks = []uint32{v.item.Chunk}
	}
	if len(chunks) == 0 || len(chunks) == int(s.n.geometry.Chunks(o.Size)) {
		yield(m)
		return
	}
	for _, c := range chunks {
		m.Chunk = &c
		yield(m)
	}
}
