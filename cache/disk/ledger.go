package disk

import (
	"slices"
	"sync"
	"time"

	"github.com/shardwell/shardwell/internal/chunk"
)

// prefixes is the number of folders below objects/, by the first byte of the id.
const prefixes = 256

// use is what files take, in bytes.
type use struct {
	used   int64 // blocks really allocated
	copies int64 // of these, for blocks that this node does not own
}

func (u use) plus(v use) use  { return use{u.used + v.used, u.copies + v.copies} }
func (u use) minus(v use) use { return use{u.used - v.used, u.copies - v.copies} }

// ledger counts the bytes that the cache takes and admits further ones.
//
// What this node owns may take all but the transit area. Copies of what others own
// may take whatever is free, and the transit area whatever is owned: so a cache full of
// what is never evicted can still pass things on.
//
// After an unclean stop nobody knows the sum until a walk has counted it. Until
// then everything that the file system holds is taken to be ours, so that the
// budget holds at any time.
type ledger struct {
	fs     FS
	path   string
	budget int64 // 0: as the file system allows
	share  int64 // bytes of the transit area; 0: by [TransitBytes]
	floor  int64
	inodes int64 // floor
	block  int64 // bytes

	mu       sync.Mutex
	byPrefix [prefixes]use // what files really take; right once counted
	sum      use           // of byPrefix
	counted  bool          // byPrefix is right
	foreign  int64         // until counted: what the file system held at the start,
	grown    int64         // and what we added since
	orphaned int64         // of files that were unlinked while in use
	reserved use           // admitted and not yet written

	space   Space // as of spaceAt
	spaceAt time.Time
	spent   int64 // admitted since then
	squeeze int64 // further bytes to free, after the kernel said there is no space

	walking int                    // prefix that a walk is counting, or -1
	touched map[chunk.ObjectID]use // objects that changed meanwhile, and what they take now
}

// refresh asks the file system for its state. Callers hold mu.
func (l *ledger) refresh() error {
	space, err := l.fs.Statfs(l.path)
	if err != nil {
		return err
	}
	l.space, l.spaceAt, l.spent = space, time.Now(), l.reserved.used
	return nil
}

// used is what the cache takes at most. Callers hold mu.
func (l *ledger) used() int64 {
	if l.counted {
		return l.sum.used + l.orphaned
	}
	return l.foreign + l.grown + l.orphaned
}

// The transit area of a directory: 5 %, and 16 GiB, some seconds of a broadcast, where that is an eighth of
// the directory at most. Of a small one it would be most, so there it is 1/64; between 16 and
// 128 GiB it grows from the one to the other, so that a larger directory never keeps less.
const (
	transitShare      = 20
	minTransitBytes   = 16 << 30
	smallTransitShare = 64
	smallRoomBytes    = 16 << 30
	growthShare       = (128<<30 - smallRoomBytes) / minTransitBytes // 1/7 of what is beyond smallRoomBytes
)

// TransitBytes returns the size of the transit area of a directory that may take roomBytes.
func TransitBytes(roomBytes int64) int64 {
	small := max(roomBytes/smallTransitShare, (roomBytes-smallRoomBytes)/growthShare)
	return min(max(roomBytes/transitShare, minTransitBytes), small)
}

// transit is the size of the transit area. Callers hold mu.
func (l *ledger) transit() int64 {
	room := l.room()
	if l.share > 0 {
		return min(l.share, room/2)
	}
	return TransitBytes(room)
}

// owned is what blocks that this node owns take at most. Callers hold mu.
func (l *ledger) owned() int64 { return l.used() - l.sum.copies }

// reserve admits n bytes and so many new files, or says why not. copied says that this node
// does not own them. It also tells whether it is time to evict. Each success is
// followed by one unreserve.
func (l *ledger) reserve(n, files int64, copied bool) (crowded bool, _ *RejectError) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.budget > 0 && l.used()+l.reserved.used+n > l.budget {
		return true, plainRejects[RejectBudget]
	}
	free := l.space.FreeBytes - l.spent - n
	lowInodes := l.space.Inodes > 0 && l.space.FreeInodes-files < l.inodes
	if free < l.floor || lowInodes || time.Since(l.spaceAt) > spaceMaxAge {
		if err := l.refresh(); err != nil {
			return false, rejectOf(err)
		}
	}
	switch {
	case l.space.FreeBytes-l.spent-n < l.floor:
		return true, plainRejects[RejectFloor]
	case files > 0 && l.space.Inodes > 0 && l.space.FreeInodes-files < l.inodes:
		return true, plainRejects[RejectInodes]
	case !copied && l.owned()+l.reserved.used-l.reserved.copies+n > l.room()-l.transit():
		return true, plainRejects[RejectBudget]
	}
	l.reserved = l.reserved.plus(reservation(n, copied))
	l.spent += n
	l.space.FreeInodes -= files
	return l.excess().any(), nil
}

// hasRoomForOwned reports whether n bytes that are there as copies may count as owned.
func (l *ledger) hasRoomForOwned(n int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.counted && l.owned()+l.reserved.used-l.reserved.copies+n <= l.room()-l.transit()
}

func reservation(n int64, copied bool) use {
	if copied {
		return use{n, n}
	}
	return use{n, 0}
}

func (l *ledger) unreserve(n int64, copied bool) {
	l.mu.Lock()
	l.reserved = l.reserved.minus(reservation(n, copied))
	l.mu.Unlock()
}

