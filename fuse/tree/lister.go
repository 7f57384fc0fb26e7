package tree

import (
	"slices"
	"strings"

	"github.com/shardwell/shardwell/objstore"
)

// Lister turns the pages of one directory's listing (delimiter "/") into entries.
// Pages come in order; each name comes out once, as far as the origin sorts.
//
// Origins mostly sort by bytes, and `a` sorts before `a-1`, which sorts before
// `a/`. So the last few files of a page whose directory could still come are
// held back. From an origin that does not sort, a directory may come after
// its file: whoever keeps the entries lets it replace the file.
type Lister struct {
	prefix   string
	rules    Rules
	last     string // greatest key seen
	unsorted bool
	held     []Entry // files whose directory could still come, few
}

// NewLister lists the directory of a key prefix: "" or ending with "/".
func NewLister(prefix string, rules Rules) *Lister { return &Lister{prefix: prefix, rules: rules} }

// Sorted reports whether all pages so far came in the order of their keys.
func (l *Lister) Sorted() bool { return !l.unsorted }

// Passed reports whether the listing has gone past the entry, so that it would have
// been seen if it existed. It is false for an origin that does not sort.
func (l *Lister) Passed(name string, kind Kind) bool {
	if l.unsorted || Join(l.prefix, name, kind) > l.last {
		return false
	}
	return kind == Dir || !slices.ContainsFunc(l.held, func(e Entry) bool { return e.Name == name })
}

// Add takes the next page; its Next being empty ends the listing. The keys of the
// entries and skips share the page's memory.
func (l *Lister) Add(page objstore.Page) (entries []Entry, skipped []Skip) {
	files := make([]Entry, 0, len(page.Objects)+len(l.held))
	files = append(files, l.held...)
	before, greatest := l.last, l.last
	see := func(key string) {
		l.unsorted = l.unsorted || key < before
		greatest = max(greatest, key)
	}
	dirs := make(map[string]struct{}, len(page.Prefixes))
	entries = make([]Entry, 0, len(page.Objects)+len(page.Prefixes))
	addDir := func(key, name string) {
		if why := l.rules.Check(l.prefix, name); why != OK {
			skipped = append(skipped, Skip{l.prefix + name + "/", why})
		} else if _, twice := dirs[name]; !twice {
			dirs[name] = struct{}{}
			entries = append(entries, Entry{Name: name, Kind: Dir})
		}
	}
	for _, key := range page.Prefixes {
		see(key)
		rest, ok := strings.CutPrefix(key, l.prefix)
		name, slashed := strings.CutSuffix(rest, "/")
		if !ok || !slashed || strings.Contains(name, "/") {
			skipped = append(skipped, Skip{key, Foreign})
			continue
		}
		addDir(key, name)
	}
	for _, o := range page.Objects {
		see(o.Key)
		rest, ok := strings.CutPrefix(o.Key, l.prefix)
		name, _, below := strings.Cut(rest, "/")
		switch why := l.rules.Check(l.prefix, name); {
		case !ok:
			skipped = append(skipped, Skip{o.Key, Foreign})
		case rest == "": // the marker of this directory
		case below: // an origin that does not know delimiters
			addDir(o.Key, name)
		case why != OK:
			skipped = append(skipped, Skip{o.Key, why})
		default:
			files = append(files, FileEntry(name, o))
		}
	}
	l.last = greatest
	l.held = nil
	for _, f := range files {
		_, shadowed := dirs[f.Name]
		switch {
		case shadowed:
			skipped = append(skipped, Skip{l.prefix + f.Name, Shadowed})
		case page.Next != "" && !l.unsorted && Join(l.prefix, f.Name, Dir) > l.last:
			l.held = append(l.held, f)
		default:
			entries = append(entries, f)
		}
	}
	return entries, skipped
}
