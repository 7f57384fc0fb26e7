package member

import (
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"
)

// Limits and times of a view.
const (
	// A member that went down flapDowns times within flapWindow is shown as restarting
	// until it has stayed for flapSettle: nobody waits for one that comes and goes.
	flapDowns  = 3
	flapWindow = time.Minute
	flapSettle = 10 * time.Second

	talkMembers  = 100              // above it joins are logged at debug level: a start would be a thousand lines
	maxRefusals  = 64               // refused nodes remembered
	refusalAge   = 10 * time.Minute // how long a refusal is remembered, and repeated in the log at most once
	maxPlaces    = 100_000          // ring ids known, absent ones included
	maxPerPlace  = 16               // processes with one ring id; older ones are forgotten
	nameMaxBytes = 255 + 9
)

// nameSeparator stands between a node's name and the random part that each process adds.
const nameSeparator = "#"

// displayName returns a memberlist name without its random part.
func displayName(name string) string {
	if i := strings.LastIndex(name, nameSeparator); i > 0 {
		return name[:i]
	}
	return name
}

// process is one process that was heard of.
type process struct {
	name  string // in memberlist
	addr  netip.AddrPort
	rec   Record
	since time.Time // when it joined

	asked  bool // whether it answers is known: it was asked when another came with its ring id
	silent bool // it did not answer then
}

// place is what is known of one ring id.
type place struct {
	live      []process   // those that answer: one, but for restarts and mistakes
	last      process     // the process that holds it, also when it lives no more
	downSince time.Time   // when live became empty
	downs     []time.Time // the last flapDowns times at which a process was gone
}

// view collects what gossip tells and says what it means at a given time.
type view struct {
	grace   time.Duration
	stats   *Stats
	log     *slog.Logger
	changed chan struct{} // has one element when something has changed since it was read

	contested chan struct{} // has one element when a ring id came to be in use twice since it was read

	mu       sync.Mutex
	closed   bool // gossip is not heard any more
	own      Record
	selfName string // in memberlist
	places   map[string]*place
	refused  map[string]*refusal // by memberlist name; by ring id and address where that is in use twice
	met      []process           // that came, or were there, when a ring id came to be in use twice since rivals read it
}

// refusal is a Refusal and when it was in the log.
type refusal struct {
	Refusal
	logged time.Time
}

func newView(own Record, selfName string, grace time.Duration, stats *Stats, log *slog.Logger) *view {
	return &view{
		own: own, selfName: selfName, grace: grace, stats: stats, log: log,
		changed: make(chan struct{}, 1), contested: make(chan struct{}, 1),
		places:  make(map[string]*place),
		refused: make(map[string]*refusal),
	}
}

// close makes the view deaf: memberlist may still call for a while after its end.
func (v *view) close() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.closed = true
}

func (v *view) signal() {
	select {
	case v.changed <- struct{}{}:
	default:
	}
}

// up notes that a process lives, or what it tells of itself now.
func (v *view) up(p process) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed {
		return
	}
	pl := v.places[p.rec.ID]
	if pl == nil {
		if len(v.places) >= maxPlaces {
			return
		}
		pl = &place{}
		v.places[p.rec.ID] = pl
	}
	delete(v.refused, p.name)
	i := slices.IndexFunc(pl.live, func(q process) bool { return q.name == p.name })
	before, had := pl.last.name, len(pl.live) > 0
	switch {
	case i >= 0:
		p.since, p.asked, p.silent = pl.live[i].since, pl.live[i].asked, pl.live[i].silent
		pl.live[i] = p
	default:
		pl.live = append(pl.live, p)
		pl.live = pl.live[max(0, len(pl.live)-maxPerPlace):]
		if p.name != v.selfName {
			v.stats.Joins.Add(1)
			level := slog.LevelInfo
			if len(v.places) > talkMembers {
				level = slog.LevelDebug
			}
			logMember(v.log, level, "member joined", p.name, p.addr, "id", p.rec.ID, "zone", p.rec.Zone, "rack", p.rec.Rack)
		}
	}
	pl.choose(v.selfName)
	if had && i < 0 && pl.last.name != before {
		pl.fell(p.since) // the one before it was killed and not yet found dead
	}
	if len(pl.live) > 1 && i < 0 {
		v.contest(pl)
	}
	v.signal()
}

// fell notes that the process that held the place is gone.
func (pl *place) fell(now time.Time) {
	pl.downs = append(pl.downs, now)
	pl.downs = pl.downs[max(0, len(pl.downs)-flapDowns):]
}

