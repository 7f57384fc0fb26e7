package node

import (
	"context"
	"fmt"

	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/internal/config"
	"github.com/shardwell/shardwell/internal/control"
	"github.com/shardwell/shardwell/objstore"
)

// How an object is read for a caller, in bytes.
const (
	readStepBytes  = 1 << 20
	readAheadBytes = 128 << 20 // where the cache does not take all of it
)

// Read implements control.Node: an object is read as a walk through a mounted file is.
func (n *Node) Read(ctx context.Context, req control.ReadRequest, begin func(control.Entry) error, write func([]byte) error) error {
	return n.requests.do(ctx, func(ctx context.Context) error { return n.read(ctx, req, begin, write) })
}

func (n *Node) read(ctx context.Context, req control.ReadRequest, begin func(control.Entry) error, write func([]byte) error) error {
	select {
	case <-n.cluster.joined():
	case <-ctx.Done():
		return ctx.Err()
	}
	cfg, err := n.configFor(req.Options)
	if err != nil {
		return err
	}
	u, err := config.ParseURI(req.URI)
	if err != nil {
		return err
	}
	bucket, key, err := bucketOf(cfg, u)
	if err != nil {
		return err
	}
	if req.Name != "" {
		key = dirPrefix(key) + req.Name
	}
	release, err := n.origins.admit(cfg, bucket)
	if err != nil {
		return err
	}
	defer release()
	who, err := n.identify(ctx, cfg, req.Credentials, bucket)
	if err != nil {
		return err
	}
	defer who.close()
	maxAge, _ := cfg.Consistency.MaxAge()
	if proof := n.proveWithin(who, bucket); proof > 0 {
		maxAge = min(maxAge, proof)
	}
	info, _, err := n.names.Head(ctx, objstore.Query{Bucket: bucket, Access: who.access(ctx), MaxAge: maxAge}, key)
	if err != nil {
		return about(u, err)
	}
	obj := chunk.Object{Origin: bucket.Origin, Bucket: bucket.Name, Key: key, ETag: info.ETag, Size: info.Size}
	if err := begin(control.Entry{Name: req.Name, Size: info.Size, ModTime: info.ModTime, ETag: info.ETag}); err != nil {
		return err
	}
	return n.walk(ctx, obj, who, write)
}

// walk reads all of an object.
func (n *Node) walk(ctx context.Context, obj chunk.Object, who *principal, write func([]byte) error) error {
	f, err := n.cache.OpenAs(obj, who.identity)
	if err != nil {
		return err
	}
	defer f.Close()
	buf := make([]byte, min(readStepBytes, obj.Size))
	for off := int64(0); off < obj.Size; {
		if !f.Fill(off) && off%n.geometry.ChunkBytes == 0 {
			f.Prefetch(off, readAheadBytes)
		}
		part := buf[:min(int64(len(buf)), obj.Size-off)]
		if got, err := f.ReadAt(ctx, part, off); got < len(part) {
			return fmt.Errorf("get %s: %w", obj.URI(), err)
		}
		if err := write(part); err != nil {
			return err
		}
		off += int64(len(part))
	}
	return nil
}
