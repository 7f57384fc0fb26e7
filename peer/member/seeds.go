package member

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"
)

// How seeds are asked.
const (
	seedContacts     = 3                // addresses asked at one time, at random: each costs a full exchange of states
	seedInterval     = 15 * time.Second // between looks at the names, ± half: a healed split is one ring within a minute
	seedFirstRetry   = 500 * time.Millisecond
	seedFirstTimeout = 5 * time.Second // then a node that reaches nobody takes itself for alone
	seedSettle       = 3 * time.Second // ± half, after which a new member exchanges states once more
	// Who answered at an address that is no member's, as a service's address or one who was refused, is not
	// asked again for so long: each time costs a full exchange.
	seedAgain        = 45 * time.Second
	lookupTimeout    = 5 * time.Second
	maxSeedAddresses = 20_000 // of one name
)

// seedLoop asks the seeds until ctx ends: at once, and then whenever there is an address that is
// no member's. It closes asked when a seed has answered or it is time to go on without.
func (g *Group) seedLoop(ctx context.Context, asked chan<- struct{}) {
	goOn := sync.OnceFunc(func() { close(asked) })
	defer goOn()
	giveUp := time.AfterFunc(seedFirstTimeout, goOn)
	defer giveUp.Stop()
	retry := seedFirstRetry
	again := make(map[netip.AddrPort]time.Time)
	began := time.Now()
	for answered, settled := false, false; ; {
		contacted, missing := g.askSeeds(ctx, again, goOn)
		g.judgeSeeds(time.Since(began) >= seedFirstTimeout)
		wait := seedInterval/2 + rand.N(seedInterval)
		switch {
		case answered && !settled:
			settled = true
			g.exchange()
		case answered:
		case contacted > 0 || missing == 0:
			answered = true
			goOn()
			wait = seedSettle/2 + rand.N(seedSettle)
		default:
			wait = retry/2 + rand.N(retry)
			retry = min(2*retry, seedInterval)
		}
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-t.C:
		}
	}
}

// askSeeds exchanges states with some addresses that are no member's, all at once, and calls answered when one
// has answered. It notes in again before when such an address is not to be asked another time. It
// returns how many answered, and how many there were to choose from.
func (g *Group) askSeeds(ctx context.Context, again map[netip.AddrPort]time.Time, answered func()) (contacted, missing int) {
	now := time.Now()
	maps.DeleteFunc(again, func(_ netip.AddrPort, t time.Time) bool { return !now.Before(t) })
	given := g.resolveSeeds(ctx)
	addrs := slices.DeleteFunc(g.missing(given), func(a netip.AddrPort) bool { return now.Before(again[a]) })
	missing = len(addrs)
	rand.Shuffle(missing, func(i, j int) { addrs[i], addrs[j] = addrs[j], addrs[i] })
	addrs = addrs[:min(missing, seedContacts)]
	var wait sync.WaitGroup
	ok := make([]bool, len(addrs))
	for i, a := range addrs {
		wait.Go(func() {
			if ctx.Err() != nil {
				return
			}
			if _, err := g.list.Join([]string{a.String()}); err != nil {
				g.stats.SeedFailures.Add(1)
				g.cfg.Logger.Debug("membership: ask a seed", "address", a.String(), "error", err)
				return
			}
			g.stats.SeedContacts.Add(1)
			ok[i] = true
			answered()
		})
	}
	wait.Wait()
	for i, a := range addrs {
		if ok[i] {
			contacted++
			again[a] = now.Add(seedAgain)
		}
	}
	g.countSeeds(given, again)
	return contacted, missing
}

// SeedState tells how many seeds there are besides this member, and whether anybody is behind them.
type SeedState struct {
	Asked    int // addresses behind the names to join; a name without one counts as one
	Answered int // of these, those that are members or answered lately
}

// Alone reports whether seeds were given and none has answered: they cannot be reached, or
// have another secret, and this member is a cluster of its own.
func (s SeedState) Alone() bool { return s.Asked > 0 && s.Answered == 0 }

// Seeds returns what came of the last look at the seeds.
func (g *Group) Seeds() SeedState {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.seeds
}

