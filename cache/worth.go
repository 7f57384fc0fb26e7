package cache

import (
	"github.com/shardwell/shardwell/cache/evict"
	"github.com/shardwell/shardwell/cache/mem"
	"github.com/shardwell/shardwell/internal/chunk"
)

// MemoryPolicy says what blocks in the memory of a node without disks are worth; it is a part of what
// the disk tier asks. Methods are fast and do no I/O.
type MemoryPolicy interface {
	// Owns reports whether this node owns the chunk in which a block lies.
	Owns(obj chunk.Object, id chunk.ObjectID, block uint32) bool
	// Judge returns what the owned part of an object is worth, as in [evict.Table.Judge].
	Judge(obj chunk.Object, id chunk.ObjectID) (class evict.Class, rank int64)
	// Admits reports whether n more bytes of an object that this node owns may be kept, and counts them if so.
	Admits(obj chunk.Object, id chunk.ObjectID, n int64) bool
}

// The part of the memory tier that what is owned may take: the rest passes copies and what is fetched ahead.
const keptNumerator, keptDenominator = 3, 4

// KeptBlocks returns how many blocks that a node without disks owns an arena keeps for it.
func KeptBlocks(a *mem.Arena) int { return keptOf(a.Buffers() / 2) }

func keptOf(pages int) int { return pages * keptNumerator / keptDenominator }

// worth returns the class of a block in memory. With disks it is worth little: it is on them, or they
// did not take it.
func (c *Cache) worth(obj chunk.Object, id chunk.ObjectID, block uint32) evict.Class {
	p := c.cfg.Memory
	if p == nil || c.cfg.Disk != nil {
		return evict.Copy
	}
	class, _ := p.Judge(obj, id)
	if class > evict.Stale && !p.Owns(obj, id, block) {
		return evict.Copy
	}
	return class
}

// Judged says that answers of [Config.Memory] have changed.
func (c *Cache) Judged() {
	if c.cfg.Memory != nil && c.cfg.Disk == nil {
		c.pages.judge(c.worth)
	}
}

// MemoryRoom reports whether a node without disks has room for more of what it owns.
func (c *Cache) MemoryRoom() bool {
	c.pages.mu.Lock()
	defer c.pages.mu.Unlock()
	return c.pages.kept < c.pages.keptMax
}

// InMemory is what the memory of a node without disks holds of an object.
type InMemory struct {
	Object chunk.Object
	ID     chunk.ObjectID
	Blocks []uint32 // in no order
}

// EachInMemory calls visit for each object of which a node without disks holds blocks, until it returns an error,
// which EachInMemory returns. A node with disks has nothing to tell.
func (c *Cache) EachInMemory(visit func(InMemory) error) error {
	if c.cfg.Memory == nil || c.cfg.Disk != nil {
		return nil
	}
	for _, o := range c.pages.objects() {
		if err := visit(*o); err != nil {
			return err
		}
	}
	return nil
}
