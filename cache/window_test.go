package cache

import (
	"math"
	"testing"
	"time"
)

// link is a way by which chunks come: a rate that all share, one that each has at most, and a
// latency. It is simulated in ticks.
type link struct {
	rate, each float64 // bytes a second
	latency    time.Duration
}

// run fetches chunks for a time, as many at once as the window says. It returns what share of
// what the link can carry came in the second half, and how many were under way on average then.
func (l link) run(w *window, total time.Duration) (share, underWay float64) {
	const tick = time.Millisecond
	type fetch struct {
		began time.Time
		left  float64
	}
	var (
		all     []*fetch
		bytes   float64
		half    float64
		sum     float64
		samples int
	)
	start := time.Unix(1000, 0)
	for now := start; now.Sub(start) < total; now = now.Add(tick) {
		left := 0.0
		for _, f := range all {
			left += f.left
		}
		for ; w.admits(len(all), int64(left)); left += float64(w.chunkBytes) {
			all = append(all, &fetch{now, float64(w.chunkBytes)})
		}
		active := 0
		for _, f := range all {
			if now.Sub(f.began) >= l.latency {
				active++
			}
		}
		part := min(l.each, l.rate/math.Max(1, float64(active))) * tick.Seconds()
		kept := all[:0]
		for _, f := range all {
			if now.Sub(f.began) >= l.latency {
				bytes += min(part, f.left)
				f.left -= part
			}
			if f.left > 0 {
				kept = append(kept, f)
			} else {
				w.came(f.began, now, int64(bytes))
			}
		}
		all = kept
		if now.Sub(start) > total/2 {
			if samples == 0 {
				half = bytes
			}
			sum += float64(len(all))
			samples++
		}
	}
	return (bytes - half) / (float64(samples) * tick.Seconds()) / l.rate, sum / float64(samples)
}

func TestWindowFillsLinksAndNoMore(t *testing.T) {
	const chunk = 8 << 20
	for name, c := range map[string]struct {
		link  link
		share float64
		most  float64 // under way
	}{
		"500 Mbit/s, 30 ms":        {link{62.5e6, 62.5e6, 30 * time.Millisecond}, 0.99, 10},
		"50 Mbit/s, 1 ms":          {link{6.25e6, 6.25e6, time.Millisecond}, 0.99, 16},
		"10 Gbit/s, 100 MB/s each": {link{1250e6, 100e6, 30 * time.Millisecond}, 0.95, 32},
		"25 Gbit/s, 100 MB/s each": {link{3125e6, 100e6, 30 * time.Millisecond}, 0.95, 80},
		"10 Gbit/s, 200 ms":        {link{1250e6, 1250e6, 200 * time.Millisecond}, 0.90, 40},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWindow(DefaultMaxPrefetches, chunk)
			share, underWay := c.link.run(&w, 60*time.Second)
			if share < c.share || underWay > c.most {
				t.Errorf("%.3f of the link, want %.2f; %.1f chunks under way, want %.0f at most", share, c.share, underWay, c.most)
			}
		})
	}
}

func TestWindowStaysInBounds(t *testing.T) {
	for _, most := range []int{1, 3, 32} {
		w := newWindow(most, 8<<20)
		if got := w.chunks(); got != min(most, leastAhead) {
			t.Errorf("at first: got %d of %d", got, most)
		}
		now := time.Unix(1, 0)
		for i := range int64(1000) {
			now = now.Add(time.Duration(i%7) * 100 * time.Millisecond)
			w.came(now.Add(-time.Duration(i%5)*time.Second), now, i<<40)
			if got := w.chunks(); got < min(most, leastAhead) || got > most {
				t.Fatalf("after %d: got %d of %d", i, got, most)
			}
		}
	}
}
