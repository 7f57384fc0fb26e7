package broadcast

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/shardwell/shardwell/internal/chunk"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

var whole = chunk.Span{First: 0, Count: 32}

// script drives a plan by words; time goes on by a second with each.
type script struct {
	t   *testing.T
	p   *Plan
	now time.Time
	c   Chunk
}

func begin(t *testing.T, cfg Config) *script {
	return &script{t: t, p: New(cfg), now: noon}
}

// ask expects the asker to be sent to want, "" for this node.
func (s *script) ask(member, rack, want string, failed ...string) {
	s.t.Helper()
	s.askFor(whole, member, rack, want, failed...)
}

func (s *script) askFor(span chunk.Span, member, rack, want string, failed ...string) {
	s.t.Helper()
	s.now = s.now.Add(time.Second)
	d := s.p.Ask(s.now, Request{Chunk: s.c, Span: span, Member: member, Zone: "z" + rack, Rack: rack, Failed: failed})
	if d.Redirect != want {
		s.t.Errorf("%s is sent to %q, want %q", member, d.Redirect, want)
	}
}

func (s *script) done(m string)   { s.p.Done(s.now, s.c, m) }
func (s *script) failed(m string) { s.p.Failed(s.now, s.c, m) }

func TestMakesAChain(t *testing.T) {
	s := begin(t, Config{MaxSends: 2})
	s.ask("a", "", "")
	s.ask("b", "", "a")
	s.ask("c", "", "b")
	s.done("a")
	s.ask("d", "", "c") // also when a has all of it: a has passed it on once
}

// Chains end, and what they branch from is never asked for more than the limit.
func TestChainsAreShort(t *testing.T) {
	const members, k, longest = 1000, 3, 10
	p := New(Config{MaxSends: k, MaxChain: longest})
	depth, load := map[string]int{}, map[string]int{}
	deepest := 0
	for i := range members {
		m := fmt.Sprintf("m%03d", i)
		d := p.Ask(noon, Request{Span: whole, Member: m})
		load[d.Redirect]++
		depth[m] = depth[d.Redirect] + 1
		deepest = max(deepest, depth[m])
	}
	for who, n := range load {
		if n > k {
			t.Errorf("%q sends %d times", who, n)
		}
	}
	if deepest > 4*longest {
		t.Errorf("the longest way has %d hops", deepest)
	}
}

// Who fills an object receives from its neighbour in the circle, whoever owns the
// chunk and in whatever order they ask; all but one member pass each chunk on once.
func TestOneCircleForAllOwners(t *testing.T) {
	names := []string{"a", "b", "c", "d", "e", "f", "g"}
	before := map[string]string{} // whom each was sent to, unless it was the owner
	for n, owner := range []string{"o1", "o2", "o3"} {
		p := New(Config{Self: owner})
		for _, m := range names {
			p.Gather(noon, Request{Chunk: Chunk{Index: uint32(n)}, Span: whole, Member: m, Fill: true})
		}
		load := map[string]int{}
		for i := range names {
			m := names[(i*3+n)%len(names)]
			d := p.Ask(noon, Request{Chunk: Chunk{Index: uint32(n)}, Span: whole, Member: m, Fill: true})
			if load[d.Redirect]++; load[d.Redirect] > 1 {
				t.Errorf("owner %s: %q is named twice", owner, d.Redirect)
			}
			if d.Redirect == "" {
				continue
			}
			if have, ok := before[m]; ok && have != d.Redirect {
				t.Errorf("owner %s sends %s to %s, another one to %s", owner, m, d.Redirect, have)
			}
			before[m] = d.Redirect
		}
	}
}

// Who was to come and did not is named no more.
func TestWhoDoesNotComeIsLeft(t *testing.T) {
	p := New(Config{Self: "o"})
	for _, m := range []string{"a", "b"} {
		p.Gather(noon, Request{Span: whole, Member: m, Fill: true})
	}
	first := p.Ask(noon, Request{Span: whole, Member: "a", Fill: true}).Redirect
	if first == "" { // a comes before b in the circle
		if got := p.Ask(noon, Request{Span: whole, Member: "b", Fill: true}).Redirect; got != "a" {
			t.Fatalf("b is sent to %q", got)
		}
		return
	}
	if first != "b" {
		t.Fatalf("a is sent to %q", first)
	}
	for i := range 3 {
		req := Request{Chunk: Chunk{Index: uint32(i)}, Span: whole, Member: "a", Fill: true, Failed: []string{"b"}}
		if got := p.Ask(noon.Add(time.Second), req).Redirect; got != "" {
			t.Errorf("a is sent to %q", got)
		}
	}
}

