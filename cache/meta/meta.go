// Package meta asks for metadata once: HEADs and listing pages, cached with the
// time at which the origin was asked.
//
// It promises: an answer is never older than the caller allows; for one name there
// and identity is one query on its way, however many ask, here or from peers; a caller who wants
// an answer younger than the query on its way shares the next one with all
// who do; that there is no such object is an answer as well, and so is, for a moment, that
// the origin denies one; answers are shown to the
// identity on whose behalf the origin was asked, and to nobody else. Memory is bounded,
// a page of a thousand names takes some 30 KB; the store may forget at any time, and then
// the origin is asked again.
//
// It leaves to others: which node asks the origin ([Config.Peers]), what a
// mount's consistency allows (fuse), retries at the origin (objstore.Retry).
//
// It is a part of the read path that stands beside package cache; neither imports
// the other.
package meta

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/objstore"
)

// Defaults of a [Config].
const (
	DefaultMemoryBytes = 64 << 20 // two million names in pages
	DefaultQueryBudget = 60 * time.Second
)

// refusalTTL is how long it is remembered that somebody may not know: a program that tries again and
// again costs the origin one request in this time, and a permission that is granted is seen this much later.
const refusalTTL = 5 * time.Second

// Config is what a [Cache] stands on.
type Config struct {
	Origins objstore.Origins
	// Peers answers for the cluster, or says [chunk.ErrNotHeld]: then this node asks
	// the origin. It is told the query's Hops. nil: there are none.
	Peers objstore.Names

	// Replaced, unless nil, is told which versions of a bucket's objects are current no
	// more, by an answer of the origin that differs from the one before, forgotten or not. What the
	// store had to drop is not noticed. It must not block.
	Replaced func(b objstore.Bucket, old []objstore.Info)

	MemoryBytes int64         // of cached answers
	QueryBudget time.Duration // how long a caller waits for an answer, whoever is asked, retries included
	Logger      *slog.Logger
}

// Stats counts what a [Cache] did since it was made.
type Stats struct {
	Hits        atomic.Int64 // answered from memory
	Shared      atomic.Int64 // answered by a query that another caller began
	PeerQueries atomic.Int64 // asked of peers
	Heads       atomic.Int64 // asked of the origin
	Lists       atomic.Int64 // asked of the origin
	Errors      atomic.Int64 // queries that ended without an answer
	Forgotten   atomic.Int64 // answers dropped by Forget
}

// ErrClosed says that the cache was closed.
var ErrClosed = errors.New("metadata cache is closed")

// Cache implements [objstore.Names]. Its methods are safe for concurrent use.
type Cache struct {
	cfg   Config
	stats Stats
	store store

	// Queries on their way: to the cluster, by what is asked and hops, so that
	// none waits for one that waits for it; and to the origin, by what is asked.
	cluster, origin *flights

	mu        sync.Mutex
	forgotten []forgotten // since QueryBudget ago, oldest first
}

var _ objstore.Names = (*Cache)(nil)

