package ring

import (
	"math"
	"slices"

	"github.com/cespare/xxhash/v2"
)

const (
	partitionBits = 16

	// depth is how many members are ranked for a partition: the owner, its
	// successors, and one more because a full member at the top is no owner.
	depth = Successors + 2
)

// placement is the part of a table that costs time to build. It never changes, and
// tables whose owning members are the same share one.
type placement struct {
	ids    []string
	weight []int64
	point  []uint64  // for each member, the hash of its name
	light  []float64 // for each member, 1/weight

	width  int      // members ranked for each partition: min(depth, len(ids))
	ranked []uint16 // width indexes for each partition, best first
	owner  []uint16 // for each partition; empty when nobody owns
	load   []int    // partitions that each member owns
}

// row returns the members ranked for a partition, best first.
func (p *placement) row(part int) []uint16 { return p.ranked[part*p.width : (part+1)*p.width] }

// place returns the placement of members, which are sorted by ID. It takes from old what holds still.
func place(old *placement, members []Member) *placement {
	p := &placement{
		ids:    make([]string, len(members)),
		weight: make([]int64, len(members)),
		point:  make([]uint64, len(members)),
		light:  make([]float64, len(members)),
		width:  min(depth, len(members)),
	}
	for i, m := range members {
		p.ids[i], p.weight[i] = m.ID, m.Weight
	}
	if old != nil && slices.Equal(old.ids, p.ids) && slices.Equal(old.weight, p.weight) {
		return old
	}
	if len(members) == 0 {
		return p
	}
	for i, m := range members {
		p.point[i], p.light[i] = mix(xxhash.Sum64String(m.ID)), 1/float64(m.Weight)
	}
	p.ranked = make([]uint16, Partitions*p.width)
	if c := compare(old, p); c.cheap() {
		p.rankFrom(old, c)
	} else {
		p.rankAll()
	}
	p.assign()
	return p
}

// mix is a bijection of 64 bits in which every input bit moves every output bit
// (the finalizer of MurmurHash3, in the constants of David Stafford's variant 13).
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}

// salt is what distinguishes a partition in the scores of its members.
func salt(part int) uint64 { return mix(uint64(part)*0x9e3779b97f4a7c15 + 1) }

// cost ranks member m for the partition of that salt, the least first: the time at which the first
// of as many independent clocks as its weight strikes. Who is first is so in proportion to
// weight, only the ratios of weights count, and a member whose weight changes gives or takes what
// it owns and moves nothing between others. All nodes have to agree in the last bit, so this is
// a multiplication and comparisons, which are the same on all processors.
func (p *placement) cost(m int, salt uint64) float64 {
	return float64(int64(wait(^mix(p.point[m]^salt)))) * p.light[m]
}

// ranking is the best members of one partition while they are being found.
type ranking struct {
	n      int
	member [depth]uint16
	cost   [depth]float64
}

// add puts a member in, if it is among the best width. Of equal costs the
// lower index, and so the lower ID, is better.
func (r *ranking) add(member uint16, cost float64, width int) {
	if r.n == width {
		last := width - 1
		if cost > r.cost[last] || cost == r.cost[last] && member > r.member[last] {
			return
		}
		r.n--
	}
	i := r.n
	for i > 0 && (r.cost[i-1] > cost || r.cost[i-1] == cost && r.member[i-1] > member) {
		r.cost[i], r.member[i] = r.cost[i-1], r.member[i-1]
		i--
	}
	r.cost[i], r.member[i] = cost, member
	r.n++
}

// rankAll ranks every partition from scratch.
func (p *placement) rankAll() {
	for part := range Partitions {
		p.rank(part)
	}
}

func (p *placement) rank(part int) {
	var r ranking
	s := salt(part)
	for m := range p.point {
		r.add(uint16(m), p.cost(m, s), p.width)
	}
	copy(p.row(part), r.member[:r.n])
}

// change says how one placement's members differ from another's.
type change struct {
	moved   []int    // old index → new index, -1 for one that is gone or has another weight
	added   []uint16 // new indexes
	removed int
	total   int
	narrow  bool // the old rows are too short to go on from
}

// compare returns what makes p from old, which may be nil.
func compare(old, p *placement) change {
	c := change{total: len(p.ids)}
	if old == nil || old.width < p.width {
		c.narrow = true
		return c
	}
	c.moved = make([]int, len(old.ids))
	j := 0
	for i, id := range old.ids {
		for ; j < len(p.ids) && p.ids[j] < id; j++ {
			c.added = append(c.added, uint16(j))
		}
		c.moved[i] = -1
		if j == len(p.ids) || p.ids[j] != id {
			c.removed++
			continue
		}
		if p.weight[j] == old.weight[i] {
			c.moved[i] = j
		} else {
			c.removed++
			c.added = append(c.added, uint16(j))
		}
		j++
	}
	for ; j < len(p.ids); j++ {
		c.added = append(c.added, uint16(j))
	}
	return c
}

// cheap reports whether going on from the old rows costs clearly less than ranking
// anew: a removed member means ranking again the rows that it stood in, which
// is what depth members cost on all of them.
func (c change) cheap() bool {
	return !c.narrow && 2*(depth*(c.removed+1)+len(c.added)) < c.total
}

// rankFrom fills p.ranked from the rows of old. The result is that of rankAll.
func (p *placement) rankFrom(old *placement, c change) {
rows:
	for part := range Partitions {
		s := salt(part)
		var r ranking
		for _, m := range old.row(part) {
			to := c.moved[m]
			if to < 0 {
				p.rank(part)
				continue rows
			}
			r.add(uint16(to), p.cost(to, s), p.width)
		}
		for _, m := range c.added {
			r.add(m, p.cost(int(m), s), p.width)
		}
		copy(p.row(part), r.member[:r.n])
	}
}

// assign gives each partition, in order, to its best member that is not full.
func (p *placement) assign() {
	total := int64(0)
	for _, w := range p.weight {
		total += w
	}
	room := make([]int, len(p.ids))
	for i, w := range p.weight {
		room[i] = int(math.Ceil(LoadBound * Partitions * float64(w) / float64(total)))
	}
	p.owner = make([]uint16, Partitions)
	p.load = make([]int, len(p.ids))
	for part := range Partitions {
		m := p.pick(part, room)
		p.owner[part] = m
		room[m]--
		p.load[m]++
	}
}

// pick returns the best member with room. There is one, since rooms sum up to
// more than there are partitions.
func (p *placement) pick(part int, room []int) uint16 {
	for _, m := range p.row(part) {
		if room[m] > 0 {
			return m
		}
	}
	var best uint16
	var least float64
	found := false
	s := salt(part)
	for m := range p.point {
		if room[m] <= 0 {
			continue
		}
		if c := p.cost(m, s); !found || c < least {
			best, least, found = uint16(m), c, true
		}
	}
	return best
}

// same reports whether two placements place every key alike.
func (p *placement) same(q *placement) bool {
	return p == q || slices.Equal(p.ids, q.ids) && slices.Equal(p.weight, q.weight)
}