func TestPrefersTheRack(t *testing.T) {
	s := begin(t, Config{MaxSends: 2})
	s.ask("a", "1", "")
	s.ask("b", "2", "a")
	s.ask("c", "2", "b")
	s.ask("d", "2", "c") // b and c are in the rack; nobody receives from c
	s.ask("e", "2", "d")
	s.ask("f", "1", "a")
	s.ask("g", "3", "f") // no one in its rack: fewest receivers
}

func TestNeverToOneWhoFailed(t *testing.T) {
	s := begin(t, Config{MaxSends: 1})
	s.ask("a", "", "")
	s.ask("b", "", "a")
	s.ask("b", "", "", "a") // a is out, and nobody else is there
	s.failed("b")
	s.done("a")
	s.ask("c", "", "")
	s.ask("d", "", "c") // not a, though it has the chunk: it failed
	s.now = s.now.Add(31 * time.Second)
	s.ask("e", "", "a", "c", "d")
}

func TestNeverInACircle(t *testing.T) {
	s := begin(t, Config{MaxSends: 1})
	s.ask("a", "", "")
	s.ask("b", "", "a")
	s.ask("c", "", "b", "a")
	s.failed("a")       // a's stream broke: it comes back
	s.ask("a", "", "")  // not from b, which waits for a, nor c, which waits for b
	s.ask("x", "", "c") // who waits for nobody may wait for c
}

// A representative is not sent to one of its rack who asked the owner before, and waits for him by now.
func TestRepresentativeDoesNotWaitForItsRack(t *testing.T) {
	p := New(Config{Self: "o", Rack: "1"})
	ask := func(member string, fill bool, want string) {
		t.Helper()
		if got := p.Ask(noon, Request{Span: whole, Member: member, Rack: "2", Fill: fill}).Redirect; got != want {
			t.Errorf("%s is sent to %q, want %q", member, got, want)
		}
	}
	ask("early", true, "")
	ask("representative", false, "")
	p.Done(noon, Chunk{}, "early")
	ask("next representative", false, "early") // who has all of it waits for nobody
}

func TestOnlyToOneThatHasWhatIsAsked(t *testing.T) {
	s := begin(t, Config{MaxSends: 1})
	s.askFor(chunk.Span{First: 0, Count: 4}, "a", "", "")
	s.ask("b", "", "") // a has the head only
	s.failed("b")
	s.askFor(chunk.Span{First: 1, Count: 2}, "c", "", "a")
	s.askFor(chunk.Span{First: 4, Count: 4}, "a", "", "") // a goes on: now it has 0 to 8
	s.askFor(chunk.Span{First: 2, Count: 4}, "d", "", "a")
}

func TestServeOnly(t *testing.T) {
	p := New(Config{MaxSends: 1})
	p.Ask(noon, Request{Member: "a", Span: whole})
	if d := p.Ask(noon, Request{Member: "b", Span: whole, ServeOnly: true}); d.Redirect != "" {
		t.Errorf("sent to %q", d.Redirect)
	}
}

func TestForgets(t *testing.T) {
	p := New(Config{MaxChunks: 3, MaxMembers: 4, MaxSends: 1})
	for i := range uint32(10) {
		p.Ask(noon.Add(time.Duration(i)), Request{Chunk: Chunk{Index: i}, Member: "a", Span: whole})
	}
	if p.Len() != 3 {
		t.Errorf("%d chunks", p.Len())
	}
	for i := range 20 {
		p.Ask(noon.Add(time.Second), Request{Chunk: Chunk{Index: 9}, Member: fmt.Sprint(i), Span: whole})
	}
	if n := len(p.chunks[Chunk{Index: 9}].Value.(*state).members); n > 4 {
		t.Errorf("%d members", n)
	}
	p.Leave("a")
	if p.chunk(Chunk{Index: 8}).members["a"] != nil {
		t.Error("a member that left is remembered")
	}
	p.Expire(noon.Add(3 * time.Minute))
	if p.Len() != 0 || p.order.Len() != 0 {
		t.Errorf("%d chunks are still hot", p.Len())
	}
}

// model is what a cluster knows by itself: who waits for whom, and what failed when.
type model struct {
	source map[string]string    // whom a member receives from now
	since  map[string]time.Time // it does
	sends  int                  // from the owner
	direct map[string]int
	failed map[string]time.Time
}

