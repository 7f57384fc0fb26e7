// Package member knows the other nodes of the cluster, by gossip
// (hashicorp/memberlist). It is a part of peer.
//
// It promises that members which can reach one another come to know the same members; that changes
// arrive in batches, so that a table is built at most once in [Config].Batch; that a
// member which stops keeps its place for [Config].RestartGrace unless it drained; that members which cut
// objects otherwise, or speak no protocol in common, are refused with a line in the log of both
// sides; that packets of strangers are dropped and counted; that a cluster which was split joins again
// when seeds or lost members can be reached. What the members own is left to peer/ring, who
// may ask them for what to peer/transfer.
//
// # Names and places
//
// A place is a ring id. A process takes it under a name of its own (node name and a random
// part), so that memberlist never takes a restarted member for the one before it, whatever its address.
// Of several processes with one id the one that began first holds the place for as long as it answers a ping
// under its name: then somebody has copied a cache directory, and the others are refused, with a line in the
// log of each member; one that finds out while it starts ends with [ErrDuplicate]. One that does not answer, has said
// that it stops, or had the address that a later one has now, was killed, and the later one takes its place.
//
// A member that stops says "restarting" and leaves in memberlist's sense, so that others need
// not find out by probing; one that was killed is found out. Either way its place stays, in state
// [Restarting] or [Down], until the grace is over. Members tell each other of absent ones when they
// exchange their states, so that one who starts meanwhile makes the same table. Only
// [Group.Drain] gives a place up.
package member

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/memberlist"
)

// State tells what is known of a member.
type State uint8

// States of a member.
const (
	Alive      State = iota // answers, as far as known
	Restarting              // said that it will be back, or comes and goes too often to be asked
	Down                    // stopped answering; keeps its place for a while
)

func (s State) String() string {
	return [...]string{"alive", "restarting", "down"}[s]
}

// Member is one member of the cluster.
type Member struct {
	ID            string         // ring identity
	Name          string         // for people
	Addr          netip.AddrPort // where it gossips
	PeerAddr      netip.AddrPort // where it serves blocks
	Zone          string
	Rack          string
	Weight        int   // 1 or more
	CapacityBytes int64 // room for what it owns; 0: it does not tell
	NoOwner       bool
	Draining      bool // hands on what it holds and then leaves; owns nothing any more
	Self          bool
	State         State
}

// Refusal tells of a node that was not let in.
type Refusal struct {
	Name   string
	Addr   netip.AddrPort
	Reason string
	Last   time.Time // when it tried last
}

// Stats counts what happened since the start.
type Stats struct {
	Joins          atomic.Uint64 // members that came, this one not counted
	Leaves         atomic.Uint64 // members that stopped or were found dead
	Changes        atomic.Uint64 // calls of OnChange
	Refusals       atomic.Uint64 // times that a member was refused
	Duplicates     atomic.Uint64 // ring ids found in use twice
	DroppedPackets atomic.Uint64 // packets and streams of strangers or damaged
	SeedContacts   atomic.Uint64 // seeds asked with success
	SeedFailures   atomic.Uint64 // seeds that did not answer, names that did not resolve
	RefusedStreams atomic.Uint64 // streams closed because there were too many at a time
}

// Group is this node's membership of the cluster. Its methods are safe for concurrent use.
type Group struct {
	cfg   Config
	list  *memberlist.Memberlist
	wires *transport
	view  *view
	self  netip.AddrPort
	stats Stats

	mu    sync.Mutex
	own   Record // what this member tells of itself
	seeds SeedState

	alone bool // that no seed answers is in the log; of seedLoop

	ending sync.Mutex // held while this member says farewell or stops; before mu
	ended  bool
}

