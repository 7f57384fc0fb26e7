package peer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/objstore"
	"github.com/shardwell/shardwell/peer/transfer"
)

// Fetch implements chunk.Fetcher. It walks from the owner through its successors
// to the first that answers. When it meets this node in that list, or nobody is left,
// it asks the owners of earlier tables whether they hold the blocks, and then returns
// chunk.ErrNotHeld: the caller asks the origin for what was not delivered.
//
// Errors of the origin that a retry cannot help, throttling, and that it did not answer
// in the owner's time are returned as the owner gave them: others would only ask the same
// origin again. An error of deliver is returned as it is. When req.Patience is over
// without a block Fetch asks nobody else, and returns the last error.
func (p *Peers) Fetch(ctx context.Context, req chunk.Request, deliver chunk.Deliver) error {
	if req.HeldOnly {
		return chunk.ErrNotHeld // such a question is for one node only
	}
	w := &walk{p: p, req: req, left: newLeft(req.Span), since: time.Now()}
	w.deliver = func(b chunk.Block) error {
		if err := deliver(b); err != nil {
			return err
		}
		w.came, w.since = w.came+1, time.Now()
		w.left.remove(b.Index)
		return nil
	}
	key := p.cfg.Ring.KeyOfBlocks(req.Object, req.ID, req.Span)
	if req.Hops < chunk.MaxHops {
		owners := p.cfg.Ring.Owners(key, nil)
		if req.Hops > 0 && len(owners) > 0 && owners[0] != p.cfg.Self && p.representative(req, owners[0], "") == p.cfg.Self {
			w.req.Fill = false // it asks for its rack, of which a member waits
		}
		var ids []string
		w.representatives, ids = p.instead(req, owners)
		if done, err := w.candidates(ctx, ids); done {
			return unwrapDeliver(err)
		}
	}
	return unwrapDeliver(w.asOwner(ctx, key))
}

// unwrapDeliver gives the caller its own error back.
func unwrapDeliver(err error) error {
	var d *transfer.DeliverError
	if errors.As(err, &d) {
		return d.Err
	}
	return err
}

// walk is one Fetch on its way through the members.
type walk struct {
	p       *Peers
	req     chunk.Request
	deliver chunk.Deliver
	left    *left
	failed  []string // members that failed, for those asked later
	came    int      // blocks
	named   bool     // somebody was named to this node, and it to others perhaps
	// representatives is how many of those who are asked are asked for the rack.
	representatives int
	since           time.Time // of the last block, or the beginning
}

// patience returns what is left of the asker's, 0 when it has not said.
func (w *walk) patience() time.Duration {
	if w.req.Patience <= 0 {
		return 0
	}
	return max(time.Millisecond, w.req.Patience-time.Since(w.since))
}

// late reports whether the asker's patience is over.
func (w *walk) late() bool { return w.req.Patience > 0 && time.Since(w.since) >= w.req.Patience }

// noteFailed remembers a member that could not help.
func (w *walk) noteFailed(id string) {
	w.p.near.forget(w.req, id)
	if !slices.Contains(w.failed, id) && len(w.failed) < transfer.MaxFailed-1 {
		w.failed = append(w.failed, id)
	}
}

func (p *Peers) cut(origin string) bool   { return p.cfg.Routes != nil && p.cfg.Routes.Cut(origin) }
func (p *Peers) shaky(origin string) bool { return p.cfg.Routes != nil && p.cfg.Routes.Shaky(origin) }

// errNobody says that the origin answers neither this node nor those that were asked in its place.
var errNobody = fmt.Errorf("%w: nor others", objstore.ErrUnavailable)

// candidates asks owner and successors in their order, up to this node, or past it when its own way
// to the origin is cut. done is false when this node is to act as the owner.
func (w *walk) candidates(ctx context.Context, ids []string) (done bool, err error) {
	now, origin, noRoute := time.Now(), w.req.Object.Origin, false
	for i, id := range ids {
		if id == w.p.cfg.Self {
			switch {
			case i < w.representatives:
				w.req.Fill = false // the owner need not put racks in order as it does nodes
				continue
			case w.p.cut(origin):
				continue
			}
			break
		}
		m, ok := w.p.cfg.Members.Lookup(id)
		if !ok || id == w.req.From {
			noRoute = noRoute || ok && i >= w.representatives // it would not ask if it could fetch
			continue
		}
		if !w.p.breakers.allow(id, now) {
			w.noteFailed(id)
			continue
		}
		if i > 0 && ids[i-1] != w.p.cfg.Self {
			w.p.stats.NextCandidate.Add(1)
		}
		err := w.askCandidate(ctx, m)
		switch {
		case err == nil:
			return true, nil
		case errors.Is(err, errDelegated):
			return false, nil
		case ends(ctx, err), w.late():
			return true, err
		}
		noRoute = noRoute || errors.Is(err, chunk.ErrNoRoute)
		w.noteFailed(id)
		if w.named && errors.Is(err, transfer.ErrUnreachable) {
			// Others may wait for this node by now, of which the next one knows nothing. It is to name nobody.
			w.failed = append(w.failed, transfer.AnyMember)
		}
		w.p.cfg.Logger.Info("peer could not serve", "object", w.req.Object.URI(), "blocks", w.req.Span, "peer", id, "error", err)
	}
	if noRoute && w.p.shaky(origin) {
		return true, errNobody
	}
	return false, nil
}

