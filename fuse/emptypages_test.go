package fuse

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/shardwell/shardwell/objstore"
)

// emptyPages gives so many empty pages before the first with names.
type emptyPages struct {
	*fakeOrigin
	pages int
}

func (e emptyPages) List(ctx context.Context, q objstore.Query, req objstore.ListRequest) (objstore.Page, time.Duration, error) {
	n, err := strconv.Atoi(req.Token)
	if req.Token == "" || err == nil {
		if n++; n <= e.pages {
			return objstore.Page{Next: strconv.Itoa(n)}, time.Duration(n) * time.Millisecond, nil
		}
		req.Token = ""
	}
	return e.fakeOrigin.List(ctx, q, req)
}

// An empty page with more behind it does not say that there is nothing.
func TestEmptyPagesBeforeNames(t *testing.T) {
	for pages, found := range map[int]bool{0: true, 1: true, 7: true, maxEmptyPages: false} {
		o := newOrigin()
		o.put("a/b/k", []byte("x"))
		s := &Session{cfg: Config{Names: emptyPages{o, pages}}}
		page, age, err := s.firstNames(t.Context(), objstore.Query{MaxAge: time.Minute}, objstore.ListRequest{Prefix: "a/b/", Limit: 1})
		if (err == nil) != found || found && len(page.Objects) != 1 {
			t.Errorf("behind %d empty pages: %v, %v", pages, page, err)
		}
		if found && age < time.Duration(pages)*time.Millisecond {
			t.Errorf("behind %d empty pages: age %v, less than that of a page", pages, age)
		}
	}
}
