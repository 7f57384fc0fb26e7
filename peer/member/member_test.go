package member

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shardwell/shardwell/internal/chunk"
)

func TestFiftyNodesConvergeOnALossyNetwork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		defer c.stopAll()
		c.net.Lose(0.05)
		c.addMany(50)
		t.Logf("all know all after %s", c.eventually(60*time.Second, "fifty know each other", c.allKnow(50)))
		time.Sleep(3 * time.Second)
		c.agree(50)
	})
}

func TestAKilledMemberIsKnownAndKeepsItsPlaceForTheGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		defer c.stopAll()
		c.addMany(20)
		c.eventually(30*time.Second, "start", c.allKnow(20))
		_, _, _, before := c.nodes[0].seen()

		c.nodes[7].crash()
		c.nodes = append(c.nodes[:7], c.nodes[8:]...)
		took := c.eventually(60*time.Second, "a death is known", c.allSee("id-007", "down"))
		t.Logf("a death is known to all after %s", took)
		c.agree(20)
		if _, _, _, now := c.nodes[0].seen(); now != before {
			t.Error("the table changed although the member keeps its place")
		}
		c.eventually(DefaultRestartGrace+10*time.Second, "the place is dropped", c.allKnow(19))
		time.Sleep(5 * time.Second)
		c.agree(19)
	})
}

func TestARestartWithinTheGraceKeepsTheTable(t *testing.T) {
	for name, sameAddr := range map[string]bool{"same address": true, "new address": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t)
				defer c.stopAll()
				c.addMany(5)
				c.eventually(30*time.Second, "start", c.allKnow(5))
				var tables []int
				for _, n := range c.nodes {
					_, _, count, _ := n.seen()
					tables = append(tables, count)
				}
				addr := c.nodes[2].addr
				if !sameAddr {
					addr = c.net.Addr()
				}
				c.restart(2, addr, func() {
					// The others hear at once, not by probing.
					c.eventually(3*time.Second, "the stop is known", c.allSee("id-002", "restarting"))
					time.Sleep(20 * time.Second)
				})
				took := c.eventually(5*time.Second, "it is back", c.allSee("id-002", "alive"))
				t.Logf("back after %s", took)
				c.agree(5)
				for i, n := range c.nodes {
					if _, _, count, _ := n.seen(); i != 2 && count != tables[i] {
						t.Errorf("%s built %d placements, %d before the restart", n.cfg.ID, count, tables[i])
					}
				}
			})
		})
	}
}

func TestOneThatStartsWhileAnotherIsAwayMakesTheSameTable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		defer c.stopAll()
		c.addMany(4)
		c.eventually(30*time.Second, "start", c.allKnow(4))
		c.nodes[3].stop()
		<-c.nodes[3].done
		c.nodes = c.nodes[:3]
		c.eventually(10*time.Second, "the stop is known", c.allSee("id-003", "restarting"))
		late := c.add("id-900")
		c.eventually(10*time.Second, "the newcomer knows the absent one", func() bool { return late.state("id-003") == "restarting" })
		c.eventually(10*time.Second, "all know the newcomer", c.allKnow(5))
		c.agree(5)
	})
}

func TestASplitHeals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		defer c.stopAll()
		c.addMany(10)
		c.eventually(30*time.Second, "start", c.allKnow(10))
		half := map[netip.AddrPort]bool{}
		for _, n := range c.nodes[:5] {
			half[n.addr] = true
		}
		c.net.Cut(func(from, to netip.AddrPort) bool { return half[from] != half[to] })
		c.eventually(90*time.Second, "both halves know", func() bool {
			for i, n := range c.nodes {
				other := c.nodes[(i+5)%10].cfg.ID
				if n.state(other) != "down" {
					return false
				}
			}
			return true
		})
		time.Sleep(3 * time.Minute)
		c.net.Cut(nil)
		took := c.eventually(time.Minute, "one ring again", func() bool {
			for _, n := range c.nodes {
				for _, o := range c.nodes {
					if n.state(o.cfg.ID) != "alive" {
						return false
					}
				}
			}
			return true
		})
		t.Logf("one ring %s after the network healed", took)
		c.agree(10)
	})
}

