package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/time/rate"

	"github.com/shardwell/shardwell/cache"
	"github.com/shardwell/shardwell/cache/disk"
	"github.com/shardwell/shardwell/cache/evict"
	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/objstore"
	"github.com/shardwell/shardwell/peer"
	"github.com/shardwell/shardwell/peer/ring"
	"github.com/shardwell/shardwell/warm"
)

// How a node brings what it is asked to hold.
const (
	bringTell    = 500 * time.Millisecond // between answers
	bringAtOnce  = 16                     // chunks, unless the caller says otherwise
	fillAtOnce   = 6                      // the same where every node brings all: narrow, so that they pass on to each other
	maxBringing  = 256                    // chunks at once
	minBringing  = 2                      // likewise, however small the budget
	slowSeconds  = 4                      // that a chunk may take of a node's part of the budget
	roomTries    = 4                      // of a chunk that the disk does not take: what is worth less may be about to go
	roomPause    = 150 * time.Millisecond // after the first, doubling
	fullFor      = time.Second            // between attempts while there is no room
	detailBytes  = 300
	notOwnedHere = "moved" // reason of an outcome: another node owns the chunk by now
)

// warmed counts the bytes that this node was to hold for warm-ups, by what came of it.
type warmed struct{ held, fetched, missing atomic.Int64 }

// worker does work for other members.
type worker struct{ n *Node }

var _ peer.Worker = worker{}

// Room implements peer.Worker.
func (w worker) Room(ctx context.Context, about []peer.Prefix) (limit, taken int64, err error) {
	err = w.n.requests.do(ctx, func(ctx context.Context) error {
		shares, err := w.n.shares(ctx)
		if err != nil {
			return err
		}
		table, now := w.n.uses.now(), time.Now().UnixNano()
		for _, s := range shares {
			o := chunk.Object{Origin: s.Origin, Bucket: s.Bucket, Key: s.Dir}
			if slices.ContainsFunc(about, func(p peer.Prefix) bool { return objectIn(o, p.Bucket, p.Prefix) || beginsIn(p, s) }) {
				continue
			}
			if class, _ := table.Judge(o, now); class >= evict.Protected {
				taken += s.OwnedBytes
			}
		}
		limit = w.n.capacityHere()
		return nil
	})
	return limit, taken, err
}

// beginsIn reports whether a prefix begins in a directory: then what is counted for the directory may
// be what the prefix is about.
func beginsIn(p peer.Prefix, s share) bool {
	at := chunk.Object{Origin: p.Bucket.Origin, Bucket: p.Bucket.Name, Key: p.Prefix}
	return objectIn(at, objstore.Bucket{Origin: s.Origin, Name: s.Bucket}, s.Dir)
}

// Bring implements peer.Worker.
func (w worker) Bring(ctx context.Context, b peer.Bring, tell func(peer.Brought) error) error {
	return w.n.requests.do(ctx, func(ctx context.Context) error {
		if len(b.Hold) > 0 {
			var list []evict.Dataset
			for _, p := range b.Hold {
				list = append(list, evict.Dataset{Origin: p.Bucket.Origin, Bucket: p.Bucket.Name, Prefix: p.Prefix})
			}
			w.n.policy.held.hold(list, time.Now().Add(b.HoldFor), time.Now())
			w.n.disks.judged()
		}
		ctx, stop := context.WithCancelCause(ctx)
		defer stop(nil)
		br := &bringer{n: w.n, b: b, wake: make(chan struct{}, 1), probe: semaphore.NewWeighted(1), came: time.Now()}
		if b.AtOnce <= 0 {
			br.b.AtOnce = bringAtOnce
			if b.Fill {
				br.b.AtOnce = fillAtOnce
			}
		}
		br.b.AtOnce = w.n.affordable(min(br.b.AtOnce, maxBringing))
		if b.MaxRate > 0 {
			br.rate = rate.NewLimiter(rate.Limit(b.MaxRate), int(w.n.geometry.ChunkBytes))
			br.rate.AllowN(time.Now(), int(w.n.geometry.ChunkBytes)) // begins empty
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			br.run(ctx)
		}()
		err := br.tellAll(done, tell)
		if err == nil {
			err = context.Cause(ctx)
		}
		stop(err)
		<-done
		return err
	})
}

