package fuse

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/shardwell/shardwell/fuse/snapshot"
	"github.com/shardwell/shardwell/fuse/tree"
	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/objstore"
)

// longKeyBytes is the longest key of S3; other origins may have longer ones.
const longKeyBytes = 1024

// found is the answer to a look-up.
type found struct {
	dir    *snapshot.Dir
	index  uint32
	absent bool
	holds  time.Duration // how long the kernel may keep it
}

// known answers a look-up from what was listed or asked before, if that is fresh.
func (s *Session) known(d *snapshot.Dir, name string, now time.Time) (found, bool) {
	if s.cfg.rules().Check(d.Prefix, name) != tree.OK {
		return found{absent: true, holds: forever}, true
	}
	index, ok := d.Find(name)
	if !ok {
		if rest := left(s.dirs.of(d).completeSince(), s.maxAbsentAge(), now); rest >= 0 {
			return found{absent: true, holds: rest}, true
		}
		return s.knownInSilence(d, name)
	}
	v := d.View(index, false)
	if v.NoETag {
		return found{}, false // a listing told of it; HEAD may tell the version
	}
	f := found{dir: d, index: index, absent: v.Gone}
	maxAge := s.maxAge()
	if f.absent {
		maxAge = s.maxAbsentAge()
	}
	if f.holds = left(d.Verified(index), maxAge, now); f.holds < 0 {
		return s.knownInSilence(d, name)
	}
	return f, true
}

// knownInSilence is lastKnown while the origin is silent.
func (s *Session) knownInSilence(d *snapshot.Dir, name string) (found, bool) {
	if !s.silence.on.Load() {
		return found{}, false
	}
	f, ok := s.lastKnown(d, name)
	if ok {
		s.stats.StaleAnswers.Add(1)
	}
	return f, ok
}

// lastKnown returns what was true of a name when the origin last told, if it ever did
// since names were forgotten, and if the mount may go on with that.
func (s *Session) lastKnown(d *snapshot.Dir, name string) (found, bool) {
	if !s.mayGoOn() {
		return found{}, false
	}
	index, ok := d.Find(name)
	if !ok {
		told := !s.dirs.of(d).completeSince().IsZero() || s.absent.has(d.Serial, name)
		return found{absent: true, holds: staleHolds}, told
	}
	v := d.View(index, false)
	f := found{dir: d, index: index, absent: v.Gone, holds: staleHolds}
	return f, !v.NoETag && !d.Verified(index).IsZero()
}

// lookup answers a look-up, by asking the origin's names if it must.
func (s *Session) lookup(ctx context.Context, d *snapshot.Dir, name string) (found, error) {
	if f, ok := s.known(d, name, time.Now()); ok {
		return f, nil
	}
	last, ok := s.lastKnown(d, name)
	if !ok {
		return s.learn(ctx, d, name)
	}
	return orLast(ctx, s, last, func(ctx context.Context) (found, error) { return s.learn(ctx, d, name) })
}

// learn asks the origin's names what a name is.
func (s *Session) learn(ctx context.Context, d *snapshot.Dir, name string) (found, error) {
	if index, ok := d.Find(name); ok {
		if v := d.View(index, false); !v.Gone && v.Kind == tree.File {
			// Most often nothing has changed, and a HEAD says so.
			next, err := s.recheck(ctx, d, index, s.maxAge())
			if err == nil {
				return found{dir: d, index: next, holds: left(d.Verified(next), s.maxAge(), time.Now())}, nil
			}
			if !errors.Is(err, objstore.ErrNotExist) {
				return found{}, err
			}
		}
	}
	return s.ask(ctx, d, name, min(s.maxAge(), s.maxAbsentAge()))
}

