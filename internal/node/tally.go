package node

import (
	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/objstore"
)

// Bounds of what is told apart.
const (
	maxUsageDirs  = 1024 // directories; beyond them their parents are
	maxUsageDepth = 64   // elements of a directory's path
)

// share is what a node holds of the objects directly in one directory of a bucket.
type share struct {
	Origin     string `json:"origin"`
	Bucket     string `json:"bucket"`
	Dir        string `json:"dir"`        // "" or with a slash at its end
	LocalBytes int64  `json:"localBytes"` // held here
	OwnedBytes int64  `json:"ownedBytes"` // of these, those that belong here by the ring
}

// tally adds up bytes by directory, and by ever shorter paths when there are too many.
type tally struct {
	max   int // directories told apart, but for those of different buckets
	depth int // path elements told apart
	byDir map[share]*share
}

func newTally(dirs int) *tally {
	return &tally{max: dirs, depth: maxUsageDepth, byDir: make(map[share]*share)}
}

func (t *tally) add(o chunk.Object, local, owned int64) {
	s := share{Origin: o.Origin, Bucket: o.Bucket, Dir: dirOf(o.Key, t.depth)}
	for {
		sum := t.byDir[s]
		if sum == nil && len(t.byDir) >= t.max && t.depth > 0 {
			t.shorten()
			s.Dir = dirOf(o.Key, t.depth)
			continue
		}
		if sum == nil {
			sum = &share{Origin: s.Origin, Bucket: s.Bucket, Dir: s.Dir}
			t.byDir[s] = sum
		}
		sum.LocalBytes += local
		sum.OwnedBytes += owned
		return
	}
}

// shorten merges directories until they are half as many as are allowed.
func (t *tally) shorten() {
	for t.depth > 0 && len(t.byDir) > t.max/2 {
		t.depth--
		merged := make(map[share]*share)
		for key, sum := range t.byDir {
			key.Dir = dirOf(key.Dir, t.depth)
			if have := merged[key]; have != nil {
				have.LocalBytes += sum.LocalBytes
				have.OwnedBytes += sum.OwnedBytes
			} else {
				sum.Dir = key.Dir
				merged[key] = sum
			}
		}
		t.byDir = merged
	}
}

func (t *tally) list() []share {
	list := make([]share, 0, len(t.byDir))
	for _, s := range t.byDir {
		list = append(list, *s)
	}
	return list
}

// dirOf returns the directory of a key, cut to at most depth elements: "" or with a
// slash at its end.
func dirOf(key string, depth int) string {
	end := 0
	for i := 0; i < len(key) && depth > 0; i++ {
		if key[i] == '/' {
			end = i + 1
			depth--
		}
	}
	return key[:end]
}

// under adds up what shares hold of the objects under a prefix.
func under(shares []share, b objstore.Bucket, prefix string) (local, owned int64) {
	for _, s := range shares {
		o := chunk.Object{Origin: s.Origin, Bucket: s.Bucket, Key: s.Dir}
		if objectIn(o, b, prefix) {
			local += s.LocalBytes
			owned += s.OwnedBytes
		}
	}
	return local, owned
}