// New starts to listen and returns the membership, of this member only so far. The
// caller calls Run, or Close when it will not.
func New(cfg Config) (*Group, error) {
	cfg = cfg.withDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("membership: %w", err)
	}
	g := &Group{cfg: cfg}
	g.own = Record{
		ProtocolMin: cfg.ProtocolMin, ProtocolMax: cfg.ProtocolMax,
		NoOwner: cfg.NoOwner, PeerPort: uint16(cfg.PeerPort), Weight: uint16(cfg.Weight),
		Geometry: cfg.Geometry, PlaceWhole: cfg.PlaceWhole,
		Start: uint64(time.Now().UnixNano()), ID: cfg.ID, Zone: cfg.Zone, Rack: cfg.Rack, CapacityBytes: cfg.CapacityBytes,
	}
	var unique [4]byte
	rand.Read(unique[:])
	name := cfg.Name + nameSeparator + hex.EncodeToString(unique[:])
	g.view = newView(g.own, name, cfg.RestartGrace, &g.stats, cfg.Logger)
	logger := log.New(&logBridge{to: cfg.Logger, dropped: &g.stats.DroppedPackets}, "", 0)
	var err error
	if g.wires, err = newTransport(cfg, logger, &g.stats); err != nil {
		return nil, fmt.Errorf("membership: listen for gossip on %s port %d: %w", cfg.BindAddr, cfg.BindPort, err)
	}
	listCfg, err := g.listConfig(logger)
	if err == nil {
		g.list, err = memberlist.Create(listCfg)
	}
	if err != nil {
		g.wires.Shutdown()
		return nil, fmt.Errorf("membership: %w", err)
	}
	g.self = addrOf(g.list.LocalNode())
	return g, nil
}

// listConfig returns the configuration of memberlist.
func (g *Group) listConfig(logger *log.Logger) (*memberlist.Config, error) {
	c := memberlist.DefaultLANConfig()
	c.Name = g.view.selfName
	c.Label = g.cfg.Label
	c.Transport = g.wires
	c.AdvertiseAddr, c.AdvertisePort = g.cfg.AdvertiseAddr, g.cfg.AdvertisePort
	c.BindPort = g.wires.port
	if c.AdvertisePort == 0 {
		c.AdvertisePort = g.wires.port
	}
	// With memberlist's 4 and 30 s, one in 3,000 pairs misses a join and learns of it
	// after up to two minutes; tables must agree sooner.
	c.RetransmitMult = 6
	c.PushPullInterval = 10 * time.Second             // memberlist stretches it: 60 s at 1,000 members
	c.ProtocolVersion = memberlist.ProtocolVersionMax // packets carry a checksum
	c.TCPTimeout = streamTimeout
	c.EnableCompression = false // no decompression of what others send
	c.DeadNodeReclaimTime = 10 * time.Second
	c.Logger = logger
	c.LogOutput = nil
	d := &delegate{group: g}
	c.Delegate, c.Events, c.Alive = d, d, d
	if len(g.cfg.Keys) > 0 {
		var err error
		if c.Keyring, err = memberlist.NewKeyring(g.cfg.Keys, g.cfg.Keys[0]); err != nil {
			return nil, fmt.Errorf("gossip keys: %w", err)
		}
	}
	return c, nil
}

// Addr returns where this member gossips, as others know it.
func (g *Group) Addr() netip.AddrPort { return g.self }

// Members returns the members as they are now, this one included, sorted by ID.
func (g *Group) Members() []Member {
	list, _ := g.view.snapshot(time.Now())
	return list
}

// Refused returns the nodes that were turned away lately, for status.
func (g *Group) Refused() []Refusal { return g.view.refusals(time.Now()) }

// Stats returns the counters.
func (g *Group) Stats() *Stats { return &g.stats }

// Drain tells the others that this member owns nothing from now on and, once Run has ended, will not
// be back. It returns when the news has been sent out or ctx ends; the member stays one, as a reader.
func (g *Group) Drain(ctx context.Context) error {
	g.mu.Lock()
	g.own.NoOwner, g.own.Leaving = true, true
	g.mu.Unlock()
	if err := g.announce(ctx); err != nil {
		return fmt.Errorf("drain: tell the members: %w", err)
	}
	return nil
}

