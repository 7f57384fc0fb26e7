package fuse

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/shardwell/shardwell/fuse/snapshot"
	"github.com/shardwell/shardwell/fuse/tree"
	"github.com/shardwell/shardwell/objstore"
)

// Limits of listing.
const (
	// namesAhead is how far a listing runs ahead of its furthest reader before it
	// pauses: who looks at the first names of a million does not list them all.
	namesAhead = 32 << 10
	// parkedFor is how long a paused listing waits for its readers before it ends.
	parkedFor = 10 * time.Second
)

// dirTable holds what is going on in directories.
type dirTable struct {
	mu  sync.Mutex
	all map[*snapshot.Dir]*directory
}

func (t *dirTable) of(d *snapshot.Dir) *directory {
	t.mu.Lock()
	defer t.mu.Unlock()
	dir := t.all[d]
	if dir == nil {
		dir = &directory{snap: d, since: d.Listed()}
		t.all[d] = dir
	}
	return dir
}

// directory is the freshness of one directory's listing, and the listing that is
// under way, if any. All who read the directory share it.
type directory struct {
	snap *snapshot.Dir

	mu      sync.Mutex
	since   time.Time // all names are known as of then; zero = not
	listing *listing  // nil when none is under way
}

// listing is one walk over the pages of a directory. Fields are under directory.mu.
type listing struct {
	pages  *tree.Lister
	oldest time.Time // of the pages' answers
	seen   bitset    // indices of newest records that a page confirmed
	listed int       // names so far
	wanted uint32    // index up to which somebody has read
	asleep int       // readers that wait for the next page
	void   bool      // its pages may be older than a Forget
	etags  etags     // of those that the pages lack
	passed bool      // readers do not wait for it: what was known before is shown
	turned chan struct{}
	want   chan struct{} // wanted or asleep has grown
	err    error
}

// errParked ends a listing that nobody reads on.
var errParked = errors.New("listing has no readers")

func (dir *directory) completeSince() time.Time {
	dir.mu.Lock()
	defer dir.mu.Unlock()
	return dir.since
}

// forget makes the directory count as never listed, and what is known of its names
// that begin with prefix as never verified.
func (dir *directory) forget(prefix string) error {
	dir.mu.Lock()
	defer dir.mu.Unlock()
	dir.since = time.Time{}
	if dir.listing != nil {
		dir.listing.void, dir.listing.passed = true, false
	}
	return dir.snap.Distrust(prefix)
}

// verdict on an entry in the middle of a listing.
type verdict int

const (
	show verdict = iota
	hide
	unsure // the listing has not come to it yet
)

// judge says whether the record with an index is shown now, and which record has
// the entry: the newest of the same name. mu is held.
func (dir *directory) judge(index uint32) (uint32, verdict) {
	v := dir.snap.View(index, false)
	if v.Replaces {
		return index, hide // its name is shown where it first came
	}
	current := dir.snap.Current(index)
	if current != index {
		v = dir.snap.View(current, false)
	}
	l := dir.listing
	switch {
	case l == nil, l.passed:
		if v.Gone {
			return current, hide
		}
		return current, show
	case l.seen.has(current):
		return current, show
	case v.Gone || v.Kind == tree.File:
		if l.pages.Passed(string(v.Name), tree.File) && l.pages.Passed(string(v.Name), tree.Dir) {
			return current, hide
		}
	case l.pages.Passed(string(v.Name), tree.Dir):
		return current, hide
	}
	return current, unsure
}

