package disk

import (
	"sync"
	"time"

	"github.com/shardwell/shardwell/internal/chunk"
)

// prefixes is the number of folders below objects/, by the first byte of the id.
const prefixes = 256

// ledger counts the bytes that the cache takes and admits further ones.
//
// After an unclean stop nobody knows the sum until a walk has counted it. Until
// then everything that the file system holds is taken to be ours, so that the
// budget holds at any time.
type ledger struct {
	fs     FS
	path   string
	budget int64 // 0: as the file system allows
	floor  int64
	inodes int64 // floor
	block  int64 // bytes

	mu       sync.Mutex
	byPrefix [prefixes]int64 // what files really take; right once counted
	sum      int64           // of byPrefix
	counted  bool            // byPrefix is right
	foreign  int64           // until counted: what the file system held at the start,
	grown    int64           // and what we added since
	orphaned int64           // of files that were unlinked while in use
	reserved int64           // admitted and not yet written

	space   Space // as of spaceAt
	spaceAt time.Time
	spent   int64 // admitted since then
	squeeze int64 // further bytes to free, after the kernel said there is no space

	walking int                      // prefix that a walk is counting, or -1
	touched map[chunk.ObjectID]int64 // objects that changed meanwhile, and what they take now
}

// refresh asks the file system for its state. Callers hold mu.
func (l *ledger) refresh() error {
	space, err := l.fs.Statfs(l.path)
	if err != nil {
		return err
	}
	l.space, l.spaceAt, l.spent = space, time.Now(), l.reserved
	return nil
}

// used is what the cache takes at most. Callers hold mu.
func (l *ledger) used() int64 {
	if l.counted {
		return l.sum + l.orphaned
	}
	return l.foreign + l.grown + l.orphaned
}

// reserve admits n bytes and so many new files, or says why not. It also tells
// whether it is time to evict. Each success is followed by one unreserve.
func (l *ledger) reserve(n, files int64) (crowded bool, _ *RejectError) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.budget > 0 && l.used()+l.reserved+n > l.budget {
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
	}
	l.reserved += n
	l.spent += n
	l.space.FreeInodes -= files
	return l.excess() > 0, nil
}

func (l *ledger) unreserve(n int64) {
	l.mu.Lock()
	l.reserved -= n
	l.mu.Unlock()
}

// change books that an object now takes used bytes, delta more than before.
func (l *ledger) change(id chunk.ObjectID, used, delta int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := int(id[0])
	l.byPrefix[p] += delta
	l.sum += delta
	l.grown += delta
	if l.walking == p {
		l.touched[id] = used
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
	l.touched = make(map[chunk.ObjectID]int64)
}

func (l *ledger) endCount(seen map[chunk.ObjectID]int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if seen != nil {
		for id, used := range l.touched {
			seen[id] = used
		}
		var sum int64
		for _, used := range seen {
			sum += used
		}
		l.sum += sum - l.byPrefix[l.walking]
		l.byPrefix[l.walking] = sum
	}
	l.walking, l.touched = -1, nil
}

// allCounted says that every prefix was counted.
func (l *ledger) allCounted() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.counted = true
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

// excess returns how many bytes should go, 0 while there is no pressure. Callers
// hold mu. Pressure begins one slack before a limit and ends at two, so that
// evictions come in batches. Until the count is done there is nothing to go by.
func (l *ledger) excess() int64 {
	if !l.counted {
		return 0
	}
	slack := l.slack()
	excess := l.squeeze
	if over := l.used() + l.reserved - l.budget + slack; l.budget > 0 && over > 0 {
		excess = max(excess, over+slack)
	}
	if short := l.floor + slack - (l.space.FreeBytes - l.spent); short > 0 {
		excess = max(excess, short+slack)
	}
	return min(excess, l.used())
}

// pressure returns the bytes and files that should go now.
func (l *ledger) pressure() (bytes, files int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.refresh(); err != nil || !l.counted {
		return 0, 0
	}
	if l.space.Inodes > 0 && l.space.FreeInodes < l.inodes+minFreeInodes {
		files = l.inodes + 2*minFreeInodes - l.space.FreeInodes
	}
	bytes = l.excess()
	l.squeeze = 0
	return bytes, files
}

// minFreeInodes is how many inodes above the floor eviction keeps free.
const minFreeInodes = 64