// before reports whether p yields to q, of the same ring id.
func (p process) before(q process) bool {
	if p.rec.Start != q.rec.Start {
		return p.rec.Start < q.rec.Start
	}
	return p.name < q.name
}

// down notes that a process stopped or does not answer.
func (v *view) down(p process, now time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	pl := v.places[p.rec.ID]
	if v.closed || pl == nil {
		return
	}
	i := slices.IndexFunc(pl.live, func(q process) bool { return q.name == p.name })
	if i < 0 {
		return
	}
	pl.live = slices.Delete(pl.live, i, i+1)
	if p.name == pl.last.name {
		pl.last.rec = p.rec
	}
	pl.choose(v.selfName)
	v.stats.Leaves.Add(1)
	what := "member stopped answering"
	if p.rec.Restarting || p.rec.Leaving {
		what = "member stopped"
	}
	logMember(v.log, slog.LevelInfo, what, p.name, p.addr, "id", p.rec.ID, "leaves for good", p.rec.Leaving)
	if len(pl.live) == 0 {
		pl.downSince = now
		pl.fell(now)
	}
	v.signal()
}

// refuse notes that a process may not be a member, and why.
func (v *view) refuse(name string, addr netip.AddrPort, reason string, now time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed {
		return
	}
	v.stats.Refusals.Add(1)
	r := v.refused[name]
	if r == nil {
		v.forgetRefusals(now)
		if len(v.refused) >= maxRefusals {
			return
		}
		r = &refusal{}
		v.refused[name] = r
	}
	again := now.Sub(r.logged) < refusalAge && r.Reason == reason
	r.Refusal = Refusal{Name: displayName(name), Addr: addr, Reason: reason, Last: now}
	if !again {
		r.logged = now
		logMember(v.log, slog.LevelError, "member refused", name, addr, "reason", reason)
	}
}

func (v *view) forgetRefusals(now time.Time) {
	for name, r := range v.refused {
		if now.Sub(r.Last) > refusalAge {
			delete(v.refused, name)
		}
	}
}

// refusals returns the processes refused lately.
func (v *view) refusals(now time.Time) []Refusal {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.forgetRefusals(now)
	var list []Refusal
	for _, r := range v.refused {
		list = append(list, r.Refusal)
	}
	slices.SortFunc(list, func(a, b Refusal) int {
		if c := strings.Compare(a.Name, b.Name); c != 0 {
			return c
		}
		return a.Addr.Compare(b.Addr)
	})
	return list
}

// snapshot returns the members as of now, sorted by ID, and when they will
// change by themselves; zero means not.
func (v *view) snapshot(now time.Time) ([]Member, time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	var next time.Time
	sooner := func(t time.Time) {
		if t.After(now) && (next.IsZero() || t.Before(next)) {
			next = t
		}
	}
	list := make([]Member, 0, len(v.places))
	for id, pl := range v.places {
		m := pl.last.member(v.selfName)
		if len(pl.live) == 0 {
			end := pl.downSince.Add(v.grace)
			if !now.Before(end) {
				delete(v.places, id)
				continue
			}
			sooner(end)
			if pl.last.rec.Leaving {
				continue // its place is kept as known to be empty, until nobody can speak of it any more
			}
			m.State = Down
			if pl.last.rec.Restarting {
				m.State = Restarting
			}
			list = append(list, m)
			continue
		}
		if pl.last.rec.Restarting {
			m.State = Restarting
		}
		if steady := pl.steadyAt(); now.Before(steady) && !m.Self {
			m.State = Restarting
			sooner(steady)
		}
		list = append(list, m)
	}
	slices.SortFunc(list, func(a, b Member) int { return strings.Compare(a.ID, b.ID) })
	return list, next
}

// steadyAt returns until when a place that lives is not to be relied on.
func (pl *place) steadyAt() time.Time {
	up := pl.last.since
	if len(pl.downs) < flapDowns || up.Sub(pl.downs[0]) > flapWindow {
		return time.Time{}
	}
	return up.Add(flapSettle)
}

// member returns p as others see it, in state Alive.
func (p process) member(selfName string) Member {
	return Member{
		ID: p.rec.ID, Name: displayName(p.name),
		Addr: p.addr, PeerAddr: netip.AddrPortFrom(p.addr.Addr(), p.rec.PeerPort),
		Zone: p.rec.Zone, Rack: p.rec.Rack, Weight: int(p.rec.Weight), CapacityBytes: p.rec.CapacityBytes,
		NoOwner: p.rec.NoOwner, Draining: p.rec.Leaving, Self: p.name == selfName,
	}
}
