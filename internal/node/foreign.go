package node

import (
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/shardwell/shardwell/objstore"
	"github.com/shardwell/shardwell/peer"
)

// Bounds of the list of buckets that others than the nodes read.
const (
	maxForeign      = 1024 // behind it all count as such
	maxForeignBytes = 8 << 20
	foreignName     = "tenants" // file in the first cache directory
)

// foreign are the buckets of which the cluster may hold bytes that somebody else's credentials
// fetched: of these also who asks in the node's own name has to prove that it may read an
// object, for its listing does not say so. Elsewhere everything was fetched in that name. The
// members tell each other; nothing is ever taken off the list, as nobody knows when the last of
// such bytes goes.
type foreign struct {
	log   *slog.Logger
	notes notebook
	news  func() // told of an addition
	known atomic.Pointer[map[objstore.Bucket]struct{}]

	mu sync.Mutex // of additions
}

// everywhere among the buckets stands for all.
var everywhere = objstore.Bucket{}

func newForeign(log *slog.Logger, notes notebook, news func()) *foreign {
	f := &foreign{log: log, notes: notes, news: news}
	known := make(map[objstore.Bucket]struct{})
	text, err := notes.readNote(foreignName, maxForeignBytes)
	var all []objstore.Bucket
	if err == nil {
		err = json.Unmarshal(text, &all)
	}
	switch {
	case err == nil:
		for _, b := range all {
			known[b] = struct{}{}
		}
	case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, errNoDisk):
		log.Warn("which buckets tenants read is not known: all count as such", "file", foreignName, "error", err)
		known[everywhere] = struct{}{}
	}
	f.known.Store(&known)
	return f
}

// has reports whether a bucket is one of them.
func (f *foreign) has(b objstore.Bucket) bool {
	known := *f.known.Load()
	if len(known) == 0 {
		return false
	}
	_, here := known[b]
	_, all := known[everywhere]
	return here || all
}

// add puts a bucket on the list, and reports whether it was not there.
func (f *foreign) add(b objstore.Bucket) bool {
	if f.has(b) {
		return false
	}
	f.mu.Lock()
	if f.has(b) {
		f.mu.Unlock()
		return false
	}
	known := maps.Clone(*f.known.Load())
	if len(known) >= maxForeign {
		clear(known)
		b = everywhere
	}
	known[b] = struct{}{}
	f.known.Store(&known)
	text, err := json.Marshal(slices.Collect(maps.Keys(known)))
	if err == nil {
		err = f.notes.writeNote(foreignName, text)
	}
	f.mu.Unlock()
	if err != nil {
		f.log.Warn("write down which buckets tenants read", "error", err)
	}
	f.news()
	return true
}

// tell returns what the others should hear.
func (f *foreign) tell() (all []peer.DatasetUse) {
	for b := range *f.known.Load() {
		all = append(all, peer.DatasetUse{Bucket: b, Foreign: true})
	}
	return all
}

// hear takes over what a member says.
func (f *foreign) hear(uses []peer.DatasetUse) {
	for _, u := range uses {
		if u.Foreign {
			f.add(u.Bucket)
		}
	}
}