// ask puts the two questions that tell what a name is: is there such a key, and
// are there keys below it? The answers may be as old as maxAge.
func (s *Session) ask(ctx context.Context, d *snapshot.Dir, name string, maxAge time.Duration) (found, error) {
	q := objstore.Query{Bucket: s.cfg.Bucket, MaxAge: maxAge}
	key := tree.Join(d.Prefix, name, tree.File)
	var (
		a                tree.Answers
		headAge, listAge time.Duration
		both             sync.WaitGroup
	)
	s.stats.Heads.Add(1)
	s.stats.ListPages.Add(1)
	began, asked, absent := time.Now(), d.Ask(), s.absent.begin()
	both.Go(func() { a.Head, headAge, a.HeadErr = s.cfg.Names.Head(ctx, q, key) })
	a.Below, listAge, a.ListErr = s.firstNames(ctx, q, objstore.ListRequest{Prefix: key + "/", Limit: 1})
	both.Wait()
	now := time.Now()
	at := now.Add(-max(headAge, listAge))
	if maxAge == 0 && at.Before(began) {
		at = began // as was asked for; ages are rounded up on their way
	}
	e, ok, shadowed, err := tree.Resolve(name, a)
	if errors.Is(err, objstore.ErrInvalid) && len(key) > longKeyBytes {
		err = nil // refused for its length, as is the listing below it: there is none
	}
	if err != nil {
		return found{}, err
	}
	if shadowed {
		s.skip(tree.Skip{Key: key, Reason: tree.Shadowed})
	}
	if ok && e.Kind == tree.File && e.ETag == "" {
		ok = false
		s.skip(tree.Skip{Key: key, Reason: tree.NoVersion})
	}
	if !ok {
		if err := d.Remove(name, at, asked); err != nil {
			return found{}, err
		}
		s.absent.add(absent, d.Serial, name)
		if asked != d.Ask() {
			at = time.Time{} // forgotten meanwhile
		}
		return found{absent: true, holds: left(at, s.maxAbsentAge(), now)}, nil
	}
	index, _, err := d.Put(e, at, asked)
	if err != nil {
		return found{}, err
	}
	return found{dir: d, index: index, holds: left(d.Verified(index), s.maxAge(), now)}, nil
}

// recheck asks for the current version of a file and returns the index of its newest
// record. That there is no such key, or no version of it, is an error and not recorded:
// keys below the name may make it a directory, as ask finds out.
func (s *Session) recheck(ctx context.Context, d *snapshot.Dir, index uint32, maxAge time.Duration) (uint32, error) {
	v := d.View(index, false)
	name := string(v.Name)
	s.stats.Heads.Add(1)
	asked := d.Ask()
	info, age, err := s.cfg.Names.Head(ctx, objstore.Query{Bucket: s.cfg.Bucket, MaxAge: maxAge}, d.Prefix+name)
	if err != nil {
		return 0, err
	}
	if info.ETag == "" {
		return 0, fmt.Errorf("head %q: no version: %w", d.Prefix+name, objstore.ErrNotExist)
	}
	next, _, err := d.Put(tree.FileEntry(name, info), time.Now().Add(-age), asked)
	return next, err
}

func (s *Session) skip(k tree.Skip) {
	if s.skipped.add(k) {
		s.stats.Skipped.Add(1)
	}
}

// node is what a node id stands for: the root (owner nil), or an entry.
type node struct {
	id    uint64
	owner *snapshot.Dir
	index uint32
	view  snapshot.View
}

// node finds what a node id stands for; false for ids that were never given out.
func (s *Session) node(id uint64, etag bool) (node, bool) {
	if id == snapshot.RootID {
		return node{id: id, view: snapshot.View{Kind: tree.Dir}}, true
	}
	owner, index := s.store.Owner(id)
	if owner == nil {
		return node{}, false
	}
	return node{id: id, owner: owner, index: index, view: owner.View(index, etag)}, true
}

// directory returns the entries of the directory with a node id.
func (s *Session) directory(id uint64) (*snapshot.Dir, bool, error) {
	if d := s.store.Known(id); d != nil {
		return d, true, nil
	}
	n, ok := s.node(id, false)
	if !ok || n.owner == nil || n.view.Kind != tree.Dir {
		return nil, false, nil
	}
	d, err := s.store.DirOf(id, tree.Join(n.owner.Prefix, string(n.view.Name), tree.Dir))
	return d, err == nil, err
}

// object returns the object version that a file's node stands for.
func (s *Session) object(n node) chunk.Object {
	return chunk.Object{
		Origin: s.cfg.Bucket.Origin,
		Bucket: s.cfg.Bucket.Name,
		Key:    n.owner.Prefix + string(n.view.Name),
		ETag:   n.view.ETag,
		Size:   n.view.Size,
	}
}

// maxEmptyPages bounds the pages without a name that an origin may give in a row.
const maxEmptyPages = 1000

// firstNames returns the first page that has a name on it. Origins may give empty
// pages with more behind them, where keys were deleted: these do not say that there is
// nothing.
func (s *Session) firstNames(ctx context.Context, q objstore.Query, req objstore.ListRequest) (page objstore.Page, age time.Duration, err error) {
	for range maxEmptyPages {
		var a time.Duration
		page, a, err = s.cfg.Names.List(ctx, q, req)
		age = max(age, a)
		if err != nil || len(page.Objects)+len(page.Prefixes) > 0 || page.Next == "" {
			return page, age, err
		}
		req.Token = page.Next
	}
	return page, age, fmt.Errorf("list %q: %d pages without a name in a row", req.Prefix, maxEmptyPages)
}
