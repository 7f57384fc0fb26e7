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

// peekBytes is how much of a block is read before a buffer is taken for it, so
// that a body that stalls between blocks holds none.
const peekBytes = 1 << 10

// Fetch implements [chunk.Fetcher]. It holds at most one buffer, and none while it
// waits for the answer's head or for a block to begin.
func (f *OriginFetcher) Fetch(ctx context.Context, req chunk.Request, deliver chunk.Deliver) error {
	o := req.Object
	store, err := objstore.OpenAs(ctx, f.Origins, objstore.Bucket{Origin: o.Origin, Name: o.Bucket}, req.Access)
	if err != nil {
		return err
	}
	off, n := f.Geometry.Bytes(o.Size, req.Span)
	body, err := store.Get(ctx, o.Key, o.ETag, off, n)
	if err != nil {
		return err
	}
	defer body.Close()
	peek := make([]byte, peekBytes)
	for b := req.Span.First; b < req.Span.End(); b++ {
		if err := f.block(ctx, o, b, body, peek, deliver); err != nil {
			return fmt.Errorf("read %s, block %d: %w", o.URI(), b, err)
		}
	}
	return nil
}

func (f *OriginFetcher) block(ctx context.Context, o chunk.Object, index uint32, body io.Reader, peek []byte, deliver chunk.Deliver) error {
	n := f.Geometry.BlockLen(o.Size, index)
	begin, err := io.ReadAtLeast(body, peek[:min(n, len(peek))], 1)
	if err != nil {
		return unexpected(err)
	}
	buf, err := f.Arena.Get(ctx)
	if err != nil {
		return err
	}
	defer f.Arena.Put(buf)
	data := buf[:n]
	copy(data, peek[:begin])
	if _, err := io.ReadFull(body, data[begin:]); err != nil {
		return unexpected(err)
	}
	return deliver(chunk.Block{Index: index, CRC: chunk.Checksum(data), Data: data})
}

// unexpected makes the end of a body an error: more bytes were due.
func unexpected(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}
