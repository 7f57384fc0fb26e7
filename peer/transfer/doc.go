// Package transfer moves blocks of one chunk between two nodes over HTTP/1.1,
// checked on arrival. It is a part of package peer.
//
// It promises that a delivered block has the length that the object's size
// demands and the checksum that its first reader computed; that both sides have
// proved knowledge of the cluster's secret; that a request or answer cannot be
// used again elsewhere; that classes of errors (objstore, chunk) survive the wire;
// and that files leave by sendfile, from an offset of their own.
//
// It leaves to others whom to ask and what to do about failure (package peer),
// what to lend (chunk.Lender), and secrecy: bytes and grants travel in the clear. Members are
// trusted not to lie; what is found out is every fault.
//
// # On the wire
//
//	GET /v1/blocks/{object id}/{first}-{last}
//	200, Content-Length, frames · 421 with a member's id · 4xx, 5xx with a class
//
// Behind the member's id a "*" says that the asker lags behind others who fill the object.
//
// Each frame is a 16-byte little-endian header {block, length, CRC32C, zero} and the
// block's bytes, in the order in which the holder gets them. [Signs] frames {2³²−1, 0, 0, 0}
// without bytes are spread over the answer: one for each second in which the holder
// waits for a block, the rest before the last block. So the length is known, and an
// owner that waits for its origin is told from one that is stuck. Before the answer
// begins, interim answers (102) say the same. A holder that cannot go on cuts the connection.
//
//	POST /v1/suspect/{object id}/{block}
//
// tells a holder that a block arrived damaged.
//
// The headers Shardwell-* of a request are all covered by its signature, as are
// method, target, time, a nonce and the ring id of the member that is asked. The
// answer's status, class, redirect and length are covered by a proof that is bound to the
// request's signature.
package transfer