// affordable returns how many chunks this node is to fetch at once, of so many: with a budget for the origin no
// more than an equal part of it brings in a few seconds, or each would take so long that it looks stuck.
func (n *Node) affordable(atOnce int) int {
	if n.cfg.MaxOriginRate == 0 {
		return atOnce
	}
	part := int64(n.cfg.MaxOriginRate) / int64(max(1, n.cluster.ring.history.Current().Len()))
	return max(min(atOnce, minBringing), min(atOnce, int(part*slowSeconds/n.geometry.ChunkBytes)))
}

// bringer does one Bring.
type bringer struct {
	n    *Node
	b    peer.Bring
	rate *rate.Limiter // nil: no limit
	wake chan struct{} // there is much to tell

	probe *semaphore.Weighted // held by who tries whether there is room after all

	mu     sync.Mutex
	news   peer.Brought
	full   time.Time // when a chunk found no room last
	came   time.Time // when a chunk was fetched last, or the work began
	silent bool      // the origin has not answered for as long as a read may take, and nothing has come meanwhile
}

// tellAll tells what there is until done is closed, and then the rest.
func (br *bringer) tellAll(done <-chan struct{}, tell func(peer.Brought) error) error {
	tick := time.NewTicker(bringTell)
	defer tick.Stop()
	for last := false; !last; {
		select {
		case <-tick.C:
		case <-br.wake:
		case <-done:
			last = true
		}
		br.mu.Lock()
		news := br.news
		br.news = peer.Brought{}
		br.mu.Unlock()
		for {
			some := news
			some.Outcomes = news.Outcomes[:min(len(news.Outcomes), peer.MaxOutcomes)]
			if err := tell(some); err != nil {
				return err
			}
			news = peer.Brought{Outcomes: news.Outcomes[len(some.Outcomes):]}
			if len(news.Outcomes) == 0 {
				break
			}
		}
	}
	return nil
}

func (br *bringer) say(o *peer.Outcome, held, fetched int64) {
	br.mu.Lock()
	defer br.mu.Unlock()
	if o != nil {
		br.news.Outcomes = append(br.news.Outcomes, *o)
	}
	br.news.HeldBytes += held
	br.news.FetchedBytes += fetched
	if len(br.news.Outcomes) >= peer.MaxOutcomes {
		select {
		case br.wake <- struct{}{}:
		default:
		}
	}
}

// run does all parts, or as many as ctx allows.
func (br *bringer) run(ctx context.Context) {
	switch br.b.Do {
	case peer.DoCheck:
		for i, p := range br.b.Parts {
			if ctx.Err() != nil {
				return
			}
			br.check(i, p)
		}
	case peer.DoDrop:
		br.drop(ctx)
	default:
		var group sync.WaitGroup
		slots := semaphore.NewWeighted(int64(br.b.AtOnce))
		for i, p := range br.b.Parts {
			if ctx.Err() != nil {
				break
			}
			br.fetch(ctx, i, p, slots, &group)
		}
		group.Wait()
	}
}

// chunksOf returns the chunks that a part stands for.
func (br *bringer) chunksOf(p peer.Part) []uint32 {
	if len(p.Chunks) > 0 {
		return p.Chunks
	}
	all := make([]uint32, br.n.geometry.Chunks(p.Object.Size))
	for i := range all {
		all[i] = uint32(i)
	}
	return all
}

func (br *bringer) bytesOf(o chunk.Object, index uint32) int64 {
	_, n := br.n.geometry.Bytes(o.Size, br.n.geometry.ChunkSpan(o.Size, index))
	return n
}

