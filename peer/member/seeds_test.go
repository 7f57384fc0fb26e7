package member

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// fakeResolver answers every name with the addresses that it was given.
type fakeResolver struct {
	mu    sync.Mutex
	hosts []string
}

func (r *fakeResolver) add(a netip.AddrPort) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hosts = append(r.hosts, a.Addr().String())
}

func (r *fakeResolver) LookupHost(context.Context, string) ([]string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.hosts) == 0 {
		return nil, errors.New("no such host")
	}
	return slices.Clone(r.hosts), nil
}

func TestNoMoreThanThreeSeedsAreAskedAndNoneOnceAllAreMembers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		defer c.stopAll()
		names := &fakeResolver{}
		for _, id := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
			names.add(c.add(id).addr)
		}
		c.eventually(30*time.Second, "start", c.allKnow(8))
		cfg := c.config("late")
		cfg.Join, cfg.Resolver = []string{"peers.example"}, names
		late := c.start(cfg, c.net.Addr())
		c.nodes = append(c.nodes, late)
		c.eventually(30*time.Second, "the late one is in", c.allKnow(9))
		time.Sleep(5 * time.Minute)
		if n := late.Stats().SeedContacts.Load(); n != seedContacts {
			t.Errorf("%d exchanges with seeds, want %d", n, seedContacts)
		}
	})
}

func TestANodeWhoseSeedsAreAwayGoesOnAloneAndFindsThemLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		defer c.stopAll()
		later := c.net.Addr()
		cfg := c.config("early")
		cfg.Join = []string{later.String()}
		early := c.start(cfg, c.net.Addr())
		c.nodes = append(c.nodes, early)
		took := c.eventually(seedFirstTimeout+time.Second, "it takes itself for alone", c.allKnow(1))
		time.Sleep(time.Minute)
		if s := early.Seeds(); s != (SeedState{Asked: 1}) || !s.Alone() {
			t.Errorf("alone: %+v", s)
		}
		if took < seedFirstTimeout/2 {
			t.Errorf("it gave up after %s", took)
		}
		other := c.config("other")
		other.Join = nil
		c.nodes = append(c.nodes, c.start(other, later))
		c.eventually(time.Minute, "they found each other", c.allKnow(2))
		time.Sleep(time.Minute)
		if s := early.Seeds(); s != (SeedState{Asked: 1, Answered: 1}) {
			t.Errorf("found: %+v", s)
		}
		if s := c.nodes[1].Seeds(); s != (SeedState{}) {
			t.Errorf("without seeds: %+v", s)
		}
		for _, line := range []string{"joined none of 1 seeds (unreachable, or another secret)", "seeds answer again"} {
			if n := strings.Count(c.log.String(), line); n != 1 {
				t.Errorf("%d lines %q, want 1:\n%s", n, line, c.log.String())
			}
		}
	})
}

func TestASeedWithAnotherSecretIsNotJoined(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		defer c.stopAll()
		c.add("a")
		cfg := c.config("stranger")
		cfg.Keys = [][]byte{bytes.Repeat([]byte{8}, 32)}
		stranger := c.start(cfg, c.net.Addr())
		c.nodes = append(c.nodes, stranger)
		time.Sleep(time.Minute)
		if !stranger.Seeds().Alone() || !c.logHas("level=WARN", "joined none of 1 seeds") {
			t.Errorf("seeds %+v; log:\n%s", stranger.Seeds(), c.log.String())
		}
	})
}

// A name may yield an address behind which members are, but that none of them has.
func TestAnAddressThatIsNobodysIsNotAskedAllTheTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		defer c.stopAll()
		c.add("a")
		odd := c.config("odd") // refused, so its address never becomes a member's
		odd.PlaceWhole = 1
		c.nodes = append(c.nodes, c.start(odd, c.net.Addr()))
		before := c.nodes[1].Stats().SeedContacts.Load()
		time.Sleep(10 * time.Minute)
		n := c.nodes[1].Stats().SeedContacts.Load() - before
		if most := uint64(10*time.Minute/seedAgain) + 1; n < 5 || n > most {
			t.Errorf("asked %d times in ten minutes, want 5 to %d", n, most)
		}
	})
}

func TestNamesToJoinAreReadAsPeopleWriteThem(t *testing.T) {
	names := &fakeResolver{hosts: []string{"10.0.0.1", "fd00::1"}}
	g := &Group{cfg: Config{Resolver: names, BindPort: 7000}}
	for name, want := range map[string][]string{
		"10.1.2.3":      {"10.1.2.3:7000"},
		"10.1.2.3:99":   {"10.1.2.3:99"},
		"[fd00::2]:99":  {"[fd00::2]:99"},
		"fd00::2":       {"[fd00::2]:7000"},
		"seed.local":    {"10.0.0.1:7000", "[fd00::1]:7000"},
		"seed.local:99": {"10.0.0.1:99", "[fd00::1]:99"},
		"seed.local:x":  nil,
	} {
		addrs, err := g.resolve(context.Background(), name)
		var got []string
		for _, a := range addrs {
			got = append(got, a.String())
		}
		if !slices.Equal(got, want) || (err != nil) != (want == nil) {
			t.Errorf("%s: %v, %v; want %v", name, got, err, want)
		}
	}
}