// await waits until the first entry at or behind index can be shown or there are no
// more. At index 0 it begins a new listing when the last one is too old.
func (s *Session) await(ctx context.Context, dir *directory, index uint32) error {
	l := s.listingFor(dir, index)
	if l == nil {
		return nil
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for {
		turned, ready := dir.doze(l, &index)
		if ready {
			return nil
		}
		var err error
		select {
		case <-turned:
			timer.Reset(patience)
		case <-timer.C:
			s.passBy(dir, l, errImpatient)
		case <-s.silenceBegins(dir):
			s.passBy(dir, l, nil)
		case <-ctx.Done():
			err = ctx.Err()
		}
		ended, failed := dir.wake(l)
		if isSilence(failed) && !errors.Is(failed, errParked) && s.passBy(dir, l, failed) {
			return nil
		}
		if err = errors.Join(err, failed); err != nil {
			return err
		}
		if ended {
			return nil
		}
	}
}

// silenceBegins returns what is closed while the origin is silent, for readers of
// a directory that need not wait for it then; nil for others.
func (s *Session) silenceBegins(dir *directory) <-chan struct{} {
	if !s.mayGoOn() || dir.completeSince().IsZero() {
		return nil
	}
	return s.silence.begins()
}

// passBy lets the readers of a directory that was complete once go on without its
// listing, whose next page the origin does not give. False says that too little is known.
func (s *Session) passBy(dir *directory, l *listing, why error) bool {
	dir.mu.Lock()
	defer dir.mu.Unlock()
	if !s.mayGoOn() || dir.since.IsZero() {
		return false
	}
	if why != nil {
		s.fallSilent(why)
	}
	if dir.listing == l && !l.passed {
		l.passed = true
		l.turn()
	}
	return true
}

// turn wakes who waits for news; directory.mu is held.
func (l *listing) turn() {
	close(l.turned)
	l.turned = make(chan struct{})
}

// listingFor returns the listing under way, which it starts if a reader at index
// needs one; nil when what is known will do.
func (s *Session) listingFor(dir *directory, index uint32) *listing {
	dir.mu.Lock()
	defer dir.mu.Unlock()
	stale := dir.since.IsZero() || index == 0 && left(dir.since, s.maxAge(), time.Now()) < 0
	switch {
	case dir.listing != nil || !stale:
	case s.silence.on.Load() && s.mayGoOn() && !dir.since.IsZero():
		s.stats.StaleAnswers.Add(1)
	default:
		s.startListing(dir)
	}
	return dir.listing
}

// doze moves *index on to the first entry that is not hidden. ready says that it can be
// shown; else the reader counts as asleep until wake, and turned is closed when
// there is news.
func (dir *directory) doze(l *listing, index *uint32) (turned chan struct{}, ready bool) {
	dir.mu.Lock()
	defer dir.mu.Unlock()
	for ; *index < dir.snap.Len(); *index++ {
		_, v := dir.judge(*index)
		if v == show {
			l.reach(*index)
			return nil, true
		}
		if v == unsure {
			break
		}
	}
	if l.passed {
		return nil, true
	}
	l.asleep++
	l.reach(*index)
	return l.turned, false
}

func (dir *directory) wake(l *listing) (ended bool, err error) {
	dir.mu.Lock()
	defer dir.mu.Unlock()
	l.asleep--
	return dir.listing != l, l.err
}

// reach tells the listing how far it is read; directory.mu is held.
func (l *listing) reach(index uint32) {
	if index <= l.wanted && l.asleep == 0 {
		return
	}
	l.wanted = max(l.wanted, index)
	select {
	case l.want <- struct{}{}:
	default:
	}
}

// startListing begins a listing that outlives the caller; dir.mu is held.
func (s *Session) startListing(dir *directory) {
	l := &listing{
		pages:  tree.NewLister(dir.snap.Prefix, s.cfg.rules()),
		oldest: time.Now(),
		turned: make(chan struct{}),
		want:   make(chan struct{}, 1),
	}
	dir.listing = l
	s.serving.Add(1)
	go func() {
		defer s.serving.Done()
		err := s.list(s.runCtx, dir, l)
		dir.mu.Lock()
		defer dir.mu.Unlock()
		l.err = err
		dir.listing = nil
		close(l.turned)
	}()
}

// list walks the pages. Every name is recorded before anybody is told of it.
func (s *Session) list(ctx context.Context, dir *directory, l *listing) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("list %q: panic: %v", dir.snap.Prefix, p)
			s.log.Error("file system: listing ended", "prefix", dir.snap.Prefix, "error", err)
		}
	}()
	debug.SetPanicOnFault(true)
	before, began := dir.snap.Len(), dir.snap.Ask() // what is not seen again is gone
	req := objstore.ListRequest{Prefix: dir.snap.Prefix, Delimiter: "/"}
	for {
		s.stats.ListPages.Add(1)
		asked := dir.snap.Ask()
		page, age, err := s.cfg.Names.List(ctx, objstore.Query{Bucket: s.cfg.Bucket, MaxAge: s.maxPageAge()}, req)
		if err != nil {
			return fmt.Errorf("list %q: %w", dir.snap.Prefix, err)
		}
		s.lookForETags(ctx, l, page)
		at := time.Now().Add(-age)
		if err := s.take(dir, l, page, at, asked); err != nil {
			return err
		}
		if page.Next == "" {
			return s.complete(dir, l, before, began)
		}
		req.Token = page.Next
		if err := dir.keepUp(ctx, l); err != nil {
			return err
		}
	}
}

