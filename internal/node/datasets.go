package node

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shardwell/shardwell/cache/evict"
	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/objstore"
	"github.com/shardwell/shardwell/peer"
)

// Bounds of what is remembered of datasets.
const (
	maxPastDatasets = 1024             // that nobody uses; the one unused for longest is forgotten first
	maxPins         = 1024             // those taken back included
	keepUnpinned    = 24 * time.Hour   // until every member has heard of it
	restartMercy    = 10 * time.Minute // how long what was in use at a stop counts as in use, until the members have told
	datasetsName    = "datasets"       // file in the first cache directory
)

// claim is one way in which a dataset is used.
type claim struct {
	evict.Dataset
	Policy     evict.Policy
	QuotaBytes int64
}

// pin protects a dataset. The pin with the highest version is the one that counts.
type pin struct {
	Until   int64 `json:"until"` // nanoseconds since 1970; 0: taken back
	Bytes   int64 `json:"bytes"`
	Version int64 `json:"version"` // when it was made, by whoever made it
}

// datasets is what this node knows of how datasets are used in the whole cluster: an
// owner must not drop what others read. Every member tells the others what is mounted at it
// ([keeper]); what was said holds for a time, so that a member that is gone
// is forgotten. It survives a restart in a small file.
type datasets struct {
	log   *slog.Logger
	notes notebook      // has the file
	table atomic.Value  // *evict.Table
	judge func()        // told when worths have changed
	news  chan struct{} // something that the others should hear

	mu     sync.Mutex
	own    map[claim]int              // mounts of this node
	others map[string]map[claim]int64 // by member, until when
	past   map[evict.Dataset]int64    // when it was seen in use last
	pins   map[evict.Dataset]pin
	saves  int64 // documents made to be written down

	saving sync.Mutex // after mu, and never both: who writes down waits for the disk
	saved  int64      // the last document that was written
}

// notebook keeps small files; its calls come back in time. [disks] is one.
type notebook interface {
	readNote(name string, maxBytes int64) ([]byte, error)
	writeNote(name string, data []byte) error
}

func newDatasets(log *slog.Logger, notes notebook, judge func()) *datasets {
	d := &datasets{log: log, notes: notes, judge: judge, news: make(chan struct{}, 1),
		own: make(map[claim]int), others: make(map[string]map[claim]int64), past: make(map[evict.Dataset]int64), pins: make(map[evict.Dataset]pin)}
	d.load(time.Now())
	d.update(time.Now())
	return d
}

// now returns what is known.
func (d *datasets) now() *evict.Table { return d.table.Load().(*evict.Table) }

// add says that a mount uses a dataset, until the returned function is called.
func (d *datasets) add(c claim) (remove func()) {
	d.mu.Lock()
	d.own[c]++
	d.mu.Unlock()
	d.changed()
	return sync.OnceFunc(func() {
		d.mu.Lock()
		if d.own[c]--; d.own[c] == 0 {
			delete(d.own, c)
			d.past[c.Dataset] = time.Now().UnixNano()
		}
		d.mu.Unlock()
		d.changed()
	})
}

func (d *datasets) changed() {
	d.update(time.Now())
	d.signal()
}

// signal says that there is something that the others should hear.
func (d *datasets) signal() {
	select {
	case d.news <- struct{}{}:
	default:
	}
}

// hear takes over what a member says.
func (d *datasets) hear(member string, uses []peer.DatasetUse, ttl time.Duration) {
	now := time.Now()
	said := make(map[claim]int64)
	d.mu.Lock()
	for _, u := range uses {
		ds := evict.Dataset{Origin: u.Bucket.Origin, Bucket: u.Bucket.Name, Prefix: u.Prefix}
		if policy, err := evict.ParsePolicy(u.Policy); err == nil && u.Used {
			said[claim{ds, policy, u.QuotaBytes}] = now.Add(ttl).UnixNano()
		}
		if u.PinVersion > d.pins[ds].Version && d.roomForPin(ds, now.UnixNano()) {
			p := pin{Bytes: u.PinBytes, Version: u.PinVersion}
			if u.PinnedFor > 0 {
				p.Until = now.Add(u.PinnedFor).UnixNano()
			}
			d.pins[ds] = p
		}
	}
	for c := range d.others[member] {
		if _, still := said[c]; !still {
			d.past[c.Dataset] = now.UnixNano()
		}
	}
	d.others[member] = said
	d.mu.Unlock()
	d.update(now)
}

