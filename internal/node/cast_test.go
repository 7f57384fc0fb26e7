package node

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/shardwell/shardwell/internal/chunk"
)

// castResult is what a broadcast was.
type castResult struct {
	fast, slow  float64 // efficiency: what one link needs over what the last of the nodes needed, by its link
	copies      float64 // bytes of the origin over those of the object
	maxOverMean float64 // sent, of the nodes

}

// run has all nodes read an object at once, of which some have links of a part of the rate.
func (m *castModel) run(o chunk.Object, slow map[int]float64) (r castResult) {
	m.t.Helper()
	for i, part := range slow {
		m.nodes[i].host.setRate(castRate * part)
	}
	_, before := m.origin.bytes()
	stop := m.trace()
	took := m.cast(o, m.nodes...)
	stop()
	r.fast, r.slow = 10, 10
	var sum, most float64
	for i, d := range took {
		part, isSlow := slow[i]
		if !isSlow {
			part = 1
		}
		efficiency := float64(o.Size) / (castRate * part) / d.Seconds()
		if isSlow {
			r.slow = min(r.slow, efficiency)
		} else {
			r.fast = min(r.fast, efficiency)
		}
		_, sent := m.nodes[i].host.bytes()
		sum, most = sum+float64(sent), max(most, float64(sent))
	}
	_, after := m.origin.bytes()
	r.copies = float64(after-before) / float64(o.Size)
	r.maxOverMean = most * float64(len(took)) / sum
	m.t.Logf("fast nodes %.3f, slow ones %.3f of their bounds, origin copies %.3f, max/mean sent %.2f", r.fast, r.slow, r.copies, r.maxOverMean)
	return r
}

// want fails for a broadcast that was worse. What goroutines run first is not the test's, so that
// bounds are wider than what runs are mostly.
func (r castResult) want(t *testing.T, fast, slow, copies float64) {
	t.Helper()
	if r.fast < fast || r.slow < slow || r.copies > copies {
		t.Errorf("want at least %.2f and %.2f, and at most %.2f copies", fast, slow, copies)
	}
}

// Eight nodes bring an object to themselves in about the time in which one would. Mostly 0.96.
func TestCast(t *testing.T) {
	inCast(t, 8, func(m *castModel) {
		r := m.run(m.put("ckpt", 32), nil)
		r.want(t, 0.88, 0, 1.015)
		if r.maxOverMean > 1.5 {
			t.Errorf("a node sent %.2f times what they sent on average", r.maxOverMean)
		}
	})
}

// SEMANTICS C9: Once a node was found to have a slower link than the others, nobody who fills an object waits for what it has yet to get, and what it owns is fetched once by those who want it. Until then, some five seconds, and a little longer where several are slow, the others may be slowed.
//
// A quarter of the rate, wherever the node stands: first, in the middle or last in the circle, or as the owner
// of a large object. Mostly 0.91, the owner 0.97: once in four runs 0.35, as it was compared with others late.
func TestCastWithOneSlowLink(t *testing.T) {
	for _, tt := range []struct {
		node   int
		what   string
		chunks int
		fast   float64
	}{{1, "first", 32, 0.55}, {3, "in the middle", 32, 0.55}, {0, "last", 32, 0.55}, {3, "owner", 128, 0.2}} {
		t.Run(tt.what, func(t *testing.T) {
			inCast(t, 8, func(m *castModel) {
				o := m.put("ckpt", tt.chunks)
				if owner := m.Owners(m.KeyOfBlocks(o, o.ID(), chunk.Span{}), nil)[0]; (owner == fmt.Sprintf("n%d", tt.node)) != (tt.what == "owner") {
					t.Fatalf("%s owns the object", owner)
				}
				r := m.run(o, map[int]float64{tt.node: 0.25})
				r.want(t, tt.fast, 0.80, 1.06)
			})
		})
	}
}

// Two of eight links are slow, by different measures. Mostly 0.65 for the others; one of the slow may take twice its time.
func TestCastWithTwoSlowLinks(t *testing.T) {
	inCast(t, 8, func(m *castModel) {
		m.run(m.put("ckpt", 32), map[int]float64{2: 0.25, 4: 0.125}).want(t, 0.35, 0.25, 1.05)
	})
}

// Large objects are owned chunk by chunk: owners change all the time, the circle does not. Mostly 0.92, with a slow link 0.88.
func TestCastOfChunksOfManyOwners(t *testing.T) {
	for what, slow := range map[string]map[int]float64{"all alike": nil, "one slow link": {3: 0.25}} {
		t.Run(what, func(t *testing.T) {
			inCast(t, 8, func(m *castModel) {
				m.whole = 0
				r := m.run(m.put("ckpt", 32), slow)
				r.want(t, 0.6, 0.7, 1.05)
			})
		})
	}
}

// Two broadcasts at once share the links: one is not done long before the other, and both together are as fast as one of their size. Mostly 0.94,
// and within 1 % of each other.
func TestTwoCastsShareTheLinks(t *testing.T) {
	inCast(t, 8, func(m *castModel) {
		a, b := m.put("a", 16), m.put("bb", 16)
		begin := time.Now()
		var last [2]time.Duration
		var wg sync.WaitGroup
		stop := m.trace()
		for i, o := range []chunk.Object{a, b} {
			wg.Go(func() {
				m.cast(o, m.nodes...)
				last[i] = time.Since(begin)
			})
		}
		wg.Wait()
		stop()
		_, sent := m.origin.bytes()
		efficiency := float64(a.Size+b.Size) / castRate / max(last[0], last[1]).Seconds()
		copies := float64(sent) / float64(a.Size+b.Size)
		t.Logf("efficiency %.3f, origin copies %.3f, one took %.1f s and the other %.1f s", efficiency, copies, last[0].Seconds(), last[1].Seconds())
		if ratio := last[0].Seconds() / last[1].Seconds(); efficiency < 0.80 || copies > 1.02 || ratio < 0.8 || ratio > 1.25 {
			t.Error("want at least 0.80, at most 1.02, and about the same time")
		}
	})
}
