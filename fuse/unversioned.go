package fuse

import (
	"context"
	"strings"
	"time"

	"github.com/shardwell/shardwell/fuse/tree"
	"github.com/shardwell/shardwell/objstore"
)

// Some origins list objects without their ETags. What is listed so is shown, and asked
// for by HEAD when it is looked up or opened. Where HEAD tells no ETag either, no
// read could be sure of its version: the key is left out.

// etags says what is known of the ETags that the pages of a listing lack.
type etags int

const (
	etagsUnknown etags = iota
	etagsByHead        // HEAD tells them
	etagsNowhere       // nor does HEAD
)

// lookForETags asks for the ETag of one object of a page that lacks some, to know what
// the origin does.
func (s *Session) lookForETags(ctx context.Context, l *listing, page objstore.Page) {
	for _, o := range page.Objects {
		if l.etags != etagsUnknown {
			return
		}
		if o.ETag != "" || strings.HasSuffix(o.Key, "/") {
			continue
		}
		s.stats.Heads.Add(1)
		info, _, err := s.cfg.Names.Head(ctx, objstore.Query{Bucket: s.cfg.Bucket, MaxAge: s.maxPageAge()}, o.Key)
		switch {
		case err != nil: // whoever looks it up finds out
		case info.ETag == "":
			l.etags = etagsNowhere
		default:
			l.etags = etagsByHead
		}
		return
	}
}

// unversioned decides on a file that a page names without an ETag. It reports whether that is
// done: the file is left out, or known with an ETag that is likely still right, and
// asked for when that is too old. directory.mu is held.
func (s *Session) unversioned(dir *directory, l *listing, e tree.Entry) bool {
	key := dir.snap.Prefix + e.Name
	index, known := dir.snap.Find(e.Name)
	if known {
		v := dir.snap.View(index, false)
		at, of := time.Unix(0, v.ModTime).Truncate(time.Second), e.ModTime.Truncate(time.Second) // as HEAD has it
		switch {
		case v.Gone:
			if s.skipped.has(key) {
				return true
			}
		case v.Kind == tree.File && !v.NoETag && v.Size == e.Size && (e.ModTime.IsZero() || at.Equal(of)):
			l.seen.set(index)
			return true
		}
	}
	if l.etags == etagsNowhere {
		s.skip(tree.Skip{Key: key, Reason: tree.NoVersion})
		return true
	}
	return false
}
