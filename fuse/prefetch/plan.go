package prefetch

import "slices"

// Limits of a [Plan].
const (
	MaxPlanNames = 1 << 17  // of one plan
	MaxPlanBytes = 16 << 20 // of the names of one plan
)

// Plan is an ordered list of files that somebody is going to read, and how far he has got.
// Several processes may read one plan and share its files out among them: then they
// open them roughly in its order. It is not safe for concurrent use. The zero value
// is an empty plan.
type Plan struct {
	names  []string
	bytes  int
	opened []bool
	places map[string][]int // of each name, in order
	at     int              // before it everything was opened
	late   map[int]bool     // places that were left over when another epoch began: one open is of the last
}

// Add appends names. False says that the plan is full, and that nothing was added.
func (p *Plan) Add(names ...string) bool {
	bytes := p.bytes
	for _, n := range names {
		bytes += len(n)
	}
	if len(p.names)+len(names) > MaxPlanNames || bytes > MaxPlanBytes {
		return false
	}
	if p.places == nil {
		p.places = make(map[string][]int)
	}
	for _, n := range names {
		p.places[n] = append(p.places[n], len(p.names))
		p.names = append(p.names, n)
	}
	p.opened = append(p.opened, make([]bool, len(names))...)
	p.bytes = bytes
	return true
}

// nameOverhead is what a name of a plan takes beside its bytes, about.
const nameOverhead = 128

// MemoryBytes returns about how much memory the plan takes.
func (p *Plan) MemoryBytes() int { return p.bytes + nameOverhead*len(p.names) }

// Len returns how many names there are, and how many of them were opened.
func (p *Plan) Len() (names, opened int) {
	opened = p.at
	for _, o := range p.opened[p.at:] {
		if o {
			opened++
		}
	}
	return len(p.names), opened
}

// Opened takes note of a file that was opened, and reports whether it is in the plan. A file that
// comes several times counts once for each time. When all were opened, or nearly all, and one of the first is
// opened again, another epoch begins.
func (p *Plan) Opened(name string) bool {
	places := p.places[name]
	if len(places) == 0 {
		return false
	}
	i := slices.IndexFunc(places, func(i int) bool { return !p.opened[i] })
	if i < 0 && p.over(places[0]) {
		p.restart()
		i = 0
	}
	if i >= 0 {
		if at := places[i]; p.late[at] {
			delete(p.late, at)
		} else {
			p.opened[at] = true
		}
	}
	p.advance()
	return true
}

// over reports whether an open of a file that was opened before, at a place, begins another epoch: what was
// not opened are the last files of some workers, or files that are left out.
func (p *Plan) over(place int) bool {
	n := len(p.names)
	if p.at == n {
		return true
	}
	missing, last := 0, 0
	for i, opened := range p.opened {
		if opened {
			last = i
		} else {
			missing++
		}
	}
	return missing <= max(1, n/leftPart) && last-place >= n/2
}

// leftPart is the part of a plan, one in so many, that may be left when another epoch begins.
const leftPart = 8

// restart begins another epoch.
func (p *Plan) restart() {
	p.late = make(map[int]bool)
	for i := p.at; i < len(p.opened); i++ {
		if !p.opened[i] {
			p.late[i] = true
		}
	}
	clear(p.opened)
	p.at = 0
}

// advance moves at on to the first that was not opened.
func (p *Plan) advance() {
	for p.at < len(p.names) && p.opened[p.at] {
		p.at++
	}
}

// Next returns the first count names that were not opened, in the order of the plan,
// each once. Those that a reader left out are not waited for beyond twice the count.
func (p *Plan) Next(count int) (next []string) {
	last := len(p.opened) - 1
	for last >= p.at && !p.opened[last] {
		last--
	}
	// What lies far behind the last that was opened was left out.
	from := max(p.at, last+1-2*count)
	for i := from; i < len(p.names) && len(next) < count; i++ {
		if !p.opened[i] && !slices.Contains(next, p.names[i]) {
			next = append(next, p.names[i])
		}
	}
	return next
}