// ends reports whether an error is the answer, wherever else one might ask.
func ends(ctx context.Context, err error) bool {
	if ctx.Err() != nil || errors.As(err, new(*transfer.DeliverError)) {
		return true
	}
	var remote *transfer.RemoteError
	if !errors.As(err, &remote) {
		return false
	}
	// ErrInvalid is about the message between us, the clock about that node.
	if errors.Is(err, objstore.ErrInvalid) || errors.Is(err, objstore.ErrClockSkew) || errors.Is(err, objstore.ErrCredentials) {
		return false
	}
	return objstore.Final(err) || errors.Is(err, objstore.ErrThrottled) || errors.Is(err, objstore.ErrUnavailable)
}

// maxBusyPause bounds one wait for a busy member; then its successor is asked.
const maxBusyPause = 2 * time.Second

// askCandidate asks one member as the owner, follows where it points, and comes back
// when that leads nowhere.
func (w *walk) askCandidate(ctx context.Context, m Member) error {
	redirects, busy := 0, 0
	for {
		if redirects == w.p.cfg.MaxRedirects && !slices.Contains(w.failed, transfer.AnyMember) {
			w.failed = append(w.failed, transfer.AnyMember)
		}
		before := w.came
		err := w.ask(ctx, m, anyhow)
		var redirect *transfer.RedirectError
		var remote *transfer.RemoteError
		switch {
		case errors.As(err, &redirect) && redirects < w.p.cfg.MaxRedirects:
			redirects++
			w.named = true
			if redirect.Lags && w.p.cfg.OnLag != nil {
				w.p.cfg.OnLag(w.req.ID)
			}
			if redirect.Member == w.p.cfg.Self && w.req.Background {
				w.p.stats.Delegated.Add(1)
				return errDelegated
			}
			if err := w.follow(ctx, m, redirect.Member); err == nil || ends(ctx, err) && !isRemote(err) {
				return err
			}
		case errors.As(err, &remote) && remote.Class == transfer.ErrBusy && busy < w.p.cfg.MaxBusyRetries:
			if err := pause(ctx, w.p.jitter(min(remote.RetryAfter<<busy, maxBusyPause))); err != nil {
				return err
			}
			busy++
		case errors.Is(err, transfer.ErrWaited) && w.came > before && w.req.Patience > 0 && !w.late():
			// It sent a part and waits for the rest. Asked anew, it can say for what.
		case errors.Is(err, transfer.ErrUnreachable) && w.came > before && w.req.Background && !w.late():
			// It may have ended the stream because it has become slow, and then names others.
		default:
			w.failed = slices.DeleteFunc(w.failed, func(id string) bool { return id == transfer.AnyMember })
			return err
		}
	}
}

func isRemote(err error) bool { return errors.As(err, new(*transfer.RemoteError)) }

// errDelegated says that the owner wants this node to fetch blocks from the origin.
var errDelegated = errors.New("the owner is slow, and leaves it to this node")

// errNoMember refuses a redirect to somebody who is not to be asked.
var errNoMember = errors.New("named member is none, or has failed")

// follow asks the member that an owner named for what it holds.
func (w *walk) follow(ctx context.Context, owner Member, id string) error {
	m, ok := w.p.cfg.Members.Lookup(id)
	if !ok || id == w.p.cfg.Self || id == owner.ID || slices.Contains(w.failed, id) {
		w.p.stats.RedirectsRefused.Add(1)
		w.p.cfg.Logger.Warn("refused a redirect", "object", w.req.Object.URI(), "peer", owner.ID, "to", id)
		w.noteFailed(id)
		return errNoMember
	}
	if !w.p.breakers.allow(id, time.Now()) {
		w.noteFailed(id)
		return errNoMember
	}
	w.p.stats.RedirectsFollowed.Add(1)
	w.req.Source.Share()
	err := w.ask(ctx, m, held)
	if err != nil {
		w.noteFailed(id)
	}
	return err
}

// asOwner asks the owners of earlier tables for what they hold.
func (w *walk) asOwner(ctx context.Context, key Key) error {
	if err := w.elsewhere(ctx); err == nil || ctx.Err() != nil || errors.As(err, new(*transfer.DeliverError)) {
		return err
	}
	asked := 0
	for _, id := range w.p.cfg.Ring.EarlierOwners(key, nil) {
		m, ok := w.p.cfg.Members.Lookup(id)
		if w.late() {
			break
		}
		if !ok || id == w.p.cfg.Self || id == w.req.From || slices.Contains(w.failed, id) || !w.p.breakers.allow(id, time.Now()) {
			continue
		}
		err := w.ask(ctx, m, settled)
		switch {
		case err == nil:
			w.p.stats.EarlierOwnerHits.Add(1)
			return nil
		case ctx.Err() != nil || errors.As(err, new(*transfer.DeliverError)):
			return err
		}
		if asked++; asked == w.p.cfg.MaxEarlierOwners {
			break
		}
	}
	w.p.stats.ActedAsOwner.Add(1)
	w.req.Source.Set("")
	return chunk.ErrNotHeld
}

