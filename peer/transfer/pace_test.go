package transfer

import (
	"bytes"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shardwell/shardwell/internal/chunk"
)

// sending is a send loop to one member, at a rate in bytes a second; idle is the part of the time in which
// nothing is written to it.
func sending(p *pace, member string, rate, idle float64, seconds int) (could float64) {
	const block = 64 << 10
	each := time.Duration(block / rate * float64(time.Second))
	for end := time.Now().Add(time.Duration(seconds) * time.Second); time.Now().Before(end); {
		p.begin(member, time.Now())
		time.Sleep(time.Duration(float64(each) * (1 - idle)))
		could = p.end(member, block, time.Now())
		time.Sleep(time.Duration(float64(each) * idle))
	}
	return could
}

func TestPace(t *testing.T) {
	const link = 4 << 20
	for _, tt := range []struct {
		name       string
		came       float64 // bytes a second that come to this node
		rate, idle float64
		slow       bool
	}{
		{"a link that is full", link, link, 0, false},
		{"a slow member", link, link / 4, 0, true},
		{"a member that asks for little", link, link / 4, 0.5, false},
		{"this node's own slow link", link / 4, link / 4, 0, false},
		{"half of a link", link, link / 2, 0, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begin := time.Now()
				p := newPace(func() int64 { return int64(tt.came * time.Since(begin).Seconds()) })
				could := sending(p, "m", tt.rate, tt.idle, 8)
				if (could > 0) != tt.slow || tt.slow && (could < link/2 || could > 2*link) {
					t.Errorf("could send %.0f bytes/s", could)
				}
				time.Sleep(time.Minute) // what was found is forgotten
				if could := sending(p, "m", link, 0.5, 1); could > 0 {
					t.Errorf("still slow: %.0f", could)
				}
			})
		})
	}
}

// A slow member is found beside one that takes more, unless both together fill the link.
func TestPaceOfTwo(t *testing.T) {
	const link = 4 << 20
	for _, tt := range []struct {
		name  string
		other float64 // bytes a second
		slow  bool
	}{{"room is left", link * 0.45, true}, {"the link is full", link * 3 / 4, false}} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begin := time.Now()
				p := newPace(func() int64 { return int64(link * time.Since(begin).Seconds()) })
				var wg sync.WaitGroup
				wg.Go(func() {
					if could := sending(p, "other", tt.other, 0, 8); could > 0 {
						t.Errorf("the other one could be sent %.0f bytes/s", could)
					}
				})
				if could := sending(p, "m", link/5, 0, 8); (could > 0) != tt.slow {
					t.Errorf("could send %.0f bytes/s", could)
				}
				wg.Wait()
			})
		})
	}
}

// A node whose own link has become slow does not hold its takers to be.
func TestPaceOfALinkThatBecomesSlow(t *testing.T) {
	const link = 4 << 20
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		p := newPace(func() int64 {
			past := time.Since(begin).Seconds()
			return int64(link * (min(past, 5) + max(0, past-5)/4))
		})
		sending(p, "m", link, 0, 5)
		if could := sending(p, "m", link/4, 0, 20); could > 0 {
			t.Errorf("could send %.0f bytes/s", could)
		}
	})
}

// TestPaceBounded forgets members that nothing is sent to.
func TestPaceBounded(t *testing.T) {
	p := newPace(func() int64 { return 0 })
	now := time.Now()
	for i := range 3 * maxTakers {
		member := string(rune('a'+i%26)) + time.Duration(i).String()
		p.begin(member, now)
		p.end(member, 1, now)
		now = now.Add(10 * time.Millisecond)
		if len(p.takers) > maxTakers {
			t.Fatalf("%d members", len(p.takers))
		}
	}
	if len(p.takers) > 200 {
		t.Errorf("%d members are remembered", len(p.takers))
	}
}

// TestSlowSign tells the asker how fast it could be sent to, once a sign.
func TestSlowSign(t *testing.T) {
	g := chunk.Geometry{ChunkBytes: 1 << 20, BlockBytes: 64 << 10}
	data := bytes.Repeat([]byte{7}, 1000)
	var body []byte
	for i := range Signs {
		h := sign
		if i == 3 {
			h = slowSign(5 << 20)
		}
		body = h.Append(body)
	}
	body = append(FrameHeader{Length: 1000, CRC: chunk.Checksum(data)}.Append(body), data...)
	r := newFrameReader(bytes.NewReader(body), g, 1000, chunk.Span{Count: 1})
	var told []float64
	r.slow = func(rate float64) { told = append(told, rate) }
	h, err := r.head()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.block(h, make([]byte, 64<<10)); err != nil {
		t.Fatal(err)
	}
	if _, err := r.head(); err == nil || r.end() == nil {
		t.Errorf("no end: %v", err)
	}
	if len(told) != 1 || told[0] != 5<<20 {
		t.Errorf("told %v", told)
	}
}
