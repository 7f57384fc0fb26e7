package fuse

import (
	"math/bits"
	"sync/atomic"
	"syscall"
	"time"
)

// Op is a kind of request, as counted in [Stats].
type Op int

// The kinds of requests that are told apart.
const (
	OpLookup Op = iota
	OpGetattr
	OpOpen
	OpRead
	OpRelease
	OpOpendir
	OpReaddir
	OpReaddirplus
	OpStatfs
	OpXattr
	OpOther
	NumOps
)

var opNames = [NumOps]string{"lookup", "getattr", "open", "read", "release", "opendir", "readdir", "readdirplus", "statfs",
	"xattr", "other"}

func (o Op) String() string { return opNames[o] }

// NumBuckets is the number of buckets of a [Histogram].
const NumBuckets = 24

// Histogram counts durations. Bucket i holds those up to [BucketBound](i); the last
// one holds all longer ones too.
type Histogram struct {
	Buckets [NumBuckets]atomic.Int64 // not cumulative
	Count   atomic.Int64
	Nanos   atomic.Int64 // sum
}

// BucketBound returns the upper bound of a bucket: 2, 4, 8 … microseconds.
func BucketBound(i int) time.Duration { return time.Microsecond << (i + 1) }

func (h *Histogram) observe(d time.Duration) {
	us := uint64(max(0, d.Microseconds()))
	h.Buckets[min(NumBuckets-1, max(0, bits.Len64(us)-1))].Add(1)
	h.Count.Add(1)
	h.Nanos.Add(int64(d))
}

// PassthroughResult is how an open of a file came out.
type PassthroughResult int

// What became of an open.
const (
	PassthroughUsed       PassthroughResult = iota // the kernel reads the cache file itself
	PassthroughIncomplete                          // the cache has no complete, trusted file
	PassthroughCachedOpen                          // complete, but the file has buffered opens, which never mix
	PassthroughRefused                             // the kernel refused to register the cache file
	PassthroughOff                                 // not negotiated, or turned off
	PassthroughBroken                              // others have it open so, but the cache's file is not well any more: read past them
	NumPassthroughResults
)

var passthroughNames = [NumPassthroughResults]string{"used", "incomplete", "cached_open", "refused", "off", "broken"}

func (r PassthroughResult) String() string { return passthroughNames[r] }

// maxErrno bounds the errors told apart in [Stats]; 0 stands for others.
const maxErrno = 134

// Stats counts what a session did. Read the fields with Load.
type Stats struct {
	Ops         [NumOps]Histogram
	Errors      [maxErrno]atomic.Int64 // by errno; ENOENT of look-ups included
	Passthrough [NumPassthroughResults]atomic.Int64
	ReadBytes   atomic.Int64 // that the daemon answered; passthrough reads are not seen

	InFlight    atomic.Int64 // requests being served
	OpenFiles   atomic.Int64
	OpenBacking atomic.Int64 // files registered for passthrough
	Names       atomic.Int64 // records of listings, superseded ones included
	Skipped     atomic.Int64 // keys that cannot be a path
	ListPages   atomic.Int64 // pages asked for
	Heads       atomic.Int64 // HEADs asked for
	Interrupts  atomic.Int64 // signals of callers that the kernel reported
	CallerLooks atomic.Int64 // times that a caller's signals were looked at
	Interrupted atomic.Int64 // requests that ended for it
	StaleOpens  atomic.Int64 // opens sent back to look the name up again
	Walks       atomic.Int64 // files that were begun to be read in order
	NextFiles   atomic.Int64 // files fetched before they were opened

	Silences     atomic.Int64 // times that the origin fell silent
	StaleAnswers atomic.Int64 // look-ups, opens and listings answered with what was known before it did
}

func (s *Stats) countError(e syscall.Errno) {
	if int(e) >= maxErrno {
		e = 0
	}
	s.Errors[e].Add(1)
}