// piece is how far a part of a fetch is.
type piece struct {
	br    *bringer
	index int
	obj   chunk.Object
	file  *cache.File

	mu   sync.Mutex
	left int
	out  peer.Outcome
	dead bool // no chunk of it can be had
}

// fetch begins to bring the chunks of a part, each as soon as there is a slot for it.
func (br *bringer) fetch(ctx context.Context, i int, p peer.Part, slots *semaphore.Weighted, group *sync.WaitGroup) {
	chunks := br.chunksOf(p)
	if len(chunks) == 0 {
		br.say(&peer.Outcome{Part: i}, 0, 0)
		return
	}
	f, err := br.n.cache.Open(p.Object)
	if err != nil {
		br.say(&peer.Outcome{Part: i, Missing: chunks, Reason: string(warm.Other), Detail: short(err)}, 0, 0)
		return
	}
	pt := &piece{br: br, index: i, obj: p.Object, file: f, left: len(chunks), out: peer.Outcome{Part: i}}
	for _, c := range chunks {
		if slots.Acquire(ctx, 1) != nil {
			pt.end(c, 0, 0, notOwnedHere, "") // nobody will hear of it
			continue
		}
		group.Go(func() {
			defer slots.Release(1)
			pt.chunk(ctx, c)
		})
	}
}

// end notes how a chunk ended, and says how the part did with the last.
func (pt *piece) end(index uint32, held, fetched int64, reason warm.Reason, detail string) {
	pt.mu.Lock()
	defer pt.mu.Unlock()
	w := &pt.br.n.warmed
	w.held.Add(held - fetched)
	w.fetched.Add(fetched)
	if reason != "" && reason != notOwnedHere {
		w.missing.Add(pt.br.bytesOf(pt.obj, index))
	}
	if reason != "" {
		pt.out.Missing = append(pt.out.Missing, index)
		if pt.out.Reason == "" || pt.out.Reason == notOwnedHere {
			pt.out.Reason, pt.out.Detail = string(reason), detail
		}
		pt.dead = pt.dead || reason == warm.Forbidden || reason == warm.NotFound || reason == warm.Changed
	}
	pt.left--
	if pt.left > 0 {
		pt.br.say(nil, held, fetched)
		return
	}
	pt.file.Close()
	pt.br.say(&pt.out, held, fetched)
}

// chunk brings one chunk.
func (pt *piece) chunk(ctx context.Context, index uint32) {
	br := pt.br
	span := br.n.geometry.ChunkSpan(pt.obj.Size, index)
	bytes := br.bytesOf(pt.obj, index)
	if pt.file.Holds(span) {
		pt.end(index, bytes, 0, "", "")
		return
	}
	pt.mu.Lock()
	dead, reason, detail := pt.dead, warm.Reason(pt.out.Reason), pt.out.Detail
	pt.mu.Unlock()
	switch {
	case dead:
		pt.end(index, 0, 0, reason, detail)
		return
	case !br.b.Fill && !br.n.holdsPlace(pt.obj, index):
		pt.end(index, 0, 0, notOwnedHere, "")
		return
	case len(br.n.disks.dirs) == 0:
		pt.end(index, 0, 0, warm.NoRoom, errNoDisk.Error())
		return
	case br.isFull():
		pt.end(index, 0, 0, warm.NoRoom, "the cache of this node is full of what is worth as much")
		return
	case br.isSilent():
		pt.end(index, 0, 0, warm.Unavailable, "not tried: the origin did not answer for what came before")
		return
	}
	if br.rate != nil && br.rate.WaitN(ctx, int(bytes)) != nil {
		pt.end(index, 0, 0, notOwnedHere, "")
		return
	}
	began := time.Now()
	reason, detail = br.tryBring(ctx, pt.file, index, span)
	br.heard(reason, began)
	if reason != "" {
		bytes = 0
	}
	pt.end(index, bytes, bytes, reason, detail)
}

