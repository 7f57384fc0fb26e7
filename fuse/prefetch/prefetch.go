// Package prefetch guesses from the reads of one open file what is read next, and from
// what is opened which file is next.
//
// It promises that the head of a file is asked for in small, growing ranges, so that a
// reader's first bytes come at once; that a sequential reader then has a window
// asked for ahead of it which grows with what it has read, up to the limit given; that a
// reader which jumps has no more asked for than such readers were seen to take at a
// place, and that it is taken for a sequential one again as soon as it reads
// on. It is pure: reads and bytes in, ranges out. Fetching, not fetching twice, sharing
// links among many, and refusing to when memory is short are left to others. It is
// a part of fuse.
package prefetch

// Limits of a [Detector], in bytes.
const (
	// skipBytes is how far a read may lie from where the last one ended and still
	// belong to its stream: the kernel sends its readahead out of order, and readers
	// skip what they do not want (headers, padding).
	skipBytes = 2 << 20
	// firstBytes is what is asked for first: all of a small file, or what follows the second read of
	// one that may be read in order. It is little, so that whoever only looked pays little.
	firstBytes = 1 << 20
	// headBytes is what is asked for with the first read of a file that is made to be read in order. It
	// streams, so that its first bytes come as soon as they would alone. The kernel reads ahead by
	// itself, twice as much each time: whoever wants the first MiB waits for nearly two.
	headBytes = 2 << 20
	// stepBytes is how far a reader gets at most until ranges are asked for again, and
	// what the ends of large windows are multiples of: one chunk.
	stepBytes = 8 << 20
	// walkBytes read in a row are a walk through the file: the header of a file is shorter.
	walkBytes = 1 << 20
	// sureBytes read in a row make it certain that the rest is read as well, whatever the
	// file is. Of a file that is made to be read in order walkBytes do.
	sureBytes = 64 << 20
)

// Limits of a [Detector], in numbers.
const (
	// maxStreams are told apart in one file: workers or threads that share a descriptor.
	maxStreams = 8
	// maxRuns are remembered of those that ended.
	maxRuns = 8
	// minRuns that ended are enough to know a reader that jumps.
	minRuns = 3
	// idleReads of others end a run, as far as it is remembered.
	idleReads = 8
)

// Range is a run of bytes; empty when N is 0.
type Range struct {
	Off, N int64
	// Whole says that the reader has read so much in a row that it will walk through
	// the file.
	Whole bool
}

// Detector watches the reads of one open file. It is not safe for concurrent use.
// The zero value watches a file of no bytes; make others with [New].
type Detector struct {
	size    int64
	kind    Kind
	sniffed bool // kind is by content
	walked  bool // a MiB of it was read in a row, or all of it
	clock   uint32
	streams [maxStreams]stream
	runs    [maxRuns]int64 // lengths of those that ended, a ring
	ended   int            // how many ever did
}

type stream struct {
	next  int64 // where the furthest read of the stream ended
	run   int64 // bytes read in a row
	asked int64 // where next was when ranges were last asked for; -1 = not yet
	ahead int64 // end of that range
	used  uint32
	reads uint32 // that brought the stream on
	past  bool   // its run is among those that ended
}

// New returns a detector for a file of size bytes. The name gives a first idea of what
// is in it, until [Detector.Saw] knows better.
func New(name string, size int64) Detector {
	return Detector{size: size, kind: KindOfName(name)}
}

// Kind returns what the file is taken for.
func (d *Detector) Kind() Kind { return d.kind }

// Walked reports whether a reader has walked through the file, or through a MiB of it: who looks
// at it only does not.
func (d *Detector) Walked() bool { return d.walked }

// Read takes note of a read of [off, off+n) that is about to be served, and returns what
// to ask for now, at most limit bytes from the read's end on. Ranges overlap
// earlier ones: what is at hand or under way already is not to be fetched again.
func (d *Detector) Read(off, n, limit int64) Range {
	if n <= 0 || off < 0 || off >= d.size {
		return Range{}
	}
	d.clock++
	s := d.find(off, n)
	s.used = d.clock
	if off+n <= s.next && s.reads > 0 {
		return Range{} // overtaken by a later read, or read again
	}
	s.reads++
	s.run += min(n, off+n-s.next)
	s.next = min(off+n, d.size)
	d.walked = d.walked || s.run >= min(walkBytes, d.size)
	return d.ask(s, limit)
}

