package broadcast

import (
	"slices"
	"sort"
)

// runSpots is how many members a run of a [line] has at most.
const runSpots = 64

// spot is a member at its place in the circle of all members.
type spot struct {
	place uint64
	h     *holder
}

// less orders spots, so that of two at one place the lower id comes first on the way back.
func (a spot) less(b spot) bool {
	return a.place < b.place || a.place == b.place && a.h.id > b.h.id
}

// line is a set of members in the order of their places: short runs one after the other, so that a
// change moves few of them.
type line struct {
	runs [][]spot // none is empty
}

// run returns which run a spot is in, or is to be in. There is one.
func (l *line) run(x spot) int {
	i := sort.Search(len(l.runs), func(i int) bool { return x.less(l.runs[i][0]) })
	return max(0, i-1)
}

// slot returns where in a run a spot is, or is to be.
func slot(run []spot, x spot) int {
	return sort.Search(len(run), func(i int) bool { return !run[i].less(x) })
}

func (l *line) add(h *holder) {
	x := spot{h.place, h}
	if len(l.runs) == 0 {
		l.runs = append(l.runs, []spot{x})
		return
	}
	i := l.run(x)
	r := l.runs[i]
	r = slices.Insert(r, slot(r, x), x)
	if len(r) > runSpots {
		half := len(r) / 2
		l.runs = slices.Insert(l.runs, i+1, slices.Clone(r[half:]))
		clear(r[half:])
		r = r[:half]
	}
	l.runs[i] = r
}

func (l *line) remove(h *holder) {
	x := spot{h.place, h}
	i := l.run(x)
	j := slot(l.runs[i], x)
	l.runs[i] = slices.Delete(l.runs[i], j, j+1)
	if len(l.runs[i]) == 0 {
		l.runs = slices.Delete(l.runs, i, i+1)
	}
}

// before calls visit for each member, the nearest before a place in the circle first, until it returns false.
func (l *line) before(at uint64, visit func(*holder) bool) {
	n := len(l.runs)
	if n == 0 {
		return
	}
	first := max(0, sort.Search(n, func(i int) bool { return l.runs[i][0].place > at })-1)
	behind := sort.Search(len(l.runs[first]), func(i int) bool { return l.runs[first][i].place > at })
	for k := range n + 1 { // the first run's beginning, all others, the first run's end
		r := l.runs[(first-k+n)%n]
		switch k {
		case 0:
			r = r[:behind]
		case n:
			r = r[behind:]
		}
		for i := len(r) - 1; i >= 0; i-- {
			if !visit(r[i].h) {
				return
			}
		}
	}
}

// group is who of a chunk's members is in one rack, in one zone, or anywhere: by whether it sends
// less often than it may, and then by what it costs to have it send once more.
type group struct {
	open, full []line
	// passed is how far behind this node in the circle all who fill the object, and are of this group,
	// were found to be members of the chunk.
	passed uint64
}

func (g *group) line(full bool, cost int) *line {
	lines := &g.open
	if full {
		lines = &g.full
	}
	for len(*lines) <= cost {
		*lines = append(*lines, line{})
	}
	return &(*lines)[cost]
}

// within returns the group of that name, which it makes.
func within(groups *map[string]*group, name string) *group {
	g := (*groups)[name]
	if g == nil {
		g = new(group)
		if *groups == nil {
			*groups = make(map[string]*group)
		}
		(*groups)[name] = g
	}
	return g
}

// sort puts a member where choose finds it, or there again after it changed. Who has nothing is nowhere.
func (p *Plan) sort(s *state, h *holder) {
	if h.gone || h.span.Count == 0 {
		s.unsort(h)
		return
	}
	full, cost := h.children+h.slowChildren >= p.cfg.MaxSends, h.children
	if !h.done && !h.settled {
		cost += h.depth / p.cfg.MaxChain
	}
	if h.sorted && h.full == full && h.cost == cost && h.sortedZone == h.zone && h.sortedRack == h.rack {
		return
	}
	s.unsort(h)
	h.sorted, h.full, h.cost, h.sortedZone, h.sortedRack = true, full, cost, h.zone, h.rack
	for _, g := range s.groupsOf(h) {
		if g != nil {
			g.line(full, cost).add(h)
		}
	}
}

// groupsOf returns the groups that a member is sorted into; nil stands for none.
func (s *state) groupsOf(h *holder) (groups [3]*group) {
	groups[0] = &s.all
	if h.sortedZone != "" {
		groups[1] = within(&s.zones, h.sortedZone)
	}
	if h.sortedRack != "" {
		groups[2] = within(&s.racks, h.sortedRack)
	}
	return groups
}

func (s *state) unsort(h *holder) {
	if !h.sorted {
		return
	}
	h.sorted = false
	for _, g := range s.groupsOf(h) {
		if g != nil {
			g.line(h.full, h.cost).remove(h)
		}
	}
}

// ages is the members of a chunk by when they began to receive, the oldest first.
type ages struct {
	oldest, newest *holder
	unsettled      *holder // the oldest that may still be receiving
}

// push makes a member the newest. It is in the list, or new.
func (a *ages) push(h *holder) {
	a.remove(h)
	h.settled = false
	h.older = a.newest
	if a.newest != nil {
		a.newest.newer = h
	} else {
		a.oldest = h
	}
	a.newest = h
	if a.unsettled == nil {
		a.unsettled = h
	}
}

// remove takes a member out, if it is in.
func (a *ages) remove(h *holder) {
	if a.oldest != h && h.older == nil {
		return
	}
	if a.unsettled == h {
		a.unsettled = h.newer
	}
	if h.older != nil {
		h.older.newer = h.newer
	} else {
		a.oldest = h.newer
	}
	if h.newer != nil {
		h.newer.older = h.older
	} else {
		a.newest = h.older
	}
	h.older, h.newer = nil, nil
}
