package fuse

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/shardwell/shardwell/fuse/prefetch"
	"github.com/shardwell/shardwell/fuse/snapshot"
	"github.com/shardwell/shardwell/fuse/tree"
	"github.com/shardwell/shardwell/internal/chunk"
)

// Limits of what is fetched before it is opened.
const (
	// DefaultNextFiles is how many files a reader whose next ones are known has at hand.
	DefaultNextFiles = 4

	maxPlans      = 1024             // of a mount: ranks times workers; the one unused for longest goes
	maxPlansBytes = 64 << 20         // of memory, likewise
	maxLabelBytes = 64               // of a plan
	maxSequences  = 4096             // processes times kinds of names
	maxNextFiles  = 512              // held open; each takes two descriptors
	nextFor       = 10 * time.Minute // after the last open, a plan or a sequence has nothing fetched
	maxOpened     = 1024             // opens not looked at yet; more are not looked at
	nextTick      = 30 * time.Second // between looks for what has changed by itself
	missingFor    = time.Minute      // a file that is not there is not asked for again
)

// nextFiles has files fetched that are about to be opened, as plans say or the names of those
// that were opened before.
type nextFiles struct {
	s      *Session
	opened chan openedFile
	news   chan struct{} // a plan has changed

	mu    sync.Mutex
	plans map[string]*labelled // guarded by mu

	// Of run alone:
	sequences map[sequenceKey]*watched
	held      map[string]*heldFile // by path
	missing   map[string]time.Time
}

// openedFile is a file that was opened, by path relative to the mount, or one that is read from its start
// to its end, and by which thread.
type openedFile struct {
	path   string
	thread uint32 // 0: only opened
}

// labelled is a plan with who gave it.
type labelled struct {
	prefetch.Plan
	used time.Time
}

type sequenceKey struct {
	process string
	kind    string // names with "#" for their digits
}

// watched is the sequence of one process.
type watched struct {
	prefetch.Sequence
	next []string
	used time.Time
}

// heldFile is a file that is fetched, or was. It is nil when all of it was here already.
type heldFile struct {
	file  File
	bytes int64 // asked for
}

func (x *nextFiles) init(s *Session) {
	x.s = s
	x.opened, x.news = make(chan openedFile, maxOpened), make(chan struct{}, 1)
	x.plans = make(map[string]*labelled)
	x.sequences = make(map[sequenceKey]*watched)
	x.held, x.missing = make(map[string]*heldFile), make(map[string]time.Time)
}

// tell says that a file was opened, or is read.
func (x *nextFiles) tell(o openedFile) {
	if x.s.cfg.NextFiles < 0 {
		return
	}
	select {
	case x.opened <- o:
	default:
	}
}

// pathOf returns a key relative to the mount.
func (s *Session) pathOf(key string) string {
	return strings.TrimPrefix(key, tree.DirPrefix(s.cfg.Prefix))
}

// plan adds names to the plan of a label, or replaces it. Names are relative to a directory, whose path
// is "" or ends with a slash.
func (x *nextFiles) plan(label string, add bool, dir string, names []string) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	p := x.plans[label]
	if p == nil || !add {
		p = &labelled{}
		x.plans[label] = p
	}
	p.used = time.Now()
	paths := make([]string, len(names))
	for i, n := range names {
		paths[i] = path.Clean(dir + n)
	}
	if !p.Add(paths...) {
		return syscall.ENOSPC
	}
	if n, _ := p.Len(); n == 0 {
		delete(x.plans, label)
	}
	for len(x.plans) > maxPlans || len(x.plans) > 1 && x.planBytes() > maxPlansBytes {
		x.dropPlan()
	}
	select {
	case x.news <- struct{}{}:
	default:
	}
	return nil
}

// planBytes is about how much memory all plans take. Callers hold mu.
func (x *nextFiles) planBytes() (sum int) {
	for _, p := range x.plans {
		sum += p.MemoryBytes()
	}
	return sum
}

// dropPlan forgets the plan that was unused for longest. Callers hold mu.
func (x *nextFiles) dropPlan() {
	oldest := ""
	for label, p := range x.plans {
		if oldest == "" || p.used.Before(x.plans[oldest].used) {
			oldest = label
		}
	}
	delete(x.plans, oldest)
}