// change books that an object now takes now, where it took before.
func (l *ledger) change(id chunk.ObjectID, now, before use) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p, delta := int(id[0]), now.minus(before)
	l.byPrefix[p] = l.byPrefix[p].plus(delta)
	l.sum = l.sum.plus(delta)
	l.grown += delta.used
	if l.walking == p {
		l.touched[id] = now
	}
}

// orphan books n bytes of files that no walk sees any more, or that went free (n < 0).
func (l *ledger) orphan(n int64) {
	l.mu.Lock()
	l.orphaned += n
	l.mu.Unlock()
}

// noSpace books that the kernel refused bytes that the ledger had admitted.
func (l *ledger) noSpace() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.squeeze = l.slack()
	l.spaceAt = time.Time{}
}

// beginCount starts to count a prefix; endCount ends it with what each object was
// seen to take. Objects that changed in between count with what they take now.
func (l *ledger) beginCount(prefix int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.walking = prefix
	l.touched = make(map[chunk.ObjectID]use)
}

func (l *ledger) endCount(seen map[chunk.ObjectID]use) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if seen != nil {
		for id, used := range l.touched {
			seen[id] = used
		}
		var sum use
		for _, used := range seen {
			sum = sum.plus(used)
		}
		l.sum = l.sum.plus(sum.minus(l.byPrefix[l.walking]))
		l.byPrefix[l.walking] = sum
	}
	l.walking, l.touched = -1, nil
}

// allCounted says that every prefix was counted but for some, of which nothing is
// known but what changed since the start. These count as the largest of the others, as far as the file
// system can hold so much beside them: ids are spread evenly.
func (l *ledger) allCounted(unread []int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.counted {
		return // they keep their figures
	}
	l.counted = true
	var largest use
	for p, n := range l.byPrefix {
		if n.used > largest.used && !slices.Contains(unread, p) {
			largest = n
		}
	}
	for _, p := range unread {
		l.sum = l.sum.minus(l.byPrefix[p])
		guess := largest
		if rest := max(0, l.foreign+l.grown-l.sum.used); guess.used > rest {
			guess = use{rest, min(rest, guess.copies)}
		}
		l.byPrefix[p] = guess
		l.sum = l.sum.plus(guess)
	}
}

func (l *ledger) exact() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.counted
}

// room is what the cache may take in all. Callers hold mu.
func (l *ledger) room() int64 {
	room := l.used() + max(0, l.space.FreeBytes-l.spent-l.floor)
	if l.budget > 0 {
		return min(l.budget, room)
	}
	return room
}

func (l *ledger) usage() (used, budget int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_ = l.refresh() // the older figure does as well
	return l.used(), l.room()
}

// slack is how far before a limit eviction begins.
func (l *ledger) slack() int64 {
	room := l.room()
	return min(max(room/slackShare, minSlackBlocks*l.block), room/8, maxSlackBytes)
}

// demand is what should go.
type demand struct {
	copies int64 // bytes, of copies only: they take what is not theirs
	owned  int64 // bytes, of what is owned only: it nears the transit area
	bytes  int64 // of whatever goes first: the file system gets full
	files  int64 // likewise
}

func (d demand) any() bool { return d.copies > 0 || d.owned > 0 || d.bytes > 0 || d.files > 0 }

// wants reports whether victims of a kind help.
func (d demand) wants(kind int) bool {
	if kind == ofCopies {
		return d.copies > 0 || d.bytes > 0 || d.files > 0
	}
	return d.owned > 0 || d.bytes > 0 || d.files > 0
}

// less returns what is left to do after a victim freed so much.
func (d demand) less(kind int, freed, files int64) demand {
	d.bytes, d.files = d.bytes-freed, d.files-files
	if kind == ofCopies {
		d.copies -= freed
	} else {
		d.owned -= freed
	}
	return d
}

// excess returns what should go, nothing while there is no pressure. Callers hold mu.
// Pressure begins one slack before a limit and ends at two, so that evictions come in
// batches. Until the count is done there is nothing to go by.
func (l *ledger) excess() (d demand) {
	if !l.counted {
		return d
	}
	slack, transit := l.slack(), l.transit()
	d.bytes = l.squeeze
	if short := l.floor + slack - (l.space.FreeBytes - l.spent); short > 0 {
		d.bytes = max(d.bytes, short+slack)
	}
	d.bytes = min(d.bytes, l.used())
	owned := l.owned() + l.reserved.used - l.reserved.copies
	if over := owned + slack - (l.room() - transit); over > 0 {
		d.owned = min(over+slack, l.owned())
	}
	// Copies beyond the transit area give way to what is owned in time. Within it
	// they make room for one another only.
	if l.sum.copies <= transit {
		slack = max(l.block, min(slack, transit/4))
	}
	if over := l.used() + l.reserved.used + slack - l.room(); over > 0 {
		d.copies = min(over+slack, l.sum.copies)
	}
	return d
}

// pressure returns what should go now.
func (l *ledger) pressure() demand {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.refresh(); err != nil || !l.counted {
		return demand{}
	}
	d := l.excess()
	if l.space.Inodes > 0 && l.space.FreeInodes < l.inodes+minFreeInodes {
		d.files = l.inodes + 2*minFreeInodes - l.space.FreeInodes
	}
	l.squeeze = 0
	return d
}

// minFreeInodes is how many inodes above the floor eviction keeps free.
const minFreeInodes = 64
