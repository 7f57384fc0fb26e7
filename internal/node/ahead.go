package node

import "github.com/shardwell/shardwell/fuse"

// prefetchShare is the part of the cache directories that the readers of a mount may have ahead of
// themselves: one in so many. More would drop what it is itself to be read from.
const prefetchShare = 8

// prefetchBytes bounds what the readers of a mount have ahead of themselves: bytes that the
// disks have room for, or else the arena.
func (n *Node) prefetchBytes() int64 {
	arena := int64(n.arena.Buffers()) * n.geometry.BlockBytes
	return max(n.geometry.ChunkBytes, min(fuse.DefaultPrefetchBytes, max(arena/2, n.capacityHere()/prefetchShare)))
}

// nextFiles is an option as the file system wants it.
func nextFiles(shards int) int {
	if shards == 0 {
		return -1
	}
	return shards
}
