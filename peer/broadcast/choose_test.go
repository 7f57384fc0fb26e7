package broadcast

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/shardwell/shardwell/internal/chunk"
)

// chooseFromAll is what choose decides, by looking at everybody: the member's id, or "".
func chooseFromAll(p *Plan, now time.Time, s *state, req Request) string {
	at := placeOf(req.Member)
	best := candidate{room: s.direct < p.cfg.MaxSends, cost: s.given, distance: at - p.place,
		inRack: req.Rack != "" && p.cfg.Rack == req.Rack, inZone: req.Zone != "" && p.cfg.Zone == req.Zone}
	k := p.casts[req.Chunk.Object]
	for _, h := range s.members {
		if !p.mayServe(now, s, h, req) {
			continue
		}
		c := candidate{h: h, room: h.children+h.slowChildren < p.cfg.MaxSends, cost: h.children + p.depth(now, h)/p.cfg.MaxChain, distance: at - h.place,
			inRack: req.Rack != "" && h.rack == req.Rack, inZone: req.Zone != "" && h.zone == req.Zone}
		switch {
		case p.isSlow(k, h.id, now):
			c.cost += p.cfg.MaxSends
		case p.isBlamed(h.id, now) || req.Fill && p.lags(k, h.id, now):
			c.cost++
		}
		if (c.before(best) || req.Delegate && best.h == nil) && p.isFed(now, s, h, req) {
			best = c
		}
	}
	id := ""
	if best.h != nil {
		id = best.h.id
	}
	vice := p.vice(now, k, req)
	switch alone := req.Delegate && best.h == nil; {
	case !req.Fill, req.Delegate && req.Member == p.cfg.Self, alone && (len(s.members) > 0 && !s.viced || vice == "" || vice == req.Member):
		return id
	case alone:
		best = candidate{cost: math.MaxInt}
	}
	for other, f := range k.members {
		if s.members[other] != nil || other == req.Member || now.Sub(f.last) >= p.cfg.FillFor || p.lags(k, other, now) || p.isSlow(k, other, now) || p.isBlamed(other, now) || slices.Contains(req.Failed, other) {
			continue
		}
		c := candidate{h: &expected, room: true, distance: at - f.place, cost: k.rank(p.place, f.place) / p.cfg.MaxChain,
			inRack: req.Rack != "" && f.rack == req.Rack, inZone: req.Zone != "" && f.zone == req.Zone}
		if c.before(best) {
			best, id = c, other
		}
	}
	return id
}

// checkSorted holds the order that choose goes by against what is known of each member.
func checkSorted(t *rapid.T, p *Plan, s *state) {
	found := map[*holder]int{}
	groups := []*group{&s.all}
	for _, m := range []map[string]*group{s.zones, s.racks} {
		for _, g := range m {
			groups = append(groups, g)
		}
	}
	for _, g := range groups {
		for full, lines := range [][]line{g.open, g.full} {
			for cost, l := range lines {
				var last *holder
				l.before(^uint64(0), func(h *holder) bool {
					found[h]++
					if h.cost != cost || h.full != (full == 1) || h.full != (h.children+h.slowChildren >= p.cfg.MaxSends) || s.members[h.id] != h || last != nil && last.place < h.place {
						t.Fatalf("%q is out of its place", h.id)
					}
					last = h
					return true
				})
			}
		}
	}
	aged := 0
	for h := s.oldest; h != nil; h = h.newer {
		aged++
	}
	if aged != len(s.members) {
		t.Fatalf("%d of %d members have an age", aged, len(s.members))
	}
	for id, h := range s.members {
		want := 0
		if h.span.Count > 0 {
			want = 1
			for _, name := range []string{h.zone, h.rack} {
				if name != "" {
					want++
				}
			}
		}
		if found[h] != want {
			t.Fatalf("%q is in %d groups, want %d", id, found[h], want)
		}
	}
}

