package peer

import "sync/atomic"

// Stats counts what went on between this node and the others; bytes are
// counted in transfer.Stats. All counters only grow.
type Stats struct {
	RedirectsGiven    atomic.Int64 // this node named another member
	RedirectsFollowed atomic.Int64 // this node went where an owner pointed
	RedirectsRefused  atomic.Int64 // a named member was none, or had failed
	BreakerOpens      atomic.Int64 // a member was set aside
	NextCandidate     atomic.Int64 // a successor was asked because one before it failed
	Delegated         atomic.Int64 // requests that a slow owner left to this node
	ActedAsOwner      atomic.Int64 // requests that went to this node's origin
	EarlierOwnerHits  atomic.Int64 // fetches an owner by an earlier table answered
	GrantsGiven       atomic.Int64 // requests that were signed for another member
	CallsMade         atomic.Int64 // control calls to others
	CallsServed       atomic.Int64
}
