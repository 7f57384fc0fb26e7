package cache

import "time"

// window decides how many chunks are fetched ahead of readers at once: as many as fill the
// way they come, twice over, and no more. Those that are under way share the link with what readers
// wait for, and come the later the more they are.
//
// What fills the way is what came at best in a second, times what a chunk took at least, as in
// congestion control by delay (BBR). Both are forgotten after a while; to learn anew
// how long a chunk takes when few are under way, it is narrow for a moment then. It is
// pure: what came in, how many out.
type window struct {
	least, most int // bounds; most is at least least
	chunkBytes  int64

	period  time.Time        // when the present one began
	took    [2]time.Duration // shortest, in this period and the one before; 0 = none came
	rate    [2]float64       // bytes a second, highest
	counted time.Time        // when bytes were last looked at
	bytes   int64            // how many had come by then

	probing time.Time // since when it is narrow; zero = it is not
	probes  int       // chunks asked for since that have come
}

const (
	// windowFor is how long what was seen is remembered at least, twice that at most.
	windowFor = 10 * time.Second
	// probeFor bounds the time for which the window is narrow.
	probeFor = 2 * time.Second
	// rateOver is the shortest time over which a rate means anything.
	rateOver = 50 * time.Millisecond
	// leastAhead is enough for a link of 500 Mbit/s, and fills faster ones long enough to
	// find out that they are.
	leastAhead = 4
)

func newWindow(most int, chunkBytes int64) window {
	return window{least: min(leastAhead, most), most: most, chunkBytes: chunkBytes}
}

// came takes note of a chunk that was asked for at began and is here, and of how many bytes
// of all kinds have come to the node so far.
func (w *window) came(began, now time.Time, bytes int64) {
	if now.Sub(w.period) > windowFor {
		narrow := !w.period.IsZero()
		w.period = now
		w.took[1], w.took[0] = w.took[0], 0
		w.rate[1], w.rate[0] = w.rate[0], 0
		if narrow {
			w.probing, w.probes = now, 0
		}
	}
	if !w.probing.IsZero() {
		if began.After(w.probing) {
			w.probes++
		}
		if w.probes >= w.least || now.Sub(w.probing) > probeFor {
			w.probing = time.Time{}
		}
	}
	if took := now.Sub(began); took > 0 && (w.took[0] == 0 || took < w.took[0]) {
		w.took[0] = took
	}
	switch passed := now.Sub(w.counted); {
	case w.counted.IsZero() || passed > windowFor:
		w.counted, w.bytes = now, bytes
	case passed >= max(rateOver, w.shortest()):
		w.rate[0] = max(w.rate[0], float64(bytes-w.bytes)/passed.Seconds())
		w.counted, w.bytes = now, bytes
	}
}

func (w *window) shortest() time.Duration {
	if w.took[0] == 0 || w.took[1] != 0 && w.took[1] < w.took[0] {
		return w.took[1]
	}
	return w.took[0]
}

// admits reports whether one more may be asked for when so many are under way, of which so many
// bytes have not come. Bytes decide: chunks that were asked for together come together, and if
// the next were asked for only then, the link would stand still for as long as the answer takes. Of
// chunks that come one after the other half have come on average.
func (w *window) admits(underWay int, leftBytes int64) bool {
	chunks := w.chunks()
	return underWay < min(2*chunks, w.most) && 2*leftBytes <= int64(chunks)*w.chunkBytes
}

// chunks returns how many are to be under way.
func (w *window) chunks() int {
	if !w.probing.IsZero() {
		return w.least
	}
	fill := max(w.rate[0], w.rate[1]) * w.shortest().Seconds() / float64(w.chunkBytes)
	return int(min(max(2*fill+0.5, float64(w.least)), float64(w.most)))
}