// describe tells of each plan how far it is and what is next, a line each.
func (x *nextFiles) describe() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	var b strings.Builder
	for _, label := range slices.Sorted(maps.Keys(x.plans)) {
		if b.Len() > maxXattrBytes/2 {
			break
		}
		p := x.plans[label]
		n, opened := p.Len()
		fmt.Fprintf(&b, "%s: %d of %d opened", cmp.Or(label, "-"), opened, n)
		if next := p.Next(max(1, x.s.cfg.NextFiles)); len(next) > 0 {
			b.WriteString(", next " + next[0])
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// run looks at what was opened and has the next files fetched, until ctx ends.
func (x *nextFiles) run(ctx context.Context) {
	tick := time.NewTicker(nextTick)
	defer tick.Stop()
	defer func() {
		for name := range x.held {
			x.release(name)
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return
		case o := <-x.opened:
			x.note(o, time.Now())
		case <-x.news:
		case <-tick.C:
			x.expire(time.Now())
		}
		for range len(x.opened) { // those that came together
			x.note(<-x.opened, time.Now())
		}
		x.keep(ctx, time.Now())
	}
}

// note takes note of a file that was opened: it is there for its reader now. Plans go by that, sequences by what is
// read: who opens file after file to look at each does not want them all.
func (x *nextFiles) note(o openedFile, now time.Time) {
	if o.thread == 0 {
		x.mu.Lock()
		for _, p := range x.plans {
			if p.Opened(o.path) {
				p.used = now
			}
		}
		x.mu.Unlock()
		for _, w := range x.sequences {
			if i := slices.Index(w.next, o.path); i >= 0 {
				w.next = slices.Delete(w.next, i, i+1)
			}
		}
		x.release(o.path)
		return
	}
	key := sequenceKey{processOf(o.thread), kindOf(o.path)}
	w := x.sequences[key]
	if w == nil {
		if len(x.sequences) >= maxSequences {
			clear(x.sequences) // they are learned again from three opens
		}
		w = &watched{}
		x.sequences[key] = w
	}
	w.next, w.used = w.Opened(o.path, x.s.cfg.NextFiles), now
}

// kindOf returns a name with "#" for each run of digits.
func kindOf(name string) string {
	b := make([]byte, 0, len(name))
	for i := range len(name) {
		switch c := name[i]; {
		case c < '0' || c > '9':
			b = append(b, c)
		case len(b) == 0 || b[len(b)-1] != '#':
			b = append(b, '#')
		}
	}
	return string(b)
}

// processOf names the process of a thread: threads of a pool take files in turns.
func processOf(thread uint32) string {
	id := strconv.FormatUint(uint64(thread), 10)
	status, err := os.ReadFile("/proc/" + id + "/status")
	if err != nil {
		return id // gone, or in another namespace
	}
	_, rest, _ := bytes.Cut(status, []byte("\nTgid:"))
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	return cmp.Or(string(bytes.TrimSpace(line)), id)
}

func (x *nextFiles) expire(now time.Time) {
	maps.DeleteFunc(x.sequences, func(_ sequenceKey, w *watched) bool { return now.Sub(w.used) > nextFor })
	maps.DeleteFunc(x.missing, func(_ string, at time.Time) bool { return now.Sub(at) > missingFor })
}

// keep has fetched what is wanted now, and gives up what is not any more.
func (x *nextFiles) keep(ctx context.Context, now time.Time) {
	wanted := x.wanted(now)
	for name := range x.held {
		if !slices.Contains(wanted, name) {
			x.release(name)
		}
	}
	room := x.s.cfg.PrefetchBytes
	for _, h := range x.held {
		room -= h.bytes
	}
	for _, name := range wanted {
		if x.held[name] != nil || now.Sub(x.missing[name]) < missingFor {
			continue
		}
		if room <= 0 || len(x.held) >= maxNextFiles || ctx.Err() != nil {
			return
		}
		h, err := x.fetch(ctx, name, room)
		if err != nil {
			if len(x.missing) >= maxNextFiles {
				clear(x.missing)
			}
			x.missing[name] = now
			continue
		}
		x.held[name] = h
		room -= h.bytes
	}
}

// wanted returns the paths of files that are next: the first of each reader, then the second of each.
func (x *nextFiles) wanted(now time.Time) (all []string) {
	var lists [][]string
	x.mu.Lock()
	for _, label := range slices.Sorted(maps.Keys(x.plans)) {
		if p := x.plans[label]; now.Sub(p.used) <= nextFor {
			lists = append(lists, p.Next(x.s.cfg.NextFiles))
		}
	}
	x.mu.Unlock()
	for _, w := range x.sequences {
		if now.Sub(w.used) <= nextFor {
			lists = append(lists, w.next)
		}
	}
	seen := make(map[string]bool)
	for i := range x.s.cfg.NextFiles {
		for _, l := range lists {
			if i < len(l) && !seen[l[i]] && len(all) < maxNextFiles {
				seen[l[i]] = true
				all = append(all, l[i])
			}
		}
	}
	return all
}

// errNoFile says that a name of a plan is no file.
var errNoFile = errors.New("is no file")

// fetch begins to fetch at most room bytes of a file.
func (x *nextFiles) fetch(ctx context.Context, name string, room int64) (*heldFile, error) {
	ctx, cancel := context.WithTimeout(ctx, x.s.cfg.NameBudget)
	defer cancel()
	obj, err := x.s.resolve(ctx, name)
	if err != nil {
		return nil, err
	}
	file, err := x.s.cfg.Data.Open(obj)
	if err != nil {
		return nil, err
	}
	if file.CachedBytes() >= obj.Size {
		file.Close()
		return &heldFile{}, nil
	}
	h := &heldFile{file: file, bytes: min(obj.Size, room)}
	x.s.stats.NextFiles.Add(1)
	if later, ok := file.(LaterPrefetcher); ok {
		later.PrefetchLater(0, h.bytes)
	} else {
		file.Prefetch(0, h.bytes)
	}
	return h, nil
}

func (x *nextFiles) release(name string) {
	if h := x.held[name]; h != nil && h.file != nil {
		h.file.Close()
	}
	delete(x.held, name)
}

// resolve returns the version that a path within the mount means now.
func (s *Session) resolve(ctx context.Context, name string) (obj chunk.Object, err error) {
	id := uint64(snapshot.RootID)
	parts := strings.Split(name, "/")
	for i, part := range parts {
		d, ok, err := s.directory(id)
		if err != nil || !ok || part == "" || part == "." || part == ".." {
			return obj, cmp.Or(err, errNoFile)
		}
		f, err := s.lookup(ctx, d, part)
		if err != nil || f.absent {
			return obj, cmp.Or(err, errNoFile)
		}
		id = f.dir.NodeID(f.index)
		if n, ok := s.node(id, true); i == len(parts)-1 && ok && n.view.Kind == tree.File {
			return s.object(n), nil
		}
	}
	return obj, errNoFile
}