// tell returns what the others should hear.
func (d *datasets) tell(now time.Time) []peer.DatasetUse {
	d.mu.Lock()
	defer d.mu.Unlock()
	var all []peer.DatasetUse
	for c := range d.own {
		all = append(all, peer.DatasetUse{Bucket: bucketOfDataset(c.Dataset), Prefix: c.Prefix, Policy: c.Policy.String(), QuotaBytes: c.QuotaBytes, Used: true})
	}
	for ds, p := range d.pins {
		u := peer.DatasetUse{Bucket: bucketOfDataset(ds), Prefix: ds.Prefix, Policy: evict.Epoch.String(), PinBytes: p.Bytes, PinVersion: p.Version}
		if left := time.Duration(p.Until - now.UnixNano()); left > 0 {
			u.PinnedFor = left
		}
		all = append(all, u)
	}
	return all
}

func bucketOfDataset(d evict.Dataset) objstore.Bucket {
	return objstore.Bucket{Origin: d.Origin, Name: d.Bucket}
}

// pin pins a dataset of so many bytes until a time, if it fits the capacity; 0 ends it.
func (d *datasets) pin(ds evict.Dataset, bytes, capacityBytes int64, until, now time.Time) error {
	end := int64(0)
	if until.After(now) {
		end = until.UnixNano()
	}
	if _, err := d.now().Pin(ds, bytes, capacityBytes, end, now.UnixNano()); err != nil {
		return err
	}
	d.mu.Lock()
	if !d.roomForPin(ds, now.UnixNano()) {
		d.mu.Unlock()
		if end == 0 {
			return nil // there was none
		}
		return fmt.Errorf("%d datasets are pinned, the most there may be: take some back, or name larger ones", maxPins)
	}
	d.pins[ds] = pin{Until: end, Bytes: bytes, Version: max(now.UnixNano(), d.pins[ds].Version+1)}
	d.mu.Unlock()
	d.changed()
	return nil
}

// roomForPin reports whether one more may be noted. Of those that protect nothing any more, and are known only so that every
// member hears of it, the oldest makes room. Callers hold mu.
func (d *datasets) roomForPin(ds evict.Dataset, now int64) bool {
	if _, ok := d.pins[ds]; ok || len(d.pins) < maxPins {
		return true
	}
	var oldest evict.Dataset
	at := int64(math.MaxInt64)
	for past, p := range d.pins {
		if p.Until <= now && p.Version < at {
			oldest, at = past, p.Version
		}
	}
	delete(d.pins, oldest) // or nothing
	return at < math.MaxInt64
}

// pinnedUntil tells until when all of a dataset is pinned; ok is false when it is not.
func (d *datasets) pinnedUntil(ds evict.Dataset) (until time.Time, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	last := time.Now().UnixNano()
	for of, p := range d.pins {
		if p.Until > last && of.Covers(chunk.Object{Origin: ds.Origin, Bucket: ds.Bucket, Key: ds.Prefix}) {
			last, ok = p.Until, true
		}
	}
	return time.Unix(0, last), ok
}

// update makes a new table, writes it down, and says so if what is in use has changed.
func (d *datasets) update(at time.Time) {
	d.mu.Lock()
	d.expire(at.UnixNano())
	old, _ := d.table.Load().(*evict.Table)
	next := evict.NewTable(d.uses(at.UnixNano()))
	d.table.Store(next)
	if old != nil && sameWorth(old.Uses(), next.Uses(), at.UnixNano()) {
		d.mu.Unlock()
		return
	}
	doc := savedDatasets{SavedAt: time.Now().UnixNano(), Uses: next.Uses()}
	for ds, p := range d.pins {
		doc.Pins = append(doc.Pins, savedPin{ds, p})
	}
	d.saves++
	number := d.saves
	d.mu.Unlock()
	if d.judge != nil {
		d.judge()
	}
	d.save(doc, number)
}

// sameWorth reports whether two tables say the same of what is in use; until when does not matter.
func sameWorth(a, b []evict.Use, now int64) bool {
	return slices.EqualFunc(a, b, func(a, b evict.Use) bool {
		return a.Dataset == b.Dataset && a.Policy == b.Policy && a.QuotaBytes == b.QuotaBytes && a.PinnedUntil == b.PinnedUntil &&
			(a.UsedUntil > now) == (b.UsedUntil > now)
	})
}

