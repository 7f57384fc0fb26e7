package prefetch

import "encoding/binary"

// AppendBinary appends the plan and how far its reader is to b. Names are written as what differs from
// the one before: some eight bytes each, where they are numbered.
func (p *Plan) AppendBinary(b []byte) []byte {
	b = binary.AppendUvarint(b, uint64(len(p.names)))
	before := ""
	for _, n := range p.names {
		shared := 0
		for shared < min(len(before), len(n)) && before[shared] == n[shared] {
			shared++
		}
		b = binary.AppendUvarint(b, uint64(shared))
		b = binary.AppendUvarint(b, uint64(len(n)-shared))
		b = append(b, n[shared:]...)
		before = n
	}
	last := len(p.opened)
	for last > p.at && !p.opened[last-1] {
		last--
	}
	b = binary.AppendUvarint(b, uint64(p.at))
	b = binary.AppendUvarint(b, uint64(last-p.at))
	for i := p.at; i < last; i += 8 {
		bits := byte(0)
		for j := i; j < min(i+8, last); j++ {
			if p.opened[j] {
				bits |= 1 << (j - i)
			}
		}
		b = append(b, bits)
	}
	return b
}

// ParsePlan reads a plan that AppendBinary wrote from the start of b, and returns what follows it;
// false when there is none, or one beyond the limits.
func ParsePlan(b []byte) (p *Plan, rest []byte, ok bool) {
	r := reader{b: b, ok: true}
	p = new(Plan)
	before := ""
	for range r.number(MaxPlanNames) {
		shared := r.number(len(before))
		before = before[:shared] + string(r.bytes(r.number(MaxPlanBytes)))
		if !r.ok || !p.Add(before) {
			return nil, nil, false
		}
	}
	p.at = r.number(len(p.names))
	last := p.at + r.number(len(p.names)-p.at)
	for i, bits := range r.bytes((last - p.at + 7) / 8) {
		for j := range 8 {
			if at := p.at + 8*i + j; at < last {
				p.opened[at] = bits&(1<<j) != 0
			}
		}
	}
	for i := range p.at {
		p.opened[i] = true
	}
	p.advance()
	return p, r.b, r.ok
}

// reader takes numbers and bytes from b as long as there are some.
type reader struct {
	b  []byte
	ok bool
}

// number returns the next number, or 0 when there is none up to most.
func (r *reader) number(most int) int {
	n, size := binary.Uvarint(r.b)
	if size <= 0 || n > uint64(most) {
		r.b, r.ok = nil, false
		return 0
	}
	r.b = r.b[size:]
	return int(n)
}

// bytes returns the next n bytes, or none when there are fewer.
func (r *reader) bytes(n int) []byte {
	if n > len(r.b) {
		r.b, r.ok = nil, false
		return nil
	}
	taken := r.b[:n]
	r.b = r.b[n:]
	return taken
}