// maxStride is how far apart the numbers of files may be that one process reads one
// after the other: ranks times workers.
const maxStride = 1 << 16

// Sequence watches the names of the files that one process opens, one after the other. It is
// not safe for concurrent use. The zero value is ready.
type Sequence struct {
	last   string
	group  int // which run of digits differed last
	stride int64
	times  int // that it was the same in a row
}

// Opened takes note of a file that was opened and returns the names of the next count, when the
// numbers in the last three names differ by the same: as in shards that are shared out
// among ranks and workers.
func (s *Sequence) Opened(name string, count int) (next []string) {
	if name == s.last {
		return s.next(count)
	}
	group, stride, ok := difference(s.last, name)
	switch {
	case !ok || stride == 0 || stride > maxStride || stride < -maxStride:
		s.times = 0
	case group == s.group && stride == s.stride && s.times > 0:
		s.times++
	default:
		s.group, s.stride, s.times = group, stride, 1
	}
	s.last = name
	return s.next(count)
}

func (s *Sequence) next(count int) (next []string) {
	if s.times < 2 {
		return nil
	}
	for i := range count {
		name, ok := advance(s.last, s.group, s.stride*int64(i+1))
		if !ok {
			break
		}
		next = append(next, name)
	}
	return next
}

// maxDigits of a number are looked at: it fits an int64.
const maxDigits = 18

// digits returns where the next run of digits from at on begins and ends.
func digits(name string, at int) (begin, end int, ok bool) {
	for begin = at; begin < len(name) && !isDigit(name[begin]); begin++ {
	}
	for end = begin; end < len(name) && isDigit(name[end]); end++ {
	}
	return begin, end, end > begin
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

// difference tells which run of digits two names differ in, and by how much; false when they
// differ in something else as well, or in length other than of a number without zeros before it.
func difference(a, b string) (group int, by int64, ok bool) {
	group = -1
	for i, ai, bi := 0, 0, 0; ; i++ {
		aBegin, aEnd, aOK := digits(a, ai)
		bBegin, bEnd, bOK := digits(b, bi)
		if a[ai:aBegin] != b[bi:bBegin] {
			return 0, 0, false
		}
		if !aOK || !bOK {
			return group, by, aOK == bOK && group >= 0
		}
		if x, y := a[aBegin:aEnd], b[bBegin:bEnd]; x != y {
			padded := x[0] == '0' || y[0] == '0'
			if group >= 0 || len(x) > maxDigits || len(y) > maxDigits || padded && len(x) != len(y) {
				return 0, 0, false
			}
			group, by = i, number(y)-number(x)
		}
		ai, bi = aEnd, bEnd
	}
}

func number(s string) (n int64) {
	for _, c := range []byte(s) {
		n = 10*n + int64(c-'0')
	}
	return n
}

// advance adds to a run of digits in a name, which keeps its width.
func advance(name string, group int, by int64) (string, bool) {
	begin, end := 0, 0
	for i := 0; i <= group; i++ {
		var ok bool
		if begin, end, ok = digits(name, end); !ok {
			return "", false
		}
	}
	n := number(name[begin:end]) + by
	if n < 0 {
		return "", false
	}
	var buf [maxDigits + 2]byte
	at := len(buf)
	for width := end - begin; n > 0 || len(buf)-at < width || at == len(buf); n /= 10 {
		if at == 0 {
			return "", false
		}
		at--
		buf[at] = byte('0' + n%10)
	}
	if name[begin] == '0' && len(buf)-at > end-begin {
		return "", false // would not be a name of this kind
	}
	if name[begin] != '0' && n == 0 { // no zeros before a number that has none
		for at < len(buf)-1 && buf[at] == '0' {
			at++
		}
	}
	return name[:begin] + string(buf[at:]) + name[end:], true
}