// take records the names of a page and wakes who waits for them.
func (s *Session) take(dir *directory, l *listing, page objstore.Page, at time.Time, asked snapshot.Question) error {
	dir.mu.Lock()
	defer dir.mu.Unlock()
	if at.Before(l.oldest) {
		l.oldest = at
	}
	entries, skipped := l.pages.Add(page)
	l.listed += len(entries)
	for _, k := range skipped {
		s.skip(k)
	}
	for _, e := range entries {
		if s.shadowed(dir, l, e) || e.Kind == tree.File && e.ETag == "" && s.unversioned(dir, l, e) {
			continue
		}
		index, _, err := dir.snap.Put(e, at, asked)
		if err != nil {
			return err
		}
		l.seen.set(index)
	}
	l.passed = false
	l.turn()
	return nil
}

// shadowed leaves out a file whose directory an origin that does not sort has named
// before.
func (s *Session) shadowed(dir *directory, l *listing, e tree.Entry) bool {
	if l.pages.Sorted() || e.Kind != tree.File {
		return false
	}
	index, ok := dir.snap.Find(e.Name)
	if !ok || !l.seen.has(index) || dir.snap.View(index, false).Kind != tree.Dir {
		return false
	}
	s.skip(tree.Skip{Key: tree.Join(dir.snap.Prefix, e.Name, tree.File), Reason: tree.Shadowed})
	return true
}

// complete ends a listing that saw all pages: names it did not see are gone, unless
// somebody has learnt better meanwhile.
func (s *Session) complete(dir *directory, l *listing, before uint32, began snapshot.Question) error {
	dir.mu.Lock()
	defer dir.mu.Unlock()
	for i := uint32(0); i < before; i++ {
		current := dir.snap.Current(i)
		if current != i || l.seen.has(i) || !dir.snap.Verified(i).Before(l.oldest) {
			continue
		}
		v := dir.snap.View(i, false)
		if v.Gone {
			continue
		}
		if err := dir.snap.Remove(string(v.Name), l.oldest, began); err != nil {
			return err
		}
	}
	if l.void {
		return nil
	}
	dir.since = l.oldest
	return dir.snap.SetListed(l.oldest)
}

// keepUp pauses a listing that is far ahead of its readers. It returns an error when
// nobody reads any more.
func (dir *directory) keepUp(ctx context.Context, l *listing) error {
	var parked *time.Timer
	for {
		dir.mu.Lock()
		enough := l.asleep == 0 && l.listed > int(l.wanted)+namesAhead
		dir.mu.Unlock()
		if !enough {
			return ctx.Err()
		}
		if parked == nil {
			parked = time.NewTimer(parkedFor)
			defer parked.Stop()
		}
		select {
		case <-l.want:
		case <-parked.C:
			return errParked
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// bitset is a set of small numbers.
type bitset []uint64

func (b bitset) has(i uint32) bool { return int(i/64) < len(b) && b[i/64]&(1<<(i%64)) != 0 }

func (b *bitset) set(i uint32) {
	for int(i/64) >= len(*b) {
		*b = append(*b, 0)
	}
	(*b)[i/64] |= 1 << (i % 64)
}
