package meta

import (
	"fmt"
	"testing"

	"github.com/shardwell/shardwell/objstore"
)

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
