package node

import (
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shardwell/shardwell/cache/evict"
	"github.com/shardwell/shardwell/internal/chunk"
)

// Bounds of what a node holds though others own it.
const (
	maxHoldings      = 1024
	maxHoldingsBytes = 8 << 20
	holdingsName     = "holdings" // file in the first cache directory
)

// holdings are datasets of which this node is to have a copy of its own: `warm --every-node`
// brought it. What lies in them is as good as owned, so other copies do not displace it. The zero value
// has none.
type holdings struct {
	any   atomic.Bool
	log   *slog.Logger
	notes notebook

	mu   sync.Mutex
	held map[evict.Dataset]int64 // until when, nanoseconds since 1970
}

// open reads what an earlier process was to hold.
func (h *holdings) open(log *slog.Logger, notes notebook, now time.Time) {
	h.log, h.notes = log, notes
	text, err := notes.readNote(holdingsName, maxHoldingsBytes)
	if errors.Is(err, errNoDisk) || errors.Is(err, fs.ErrNotExist) {
		return
	}
	var saved []holding
	if err == nil {
		err = json.Unmarshal(text, &saved)
	}
	if err != nil {
		log.Warn("what this node was to hold is not known", "file", holdingsName, "error", err)
		return
	}
	for _, s := range saved {
		if s.Until > now.UnixNano() && len(h.held) < maxHoldings {
			h.put(s.Dataset, s.Until)
		}
	}
}

// holding is one entry of the file.
type holding struct {
	evict.Dataset
	Until int64 `json:"until"`
}

// put notes one dataset. Callers hold mu, or nobody else has h.
func (h *holdings) put(d evict.Dataset, until int64) {
	if h.held == nil {
		h.held = make(map[evict.Dataset]int64)
	}
	h.held[d] = until
	h.any.Store(true)
}

// hold says that this node is to hold datasets until a time, which may only grow and is not noted
// again while half of the way is left, or with a time that has passed that it is not to any more.
func (h *holdings) hold(list []evict.Dataset, until, now time.Time) {
	h.mu.Lock()
	for d, t := range h.held {
		if t <= now.UnixNano() {
			delete(h.held, d)
		}
	}
	changed := false
	for _, d := range list {
		have, ok := h.held[d]
		switch {
		case !until.After(now):
			delete(h.held, d)
			changed = changed || ok
		case until.Sub(time.Unix(0, have)) > until.Sub(now)/2 && (ok || len(h.held) < maxHoldings):
			h.put(d, until.UnixNano())
			changed = true
		}
	}
	saved := []holding{}
	for d, t := range h.held {
		saved = append(saved, holding{d, t})
	}
	h.mu.Unlock()
	if !changed || h.notes == nil {
		return
	}
	text, err := json.Marshal(saved)
	if err == nil {
		err = h.notes.writeNote(holdingsName, text)
	}
	if err != nil {
		h.log.Debug("write down what this node is to hold", "error", err)
	}
}

// covers reports whether an object is to be held here.
func (h *holdings) covers(o chunk.Object, now time.Time) bool {
	if !h.any.Load() {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for d, until := range h.held {
		if until > now.UnixNano() && d.Covers(o) {
			return true
		}
	}
	return false
}
