package node

import (
	"context"
	"encoding/json"
	"time"

	"github.com/shardwell/shardwell/cache"
	"github.com/shardwell/shardwell/cache/disk"
	"github.com/shardwell/shardwell/fuse"
	"github.com/shardwell/shardwell/internal/control"
	"github.com/shardwell/shardwell/objstore"
	"github.com/shardwell/shardwell/peer/member"
)

// Bounds of a status document.
const (
	maxStatusSkipped = 100             // keys named
	statusTimeout    = 5 * time.Second // for the answers of other members
)

// Status implements control.Node. A member that does not answer in time is left out of the
// sums, not of the list.
func (n *Node) Status(ctx context.Context) (st control.Status, err error) {
	err = n.requests.do(ctx, func(ctx context.Context) (err error) {
		st, err = n.status(ctx)
		return err
	})
	return st, err
}

func (n *Node) status(ctx context.Context) (_ control.Status, err error) {
	st := control.Status{Node: n.name, ID: n.id, Version: Version, Bytes: n.bytes(), Seeds: control.Seeds(n.cluster.group.Seeds()),
		Keeper: n.keeping.state(), TakingOver: n.keeping.takingOver()}
	table := n.cluster.ring.history.Current()
	for _, m := range n.cluster.group.Members() {
		st.Members = append(st.Members, control.Member{
			ID: m.ID, Name: m.Name, Address: m.PeerAddr.String(), Zone: m.Zone, Rack: m.Rack,
			State: stateOf(m), OwnedShare: table.OwnedShare(m.ID),
		})
	}
	for _, r := range n.cluster.group.Refused() {
		st.Refused = append(st.Refused, control.Refusal{Name: r.Name, Address: r.Addr.String(), Reason: r.Reason, At: r.Last})
	}
	for _, d := range n.disks.dirs {
		used, budget := d.Usage()
		st.Disks = append(st.Disks, control.Disk{Path: d.Path(), State: d.State().String(), UsedBytes: used, BudgetBytes: budget})
	}
	for _, path := range n.disks.faulty {
		st.Disks = append(st.Disks, control.Disk{Path: path, State: disk.Down.String()})
	}
	for _, u := range n.uses.now().Uses() {
		if u.PinnedUntil > time.Now().UnixNano() {
			st.Pins = append(st.Pins, control.Pin{URI: uriOf(bucketOfDataset(u.Dataset), u.Prefix), Until: time.Unix(0, u.PinnedUntil), Bytes: u.PinBytes})
		}
	}
	mounts := n.mounts.all()
	for _, m := range mounts {
		st.Mounts = append(st.Mounts, control.Mount{URI: m.uri, Dir: m.session.Dir(), Identity: string(m.who.identity())})
		st.SkippedTotal += m.session.Stats().Skipped.Load()
		for _, k := range m.session.SkippedKeys() {
			if len(st.SkippedKeys) < maxStatusSkipped {
				st.SkippedKeys = append(st.SkippedKeys, control.SkippedKey{Key: k.Key, Reason: k.Reason})
			}
		}
	}
	if len(mounts) > 0 || len(n.roles()) > 0 {
		if err = n.together(ctx, mounts, &st); err != nil {
			return st, err
		}
	}
	return st, nil
}

// stateOf names a member's state as the status document promises.
func stateOf(m member.Member) string {
	switch {
	case m.Draining:
		return "draining"
	case m.State == member.Down:
		return "dead"
	}
	return m.State.String()
}

// together describes what takes all members to tell: datasets that are mounted here,
// sizes as listed, bytes as held by all, and broadcasts.
func (n *Node) together(ctx context.Context, mounts []*mount, st *control.Status) error {
	here, err := n.shares(ctx)
	if err != nil {
		return err
	}
	ask, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	answers, err := n.cluster.peers.Statuses(ask)
	if err != nil {
		n.log.Warn("status: some members did not answer", "error", oneLine(err))
	}
	all := append([]share(nil), here...)
	casts := [][]role{n.roles()}
	for id, doc := range answers {
		var r report
		if err := json.Unmarshal(doc, &r); err != nil {
			n.log.Warn("status: answer of a member", "peer", id, "error", err)
			continue
		}
		all = append(all, r.Shares...)
		casts = append(casts, r.Casts)
	}
	st.Broadcasts = broadcasts(casts)
	st.Datasets = n.mounted(mounts, here, all)
	return nil
}

// mounted sums up what is mounted, by what this node and all nodes hold.
func (n *Node) mounted(mounts []*mount, here, all []share) []control.Dataset {
	type dataset struct {
		bucket objstore.Bucket
		prefix string
	}
	at := make(map[dataset]int) // where it is in list
	var list []control.Dataset
	for _, m := range mounts {
		objects, bytes := m.session.Listed()
		i, ok := at[dataset{m.bucket, m.prefix}]
		if !ok {
			i = len(list)
			at[dataset{m.bucket, m.prefix}] = i
			local, _ := under(here, m.bucket, m.prefix)
			_, owned := under(all, m.bucket, m.prefix)
			list = append(list, control.Dataset{URI: m.uri, CachedBytes: owned, LocalBytes: local, PinnedUntil: n.pinnedUntil(m)})
		}
		d := &list[i]
		d.Objects, d.Bytes = max(d.Objects, objects), max(d.Bytes, bytes)
	}
	return list
}

// pinnedUntil tells until when what a mount shows is pinned, nil if it is not.
func (n *Node) pinnedUntil(m *mount) *time.Time {
	if until, ok := n.uses.pinnedUntil(m.dataset()); ok {
		return &until
	}
	return nil
}

// bytes adds up where readers of this node got their bytes.
func (n *Node) bytes() control.Bytes {
	s := n.cache.Stats()
	return control.Bytes{
		Origin: s.ReadBytes[cache.FromOrigin].Load(), Peer: s.ReadBytes[cache.FromPeer].Load(),
		Disk: s.ReadBytes[cache.FromDisk].Load(), Memory: s.ReadBytes[cache.FromMemory].Load(),
		PassthroughOpens: n.mounts.totals().passthrough[fuse.PassthroughUsed],
		SentToPeers:      n.cluster.bytes.SentBytes.Load(),

		FetchedFromOrigin: s.FetchedBytes[cache.FromOrigin].Load(), FetchedFromPeers: s.FetchedBytes[cache.FromPeer].Load(),
	}
}
