package member

import (
	"context"
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
	maxSeedAddresses = 20_000 // of all names together
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
	for answered, settled := false, false; ; {
		contacted, missing := g.askSeeds(ctx, again, goOn)
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
	addrs := slices.DeleteFunc(g.missing(ctx), func(a netip.AddrPort) bool { return now.Before(again[a]) })
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
	return contacted, missing
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

// missing returns the addresses of seeds, and of members that stopped answering, at which
// no member is known to live.
func (g *Group) missing(ctx context.Context) []netip.AddrPort {
	known := map[netip.AddrPort]bool{g.self: true}
	var lost []netip.AddrPort
	for _, m := range g.Members() {
		if m.State == Down {
			lost = append(lost, m.Addr)
		} else {
			known[m.Addr] = true
		}
	}
	var list []netip.AddrPort
	for _, a := range append(g.resolveSeeds(ctx), lost...) {
		if !known[a] {
			known[a] = true
			list = append(list, a)
		}
	}
	return list
}

// resolveSeeds returns the addresses of all names to join.
func (g *Group) resolveSeeds(ctx context.Context) []netip.AddrPort {
	found := make([][]netip.AddrPort, len(g.cfg.Join))
	var wait sync.WaitGroup
	for i, name := range g.cfg.Join {
		wait.Go(func() {
			addrs, err := g.resolve(ctx, name)
			if err != nil && ctx.Err() == nil {
				g.stats.SeedFailures.Add(1)
				g.cfg.Logger.Warn("membership: resolve a name to join", "name", name, "error", err)
			}
			found[i] = addrs
		})
	}
	wait.Wait()
	list := slices.Concat(found...)
	return list[:min(len(list), maxSeedAddresses)]
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
