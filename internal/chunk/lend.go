package chunk

import (
	"context"
	"os"
)

// Piece is one block as its holder lends it to a peer: a place in a file, so
// that the kernel can send it without a copy, or bytes in memory.
type Piece struct {
	Index  uint32
	CRC    uint32
	Len    int
	File   *os.File // nil when Data holds the bytes
	Offset int64    // of the block in File
	Data   []byte
}

// Lender gives out blocks that this node holds, is receiving, or as their owner
// is to fetch.
//
// Lend calls send for each block of the span, in the order in which they become
// available, each once, from one goroutine; a piece is lent until send returns.
// It returns [ErrNotHeld] when it lacks blocks and the request is HeldOnly, [ErrNoRoute] when it lacks
// blocks that it had better not fetch, an
// error of an objstore class when the origin refused, and the error of send when that
// failed. Bytes in a File were checked when they were stored, not again now:
// the receiver checks, and reports damage with [Lender.Suspect].
type Lender interface {
	Lend(ctx context.Context, req Request, send func(Piece) error) error
	// Suspect says that a receiver found a block damaged on arrival. The lender
	// verifies its copy and drops it if it is the culprit.
	Suspect(id ObjectID, block uint32)
}