func TestASplitLongerThanTheGraceHealsThroughTheSeedsName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		defer c.stopAll()
		names := &fakeResolver{}
		for i := range 6 {
			cfg := c.config(fmt.Sprintf("id-%03d", i))
			cfg.Join, cfg.Resolver = []string{"peers.example"}, names
			n := c.start(cfg, c.net.Addr())
			c.nodes = append(c.nodes, n)
			names.add(n.addr)
		}
		c.eventually(60*time.Second, "start", c.allKnow(6))
		half := map[netip.AddrPort]bool{c.nodes[0].addr: true, c.nodes[1].addr: true}
		c.net.Cut(func(from, to netip.AddrPort) bool { return half[from] != half[to] })
		time.Sleep(DefaultRestartGrace + 2*time.Minute)
		if members, _, _, _ := c.nodes[0].seen(); members != 2 {
			t.Fatalf("the smaller half knows %d members, want 2", members)
		}
		c.net.Cut(nil)
		t.Logf("one ring %s after the network healed", c.eventually(time.Minute, "one ring again", c.allKnow(6)))
	})
}

func TestAFlappingMemberIsDamped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		defer c.stopAll()
		c.addMany(5)
		c.eventually(30*time.Second, "start", c.allKnow(5))
		_, callsBefore, tables, _ := c.nodes[0].seen()
		start := time.Now()
		for range 10 {
			c.restart(4, c.net.Addr(), func() { time.Sleep(2 * time.Second) })
			time.Sleep(2 * time.Second)
		}
		if s := c.nodes[0].state("id-004"); s != "restarting" {
			t.Errorf("after ten restarts in %s it counts as %q", time.Since(start), s)
		}
		_, calls, now, _ := c.nodes[0].seen()
		if now != tables {
			t.Errorf("the flapping changed the placement %d times", now-tables)
		}
		if most := int(time.Since(start)/DefaultBatch) + 1; calls-callsBefore > most {
			t.Errorf("%d changes in %s", calls-callsBefore, time.Since(start))
		}
		c.eventually(flapSettle+5*time.Second, "it is relied on again", c.allSee("id-004", "alive"))
		if n := len(c.nodes[0].view.places); n != 5 {
			t.Errorf("%d places are remembered, want 5", n)
		}
	})
}

func TestDrainGivesThePlaceUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		defer c.stopAll()
		c.addMany(6)
		c.eventually(30*time.Second, "start", c.allKnow(6))
		leaver := c.nodes[5]
		if err := leaver.Drain(context.Background()); err != nil {
			t.Fatal(err)
		}
		c.eventually(5*time.Second, "it owns nothing", func() bool {
			for _, n := range c.nodes {
				n.mu.Lock()
				i := slices.IndexFunc(n.latest, func(m Member) bool { return m.ID == "id-005" })
				ok := i >= 0 && n.latest[i].NoOwner && n.latest[i].Draining
				n.mu.Unlock()
				if !ok {
					return false
				}
			}
			return true
		})
		leaver.stop()
		<-leaver.done
		c.nodes = c.nodes[:5]
		c.eventually(5*time.Second, "it is gone", c.allKnow(5))
		late := c.add("id-900")
		c.eventually(10*time.Second, "the newcomer is in", c.allKnow(6))
		if s := late.state("id-005"); s != "" {
			t.Errorf("the newcomer sees the one that left as %q", s)
		}
	})
}

func TestMembersThatDifferAreRefusedOnBothSides(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"chunk size":     func(c *Config) { c.Geometry.ChunkBytes = 4 << 20 },
		"block size":     func(c *Config) { c.Geometry.BlockBytes = 512 << 10 },
		"protocol":       func(c *Config) { c.ProtocolMin, c.ProtocolMax = 2, 3 },
		"places objects": func(c *Config) { c.PlaceWhole = 1 << 20 },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t)
				defer c.stopAll()
				c.addMany(3)
				c.eventually(30*time.Second, "start", c.allKnow(3))
				cfg := c.config("odd")
				change(&cfg)
				odd := c.start(cfg, c.net.Addr())
				time.Sleep(time.Minute)
				c.agree(3)
				if members, _, _, _ := odd.seen(); members != 1 {
					t.Errorf("the odd one knows %d members", members)
				}
				if !c.logHas("member refused", "member=host-odd", name) {
					t.Errorf("no line about the odd one in:\n%s", c.log.String())
				}
				if !c.logHas("member refused", "member=host-id-000", name) {
					t.Errorf("no line about the others in:\n%s", c.log.String())
				}
				if r := c.nodes[0].Refused(); len(r) != 1 || r[0].Addr != odd.addr || r[0].Name != "host-odd" {
					t.Errorf("refused: %v", r)
				}
				c.nodes = append(c.nodes, odd)
			})
		})
	}
}