// TestRandomOperations holds every decision against the promises of the package.
func TestRandomOperations(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := Config{MaxSends: rapid.IntRange(1, 4).Draw(t, "sends"), MaxMembers: rapid.SampledFrom([]int{2, 5, 10, 20}).Draw(t, "members")}
		p := New(cfg)
		c := Chunk{Index: 7}
		m := model{source: map[string]string{}, since: map[string]time.Time{}, direct: map[string]int{}, failed: map[string]time.Time{}}
		now := noon
		name := rapid.SampledFrom([]string{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j"})
		rack := rapid.SampledFrom([]string{"", "1", "2"})
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 5000).Draw(t, "ms")) * time.Millisecond)
			who := name.Draw(t, "member")
			switch op := rapid.IntRange(0, 9).Draw(t, "op"); {
			case op < 6:
				req := Request{Chunk: c, Span: whole, Member: who, Rack: rack.Draw(t, "rack"),
					Failed: rapid.SliceOfN(name, 0, 2).Draw(t, "failed"), ServeOnly: op == 5}
				m.ask(t, p, cfg, now, req)
			case op == 6 && m.direct[who] > 0:
				p.Done(now, c, who)
				m.end(who)
			case op == 7 && m.direct[who] > 0:
				p.Failed(now, c, who)
				m.end(who)
			case op == 8:
				p.Leave(who)
				m.sends -= m.direct[who]
				delete(m.direct, who)
				delete(m.source, who)
				delete(m.failed, who)
			case op == 9:
				p.Expire(now)
			}
			if p.Len() > 1 || p.Len() == 1 && len(p.chunks[c].Value.(*state).members) > cfg.MaxMembers {
				t.Fatal("grew beyond its bounds")
			}
		}
	})
}

func (m *model) end(who string) {
	m.direct[who]--
	m.sends--
	if m.direct[who] == 0 && m.source[who] == "owner" {
		delete(m.source, who)
	}
}

func (m *model) ask(t *rapid.T, p *Plan, cfg Config, now time.Time, req Request) {
	for _, f := range req.Failed {
		m.failed[f] = now
	}
	d := p.Ask(now, req)
	if d.Redirect == "" {
		m.source[req.Member], m.since[req.Member] = "owner", now
		m.direct[req.Member]++
		m.sends++
		return
	}
	switch {
	case req.ServeOnly:
		t.Fatalf("%s wanted nobody named, and got %s", req.Member, d.Redirect)
	case d.Redirect == req.Member:
		t.Fatalf("%s is sent to itself", req.Member)
	}
	if at, ok := m.failed[d.Redirect]; ok && cfg.MaxMembers >= 10 && now.Sub(at) < 30*time.Second {
		t.Fatalf("%s is sent to %s, which failed %v ago", req.Member, d.Redirect, now.Sub(at))
	}
	// Nobody on the way up may be waiting for the asker. Who began a minute ago
	// does not wait any more.
	for at, n := d.Redirect, 0; at != "" && at != "owner"; at, n = m.source[at], n+1 {
		if at == req.Member {
			t.Fatalf("%s is sent to %s, which waits for it", req.Member, d.Redirect)
		}
		if now.Sub(m.since[at]) >= time.Minute || n > 20 {
			break
		}
	}
	m.source[req.Member], m.since[req.Member] = d.Redirect, now
}

// Everybody asks, and everybody ends with the chunk, over sends that nowhere exceed the
// limit by more than one.
func TestFanOut(t *testing.T) {
	const members, k = 500, 3
	p := New(Config{MaxSends: k})
	load := map[string]int{}
	for i := range members {
		d := p.Ask(noon, Request{Span: whole, Member: fmt.Sprintf("m%03d", i)})
		load[d.Redirect]++
	}
	for who, n := range load {
		if n > k {
			t.Errorf("%q sends %d times", who, n)
		}
	}
}

// TestDelegates leaves chunks that nobody has to who asks first, and names that one to all others.
func TestDelegates(t *testing.T) {
	p := New(Config{Self: "me"})
	c, now := Chunk{}, noon
	ask := func(member, want string, failed ...string) {
		t.Helper()
		now = now.Add(time.Second)
		d := p.Ask(now, Request{Chunk: c, Span: whole, Member: member, Failed: failed, Fill: true, Delegate: true})
		if d.Redirect != want {
			t.Errorf("%s is sent to %q, want %q", member, d.Redirect, want)
		}
	}
	elsewhere := func(want string, failed ...string) {
		t.Helper()
		if got, _ := p.Elsewhere(now, c, whole, whole, failed, false); got != want {
			t.Errorf("this node is sent to %q, want %q", got, want)
		}
	}
	elsewhere("")
	ask("a", "a")
	elsewhere("a")
	ask("b", "a")
	ask("c", "b")
	ask("d", "d", "a", "b", "c") // they failed: somebody has to
	ask("e", "d")
	elsewhere("", "a", "b", "c", "d", "e")

	c.Index++ // who waits for this node is no help to it
	if d := p.Ask(now, Request{Chunk: c, Span: whole, Member: "a", Fill: true}); d.Redirect != "" {
		t.Errorf("sent to %q", d.Redirect)
	}
	elsewhere("")
	ask("b", "b") // nor to others
	p.Done(now, c, "a")
	elsewhere("a", "b")
}
