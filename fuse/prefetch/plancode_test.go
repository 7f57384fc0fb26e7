package prefetch

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// A plan that was written is the same when it is read, wherever its readers are.
func TestPlansComeBack(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 5))
	var all []string
	for i := range 1000 {
		all = append(all, fmt.Sprintf("train/part-%d/s-%06d.tar", i%7, i))
	}
	for _, opened := range []int{0, 1, 7, 8, 9, 500, 999, 1000} {
		var p Plan
		p.Add(all...)
		for _, i := range r.Perm(opened) { // some are left out
			if i%5 != 4 || opened == len(all) {
				p.Opened(all[i])
			}
		}
		b := p.AppendBinary([]byte("before"))
		if n := len(b); n > 20*len(all) {
			t.Errorf("%d names take %d bytes", len(all), n)
		}
		q, rest, ok := ParsePlan(append(b, "behind"...)[len("before"):])
		if !ok || string(rest) != "behind" {
			t.Fatalf("after %d: %v, rest %q", opened, ok, rest)
		}
		same(t, &p, q)
		for _, name := range []string{all[0], all[999], all[500], "none"} { // and goes on alike
			p.Opened(name)
			q.Opened(name)
			same(t, &p, q)
		}
	}
}

func same(t *testing.T, p, q *Plan) {
	t.Helper()
	n, opened := p.Len()
	m, again := q.Len()
	if n != m || opened != again || !slices.Equal(p.Next(50), q.Next(50)) || p.MemoryBytes() != q.MemoryBytes() {
		t.Fatalf("%d of %d opened, next %q; was %d of %d, %q", again, m, q.Next(3), opened, n, p.Next(3))
	}
}

func FuzzParsePlanCode(f *testing.F) {
	var p Plan
	p.Add("a-1", "a-2", "", "b", "a-1")
	p.Opened("a-2")
	p.Opened("b")
	f.Add(p.AppendBinary(nil))
	f.Add([]byte{2, 0, 1, 'a', 1, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		p, _, ok := ParsePlan(b)
		if !ok {
			return
		}
		written := p.AppendBinary(nil)
		q, rest, ok := ParsePlan(written)
		if !ok || len(rest) > 0 || !bytes.Equal(q.AppendBinary(nil), written) {
			t.Fatalf("%x comes back as %x", written, q.AppendBinary(nil))
		}
		for _, name := range p.Next(3) {
			if !p.Opened(name) {
				t.Fatalf("%q is next and not in the plan", name)
			}
		}
	})
}
