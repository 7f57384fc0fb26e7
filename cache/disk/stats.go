package disk

import (
	"errors"
	"fmt"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Reject says why a block was not stored.
type Reject uint8

// The reasons of a [RejectError].
const (
	RejectBudget  Reject = iota // the byte budget is used up
	RejectFloor                 // the file system's free space would go under the floor
	RejectInodes                // its free inodes likewise
	RejectNoSpace               // ENOSPC
	RejectQuota                 // EDQUOT
	RejectIO                    // any other failure of a system call
	RejectDown                  // the disk failed too often and is left alone
	RejectPolicy                // its dataset is not to be kept
	RejectDataset               // the quota of its dataset is used up
	RejectZeroSum               // the block's CRC is 0, which in a sidecar means "none"; one block in 2^32
	NumRejects
)

func (r Reject) String() string {
	return [...]string{"budget", "floor", "inodes", "no-space", "quota", "io", "down", "policy", "dataset-quota", "zero-sum"}[r]
}

// Loss says why something that was on the disk is treated as absent.
type Loss uint8

// The kinds of loss.
const (
	LossChecksum  Loss = iota // a block's bytes do not fit its CRC
	LossReadError             // a block, or its CRC, could not be read
	LossSidecar               // a sidecar that is no sidecar
	LossVersion               // a sidecar of another layout
	LossGeometry              // a sidecar of another chunk or block size
	LossIdentity              // a sidecar that belongs to another object
	LossTruncated             // a file of the wrong length
	LossNoData                // a sidecar without its data
	NumLosses
)

func (l Loss) String() string {
	return [...]string{"checksum", "read-error", "sidecar", "version", "geometry", "identity", "truncated", "no-data"}[l]
}

// Stats counts what a [Dir] does, from its start.
type Stats struct {
	Rejected [NumRejects]atomic.Int64 // blocks not stored, by reason
	Lost     [NumLosses]atomic.Int64  // blocks (checksum, read-error) or whole objects (the others)

	StoredBlocks   atomic.Int64
	StoredBytes    atomic.Int64
	ReadBytes      atomic.Int64 // handed to callers of ReadAt
	VerifiedBytes  atomic.Int64 // read and checked, for ReadAt, Lend and Suspect
	EvictedObjects atomic.Int64
	EvictedBytes   atomic.Int64
	PunchedBlocks  atomic.Int64 // copies given back one by one, their object staying
	Walks          atomic.Int64 // of the whole directory, to count or to evict
	ScrubbedBytes  atomic.Int64 // read and checked by Scrub
	ScrubDamaged   atomic.Int64 // blocks that Scrub dropped
	ScrubRounds    atomic.Int64 // times that Scrub has been through everything
	ScrubPauses    atomic.Int64 // seconds that it rested, for the disk was busy or failing
	Checkups       atomic.Int64 // looks past the page cache at a disk from which the kernel reads
	Hung           atomic.Int64 // calls that did not come back in time
	TooManyOpen    atomic.Int64 // objects refused for want of descriptors
}

// RejectError is why a block was not stored. It matches [ErrNotAdmitted].
type RejectError struct {
	Reason Reject
	Err    error // the failed system call, or nil
}

func (e *RejectError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("%v: %v", ErrNotAdmitted, e.Reason)
	}
	return fmt.Sprintf("%v: %v: %v", ErrNotAdmitted, e.Reason, e.Err)
}

// Is reports whether target is [ErrNotAdmitted].
func (e *RejectError) Is(target error) bool { return target == ErrNotAdmitted }

// Unwrap returns the error of the system call.
func (e *RejectError) Unwrap() error { return e.Err }

// plainRejects spare the allocation on a path that a full disk takes for every block.
var plainRejects = [NumRejects]*RejectError{
	RejectBudget:  {Reason: RejectBudget},
	RejectFloor:   {Reason: RejectFloor},
	RejectInodes:  {Reason: RejectInodes},
	RejectDown:    {Reason: RejectDown},
	RejectPolicy:  {Reason: RejectPolicy},
	RejectDataset: {Reason: RejectDataset},
	RejectZeroSum: {Reason: RejectZeroSum},
}

// rejectOf classifies a failed system call.
func rejectOf(err error) *RejectError {
	var e *RejectError
	switch {
	case errors.As(err, &e):
		return e
	case errors.Is(err, unix.ENOSPC):
		return &RejectError{RejectNoSpace, err}
	case errors.Is(err, unix.EDQUOT):
		return &RejectError{RejectQuota, err}
	}
	return &RejectError{RejectIO, err}
}