// expire forgets what is too old. Callers hold mu.
func (d *datasets) expire(now int64) {
	for member, said := range d.others {
		for c, until := range said {
			if until <= now {
				delete(said, c)
				d.past[c.Dataset] = max(d.past[c.Dataset], until)
			}
		}
		if len(said) == 0 {
			delete(d.others, member)
		}
	}
	for ds, p := range d.pins {
		if p.Until <= now && p.Version < now-int64(keepUnpinned) {
			delete(d.pins, ds)
		}
	}
	for len(d.past) > maxPastDatasets {
		var oldest evict.Dataset
		at := int64(math.MaxInt64)
		for ds, last := range d.past {
			if last < at {
				oldest, at = ds, last
			}
		}
		delete(d.past, oldest)
	}
}

// uses merges what is known, in an order that does not depend on chance. Callers hold mu.
func (d *datasets) uses(now int64) []evict.Use {
	until := make(map[claim]int64)
	for _, said := range d.others {
		for c, t := range said {
			until[c] = max(until[c], t)
		}
	}
	for c := range d.own {
		until[c] = math.MaxInt64
	}
	var all []evict.Use
	for c, t := range until {
		all = append(all, evict.Use{Dataset: c.Dataset, Policy: c.Policy, QuotaBytes: c.QuotaBytes, UsedUntil: t})
	}
	for ds, last := range d.past {
		all = append(all, evict.Use{Dataset: ds, UsedUntil: min(last, now)})
	}
	for ds, p := range d.pins {
		if p.Until > now {
			all = append(all, evict.Use{Dataset: ds, PinnedUntil: p.Until, PinBytes: p.Bytes})
		}
	}
	slices.SortFunc(all, func(a, b evict.Use) int {
		return cmp.Or(cmp.Compare(a.Origin, b.Origin), cmp.Compare(a.Bucket, b.Bucket), cmp.Compare(a.Prefix, b.Prefix),
			cmp.Compare(a.Policy, b.Policy), cmp.Compare(a.QuotaBytes, b.QuotaBytes), cmp.Compare(a.PinnedUntil, b.PinnedUntil), cmp.Compare(a.UsedUntil, b.UsedUntil))
	})
	return all
}

// savedDatasets is the file.
type savedDatasets struct {
	SavedAt int64       `json:"savedAt"`
	Uses    []evict.Use `json:"uses"`
	Pins    []savedPin  `json:"pins"`
}

type savedPin struct {
	evict.Dataset
	pin
}

// save writes down what is known, unless something newer is there already. A damaged
// file costs no more than what it said.
func (d *datasets) save(doc savedDatasets, number int64) {
	d.saving.Lock()
	defer d.saving.Unlock()
	if number < d.saved {
		return
	}
	d.saved = number
	text, err := json.Marshal(doc)
	if err == nil {
		err = d.notes.writeNote(datasetsName, text)
	}
	if err != nil {
		d.log.Debug("write down what datasets are in use", "error", err)
	}
}

// maxDatasetsBytes bounds what is read of the file.
const maxDatasetsBytes = 64 << 20

// load reads what an earlier process knew. What was in use then counts as in use for a while.
func (d *datasets) load(now time.Time) {
	text, err := d.notes.readNote(datasetsName, maxDatasetsBytes)
	if errors.Is(err, errNoDisk) || errors.Is(err, fs.ErrNotExist) {
		return
	}
	var doc savedDatasets
	if err == nil {
		err = json.Unmarshal(text, &doc)
	}
	if err != nil {
		d.log.Warn("what datasets were in use is not known", "file", datasetsName, "error", err)
		return
	}
	earlier := make(map[claim]int64)
	for _, u := range doc.Uses {
		if u.UsedUntil > doc.SavedAt {
			earlier[claim{u.Dataset, u.Policy, u.QuotaBytes}] = now.Add(restartMercy).UnixNano()
		}
		if u.PinnedUntil == 0 {
			d.past[u.Dataset] = max(d.past[u.Dataset], min(u.UsedUntil, doc.SavedAt))
		}
	}
	if len(earlier) > 0 {
		d.others[""] = earlier
	}
	for _, p := range doc.Pins {
		d.pins[p.Dataset] = p.pin
	}
}
