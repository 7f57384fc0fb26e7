package cache

import (
	"context"

	"github.com/shardwell/shardwell/internal/chunk"
)

// Bring waits until all blocks of a chunk have come to this node, fetched in the background if
// need be: for a node that is to hold them, whoever reads them later. fill says that other nodes
// bring all of the object to themselves, too. It returns nil when the blocks were here; that the
// tier holds them is for [File.Holds] to say.
func (f *File) Bring(ctx context.Context, index uint32, fill bool) error {
	if err := f.obj.fillChunk(ctx, index, chunk.Request{Background: true, Fill: fill, Access: f.access()}); err != nil {
		return err
	}
	f.obj.settle(index)
	return nil
}

// Forget drops what memory holds of an object, but what somebody is reading. The tier is not touched.
func (c *Cache) Forget(obj chunk.Object) {
	id := obj.ID()
	for b := range c.cfg.Geometry.Blocks(obj.Size) {
		c.pages.drop(pageKey{id, b})
	}
}

// settle puts those blocks of a chunk into the tier that are in memory only: it did not take them
// when they came.
func (o *object) settle(index uint32) {
	span := o.c.cfg.Geometry.ChunkSpan(o.Size, index)
	for b := span.First; b < span.End(); b++ {
		if o.tier == nil || o.onDisk(b) {
			continue
		}
		p := o.c.pages.get(pageKey{o.id, b})
		if p == nil {
			continue
		}
		stored := o.store(chunk.Block{Index: b, CRC: p.crc, Data: p.data})
		o.c.pages.put(p)
		if !stored {
			return
		}
	}
}
