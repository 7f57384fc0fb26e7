package dir

import (
	"cmp"
	"container/heap"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// A file system gives names in no order, S3 in the order of their bytes. To sort
// a directory of a million names without holding them all, a scan keeps the
// smallest ones that are not yet listed, and the next pages are taken from
// those: one scan for some 64 pages.
const (
	maxWindowNames = 64 << 10         // of up to 256 bytes each
	maxWindows     = 8                // that are kept for the next page
	maxWindowAge   = 60 * time.Second // since the scan
	scanBatch      = 1024             // names read at once
)

// scanner reads directories in order.
type scanner struct {
	maxNames int // of a window

	mu      sync.Mutex
	windows []*window // used last first
}

// window is a run of sorted names of a directory. It is never changed.
type window struct {
	dir, prefix string // the directory, and what the names begin with
	from        string // the names are those at or behind from
	names       []string
	more        bool // there are names behind the last
	at          time.Time
}

// names returns names in dir, in order, that begin with prefix and are not
// smaller than from, and whether more follow. Directories end in a slash, and
// sort so. fresh wants a scan made now.
func (s *scanner) names(ctx context.Context, root *os.Root, dir, prefix, from string, fresh bool) (names []string, more bool, err error) {
	w := s.find(dir, prefix, from)
	if w == nil || fresh {
		if w, err = s.scan(ctx, root, dir, prefix, from); err != nil {
			return nil, false, err
		}
		s.keep(w)
	}
	i, _ := slices.BinarySearch(w.names, from)
	return w.names[i:], w.more, nil
}

// find returns a window that holds a name at from or behind.
func (s *scanner) find(dir, prefix, from string) *window {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, w := range s.windows {
		if w.dir != dir || w.prefix != prefix || from < w.from || time.Since(w.at) > maxWindowAge {
			continue
		}
		if w.more && from > w.names[len(w.names)-1] {
			continue
		}
		copy(s.windows[1:i+1], s.windows[:i])
		s.windows[0] = w
		return w
	}
	return nil
}

func (s *scanner) keep(w *window) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.windows = slices.Insert(s.windows, 0, w)
	if len(s.windows) > maxWindows {
		s.windows = s.windows[:maxWindows]
	}
}

// scan reads a whole directory and keeps its smallest names at or behind from.
func (s *scanner) scan(ctx context.Context, root *os.Root, dir, prefix, from string) (*window, error) {
	path := strings.TrimSuffix(dir, "/")
	if path == "" {
		path = "."
	}
	at := time.Now()
	f, err := root.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var names nameHeap
	more := false
	for {
		entries, err := f.ReadDir(scanBatch)
		for _, e := range entries {
			name := entryName(root, dir, e)
			if name == "" || name < from || !strings.HasPrefix(name, prefix) {
				continue
			}
			if len(names) < s.maxNames {
				heap.Push(&names, name)
				continue
			}
			more = true
			if name < names[0] {
				names[0] = name
				heap.Fix(&names, 0)
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err := cmp.Or(err, ctx.Err()); err != nil {
			return nil, err
		}
	}
	slices.Sort(names)
	return &window{dir: dir, prefix: prefix, from: from, names: names, more: more, at: at}, nil
}

// entryName returns how an entry is listed: a file by its name, a directory with
// a slash, what a link leads to likewise, and "" for anything else.
func entryName(root *os.Root, dir string, e fs.DirEntry) string {
	typ := e.Type()
	if typ&fs.ModeSymlink != 0 {
		info, err := root.Stat(dir + e.Name())
		if err != nil {
			return "" // leads nowhere, or out of the root
		}
		typ = info.Mode().Type()
	}
	switch {
	case typ.IsDir():
		return e.Name() + "/"
	case typ.IsRegular():
		return e.Name()
	}
	return ""
}

// nameHeap has its greatest name on top.
type nameHeap []string

func (h nameHeap) Len() int           { return len(h) }
func (h nameHeap) Less(i, j int) bool { return h[i] > h[j] }
func (h nameHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *nameHeap) Push(x any)        { *h = append(*h, x.(string)) }
func (h *nameHeap) Pop() any {
	old := *h
	x := old[len(old)-1]
	*h = old[:len(old)-1]
	return x
}
