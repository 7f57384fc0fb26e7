package peer

import (
	"context"
	"time"

	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/objstore"
)

// grantTTL is how long a grant is good. A request is answered within a minute or so; the
// rest is for a clock that is slow, as much as members allow each other's to be wrong.
const grantTTL = 5 * time.Minute

// grant returns on whose behalf a member is to be asked: with a new grant where this node
// can sign on behalf of that identity, else as it came. Where signing fails, or was not
// possible anywhere, the member has to do without, or this node asks the origin in the end.
func (p *Peers) grant(ctx context.Context, b objstore.Bucket, a chunk.Access, sign func(objstore.Presigner) (string, error)) chunk.Access {
	if a.Identity == "" || a.Identity == chunk.Anonymous || p.cfg.Presigner == nil {
		return a
	}
	by, ok := p.cfg.Presigner(ctx, b, a.Identity)
	if !ok {
		return a
	}
	url, err := sign(by)
	if err != nil {
		p.cfg.Logger.Info("no grant", "bucket", b.Name, "error", err)
		return a
	}
	p.stats.GrantsGiven.Add(1)
	return chunk.Access{Identity: a.Identity, Grant: chunk.NewGrant(url)}
}