// tryBring is bring, for one chunk at a time while the disk says that it has no room: what is fetched then
// may be for nothing.
func (br *bringer) tryBring(ctx context.Context, f *cache.File, index uint32, span chunk.Span) (warm.Reason, string) {
	if br.n.roomFor(f.Object().ID()) {
		return br.bring(ctx, f, index, span)
	}
	if br.probe.Acquire(ctx, 1) != nil {
		return notOwnedHere, ""
	}
	defer br.probe.Release(1)
	if br.isFull() {
		return warm.NoRoom, "the cache of this node is full of what is worth as much"
	}
	return br.bring(ctx, f, index, span)
}

// bring gets a chunk and sees it held.
func (br *bringer) bring(ctx context.Context, f *cache.File, index uint32, span chunk.Span) (warm.Reason, string) {
	id := f.Object().ID()
	wait := roomPause
	for try := range roomTries {
		if try > 0 {
			if pause(ctx, wait) != nil {
				return notOwnedHere, ""
			}
			wait *= 2
		}
		if try > 0 && !br.n.roomFor(id) {
			continue // what is worth less may still go
		}
		// What is under way comes to its end though the caller has gone: another who runs the job
		// asks for it within seconds, and half a chunk would be fetched twice.
		if err := f.Bring(br.n.requests.ctx, index, br.b.Fill); err != nil {
			return reasonOf(err), short(err)
		}
		if f.Holds(span) {
			return "", ""
		}
	}
	if d := br.n.disks.place(id); d.State() == disk.Down {
		return warm.DiskFailed, fmt.Sprintf("cache directory %s fails", d.Path())
	}
	br.mu.Lock()
	br.full = time.Now()
	br.mu.Unlock()
	return warm.NoRoom, "the cache of this node does not take it"
}

// isFull reports whether a chunk has found no room a moment ago: what would be fetched would not be kept.
func (br *bringer) isFull() bool {
	br.mu.Lock()
	defer br.mu.Unlock()
	if time.Since(br.full) > fullFor {
		br.full = time.Time{}
		return false
	}
	return true
}

// heard takes note of how a fetch ended that began at a time.
func (br *bringer) heard(reason warm.Reason, began time.Time) {
	br.mu.Lock()
	defer br.mu.Unlock()
	switch {
	case reason == "":
		br.came, br.silent = time.Now(), false
	case reason == warm.Unavailable && !br.came.After(began):
		br.silent = true
	}
}

// isSilent reports whether asking the origin for more would only take time.
func (br *bringer) isSilent() bool {
	br.mu.Lock()
	defer br.mu.Unlock()
	return br.silent
}

// holdsPlace reports whether this node is where a chunk belongs, or acts for who is.
func (n *Node) holdsPlace(o chunk.Object, index uint32) bool {
	return n.placeOf(o.ID(), o.Size, index) == n.id
}

// placeOf returns the ring id of who is to hold a chunk now: its owner, or who acts for it; "" for nobody.
func (n *Node) placeOf(id chunk.ObjectID, size int64, index uint32) string {
	key := ring.KeyOf(id, size, int64(n.cfg.PlaceWhole), index)
	if m := n.cluster.ring.history.Current().Acting(key); m != nil {
		return m.ID
	}
	return ""
}

// reasonOf returns why something could not be had.
func reasonOf(err error) warm.Reason {
	switch {
	case errors.Is(err, objstore.ErrPermission), errors.Is(err, objstore.ErrCredentials):
		return warm.Forbidden
	case errors.Is(err, objstore.ErrNotExist), errors.Is(err, objstore.ErrNoBucket):
		return warm.NotFound
	case errors.Is(err, objstore.ErrChanged):
		return warm.Changed
	case errors.Is(err, objstore.ErrUnavailable), errors.Is(err, objstore.ErrThrottled):
		return warm.Unavailable
	case errors.Is(err, context.Canceled), errors.Is(err, ErrStopping), errors.Is(err, cache.ErrClosed):
		return notOwnedHere
	}
	return warm.Other
}

// short cuts the text of an error.
func short(err error) string {
	text := oneLine(err).Error()
	return text[:min(len(text), detailBytes)]
}
