// Package prefetch guesses from the reads of one open file what is read next.
//
// It promises that a sequential reader finds a window of bytes asked for ahead of
// it, at most twice what it has read in a row (or 1 MiB) and at most the limit
// given; and that a random reader causes nothing. It is pure: reads in, ranges out.
// Fetching, not fetching twice, and refusing to when memory is short are left to
// others. Whoever refuses is asked again soon. It is a part of fuse.
package prefetch

// Limits of a [Detector], in bytes.
const (
	// skipBytes is how far a read may lie from where the last one ended and still
	// belong to its stream: the kernel sends its readahead out of order, and readers
	// skip what they do not want (headers, padding).
	skipBytes = 2 << 20
	// minWindowBytes is asked for as soon as a second read follows a first.
	minWindowBytes = 1 << 20
	// stepBytes is how far a reader gets at most until ranges are asked for again, and
	// what the ends of large windows are multiples of: one chunk.
	stepBytes = 8 << 20
	// maxStreams are told apart in one file: workers that share a descriptor.
	maxStreams = 4
)

// Range is a run of bytes; empty when N is 0.
type Range struct{ Off, N int64 }

// Detector watches the reads of one open file. It is not safe for concurrent use.
// The zero value is ready.
type Detector struct {
	streams [maxStreams]stream
	clock   uint32
}

type stream struct {
	next  int64 // where the furthest read of the stream ended
	run   int64 // bytes read in a row
	asked int64 // where next was when ranges were last asked for; -1 = not yet
	ahead int64 // end of that range
	used  uint32
	reads uint32 // that brought the stream on
}

// Read takes note of a read of [off, off+n) in a file of size bytes and returns
// what to ask for now, at most limit bytes ahead of the read's end. Ranges overlap
// earlier ones: what is at hand or under way already is not to be fetched again.
func (d *Detector) Read(off, n, size, limit int64) Range {
	if n <= 0 || off < 0 || off >= size {
		return Range{}
	}
	d.clock++
	s := d.find(off, n)
	s.used = d.clock
	if off+n <= s.next {
		return Range{} // overtaken by a later read, or read again
	}
	s.reads++
	s.run += min(n, off+n-s.next)
	s.next = off + n
	if s.reads < 2 || limit <= 0 || s.next >= size {
		return Range{}
	}
	end := s.end(limit, size)
	window := end - s.next
	due := s.asked < 0 || s.next-s.asked >= min(window/2, stepBytes) || end-s.ahead >= min(window/4, stepBytes)
	if !due || window <= 0 {
		return Range{}
	}
	s.asked, s.ahead = s.next, end
	return Range{Off: s.next, N: s.ahead - s.next}
}

// end returns how far to ask now. Large windows end where a chunk does: one that is
// asked for in two pieces takes two requests, and a small piece among large ones comes
// late when they share a link.
func (s *stream) end(limit, size int64) int64 {
	window := min(limit, max(minWindowBytes, 2*s.run))
	end := s.next + window
	if window >= 2*stepBytes {
		end -= end % stepBytes
	}
	return min(end, size)
}

// find returns the stream that a read continues, or a new one in the place of the
// one that was used longest ago.
func (d *Detector) find(off, n int64) *stream {
	oldest := &d.streams[0]
	for i := range d.streams {
		s := &d.streams[i]
		if s.reads > 0 && continues(s, off, n) {
			return s
		}
		if s.used < oldest.used {
			oldest = s
		}
	}
	*oldest = stream{next: off, asked: -1}
	return oldest
}

// continues reports whether a read belongs to s. A stream of one read is
// continued only close to its end: two random reads are rarely that close.
func continues(s *stream, off, n int64) bool {
	ahead, behind := int64(skipBytes), int64(skipBytes)
	if s.reads < 2 {
		ahead = min(ahead, max(n, 64<<10))
		behind = 2 * n
	}
	// A stream forgives skips in proportion to what it has read.
	ahead = min(ahead, max(64<<10, s.run))
	return off >= s.next-behind && off <= s.next+ahead
}