// Offer tells the others how much room this member has for what it owns from now on. It returns
// when the news has been sent out or ctx ends.
func (g *Group) Offer(ctx context.Context, capacityBytes int64) error {
	g.mu.Lock()
	g.own.CapacityBytes = capacityBytes
	g.mu.Unlock()
	if err := g.announce(ctx); err != nil {
		return fmt.Errorf("offer %d bytes: tell the members: %w", capacityBytes, err)
	}
	return nil
}

// announce sends this member's record to the others.
func (g *Group) announce(ctx context.Context) error {
	wait := announceTimeout
	if d, ok := ctx.Deadline(); ok {
		wait = min(wait, max(time.Millisecond, time.Until(d)))
	}
	return errors.Join(ctx.Err(), g.list.UpdateNode(wait))
}

// record returns what this member tells of itself.
func (g *Group) record() Record {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.own
}

// Run keeps the membership until ctx ends: it asks the seeds, hands batches of
// changes to OnChange, and in the end tells the others that this member restarts
// (or leaves, after Drain). It returns when it has stopped listening and nothing calls
// back any more; memberlist's own goroutines end by themselves within a few seconds.
func (g *Group) Run(ctx context.Context) error {
	seeds, stopSeeds := context.WithCancel(ctx)
	var wait sync.WaitGroup
	asked := make(chan struct{})
	wait.Go(func() { g.seedLoop(seeds, asked) })
	wait.Go(func() { g.rivalLoop(seeds) })
	err := g.changeLoop(ctx, asked)
	g.farewell()
	stopSeeds()
	err = errors.Join(err, g.Close())
	wait.Wait()
	return err
}

// farewell tells the others that this member restarts or leaves.
func (g *Group) farewell() {
	g.ending.Lock()
	defer g.ending.Unlock()
	if g.ended {
		return
	}
	g.mu.Lock()
	g.own.Restarting = !g.own.Leaving
	g.mu.Unlock()
	err := errors.Join(g.announce(context.Background()), g.list.Leave(announceTimeout))
	if err != nil {
		g.cfg.Logger.Debug("membership: not all members heard of the stop", "error", err)
	}
}

// Close stops listening without a word to the others, as a crash would. Run does it in the end.
func (g *Group) Close() error {
	g.ending.Lock()
	defer g.ending.Unlock()
	g.ended = true
	g.view.close()
	if err := g.list.Shutdown(); err != nil {
		return fmt.Errorf("membership: stop: %w", err)
	}
	return nil
}

// changeLoop hands members to OnChange until ctx ends: first when the seeds have been asked, so that
// no node takes itself for alone while it is not, then in batches. It returns [ErrDuplicate] when
// another process turns out to be this member before the first call.
func (g *Group) changeLoop(ctx context.Context, asked <-chan struct{}) error {
	select {
	case <-asked:
	case <-ctx.Done():
		return nil
	}
	if err := g.askRival(ctx); err != nil {
		return err
	}
	var last []Member
	for {
		now := time.Now()
		list, next := g.view.snapshot(now)
		if !slices.Equal(list, last) {
			last = list
			g.stats.Changes.Add(1)
			g.cfg.OnChange(slices.Clone(list))
		}
		if !g.waitChange(ctx, next) {
			return nil
		}
	}
}

// waitChange waits for a change, or for the time next at which one is due (zero means none), and then
// until a batch is full. It reports false when ctx has ended.
func (g *Group) waitChange(ctx context.Context, next time.Time) bool {
	var due <-chan time.Time
	if !next.IsZero() {
		t := time.NewTimer(time.Until(next))
		defer t.Stop()
		due = t.C
	}
	select {
	case <-ctx.Done():
		return false
	case <-g.view.changed:
	case <-due:
	}
	t := time.NewTimer(g.cfg.Batch)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// logger of refusals and the like: one line each, with the member's name and address.
func logMember(l *slog.Logger, level slog.Level, msg, name string, addr netip.AddrPort, args ...any) {
	l.Log(context.Background(), level, msg, append([]any{"member", name, "address", addr.String()}, args...)...)
}
