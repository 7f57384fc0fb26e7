package tarindex

import (
	"context"
	"fmt"

	"github.com/shardwell/shardwell/internal/chunk"
)

// maxGifts is how many tars wait for their indexes to be given away; of more none are. Those who need
// them make them again.
const maxGifts = 1024

// known returns an index that this node has, or nil.
func (l *Library) known(id chunk.ObjectID, size int64) *Index {
	l.mu.Lock()
	x := l.recall(id)
	l.mu.Unlock()
	if x == nil {
		x = l.shelf.load(id, size)
	}
	return x
}

// Lacks reports whether this node has no index of a tar.
func (l *Library) Lacks(obj chunk.Object) bool {
	id := obj.ID()
	l.mu.Lock()
	x := l.recall(id)
	l.mu.Unlock()
	return x == nil && !l.shelf.has(id)
}

// Keep takes an index that another node has made.
func (l *Library) Keep(obj chunk.Object, encoded []byte) error {
	id := obj.ID()
	x, err := decode(encoded, id, obj.Size)
	if err != nil {
		l.stats.Damaged.Add(1)
		return fmt.Errorf("keep the index of %s: %w", obj.URI(), err)
	}
	l.stats.Given.Add(1)
	l.remember(id, x)
	l.shelf.keep(id, encoded)
	return nil
}

// giveAway has others know what was made here, until ctx ends.
func (l *Library) giveAway(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case obj := <-l.gifts:
			id := obj.ID()
			x := l.known(id, obj.Size)
			if x == nil {
				continue // it gave way meanwhile
			}
			if err := l.cfg.Give(ctx, obj, encode(x, id)); err != nil && ctx.Err() == nil {
				l.cfg.Logger.Debug("index of a tar is kept here alone", "object", obj.URI(), "error", err)
			}
		}
	}
}
