package prefetch

import (
	"math/rand/v2"
	"testing"
	"time"
)

const (
	kib = int64(1) << 10
	mib = int64(1) << 20
)

// total returns the bytes asked for, each counted once.
func total(d *Detector, limit int64, reads [][2]int64) (asked int64) {
	var have []Range
	for _, r := range reads {
		got := d.Read(r[0], r[1], limit)
		if got.N == 0 {
			continue
		}
		for _, h := range have { // ranges of one stream grow to the right
			if got.Off < h.Off+h.N && got.Off >= h.Off {
				cut := min(got.N, h.Off+h.N-got.Off)
				got.Off, got.N = got.Off+cut, got.N-cut
			}
		}
		asked += got.N
		have = append(have, got)
	}
	return asked
}

func sequence(from, n, step, count int64) (reads [][2]int64) {
	for i := range count {
		reads = append(reads, [2]int64{from + i*step, n})
	}
	return reads
}

func TestPatterns(t *testing.T) {
	const size, limit = int64(4) << 30, 64 << 20
	random := func() (reads [][2]int64) {
		r := rand.New(rand.NewPCG(1, 2))
		for range 2000 {
			reads = append(reads, [2]int64{r.Int64N(size), 128 * kib})
		}
		return reads
	}
	shuffled := sequence(0, 128*kib, 128*kib, 800)
	for i := 0; i+3 < len(shuffled); i += 4 { // the kernel's readahead overtakes itself
		shuffled[i], shuffled[i+2] = shuffled[i+2], shuffled[i]
		shuffled[i+1], shuffled[i+3] = shuffled[i+3], shuffled[i+1]
	}
	var two [][2]int64
	for i := range int64(100) {
		two = append(two, [2]int64{i * mib, mib}, [2]int64{size/2 + i*mib, mib})
	}
	tests := map[string]struct {
		reads    [][2]int64
		min, max int64
	}{
		"one read":           {sequence(0, 128*kib, 0, 1), 0, 0},
		"sequential":         {sequence(0, mib, mib, 100), 155 * mib, 164 * mib},
		"10 KiB steps":       {sequence(512, 10*kib, 10*kib, 10000), 97*mib + 55*mib, 98*mib + 64*mib},
		"small skips":        {sequence(0, 100*kib, 120*kib, 1000), 110 * mib, 200 * mib},
		"readahead shuffled": {shuffled, 150 * mib, 170 * mib},
		"two streams":        {two, 2 * 155 * mib, 2 * 168 * mib},
		"backwards":          {sequence(size-mib, 128*kib, -128*kib, 1000), 0, 2 * mib},
		"far strides":        {sequence(0, 128*kib, 16*mib, 200), 0, 0},
		"random":             {random(), 0, 3 * mib},
		"same block":         {sequence(0, 4*kib, 0, 1000), 0, 2 * mib},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			d := New("x", size)
			if got := total(&d, limit, c.reads); got < c.min || got > c.max {
				t.Errorf("asked for %.1f MiB, want %.1f to %.1f", float64(got)/float64(mib), float64(c.min)/float64(mib), float64(c.max)/float64(mib))
			}
		})
	}
}

// A random reader that begins to read in sequence is recognised when it has read a MiB in a row.
func TestSwitch(t *testing.T) {
	d := New("x", 1<<41)
	r := rand.New(rand.NewPCG(3, 4))
	for range 100 {
		d.Read(r.Int64N(1<<40), 4*kib, 64*mib)
	}
	for off := int64(0); off < 8*mib; off += 128 * kib {
		got := d.Read(7<<30+off, 128*kib, 64*mib)
		if asked := got.N > 0; asked && off < mib-128*kib {
			t.Errorf("after %d KiB in a row asked for %+v", off/kib, got)
		} else if read := off + 128*kib; read == mib && (got.Off != 7<<30+read || got.N < 2*mib) {
			t.Errorf("after a MiB in a row asked for %+v", got)
		}
	}
}