// New returns a cache; close it.
func New(cfg Config) (*Cache, error) {
	if cfg.Origins == nil {
		return nil, errors.New("metadata cache: origins are needed")
	}
	if cfg.MemoryBytes <= 0 {
		cfg.MemoryBytes = DefaultMemoryBytes
	}
	if cfg.QueryBudget <= 0 {
		cfg.QueryBudget = DefaultQueryBudget
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	c := &Cache{cfg: cfg, cluster: newFlights(cfg.QueryBudget), origin: newFlights(cfg.QueryBudget)}
	if err := c.store.open(cfg.MemoryBytes); err != nil {
		return nil, fmt.Errorf("metadata cache: %w", err)
	}
	return c, nil
}

// Run waits until ctx ends, then closes the cache.
func (c *Cache) Run(ctx context.Context) error {
	<-ctx.Done()
	c.Close()
	return nil
}

// Close ends all queries and waits for them. Callers get [ErrClosed].
func (c *Cache) Close() {
	c.cluster.close()
	c.origin.close()
	c.store.close()
}

// Stats returns the counters, which go on counting.
func (c *Cache) Stats() *Stats { return &c.stats }

// Head implements [objstore.Names].
func (c *Cache) Head(ctx context.Context, q objstore.Query, key string) (objstore.Info, time.Duration, error) {
	a, age, err := c.ask(ctx, q, question{bucket: q.Bucket, who: q.Access.Identity, name: key})
	switch {
	case err != nil:
		return objstore.Info{}, age, err
	case a.refused != nil:
		return objstore.Info{}, age, a.refused
	case a.missing:
		return objstore.Info{}, age, fmt.Errorf("head %q: %w", key, objstore.ErrNotExist)
	}
	return a.info, age, nil
}

// List implements [objstore.Names].
func (c *Cache) List(ctx context.Context, q objstore.Query, req objstore.ListRequest) (objstore.Page, time.Duration, error) {
	a, age, err := c.ask(ctx, q, question{bucket: q.Bucket, who: q.Access.Identity, name: req.Prefix, list: true, req: req})
	switch {
	case err != nil:
		return objstore.Page{}, age, err
	case a.refused != nil:
		return objstore.Page{}, age, a.refused
	}
	page, err := decodePage(a.page)
	if err != nil {
		return objstore.Page{}, age, fmt.Errorf("list %q: %w", req.Prefix, err) // our own memory: cannot be
	}
	return page, age, nil
}

// ask answers from memory, by a query on its way, or by a new one.
func (c *Cache) ask(ctx context.Context, q objstore.Query, qu question) (*answer, time.Duration, error) {
	began := time.Now()
	need := began.Add(-max(0, q.MaxAge))
	if t := c.forgottenAt(qu); t.After(need) {
		need = t
	}
	key := qu.key()
	if q.MaxAge > 0 {
		if a := c.store.get(qu); a.holds(need, began) {
			c.stats.Hits.Add(1)
			return a, time.Since(a.asked), nil
		}
	}
	fl, name, fn := c.cluster, fmt.Sprintf("%d %s", q.Hops, key), func(ctx context.Context, need time.Time, s *state) (*answer, error) {
		return c.askCluster(ctx, need, q, qu, s)
	}
	if c.cfg.Peers == nil {
		fl, name, fn = c.origin, key, c.fromOrigin(qu, q.Access)
	}
	a, err := c.wait(ctx, fl, name, need, fn)
	if err != nil {
		return nil, 0, err
	}
	return a, time.Since(a.asked), nil
}

// wait gets an answer within the caller's budget, by a second query when one that others
// began ended without an answer in theirs.
func (c *Cache) wait(parent context.Context, fl *flights, name string, need time.Time, fn query) (*answer, error) {
	ctx, cancel := context.WithTimeout(parent, c.cfg.QueryBudget)
	defer cancel()
	end, _ := ctx.Deadline()
	for {
		a, shared, err := fl.do(ctx, name, need, fn)
		if shared {
			c.stats.Shared.Add(1)
		}
		if err == nil || !shared || objstore.Final(err) || errors.Is(err, ErrClosed) || time.Until(end) < minAgain || !pauseFor(ctx, firstPause) {
			return a, err
		}
	}
}

// Forget ends the use of all answers about the names under a prefix, and those on their
// way to callers who ask from now on. It returns how many there were.
func (c *Cache) Forget(bucket objstore.Bucket, prefix string) int {
	now := time.Now()
	c.mu.Lock()
	c.forgotten = append(c.expired(now), forgotten{bucket: bucket, prefix: prefix, at: now})
	if len(c.forgotten) > maxForgotten { // rather forget too much
		c.forgotten = append(c.forgotten[:0], forgotten{all: true, at: now})
	}
	c.mu.Unlock()
	f := forgotten{bucket: bucket, prefix: prefix}
	dropped := c.store.forget(func(a *answer) bool { return f.covers(a.question) })
	c.stats.Forgotten.Add(int64(dropped))
	return dropped
}

// maxForgotten bounds the prefixes forgotten within one query's budget.
const maxForgotten = 256

// forgotten is one Forget.
type forgotten struct {
	bucket objstore.Bucket
	prefix string
	at     time.Time
	all    bool
}

// covers reports whether an answer to qu may tell of a name under the prefix.
func (f forgotten) covers(qu question) bool {
	if f.all {
		return true
	}
	return f.bucket == qu.bucket &&
		(strings.HasPrefix(qu.name, f.prefix) || qu.list && strings.HasPrefix(f.prefix, qu.name))
}

// forgottenAt returns since when answers to qu count: those that were asked for
// before were forgotten.
func (c *Cache) forgottenAt(qu question) (t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range c.forgotten {
		if f.covers(qu) {
			t = f.at.Add(1) // later than that
		}
	}
	return t
}

// expired returns c.forgotten without what no query can be older than. Callers hold mu.
func (c *Cache) expired(now time.Time) []forgotten {
	i := 0
	for i < len(c.forgotten) && now.Sub(c.forgotten[i].at) > 2*c.cfg.QueryBudget {
		i++
	}
	return append(c.forgotten[:0], c.forgotten[i:]...)
}

// keep stores an answer unless it was forgotten since it was asked for.
func (c *Cache) keep(a *answer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range c.forgotten {
		if f.covers(a.question) && !a.asked.After(f.at) {
			return
		}
	}
	c.store.set(a)
}

// askCluster asks the peers, and the origin when they say that it is this
// node's turn. Transient errors are tried again until ctx ends; then the last one is returned.
func (c *Cache) askCluster(ctx context.Context, need time.Time, q objstore.Query, qu question, s *state) (*answer, error) {
	for pause := firstPause; ; pause = min(2*pause, maxPause) {
		a, err := c.askPeers(ctx, need, q, qu)
		switch {
		case err == nil:
			c.keep(a)
			return a, nil
		case errors.Is(err, chunk.ErrNotHeld):
			s.atOrigin.Store(true)
			a, _, err = c.origin.do(ctx, qu.key(), need, c.fromOrigin(qu, q.Access))
			if err == nil || errors.Is(err, ErrClosed) {
				return a, err
			}
			if ctx.Err() == nil {
				s.atOrigin.Store(false) // the peers again
			}
		}
		if objstore.Final(err) && !ofContext(err) {
			c.stats.Errors.Add(1)
			return nil, err
		}
		if ctx.Err() == nil {
			s.last.Store(&err)
		}
		end, _ := ctx.Deadline()
		if errors.Is(err, objstore.ErrUnavailable) && time.Until(end) < minAgain || !pauseFor(ctx, pause) {
			c.stats.Errors.Add(1)
			return nil, s.late()
		}
	}
}

// Pauses between attempts double from the first on. An origin that has not answered
// somebody in his time is asked again only if there is some left.
const (
	firstPause = 50 * time.Millisecond
	maxPause   = 2 * time.Second
	minAgain   = time.Second
)

// ofContext reports whether err is some context's end, which says nothing about the name.
func ofContext(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

func (c *Cache) askPeers(ctx context.Context, need time.Time, q objstore.Query, qu question) (*answer, error) {
	began := time.Now()
	if q.MaxAge = began.Sub(need); q.MaxAge < time.Millisecond {
		q.MaxAge = 0
	}
	c.stats.PeerQueries.Add(1)
	var age time.Duration
	var err error
	a := &answer{question: qu}
	if qu.list {
		var page objstore.Page
		page, age, err = c.cfg.Peers.List(ctx, q, qu.req)
		a.page = encodePage(page)
	} else {
		a.info, age, err = c.cfg.Peers.Head(ctx, q, qu.name)
		if errors.Is(err, objstore.ErrNotExist) {
			a.missing, err = true, nil
		}
	}
	// The age was told at some moment of the call; the origin was not asked earlier
	// than this, and not before need when the peer kept to MaxAge.
	a.asked = began.Add(-age)
	if a.asked.Before(need) && age <= time.Since(need) {
		a.asked = need
	}
	if errors.Is(err, objstore.ErrPermission) {
		return refusal(qu, a.asked, err, c.store.last(qu)), nil
	}
	return a, err
}

// fromOrigin is the query that asks the origin. Of those who share it the first one's grant
// counts: all have one identity.
func (c *Cache) fromOrigin(qu question, as chunk.Access) query {
	return func(ctx context.Context, need time.Time, s *state) (*answer, error) {
		if a := c.store.get(qu); a.holds(need, time.Now()) {
			return a, nil // came since the caller looked
		}
		s.atOrigin.Store(true)
		a, err := c.askOrigin(ctx, qu, as)
		if err != nil && ctx.Err() != nil {
			err = fmt.Errorf("%s %q: %w: %v", qu.op(), qu.name, errLate, err) // not a context's end
		}
		return a, objstore.Unavailable(err)
	}
}

func (c *Cache) askOrigin(ctx context.Context, qu question, as chunk.Access) (*answer, error) {
	a := &answer{question: qu, asked: time.Now()}
	store, err := objstore.OpenAs(ctx, c.cfg.Origins, qu.bucket, as)
	switch {
	case err != nil:
	case qu.list:
		c.stats.Lists.Add(1)
		var page objstore.Page
		page, err = store.List(ctx, qu.req)
		a.page = encodePage(page)
	default:
		c.stats.Heads.Add(1)
		a.info, err = store.Head(ctx, qu.name)
		if errors.Is(err, objstore.ErrNotExist) {
			a.missing, err = true, nil
		}
	}
	if err != nil {
		c.stats.Errors.Add(1)
		c.cfg.Logger.Warn("no answer about names", "op", qu.op(), "bucket", qu.bucket.Name, "name", qu.name, "error", err)
		if !errors.Is(err, objstore.ErrPermission) {
			return nil, err
		}
		a = refusal(qu, a.asked, err, c.store.last(qu))
		c.keep(a)
		return a, nil
	}
	c.compare(a)
	c.keep(a)
	return a, nil
}
