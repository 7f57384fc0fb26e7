package warm

import (
	"cmp"
	"slices"
	"strings"

	"github.com/shardwell/shardwell/internal/chunk"
)

// MaxDatasets bounds what a warm-up pins or says that it uses.
const MaxDatasets = 64

// Dataset is the objects of a bucket whose keys begin with a prefix.
type Dataset struct{ Origin, Bucket, Prefix string }

// Covers reports whether an object is one of them.
func (d Dataset) Covers(o chunk.Object) bool {
	return o.Origin == d.Origin && o.Bucket == d.Bucket && strings.HasPrefix(o.Key, d.Prefix)
}

// Datasets returns what covers all objects of a manifest, as narrowly as MaxDatasets
// prefixes can: dirs as they are, and of other objects what those of one directory have in common.
func Datasets(m *Manifest, dirs []Dataset) []Dataset {
	found := make(map[Dataset]string) // by directory: the prefix
	dirs = slices.Clone(dirs)
	depth := 64
	for _, o := range m.All() {
		if slices.ContainsFunc(dirs, func(d Dataset) bool { return d.Covers(o) }) {
			continue
		}
		at := Dataset{o.Origin, o.Bucket, parents(o.Key, depth)}
		if have, ok := found[at]; ok {
			found[at] = common(have, o.Key)
		} else {
			found[at] = o.Key
		}
		for len(found)+len(dirs) > MaxDatasets && depth > 0 {
			depth--
			found = shorten(found, depth)
		}
	}
	for at, prefix := range found {
		dirs = append(dirs, Dataset{at.Origin, at.Bucket, prefix})
	}
	slices.SortFunc(dirs, func(a, b Dataset) int {
		return cmp.Or(cmp.Compare(a.Origin, b.Origin), cmp.Compare(a.Bucket, b.Bucket), cmp.Compare(a.Prefix, b.Prefix))
	})
	return slices.Compact(dirs)
}

// shorten merges what has the same directory at a depth.
func shorten(found map[Dataset]string, depth int) map[Dataset]string {
	merged := make(map[Dataset]string)
	for at, prefix := range found {
		at.Prefix = parents(at.Prefix, depth)
		if have, ok := merged[at]; ok {
			prefix = common(have, prefix)
		}
		merged[at] = prefix
	}
	return merged
}

// parents returns the directory of a key, cut to at most depth elements.
func parents(key string, depth int) string {
	end := 0
	for i := 0; i < len(key) && depth > 0; i++ {
		if key[i] == '/' {
			end = i + 1
			depth--
		}
	}
	return key[:end]
}

func common(a, b string) string {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return a[:n]
}

func sortShort(list []Short) {
	slices.SortFunc(list, func(a, b Short) int {
		return cmp.Or(cmp.Compare(b.NeedBytes-b.RoomBytes, a.NeedBytes-a.RoomBytes), cmp.Compare(a.Node, b.Node))
	})
}
