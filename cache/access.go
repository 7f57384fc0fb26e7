package cache

import (
	"errors"
	"fmt"
	"slices"

	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/objstore"
)

// maxRefusals bounds on how many different strengths one call tries to fetch its blocks.
const maxRefusals = 64

// refuses reports whether an error is about the one on whose behalf the origin was asked.
func refuses(err error) bool {
	return errors.Is(err, objstore.ErrPermission) || errors.Is(err, objstore.ErrCredentials)
}

// refusal is on whose behalf a call asked in vain.
type refusal struct {
	as    chunk.Access
	whole bool // the identity is refused, whatever the grant
}

func (r refusal) covers(a chunk.Access) bool {
	return r.as == a || r.whole && r.as.Identity == a.Identity
}

// askForNext tells those on whose behalf c asked that they are refused, and has it go on on
// behalf of another who waits for its blocks, if there is one. If not, nobody joins c any more.
func (c *call) askForNext(err error) bool {
	fl := c.fl
	fl.mu.Lock()
	defer fl.mu.Unlock()
	now := refusal{as: c.req.Access, whole: errors.Is(err, objstore.ErrPermission)}
	c.refusals = append(c.refusals, now)
	err = fmt.Errorf("fetch %s %v: %w", c.req.Object.URI(), c.req.Span, err)
	var next *waiter
	for _, w := range fl.waiters {
		switch {
		case w.err != nil || !w.missing.meets(&c.left):
		case now.covers(w.req.Access):
			if lost := fl.onlyBy(c, w); !lost.empty() {
				w.err = err
				w.wake()
			}
		case next == nil && !w.req.HeldOnly && !slices.ContainsFunc(c.refusals, func(r refusal) bool { return r.covers(w.req.Access) }):
			next = w
		}
	}
	if next == nil || len(c.refusals) >= maxRefusals {
		c.dead = true
		return false
	}
	c.req.Access = next.req.Access
	fl.obj.c.stats.Refusals.Add(1)
	fl.obj.c.cfg.Logger.Info("refused; goes on for another who waits", "op", "fetch", "object", c.req.Object.URI(), "blocks", c.req.Span.String(), "error", err)
	return true
}

// onlyBy returns what a waiter misses that no call but c is to bring. Callers hold mu.
func (fl *flight) onlyBy(c *call, w *waiter) (lost blockSet) {
	for i := range lost {
		lost[i] = w.missing[i] & c.left[i]
	}
	for _, other := range fl.calls {
		if other != c && other.serves(w.req) {
			lost = lost.minus(&other.left)
		}
	}
	return lost
}