// ask returns the range to ask for on behalf of a stream that was brought on, if one is due.
func (d *Detector) ask(s *stream, limit int64) Range {
	window, whole := d.window(s)
	if window = min(window, limit); window <= 0 || s.next >= d.size {
		return Range{}
	}
	end := s.next + window
	if window >= 2*stepBytes {
		// Large windows end where a chunk does: one that is asked for in two pieces takes two
		// requests, and a small piece among large ones comes late when they share a link.
		end -= end % stepBytes
	}
	end = min(end, d.size)
	window = end - s.next
	due := s.asked < 0 || s.next-s.asked >= min(window/2, stepBytes) || end-s.ahead >= min(max(1, window/4), stepBytes)
	if !due || window <= 0 {
		return Range{}
	}
	s.asked, s.ahead = s.next, end
	return Range{Off: s.next, N: window, Whole: whole}
}

// window returns how many bytes from the end of the last read on a stream is to have asked
// for, and whether its reader walks through the file.
func (d *Detector) window(s *stream) (bytes int64, whole bool) {
	if typical, steady := d.typical(); typical > 0 {
		switch {
		case s.run < typical && (steady || s.reads > 1):
			return typical - s.run, false // as far as they go
		case s.run < max(2*typical, walkBytes):
			return 0, false // it does not go farther yet than others did
		}
		return d.grown(s, max(sureBytes, 8*typical)), s.run >= walkBytes
	}
	if s.reads == 1 {
		switch {
		case d.size <= firstBytes:
			return d.size - s.next, false // in one request
		case s.next == s.run && d.kind.inOrder(): // from the start of the file
			return headBytes, false
		}
		return 0, false
	}
	if !d.kind.inOrder() {
		return d.grown(s, sureBytes), s.run >= walkBytes
	}
	return max(stepBytes, d.grown(s, walkBytes)), s.run >= walkBytes
}

// grown returns the window of a stream that is read in a row; from sure bytes on it is
// all there is.
func (d *Detector) grown(s *stream, sure int64) int64 {
	switch {
	case s.run >= sure:
		return d.size - s.next
	case d.kind.jumps():
		return max(firstBytes/4, s.run)
	}
	return max(firstBytes, 2*s.run)
}

// find returns the stream that a read continues, or a new one in the place of the
// one that was used longest ago.
func (d *Detector) find(off, n int64) *stream {
	oldest := &d.streams[0]
	for i := range d.streams {
		s := &d.streams[i]
		if s.reads > 0 && s.continuedBy(off, n) {
			d.revive(s)
			return s
		}
		if s.used < oldest.used {
			oldest = s
		}
	}
	for i := range d.streams {
		if s := &d.streams[i]; s == oldest || d.clock-s.used > idleReads {
			d.end(s)
		}
	}
	*oldest = stream{next: off, asked: -1}
	return oldest
}

// end remembers how far a stream got.
func (d *Detector) end(s *stream) {
	if s.reads == 0 || s.past {
		return
	}
	s.past = true
	d.runs[d.ended%maxRuns] = s.run
	d.ended++
}

// revive takes back that a stream has ended, if nothing was remembered since.
func (d *Detector) revive(s *stream) {
	if !s.past {
		return
	}
	s.past = false
	if d.ended > 0 && d.runs[(d.ended-1)%maxRuns] == s.run {
		d.ended--
	}
}

// typical returns how many bytes a reader that jumps takes at a place, or 0 when too little
// is known or it does not jump; steady says that it takes about as much each time.
func (d *Detector) typical() (bytes int64, steady bool) {
	known := min(d.ended, maxRuns)
	if known < minRuns {
		return 0, false
	}
	var sorted [maxRuns]int64
	for i := range known { // few: sorted as they are put in
		at := i
		for ; at > 0 && sorted[at-1] > d.runs[i]; at-- {
			sorted[at] = sorted[at-1]
		}
		sorted[at] = d.runs[i]
	}
	middle := sorted[known/2]
	return middle, sorted[0] >= middle/2
}

// continuedBy reports whether a read belongs to s. A stream of one read is
// continued only close to its end: two random reads are rarely that close.
func (s *stream) continuedBy(off, n int64) bool {
	ahead, behind := int64(skipBytes), int64(skipBytes)
	if s.reads < 2 {
		ahead = min(ahead, max(n, 64<<10))
		behind = 2 * n
	}
	// A stream forgives skips in proportion to what it has read.
	ahead = min(ahead, max(64<<10, s.run))
	return off >= s.next-behind && off <= s.next+ahead
}