// Beyond the first chunks what is asked for anew is whole chunks.
func TestWholeChunks(t *testing.T) {
	const size, limit, chunk = 1000*mib + 5, 64 * mib, 8 * mib
	d := New("x", size)
	end, asks := int64(0), 0
	for off := int64(0); off < size; off += mib {
		got := d.Read(off, mib, limit)
		if got.N == 0 || got.Off+got.N == end {
			continue
		}
		if got.Off < 16*mib {
			end = got.Off + got.N
			continue
		}
		if end%chunk != 0 || got.Off > end {
			t.Fatalf("asked from %d on after an end at %d", got.Off, end)
		}
		end = got.Off + got.N
		asks++
	}
	if end != size || asks > int(size/chunk) {
		t.Errorf("asked up to %d in %d steps, want %d in at most %d", end, asks, size, size/chunk)
	}
}

// While a window grows, the reader has more than it has read asked for ahead of it, so that it
// never waits for the next doubling.
func TestGrows(t *testing.T) {
	d := New("x", 1<<40)
	ahead := int64(0)
	for read := mib; read <= 64*mib; read += mib {
		if got := d.Read(read-mib, mib, 64*mib); got.N > 0 {
			ahead = got.Off + got.N
		}
		if lead := ahead - read; read > mib && lead < min(read, 56*mib) {
			t.Errorf("%d MiB ahead after %d", lead/mib, read/mib)
		}
	}
}

// From a cold start the link of 500 Mbit/s with 30 ms is full: a simulated origin
// serves chunks of 8 MiB, each a request of its own, all sharing the link.
func TestFillsLink(t *testing.T) {
	const (
		size      = int64(1) << 30
		chunk     = int64(8) << 20
		rate      = 500e6 / 8 // bytes a second
		roundTrip = 30 * time.Millisecond
		tick      = time.Millisecond
		read      = int64(1) << 20
	)
	var (
		d       = New("x", size)
		ready   = make(map[int64]time.Duration) // chunk → when its request reaches the link
		done    = make(map[int64]int64)         // chunk → bytes here
		order   []int64
		off     int64
		elapsed time.Duration
	)
	ask := func(from, n int64) {
		for c := from / chunk; c*chunk < from+n; c++ {
			if _, ok := ready[c]; !ok {
				ready[c] = elapsed + roundTrip
				order = append(order, c)
			}
		}
	}
	for ; off < size && elapsed < time.Minute; elapsed += tick {
		budget := int64(rate * tick.Seconds())
		for _, c := range order { // the link serves requests in order
			if ready[c] <= elapsed && budget > 0 {
				n := min(budget, chunk-done[c])
				done[c] += n
				budget -= n
			}
		}
		for off < size {
			ask(off, read)
			if c := off / chunk; done[c] < off%chunk+read {
				break
			}
			off += read
			if r := d.Read(off-read, read, 64<<20); r.N > 0 {
				ask(r.Off, r.N)
			}
		}
	}
	ideal := time.Duration(float64(size)/rate*float64(time.Second)) + roundTrip
	if share := float64(ideal) / float64(elapsed); share < 0.97 {
		t.Errorf("took %v, the link needs %v: %.3f", elapsed, ideal, share)
	}
}

func FuzzDetector(f *testing.F) {
	f.Add(uint64(1), int64(1<<30), int64(64<<20), "x.tar", []byte("PAR1"))
	f.Add(uint64(2), int64(1<<20), int64(1), "x.parquet", []byte("\x08\x00\x00\x00PAR1"))
	f.Fuzz(func(t *testing.T, seed uint64, size, limit int64, name string, data []byte) {
		r := rand.New(rand.NewPCG(seed, seed))
		size = min(max(1, size), 1<<46)
		d := New(name, size)
		check := func(got Range) {
			if got.N != 0 && (got.N < 0 || got.N > limit || got.Off < 0 || got.Off+got.N > size) {
				t.Fatalf("seed %d: asked for %+v of %d bytes, limit %d", seed, got, size, limit)
			}
		}
		for range 200 {
			off, n := r.Int64N(size), 1+r.Int64N(1<<20)
			if r.IntN(4) == 0 {
				off = 0
			}
			check(d.Read(off, n, limit))
			check(d.Saw(off, data, limit))
			check(d.Saw(max(0, size-int64(len(data))), data, limit))
		}
	})
}
