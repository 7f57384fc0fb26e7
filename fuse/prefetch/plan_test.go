package prefetch

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

func names(format string, numbers ...int) (all []string) {
	for _, n := range numbers {
		all = append(all, fmt.Sprintf(format, n))
	}
	return all
}

func TestSequences(t *testing.T) {
	for what, c := range map[string]struct {
		opened, want []string
	}{
		"one worker":             {names("train-%06d.tar", 0, 1, 2), names("train-%06d.tar", 3, 4, 5)},
		"eight ranks":            {names("train-%06d.tar", 3, 11, 19), names("train-%06d.tar", 27, 35, 43)},
		"two are too few":        {names("train-%06d.tar", 3, 11), nil},
		"shuffled":               {names("train-%06d.tar", 3, 11, 7, 90, 12), nil},
		"backwards":              {names("%d.tar", 30, 20, 10), names("%d.tar", 0)},
		"of many":                {names("x-%05d-of-01024", 1, 3, 5), names("x-%05d-of-01024", 7, 9, 11)},
		"in a directory":         {names("part-%d/a.tar", 8, 9, 10), names("part-%d/a.tar", 11, 12, 13)},
		"beyond its width":       {names("t-%02d", 97, 98, 99), names("t-%02d", 100, 101, 102)},
		"of zeros":               {names("t-%02d", 7, 8, 9), names("t-%02d", 10, 11, 12)},
		"again and again":        {[]string{"a-1", "a-1", "a-1"}, nil},
		"read twice each":        {[]string{"a-1", "a-1", "a-2", "a-2", "a-3", "a-3"}, names("a-%d", 4, 5, 6)},
		"after something else":   {append([]string{"index.json"}, names("a-%d", 1, 2, 3)...), names("a-%d", 4, 5, 6)},
		"something else between": {[]string{"a-1", "a-2", "b", "a-3"}, nil},
		"two numbers at once":    {[]string{"1/a-1", "2/a-2", "3/a-3"}, nil},
		"no number":              {[]string{"a", "b", "c"}, nil},
		"far apart":              {names("a-%d", 0, 1<<20, 2<<20), nil},
	} {
		t.Run(what, func(t *testing.T) {
			var s Sequence
			var got []string
			for _, name := range c.opened {
				got = s.Opened(name, 3)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

func FuzzSequence(f *testing.F) {
	f.Add("a-1", "a-2", "a-3")
	f.Add("00", "01", "02")
	f.Add("999999999999999999", "999999999999999998", "")
	f.Fuzz(func(t *testing.T, a, b, c string) {
		var s Sequence
		for _, name := range []string{a, b, c} {
			for _, next := range s.Opened(name, 4) {
				if len(next) > len(name)+2 || next == name {
					t.Fatalf("after %q, %q, %q: %q", a, b, c, next)
				}
			}
		}
	})
}

func TestPlan(t *testing.T) {
	var p Plan
	if got := p.Next(3); got != nil || p.Opened("x") {
		t.Errorf("an empty plan: %v", got)
	}
	all := names("s%d", 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19)
	p.Add(all[:10]...)
	p.Add(all[10:]...)
	want := func(names ...string) {
		t.Helper()
		if got := p.Next(3); !slices.Equal(got, names) {
			t.Errorf("next: got %v, want %v", got, names)
		}
	}
	want("s0", "s1", "s2")
	for _, name := range []string{"s1", "s0", "other", "s3"} { // two workers
		if p.Opened(name) == (name == "other") {
			t.Errorf("%q is in the plan, or is not", name)
		}
	}
	want("s2", "s4", "s5")
	p.Opened("s15") // what was left out far behind is not waited for
	want("s10", "s11", "s12")
	for _, name := range all {
		if !slices.Contains([]string{"s0", "s1", "s3", "s15"}, name) {
			p.Opened(name)
		}
	}
	want()
	p.Opened("s0") // the next epoch
	want("s1", "s2", "s3")
	if n, opened := p.Len(); n != 20 || opened != 1 {
		t.Errorf("%d names, %d opened", n, opened)
	}
}

func TestPlanIsBounded(t *testing.T) {
	var p Plan
	long := strings.Repeat("x", 1<<20)
	for i := range MaxPlanBytes / len(long) {
		if !p.Add(long) {
			t.Fatalf("full after %d", i)
		}
	}
	if p.Add("one more") {
		t.Error("takes more than its bytes")
	}
	p = Plan{}
	if !p.Add(make([]string, MaxPlanNames)...) || p.Add("x") {
		t.Error("takes more or less than its names")
	}
}

// Workers that take the files of a plan in turns, at speeds that differ, find each of them
// among the next ones before they open it.
func TestPlanOfManyWorkers(t *testing.T) {
	const workers, shards, ahead = 8, 400, 16
	r := rand.New(rand.NewPCG(1, 1))
	var p Plan
	var all []string
	for i := range shards {
		all = append(all, fmt.Sprint("s", i))
	}
	p.Add(all...)
	at, missed := make([]int, workers), 0
	for w := range at {
		at[w] = w
	}
	for slices.Min(at) < shards {
		w := r.IntN(workers)
		if at[w] >= shards || at[w] > slices.Min(at)+workers { // batches are taken from them in turns
			continue
		}
		if !slices.Contains(p.Next(ahead), all[at[w]]) {
			missed++
		}
		p.Opened(all[at[w]])
		at[w] += workers
	}
	if missed > 0 {
		t.Errorf("%d of %d were not known before they were opened", missed, shards)
	}
}

// A plan goes on in the next epoch though some of its files are never opened, or late.
func TestPlanOfSeveralEpochs(t *testing.T) {
	const shards = 100
	var p Plan
	all := names("s-%03d", func() (n []int) {
		for i := range shards {
			n = append(n, i)
		}
		return n
	}()...)
	p.Add(all...)
	for epoch := range 3 {
		for i, name := range all {
			if i == 40 || i == 99 { // which nobody reads
				continue
			}
			if i > 0 && !slices.Contains(p.Next(6), name) {
				t.Errorf("epoch %d: %s is not among the next %q", epoch, name, p.Next(6))
			}
			p.Opened(name)
			p.Opened(name) // for its index, say
		}
	}
	// A worker begins the next epoch while another still has its last shards to read.
	p = Plan{}
	p.Add(all...)
	for _, name := range all[:95] {
		p.Opened(name)
	}
	p.Opened(all[0])
	for _, name := range all[95:] {
		p.Opened(name)
	}
	if got, want := p.Next(3), all[1:4]; !slices.Equal(got, want) {
		t.Errorf("next are %q, want %q", got, want)
	}
	p.Opened(all[97]) // this time
	if _, opened := p.Len(); opened != 2 {
		t.Errorf("%d opened", opened)
	}
	// Who looks at the first files again in the middle begins nothing.
	p = Plan{}
	p.Add(all...)
	for _, name := range all[:60] {
		p.Opened(name)
	}
	p.Opened(all[0])
	if _, opened := p.Len(); opened != 60 {
		t.Errorf("%d opened", opened)
	}
}
