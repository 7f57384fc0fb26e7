package transfer

import "sync/atomic"

// Stats counts what a [Server], a [Client] and a [Port] did. Bytes are payload,
// without headers of frames or of HTTP. All but InUse fields only grow.
type Stats struct {
	SentBytes     atomic.Int64 // payload that left
	SentBlocks    atomic.Int64
	SendfileBytes atomic.Int64 // of SentBytes, those the kernel copied from a file
	SendfileCalls atomic.Int64 // blocks sent so
	CopiedBytes   atomic.Int64 // of SentBytes, those that went through memory

	ReceivedBytes  atomic.Int64 // payload that arrived and was checked
	ReceivedBlocks atomic.Int64
	CorruptBlocks  atomic.Int64 // arrived with a wrong checksum
	MalformedSends atomic.Int64 // answers that broke the format: truncated, too long, foreign blocks

	RequestsServed  atomic.Int64
	RequestsRefused atomic.Int64 // signature, clock, replay or form
	RequestsBusy    atomic.Int64 // more streams than allowed
	SuspectsHeard   atomic.Int64 // peers that reported damage of a block from here

	StreamsInUse     atomic.Int64 // gauge: responses under way
	FetchesInUse     atomic.Int64 // gauge: requests under way
	ConnectionsInUse atomic.Int64 // gauge: accepted on the peer port
}
