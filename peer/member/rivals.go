package member

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"time"
)

// ErrDuplicate says that another process is a member under this one's ring id.
var ErrDuplicate = errors.New("ring id in use twice")

// How processes with one ring id are told apart.
const (
	rivalPings    = 3                // of each, before it is taken for dead; a ping waits half a second
	rivalInterval = 15 * time.Second // between looks at ids that are in use twice
	maxRivalPings = 16               // under way at one time
	maxRivals     = 64               // remembered from one look to the next, the last place's apart
)

// rivalLoop finds out which of several processes with one ring id answer, whenever there are such, until ctx ends.
func (g *Group) rivalLoop(ctx context.Context) {
	tick := time.NewTicker(rivalInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-g.view.contested:
		case <-tick.C:
		}
		g.askRivals(ctx, g.view.rivals(""))
	}
}

// askRival asks the others that have this member's ring id, before it takes part. It returns [ErrDuplicate] when
// one that began before it answers.
func (g *Group) askRival(ctx context.Context) error {
	own := g.view.rivals(g.cfg.ID)
	if len(own) == 0 {
		return nil
	}
	g.askRivals(ctx, own)
	holder, ok := g.view.displacedBy(g.cfg.ID)
	if !ok {
		return nil
	}
	return fmt.Errorf("%w: %s", ErrDuplicate, duplicateReason(g.cfg.ID, holder))
}

// askRivals pings processes and tells the view which answer.
func (g *Group) askRivals(ctx context.Context, all []process) {
	var wait sync.WaitGroup
	slots := make(chan struct{}, maxRivalPings)
	for _, p := range all {
		if p.name == g.view.selfName {
			continue
		}
		slots <- struct{}{}
		wait.Go(func() {
			defer func() { <-slots }()
			answers := g.answers(ctx, p)
			if ctx.Err() == nil {
				g.view.heard(p, answers)
			}
		})
	}
	wait.Wait()
	if ctx.Err() == nil {
		g.view.judgeRivals(all, time.Now())
	}
}

// answers reports whether the very process p lives: another at its address does not answer for it. One
// that had this member's own address is gone, or this one could not listen there.
func (g *Group) answers(ctx context.Context, p process) bool {
	if p.addr == g.self {
		return false
	}
	for range rivalPings {
		if ctx.Err() != nil {
			return false
		}
		if _, err := g.list.Ping(p.name, net.UDPAddrFromAddrPort(p.addr)); err == nil {
			return true
		}
	}
	return false
}

// rivals returns the processes of ring ids that several live under, or did since the last call: a
// copy may be gone at once. With an id other than "" it returns those of that one only.
func (v *view) rivals(id string) []process {
	v.mu.Lock()
	defer v.mu.Unlock()
	var list []process
	if id == "" {
		list, v.met = v.met, nil
	}
	for each, pl := range v.places {
		if len(pl.live) > 1 && (id == "" || id == each) {
			list = append(list, pl.live...)
		}
	}
	slices.SortFunc(list, func(a, b process) int { return strings.Compare(a.name, b.name) })
	return slices.CompactFunc(list, func(a, b process) bool { return a.name == b.name })
}

// contest notes that a process came under a ring id that others live under. Caller holds mu.
func (v *view) contest(pl *place) {
	if len(v.met) < maxRivals {
		v.met = append(v.met, pl.live...)
	}
	select {
	case v.contested <- struct{}{}:
	default:
	}
}

// heard notes whether a process answers.
func (v *view) heard(p process, answers bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	pl := v.places[p.rec.ID]
	if v.closed || pl == nil {
		return
	}
	for i := range pl.live {
		if pl.live[i].name == p.name {
			pl.live[i].asked, pl.live[i].silent = true, !answers
		}
	}
}

// judgeRivals decides who holds the places of processes that were asked, and refuses those that came later than a holder that answers.
func (v *view) judgeRivals(all []process, now time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed {
		return
	}
	for _, asked := range all {
		pl := v.places[asked.rec.ID]
		if pl == nil || len(pl.live) == 0 {
			continue
		}
		before := pl.last.name
		if pl.choose(v.selfName); pl.last.name != before {
			v.signal()
		}
		holder := pl.last
		if holder.silent || holder.stops() || !holder.asked && holder.name != v.selfName {
			continue // nobody is displaced by one that may not live
		}
		if asked.name == holder.name || !holder.before(asked) {
			continue // the former self of a holder that was killed
		}
		v.refuseDuplicate(asked, holder, now)
	}
}

// displacedBy returns who holds the place of this process' ring id, if that is another one.
func (v *view) displacedBy(id string) (process, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	pl := v.places[id]
	if pl == nil || len(pl.live) < 2 || pl.last.name == v.selfName || !pl.last.asked || pl.last.silent || pl.last.stops() {
		return process{}, false
	}
	return pl.last, true
}

// stops reports whether the process has said farewell.
func (p process) stops() bool { return p.rec.Restarting || p.rec.Leaving }

// choose makes one of the living processes the one that holds the place: the first to have begun that
// is not known to be gone, else the last of all.
func (pl *place) choose(selfName string) {
	var holder, newest *process
	for i := range pl.live {
		p := &pl.live[i]
		if newest == nil || newest.before(*p) {
			newest = p
		}
		if (p.name == selfName || !pl.gone(*p)) && (holder == nil || p.before(*holder)) {
			holder = p
		}
	}
	if holder == nil {
		holder = newest
	}
	if holder != nil {
		pl.last = *holder
	}
}

// gone reports whether a process has ended for all that is known: it does not answer, said so, or a later one
// has its address.
func (pl *place) gone(p process) bool {
	return p.silent || p.stops() || slices.ContainsFunc(pl.live, func(q process) bool {
		return q.addr == p.addr && p.before(q)
	})
}

func duplicateReason(id string, holder process) string {
	return "ring id " + id + " is that of " + displayName(holder.name) + " at " + holder.addr.String() +
		", which answers: was a cache directory copied? Remove the file node-id from the copy"
}

// refuseDuplicate notes a process whose ring id another one holds, and logs it when that is news. Caller holds mu.
func (v *view) refuseDuplicate(p, holder process, now time.Time) {
	key := p.rec.ID + "@" + p.addr.String() // not its name, which is another after each restart
	reason := duplicateReason(p.rec.ID, holder)
	r := v.refused[key]
	if r == nil {
		v.forgetRefusals(now)
		if len(v.refused) >= maxRefusals {
			return
		}
		r = &refusal{}
		v.refused[key] = r
	}
	again := r.Reason == reason
	r.Refusal = Refusal{Name: displayName(p.name), Addr: p.addr, Reason: reason, Last: now}
	if !again {
		r.logged = now
		v.stats.Duplicates.Add(1)
		v.stats.Refusals.Add(1)
		logMember(v.log, slog.LevelWarn, "ring id in use twice", p.name, p.addr, "reason", reason)
	}
}
