package cache

import (
	"context"
	"fmt"
	"io"

	"github.com/shardwell/shardwell/cache/mem"
	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/objstore"
)

// OriginFetcher is the [chunk.Fetcher] that reads the origin: one ranged GET for
// a span, pinned to the version, cut into blocks in buffers of the arena.
// Each block's CRC is computed here, once for the cluster.
type OriginFetcher struct {
	Geometry chunk.Geometry
	Origins  objstore.Origins
	Arena    *mem.Arena
}

var _ chunk.Fetcher = (*OriginFetcher)(nil)

// Fetch implements [chunk.Fetcher]. It holds at most one buffer, and none while it
// waits for the answer's head.
func (f *OriginFetcher) Fetch(ctx context.Context, req chunk.Request, deliver chunk.Deliver) error {
	o := req.Object
	store, err := f.Origins.Open(ctx, objstore.Bucket{Origin: o.Origin, Name: o.Bucket})
	if err != nil {
		return err
	}
	off, n := f.Geometry.Bytes(o.Size, req.Span)
	body, err := store.Get(ctx, o.Key, o.ETag, off, n)
	if err != nil {
		return err
	}
	defer body.Close()
	for b := req.Span.First; b < req.Span.End(); b++ {
		if err := f.block(ctx, o, b, body, deliver); err != nil {
			return err
		}
	}
	return nil
}

func (f *OriginFetcher) block(ctx context.Context, o chunk.Object, index uint32, body io.Reader, deliver chunk.Deliver) error {
	buf, err := f.Arena.Get(ctx)
	if err != nil {
		return err
	}
	defer f.Arena.Put(buf)
	data := buf[:f.Geometry.BlockLen(o.Size, index)]
	if _, err := io.ReadFull(body, data); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return fmt.Errorf("body of %s, block %d: %w", o.URI(), index, err)
	}
	return deliver(chunk.Block{Index: index, CRC: chunk.Checksum(data), Data: data})
}
