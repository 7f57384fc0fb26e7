package ring

import (
	"slices"
	"sync"
	"sync/atomic"
)

// DefaultHistoryTables is how many placements a [History] remembers: enough for
// a rolling scale-up of a few nodes between two epochs.
const DefaultHistoryTables = 8

// History is the table in use and the placements before it. A new owner asks
// the earlier ones before it goes to the origin. Its methods are safe for
// concurrent use; lookups neither block nor allocate.
type History struct {
	limit int
	mu    sync.Mutex // serializes Push
	now   atomic.Pointer[epoch]
}

// epoch is what lookups see at one time. It never changes.
type epoch struct {
	table   *Table
	earlier []earlier // newest first
}

// earlier is a placement that was, in the words of the table that is.
type earlier struct {
	place *placement
	now   []*Member // index in place → the member in the present table, nil when it has gone
}

// NewHistory returns a history that holds an empty table and remembers up to
// tables placements; 0 means [DefaultHistoryTables].
func NewHistory(tables int) *History {
	if tables <= 0 {
		tables = DefaultHistoryTables
	}
	h := &History{limit: tables}
	empty, _ := Build(nil, nil) // no members, no error
	h.now.Store(&epoch{table: empty})
	return h
}

// Current returns the table in use.
func (h *History) Current() *Table { return h.now.Load().table }

// Push makes t the table in use. Tables that place everything as the one before, as
// when a member only restarts, take no place in the history. Unseen are tables that were
// in use elsewhere before t and never here, newest first: they are remembered as if they had
// been here since the last one.
func (h *History) Push(t *Table, unseen ...*Table) {
	h.mu.Lock()
	defer h.mu.Unlock()
	old := h.now.Load()
	places := make([]*placement, 0, len(unseen)+1+len(old.earlier))
	add := func(p *placement) {
		if len(p.ids) > 0 && !p.same(t.place) && !slices.ContainsFunc(places, p.same) {
			places = append(places, p)
		}
	}
	for _, u := range unseen {
		add(u.place)
	}
	add(old.table.place)
	for _, e := range old.earlier {
		add(e.place)
	}
	next := &epoch{table: t}
	for _, p := range places[:min(len(places), h.limit)] {
		e := earlier{place: p, now: make([]*Member, len(p.ids))}
		for i, id := range p.ids {
			e.now[i] = t.byID[id]
		}
		next.earlier = append(next.earlier, e)
	}
	h.now.Store(next)
}

// EarlierOwners appends to buf, which may be nil, the members that owned k by
// earlier tables, the most recent first, each once, without the present owner
// and without those that are no members any more.
func (h *History) EarlierOwners(k Key, buf []*Member) []*Member {
	e := h.now.Load()
	present := e.table.Owner(k)
	part := k.Partition()
	start := len(buf)
next:
	for i := range e.earlier {
		old := &e.earlier[i]
		m := old.now[old.place.owner[part]]
		if m == nil || m == present {
			continue
		}
		for _, seen := range buf[start:] {
			if seen == m {
				continue next
			}
		}
		buf = append(buf, m)
	}
	return buf
}
