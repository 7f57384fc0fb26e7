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
	missingFor    = time.Minute      // a file that is not there is not asked for again, at least, and nextFor at most
	maxMissing    = 4096             // files that are known not to be there
	// maxMisses of the names that are guessed from others may be of no file, until the first of these is asked for
	// again; then only names that the mount knows are guessed. Guesses go wrong where numbers end.
	maxMisses = 4
)

// nextFiles has files fetched that are about to be opened, as plans say or the names of those
// that were opened before.
type nextFiles struct {
	s       *Session
	opened  chan openedFile
	news    chan struct{} // a plan was given
	unsaved chan struct{} // a plan has changed

	mu    sync.Mutex
	plans map[string]*labelled // guarded by mu

	// Of run alone:
	sequences map[sequenceKey]*watched
	held      map[string]*heldFile // by path
	missing   map[string]time.Time // paths, until when they are not asked for
	misses    map[string]misses    // by kind of names
}

// openedFile is a file that was opened, by path relative to the mount, or one that is read from its start
// to its end, and by which thread.
type openedFile struct {
	path   string
	thread uint32 // 0: only opened
}

// labelled is a plan with who gave it.
type labelled struct {
	*prefetch.Plan
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

// misses are guesses of one kind of names that were wrong.
type misses struct {
	count int
	until time.Time
}

// wish is a file that is wanted next.
type wish struct {
	path    string
	guessed bool // from other names; else a plan says so
}

// heldFile is a file that is fetched, or was. It is nil when all of it was here already.
type heldFile struct {
	file  File
	bytes int64 // asked for
}

func (x *nextFiles) init(s *Session) {
	x.s = s
	x.opened, x.news, x.unsaved = make(chan openedFile, maxOpened), make(chan struct{}, 1), make(chan struct{}, 1)
	x.plans = make(map[string]*labelled)
	x.sequences = make(map[sequenceKey]*watched)
	x.held, x.missing, x.misses = make(map[string]*heldFile), make(map[string]time.Time), make(map[string]misses)
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
		p = &labelled{Plan: new(prefetch.Plan)}
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
	x.wake()
	x.changed()
	return nil
}

// wake has run look at the plans.
func (x *nextFiles) wake() {
	select {
	case x.news <- struct{}{}:
	default:
	}
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
				x.changed()
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
	maps.DeleteFunc(x.missing, func(_ string, until time.Time) bool { return !now.Before(until) })
	maps.DeleteFunc(x.misses, func(_ string, m misses) bool { return !now.Before(m.until) })
}

// keep has fetched what is wanted now, and gives up what is not any more.
func (x *nextFiles) keep(ctx context.Context, now time.Time) {
	wanted := x.wanted(now)
	for name := range x.held {
		if !slices.ContainsFunc(wanted, func(w wish) bool { return w.path == name }) {
			x.release(name)
		}
	}
	room := x.s.cfg.PrefetchBytes
	for _, h := range x.held {
		room -= h.bytes
	}
	for i := 0; i < len(wanted) && room > 0 && len(x.held) < maxNextFiles && ctx.Err() == nil; i++ {
		w := wanted[i]
		if x.held[w.path] != nil {
			continue
		}
		h, err := x.fetch(ctx, w, room, now)
		if err != nil {
			x.miss(w, err, now)
			wanted, i = x.wanted(now), -1 // less than before: nor is what was guessed behind it
			continue
		}
		x.held[w.path] = h
		room -= h.bytes
	}
}

// miss takes note of a file that could not be fetched.
func (x *nextFiles) miss(w wish, err error, now time.Time) {
	if len(x.missing) >= maxMissing {
		if x.expire(now); len(x.missing) >= maxMissing {
			clear(x.missing)
		}
	}
	until := now.Add(max(missingFor, min(x.s.maxAbsentAge(), nextFor)))
	x.missing[w.path] = until
	if !w.guessed || !errors.Is(err, errNoFile) {
		return
	}
	kind := kindOf(w.path)
	m := x.misses[kind]
	if !now.Before(m.until) {
		m = misses{until: until}
	}
	if m.count++; len(x.misses) < maxMissing {
		x.misses[kind] = m
	}
}

// wanted returns the files that are next, but those that are known not to be there: the first of each reader,
// then the second of each.
func (x *nextFiles) wanted(now time.Time) (all []wish) {
	type list struct {
		paths   []string
		guessed bool
	}
	var lists []list
	isMissing := func(name string) bool { return now.Before(x.missing[name]) }
	x.mu.Lock()
	for _, label := range slices.Sorted(maps.Keys(x.plans)) {
		if p := x.plans[label]; now.Sub(p.used) <= nextFor {
			lists = append(lists, list{paths: slices.DeleteFunc(p.Next(x.s.cfg.NextFiles), isMissing)})
		}
	}
	x.mu.Unlock()
	for _, w := range x.sequences {
		if now.Sub(w.used) <= nextFor {
			there := w.next
			if i := slices.IndexFunc(there, isMissing); i >= 0 {
				there = there[:i] // where numbers end
			}
			lists = append(lists, list{there, true})
		}
	}
	seen := make(map[string]bool)
	for i := range x.s.cfg.NextFiles {
		for _, l := range lists {
			if i < len(l.paths) && !seen[l.paths[i]] && len(all) < maxNextFiles {
				seen[l.paths[i]] = true
				all = append(all, wish{l.paths[i], l.guessed})
			}
		}
	}
	return all
}

// errNoFile says that a name that is wanted is no file.
var errNoFile = errors.New("is no file")

// fetch begins to fetch at most room bytes of a file.
func (x *nextFiles) fetch(ctx context.Context, w wish, room int64, now time.Time) (*heldFile, error) {
	ctx, cancel := context.WithTimeout(ctx, x.s.cfg.NameBudget)
	defer cancel()
	by := told
	if w.guessed {
		by = guessed
		if m := x.misses[kindOf(w.path)]; m.count >= maxMisses && now.Before(m.until) {
			by = guessedWrong
		}
	}
	obj, err := x.s.resolve(ctx, w.path, by)
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

// source is where a name comes from that is to be resolved, which says what it is worth.
type source uint8

const (
	told         source = iota // by a reader: the origin is asked for it
	guessed                    // from other names: not if a listing would have told of it
	guessedWrong               // as such names were before: not at all
)

// resolve returns the version that a path within the mount means now.
func (s *Session) resolve(ctx context.Context, name string, by source) (obj chunk.Object, err error) {
	id := uint64(snapshot.RootID)
	parts := strings.Split(name, "/")
	for i, part := range parts {
		d, ok, err := s.directory(id)
		if err != nil || !ok || part == "" || part == "." || part == ".." {
			return obj, cmp.Or(err, errNoFile)
		}
		if _, known := d.Find(part); !known && (by == guessedWrong || by == guessed && !s.dirs.of(d).completeSince().IsZero()) {
			return obj, errNoFile
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
