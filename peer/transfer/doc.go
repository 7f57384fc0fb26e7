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
// what to lend (chunk.Lender), and secrecy: bytes travel in the clear.
package transfer
