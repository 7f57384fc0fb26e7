package meta

import (
	"fmt"
	"testing"
	"time"

	"github.com/shardwell/shardwell/objstore"
)

// What was forgotten answers nobody, and is what the next answer is compared with.
func TestForgottenVersionsAreReplaced(t *testing.T) {
	var gone []string
	c, origin := newCache(t, func(cfg *Config) {
		cfg.Replaced = func(_ objstore.Bucket, old []objstore.Info) {
			for _, i := range old {
				gone = append(gone, fmt.Sprint(i.Key, " ", i.Size))
			}
		}
	})
	defer c.Close()
	origin.Put("a/k", []byte("1"))
	ask := func(want int64) {
		t.Helper()
		info, _, err := c.Head(t.Context(), maxAge(time.Hour), "a/k")
		page, _, errList := c.List(t.Context(), maxAge(time.Hour), objstore.ListRequest{Prefix: "a/"})
		if err != nil || errList != nil || info.Size != want || page.Objects[0].Size != want {
			t.Fatalf("%+v %v, %+v %v: want %d bytes", info, err, page, errList, want)
		}
	}
	ask(1)
	for range 2 { // the second time there is nothing more to forget
		c.Forget(bucket, "a/")
	}
	origin.Put("a/k", []byte("22"))
	ask(2)
	ask(2)
	if got := fmt.Sprint(gone); got != "[a/k 1 a/k 1]" {
		t.Errorf("replaced %s", got)
	}
}

func TestReplaced(t *testing.T) {
	v := func(key, etag string) objstore.Info { return objstore.Info{Key: key, ETag: etag, Size: 3} }
	head := func(i objstore.Info) *answer { return &answer{info: i} }
	page := func(next string, list ...objstore.Info) *answer {
		return &answer{question: question{list: true}, page: encodePage(objstore.Page{Objects: list, Next: next})}
	}
	for _, tt := range []struct {
		name     string
		old, now *answer
		want     string
	}{
		{"same", head(v("k", "1")), head(v("k", "1")), "[]"},
		{"overwritten", head(v("k", "1")), head(v("k", "2")), "[k 1]"},
		{"deleted", head(v("k", "1")), &answer{missing: true}, "[k 1]"},
		{"made", &answer{missing: true}, head(v("k", "1")), "[]"},
		{"same page", page("", v("a", "1")), page("", v("a", "1")), "[]"},
		{"one of a page", page("", v("a", "1"), v("b", "1")), page("", v("a", "1"), v("b", "2"), v("c", "1")), "[b 1]"},
		{"gone from the last page", page("", v("a", "1"), v("b", "1")), page("", v("a", "1")), "[b 1]"},
		{"moved to the next page", page("t", v("a", "1"), v("c", "1")), page("t", v("a", "1"), v("b", "1")), "[]"},
	} {
		got := []string{}
		for _, i := range replaced(tt.old, tt.now) {
			got = append(got, i.Key+" "+i.ETag)
		}
		if fmt.Sprint(got) != tt.want {
			t.Errorf("%s: %v, want %s", tt.name, got, tt.want)
		}
	}
}