func TestAnOlderProtocolThatOverlapsIsWelcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		defer c.stopAll()
		c.addMany(3)
		cfg := c.config("next")
		cfg.ProtocolMin, cfg.ProtocolMax = 1, 2
		c.nodes = append(c.nodes, c.start(cfg, c.net.Addr()))
		c.eventually(30*time.Second, "all know the newer one", c.allKnow(4))
	})
}

// SEMANTICS C8: Of two live processes with one ring id (a copied cache directory) the one that began first keeps its
// place, and the other is refused with a line in the log of every member.
func TestACopiedCacheDirectoryIsNamedAndTheCopyRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		defer c.stopAll()
		c.addMany(3)
		c.eventually(30*time.Second, "start", c.allKnow(3))
		_, calls, _, _ := c.nodes[0].seen()
		cfg := c.config("id-001")
		cfg.Name, cfg.Transport = "copy", c.net.Listen(c.net.Addr())
		cfg.OnChange = func([]Member) { t.Error("the copy took part") }
		twin, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		err = twin.Run(t.Context())
		if !errors.Is(err, ErrDuplicate) || !strings.Contains(err.Error(), "ring id id-001 is that of host-id-001 at "+c.nodes[1].addr.String()) {
			t.Errorf("the copy ended with %v", err)
		}
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("the copy ended after %v", took)
		}
		c.eventually(5*time.Second, "all name it", func() bool {
			for _, n := range c.nodes {
				if len(n.Refused()) != 1 {
					return false
				}
			}
			return true
		})
		time.Sleep(time.Minute)
		c.agree(3)
		for _, n := range c.nodes {
			r := n.Refused()
			if len(r) != 1 || r[0].Name != "copy" || !strings.Contains(r[0].Reason, "Remove the file node-id") || n.Stats().Duplicates.Load() != 1 {
				t.Errorf("%s refused %v, %d duplicates", n.cfg.ID, r, n.Stats().Duplicates.Load())
			}
		}
		if n := strings.Count(c.log.String(), "ring id in use twice"); n < 3 || n > 4 { // the copy itself may say it
			t.Errorf("%d lines about the copy, want one of each member:\n%s", n, c.log.String())
		}
		if _, now, _, _ := c.nodes[0].seen(); now != calls {
			t.Errorf("%d changes of the members for a copy", now-calls)
		}
	})
}

// Killed and back at another address before its death is known: it waits a moment and has its place.
func TestAKilledMemberComesBackElsewhereAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		defer c.stopAll()
		c.addMany(4)
		c.eventually(30*time.Second, "start", c.allKnow(4))
		old := c.nodes[2]
		old.crash()
		c.nodes[2] = c.start(old.cfg, c.net.Addr())
		took := c.eventually(15*time.Second, "all see it there", func() bool {
			for _, n := range c.nodes {
				for _, m := range n.Members() {
					if m.ID == old.cfg.ID && (m.Addr != c.nodes[2].addr || m.State != Alive) {
						return false
					}
				}
			}
			return true
		})
		t.Logf("after %v", took)
		for _, n := range c.nodes {
			if r := n.Refused(); len(r) != 0 {
				t.Errorf("%s refused %v", n.cfg.ID, r)
			}
		}
	})
}

// Two halves in each of which the id is used: nobody ends when they meet, the one that began first has the place.
func TestTwinsThatMeetWhenASplitHealsGoOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		defer c.stopAll()
		c.addMany(2)
		c.eventually(30*time.Second, "start", c.allKnow(2))
		lonely := c.start(func() Config { cfg := c.config("id-900"); cfg.Join = nil; return cfg }(), c.net.Addr())
		cfg := c.config("id-001")
		cfg.Name, cfg.Join = "copy", []string{lonely.addr.String()}
		twin := c.start(cfg, c.net.Addr())
		c.eventually(10*time.Second, "the other half", func() bool { n, _, _, _ := lonely.seen(); return n == 2 })
		if _, err := c.nodes[0].list.Join([]string{lonely.addr.String()}); err != nil {
			t.Fatal(err)
		}
		all := append(c.nodes, lonely, twin)
		first := c.nodes[1].addr
		c.nodes = all
		c.eventually(30*time.Second, "all give the place to the first", func() bool {
			for _, n := range all {
				held := false
				for _, m := range n.Members() {
					held = held || m.ID == "id-001" && m.Addr == first
				}
				if !held || len(n.Refused()) != 1 {
					return false
				}
			}
			return true
		})
	})
}

func TestStrangersAreDroppedAndCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		defer c.stopAll()
		c.addMany(3)
		c.eventually(30*time.Second, "start", c.allKnow(3))
		seed := c.nodes[0].addr.String()
		for name, change := range map[string]func(*Config){
			"wrong key":   func(c *Config) { c.Keys = [][]byte{make([]byte, 32)} },
			"no key":      func(c *Config) { c.Keys = nil },
			"other label": func(c *Config) { c.Label = "staging" },
		} {
			before := c.nodes[0].Stats().DroppedPackets.Load()
			cfg := c.config("stranger")
			cfg.Join = []string{seed}
			change(&cfg)
			n := c.start(cfg, c.net.Addr())
			time.Sleep(20 * time.Second)
			if members, _, _, _ := n.seen(); members != 1 {
				t.Errorf("%s: the stranger knows %d members", name, members)
			}
			if c.nodes[0].Stats().DroppedPackets.Load() == before {
				t.Errorf("%s: nothing was counted", name)
			}
			n.stop()
			<-n.done
		}
		from := c.net.Addr()
		before := c.nodes[0].Stats().DroppedPackets.Load()
		for size := range 1400 {
			packet := make([]byte, size)
			rand.Read(packet)
			c.net.Inject(from, c.nodes[0].addr, packet)
			time.Sleep(time.Millisecond)
		}
		conn, err := c.net.Dial(c.nodes[0].addr, time.Second)
		if err != nil {
			t.Fatal(err)
		}
		conn.Write([]byte("GET / HTTP/1.1\r\n\r\n"))
		conn.Close()
		time.Sleep(10 * time.Second)
		if n := c.nodes[0].Stats().DroppedPackets.Load() - before; n < 1000 {
			t.Errorf("of 1400 packets of garbage %d were counted", n)
		}
		c.agree(3)
	})
}

func TestSecretsAreChangedWithoutAStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		defer c.stopAll()
		old, fresh := make([]byte, 32), make([]byte, 32)
		fresh[0] = 1
		for i, keys := range [][][]byte{{old, fresh}, {fresh, old}, {old, fresh}} {
			cfg := c.config(fmt.Sprint("id-", i))
			cfg.Keys = keys
			c.nodes = append(c.nodes, c.start(cfg, c.net.Addr()))
		}
		c.eventually(30*time.Second, "both keys are read", c.allKnow(3))
	})
}

func TestChangesComeInBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		defer c.stopAll()
		c.add("first")
		time.Sleep(5 * time.Second)
		_, before, _, _ := c.nodes[0].seen()
		start := time.Now()
		c.addMany(30)
		c.eventually(30*time.Second, "all are known", c.allKnow(31))
		_, calls, _, _ := c.nodes[0].seen()
		if most := int(time.Since(start)/DefaultBatch) + 1; calls-before > most {
			t.Errorf("%d changes for 30 joins within %s", calls-before, time.Since(start))
		}
	})
}

func TestConfigIsRefusedInWords(t *testing.T) {
	good := Config{ID: "x", BindAddr: "127.0.0.1", PeerPort: 1, Geometry: chunk.DefaultGeometry()}
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Config){
		"no id":                  func(c *Config) { c.ID = "" },
		"heavy":                  func(c *Config) { c.Weight = MaxWeight + 1 },
		"no peer port":           func(c *Config) { c.PeerPort = 0 },
		"bad geometry":           func(c *Config) { c.Geometry.BlockBytes = 3 },
		"host as address":        func(c *Config) { c.BindAddr = "localhost" },
		"open without a secret":  func(c *Config) { c.BindAddr = "0.0.0.0" },
		"empty protocol range":   func(c *Config) { c.ProtocolMin = 2; c.ProtocolMax = 1 },
		"any IPv6, no advertise": func(c *Config) { c.BindAddr = "::"; c.Insecure = true },
	} {
		cfg := good
		change(&cfg)
		if err := cfg.Validate(); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	open := good
	open.BindAddr, open.Insecure = "0.0.0.0", true
	if err := open.Validate(); err != nil {
		t.Errorf("insecure by intention: %v", err)
	}
}