// As long as there are few members, the decision is that of one who looked at everybody.
func TestChoosesAsFromAll(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := Config{Self: "self", Rack: rapid.SampledFrom([]string{"", "1", "2"}).Draw(t, "own rack"), Zone: "z1",
			MaxSends: rapid.IntRange(1, 3).Draw(t, "sends"), MaxChain: rapid.IntRange(1, 4).Draw(t, "chain"),
			MaxMembers: rapid.SampledFrom([]int{5, 60}).Draw(t, "members")}
		p := New(cfg)
		now := noon
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		name := func() string { return fmt.Sprintf("m%02d", rng.IntN(50)) }
		racks, mix := rng.IntN(4), 1+rng.IntN(2)
		place := func(m string) (zone, rack string) {
			if racks == 0 {
				return "", ""
			}
			n := int(m[2]) % racks
			return fmt.Sprint("z", n%2), fmt.Sprint(n / mix)
		}
		for range 300 {
			now = now.Add(time.Duration(rng.IntN(rng.IntN(1500)+1)) * time.Millisecond)
			c, who := Chunk{Index: uint32(rng.IntN(3))}, name()
			switch op := rng.IntN(20); {
			case op < 15:
				req := Request{Chunk: c, Span: whole, Member: who, Fill: rng.IntN(4) > 0, Delegate: rng.IntN(12) == 0}
				req.Zone, req.Rack = place(who)
				if rng.IntN(3) == 0 {
					req.Near = name()
					req.NearZone, req.NearRack = place(req.Near)
				}
				if rng.IntN(5) == 0 {
					req.Span = chunk.Span{First: uint32(rng.IntN(8)), Count: 1 + uint32(rng.IntN(24))}
				}
				for range max(0, rng.IntN(6)-3) * cfg.MaxMembers / 60 { // they take room, too
					req.Failed = append(req.Failed, name())
				}
				s := p.state(now, c)
				p.noteFailures(now, s, req)
				p.Gather(now, req)
				if h := s.members[who]; h != nil {
					p.detach(s, h)
				}
				want := chooseFromAll(p, now, s, req)
				if want == "" && req.Delegate {
					want = req.Member
				}
				if got := p.Ask(now, req).Redirect; got != want && !((got == "" || got == who) && len(s.members) >= cfg.MaxMembers) {
					t.Fatalf("%+v is sent to %q, want %q", req, got, want)
				}
			case op < 17:
				p.Done(now, c, who)
			case op == 17:
				p.Failed(now, c, who)
			case op == 18:
				p.Leave(who)
			default:
				if s := p.chunk(c); s != nil && len(s.members) > 0 {
					want := chooseFromAll(p, now, s, Request{Chunk: c, Span: whole, Member: "self", Delegate: true})
					if got, _ := p.Elsewhere(now, c, whole, whole, nil, false); got != want {
						t.Fatalf("elsewhere is %q, want %q", got, want)
					}
				}
			}
			if s := p.chunk(c); s != nil {
				checkSorted(t, p, s)
			}
		}
	})
}

// Ten thousand members get a chunk without anybody sending it more often than the limit says.
func TestTenThousandMembers(t *testing.T) {
	const members, k = 10_000, 3
	for _, fill := range []bool{false, true} {
		p := New(Config{Self: "self", MaxSends: k})
		load := map[string]int{}
		for i := range members {
			m := fmt.Sprintf("m%05d", i*7919%members)
			load[p.Ask(noon.Add(time.Duration(i)*time.Microsecond), Request{Span: whole, Member: m, Fill: fill}).Redirect]++
		}
		for who, n := range load {
			if n > k {
				t.Errorf("fill %v: %q sends %d times", fill, who, n)
			}
		}
	}
}

// What is remembered is bounded over all chunks.
func TestForgetsChunksForMembers(t *testing.T) {
	p := New(Config{MaxHolders: 100})
	for i := range uint32(50) {
		for m := range 30 {
			p.Ask(noon, Request{Chunk: Chunk{Index: i}, Span: whole, Member: fmt.Sprint(m)})
		}
		n := 0
		for e := p.order.Front(); e != nil; e = e.Next() {
			n += len(e.Value.(*state).members)
		}
		if n > 100 || n != p.holders || p.chunk(Chunk{Index: i}) == nil {
			t.Fatalf("%d members are remembered, %d counted", n, p.holders)
		}
	}
}

// BenchmarkAsk asks for chunks of one object by so many members, all of which ask for each chunk.
func BenchmarkAsk(b *testing.B) {
	for _, c := range []struct {
		members int
		fill    bool
	}{{32, true}, {1000, false}, {1000, true}, {10_000, false}, {10_000, true}} {
		b.Run(fmt.Sprintf("%d,fill=%v", c.members, c.fill), func(b *testing.B) {
			p := New(Config{Self: "self"})
			rng := rand.New(rand.NewPCG(1, 2))
			names := make([]string, c.members)
			for i := range names {
				names[i] = fmt.Sprintf("%016x", rng.Uint64())
				p.Gather(noon, Request{Span: whole, Member: names[i], Fill: c.fill})
			}
			now := noon
			b.ReportAllocs()
			b.ResetTimer()
			for i := range b.N {
				now = now.Add(20 * time.Microsecond)
				if i%c.members == 0 {
					rng.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
				}
				p.Ask(now, Request{Chunk: Chunk{Index: uint32(i / c.members)}, Span: whole, Member: names[i%c.members], Fill: c.fill})
			}
		})
	}
}