// countSeeds notes what came of a look at the seeds at the addresses given. Those in answered have
// answered lately.
func (g *Group) countSeeds(given []seedName, answered map[netip.AddrPort]time.Time) {
	members := map[netip.AddrPort]bool{}
	for _, m := range g.Members() {
		members[m.Addr] = m.State != Down
	}
	var s SeedState
	seen := map[netip.AddrPort]bool{g.self: true}
	for _, name := range given {
		if len(name.addrs) == 0 {
			s.Asked++
		}
		for _, a := range name.addrs {
			if seen[a] {
				continue
			}
			seen[a] = true
			s.Asked++
			if _, ok := answered[a]; ok || members[a] {
				s.Answered++
			}
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.seeds = s
}

// judgeSeeds logs that no seed answers, once they had time to, and that this is over: each once.
func (g *Group) judgeSeeds(late bool) {
	s := g.Seeds()
	switch {
	case s.Alone() && late && !g.alone:
		g.alone = true
		g.cfg.Logger.Warn(fmt.Sprintf("joined none of %d seeds (unreachable, or another secret): this node is a cluster of its own until one answers", s.Asked),
			"join", g.cfg.Join)
	case !s.Alone() && g.alone:
		g.alone = false
		g.cfg.Logger.Info("seeds answer again", "asked", s.Asked, "answered", s.Answered)
	}
}

// exchange exchanges states with one member at random. When many start at once, gossip misses
// some: its rumours die out after a time that follows from how few members each knew at first.
func (g *Group) exchange() {
	var others []netip.AddrPort
	for _, m := range g.Members() {
		if m.State == Alive && !m.Self {
			others = append(others, m.Addr)
		}
	}
	if len(others) == 0 {
		return
	}
	a := others[rand.IntN(len(others))]
	if _, err := g.list.Join([]string{a.String()}); err != nil {
		g.cfg.Logger.Debug("membership: exchange states", "address", a.String(), "error", err)
	}
}

// missing returns the addresses of seeds, and of members that stopped answering or said
// that they restart, at which no member is known to live. One that restarts may have
// no seeds of its own, as the first of a cluster: it is for us to ask whether it is back.
func (g *Group) missing(given []seedName) []netip.AddrPort {
	known := map[netip.AddrPort]bool{g.self: true}
	var lost []netip.AddrPort
	for _, m := range g.Members() {
		if m.State != Alive && !m.Self {
			lost = append(lost, m.Addr)
		} else {
			known[m.Addr] = true
		}
	}
	var list []netip.AddrPort
	var seeds []netip.AddrPort
	for _, name := range given {
		seeds = append(seeds, name.addrs...)
	}
	for _, a := range append(seeds, lost...) {
		if !known[a] {
			known[a] = true
			list = append(list, a)
		}
	}
	return list
}

// seedName is one name to join.
type seedName struct{ addrs []netip.AddrPort } // none when it cannot be resolved

// resolveSeeds returns the addresses of all names to join.
func (g *Group) resolveSeeds(ctx context.Context) []seedName {
	found := make([]seedName, len(g.cfg.Join))
	var wait sync.WaitGroup
	for i, name := range g.cfg.Join {
		wait.Go(func() {
			addrs, err := g.resolve(ctx, name)
			if err != nil && ctx.Err() == nil {
				g.stats.SeedFailures.Add(1)
				g.cfg.Logger.Warn("membership: resolve a name to join", "name", name, "error", err)
			}
			found[i].addrs = addrs[:min(len(addrs), maxSeedAddresses)]
		})
	}
	wait.Wait()
	return found
}

// resolve returns the addresses of one name, which may be an address and may have a port.
func (g *Group) resolve(ctx context.Context, name string) ([]netip.AddrPort, error) {
	if ap, err := netip.ParseAddrPort(name); err == nil {
		return []netip.AddrPort{netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())}, nil
	}
	host, port := name, g.defaultPort()
	if h, p, err := net.SplitHostPort(name); err == nil {
		n, err := strconv.ParseUint(p, 10, 16)
		if err != nil || n == 0 {
			return nil, &net.AddrError{Err: "not a port number", Addr: p}
		}
		host, port = h, uint16(n)
	}
	if a, err := netip.ParseAddr(host); err == nil {
		return []netip.AddrPort{netip.AddrPortFrom(a.Unmap(), port)}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	var resolver Resolver = net.DefaultResolver
	if g.cfg.Resolver != nil {
		resolver = g.cfg.Resolver
	}
	hosts, err := resolver.LookupHost(ctx, host)
	if err != nil {
		return nil, err
	}
	var list []netip.AddrPort
	for _, h := range hosts {
		if a, err := netip.ParseAddr(h); err == nil {
			list = append(list, netip.AddrPortFrom(a.Unmap(), port))
		}
	}
	return list, nil
}

// defaultPort is the port of seeds that were given without one.
func (g *Group) defaultPort() uint16 {
	if g.cfg.BindPort != 0 {
		return uint16(g.cfg.BindPort)
	}
	return DefaultBindPort
}