// elsewhere asks those that this node, the owner, knows to have the blocks or to get them without it.
func (w *walk) elsewhere(ctx context.Context) error {
	for range w.p.cfg.MaxRedirects {
		if w.p.cfg.Elsewhere == nil || w.late() {
			break
		}
		id, delegate := w.p.cfg.Elsewhere(w.req, w.failed)
		m, ok := w.p.cfg.Members.Lookup(id)
		if id == "" || !ok || id == w.req.From {
			break
		}
		d := settled
		if delegate {
			d = fetched
		}
		err := w.ask(ctx, m, d)
		if err == nil || ctx.Err() != nil || errors.As(err, new(*transfer.DeliverError)) {
			return err
		}
		w.noteFailed(id)
	}
	return errNoMember
}

// Owned reports whether this node would act as the owner of a request: it asks
// others only for what they hold, and then the origin.
func (p *Peers) Owned(req chunk.Request) bool {
	if req.Hops >= chunk.MaxHops {
		return true
	}
	now, cut := time.Now(), p.cut(req.Object.Origin)
	for _, id := range p.cfg.Ring.Owners(p.cfg.Ring.KeyOfBlocks(req.Object, req.ID, req.Span), nil) {
		if id == p.cfg.Self {
			if cut {
				continue
			}
			return true
		}
		if _, ok := p.cfg.Members.Lookup(id); ok && id != req.From && !p.breakers.isOpen(id, now) {
			return false
		}
	}
	return true
}

// demand is how much is asked of a member: see chunk.Request.
type demand int

const (
	anyhow  demand = iota // fetch it if need be
	held                  // held, or on its way
	settled               // held, or on its way from the origin
	fetched               // by itself, if need be, from the origin
)

// ask requests what is left from one member. A block that arrives damaged is asked for
// again: the member was told, and has dropped it if the damage is on its disk. One that is
// damaged again, by the way between us perhaps, is for somebody else.
func (w *walk) ask(ctx context.Context, m Member, d demand) error {
	var damaged []uint32
	for {
		err := w.askOnce(ctx, m, d)
		w.p.report(ctx, m.ID, err)
		var bad *transfer.CorruptError
		if !errors.As(err, &bad) || slices.Contains(damaged, bad.Block) || ctx.Err() != nil || !w.p.breakers.allow(m.ID, time.Now()) {
			return err
		}
		damaged = append(damaged, bad.Block)
	}
}

// askOnce requests what is left run of blocks by run.
func (w *walk) askOnce(ctx context.Context, m Member, d demand) error {
	for {
		span, ok := w.left.next()
		if !ok {
			return nil
		}
		req := transfer.Request{Request: w.req, Failed: w.failed}
		req.Span = span
		req.Hops++
		req.Patience = w.patience()
		req.HeldOnly, req.Settled = d == held || d == settled, d == settled
		if d == fetched { // it names nobody, and asks nobody
			req.Hops = chunk.MaxHops
			req.Failed = append(w.failed[:len(w.failed):len(w.failed)], transfer.AnyMember)
		}
		if req.Access = (chunk.Access{}); !req.HeldOnly { // the other questions never lead to the origin
			req.Access, req.Near = w.access(ctx), w.p.near.of(w.req)
			if w.req.Background && w.p.cfg.Pace != nil {
				req.Pace, req.Slow = w.p.cfg.Pace()
			}
		}
		w.req.Source.Set(m.ID)
		if err := w.p.cfg.Transfer.Fetch(ctx, transfer.Target{ID: m.ID, Addr: m.Addr}, req, w.deliver); err != nil {
			return err
		}
		w.p.near.note(w.req, m.ID)
	}
}

// access returns on whose behalf a member is asked, with a grant that is still good.
func (w *walk) access(ctx context.Context) chunk.Access {
	o := w.req.Object
	return w.p.grant(ctx, objstore.Bucket{Origin: o.Origin, Name: o.Bucket}, w.req.Access, func(by objstore.Presigner) (string, error) {
		return by.Presign(ctx, o.Key, o.ETag, grantTTL)
	})
}

// left is which blocks of a span are still wanted.
type left struct {
	span chunk.Span
	have []bool
}

func newLeft(s chunk.Span) *left { return &left{span: s, have: make([]bool, s.Count)} }

func (l *left) remove(block uint32) { l.have[block-l.span.First] = true }

// next returns the first run of blocks that are wanted.
func (l *left) next() (chunk.Span, bool) {
	first := slices.Index(l.have, false)
	if first < 0 {
		return chunk.Span{}, false
	}
	n := slices.Index(l.have[first:], true)
	if n < 0 {
		n = len(l.have) - first
	}
	return chunk.Span{First: l.span.First + uint32(first), Count: uint32(n)}, true
}
