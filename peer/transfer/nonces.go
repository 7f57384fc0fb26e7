package transfer

import (
	"fmt"
	"sync"
	"time"
)

// maxNonces bounds how many signatures are remembered, some 40 bytes each: 1,700
// requests a second over the whole window. Only signatures that were right are
// remembered, so nobody without the secret can fill it.
const maxNonces = 1 << 20

// nonceSlot is how much time of signing shares a slot.
const nonceSlot = 10 * time.Second

// nonces remembers the signatures seen within the clock window. When there are more than
// the limit, the oldest times of signing are forgotten and refused from then on,
// so that a replay never passes: at such load, clocks have to agree better.
type nonces struct {
	limit int

	mu    sync.Mutex
	slots map[int64]map[[16]byte]struct{} // by time of signing / nonceSlot
	count int                             // of all slots
	floor int64                           // slots below it are refused; never falls
}

func newNonces(limit int) *nonces {
	return &nonces{limit: limit, slots: make(map[int64]map[[16]byte]struct{})}
}

// add remembers a signature, or says why it does not count.
func (n *nonces) add(t tag, sent, now time.Time) error {
	key := [16]byte(t[:16])
	slot := sent.UnixMilli() / nonceSlot.Milliseconds()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.expire(now)
	if slot < n.floor {
		return fmt.Errorf("%w: too many requests to remember one that old", ErrClock)
	}
	if _, dup := n.slots[slot][key]; dup {
		return ErrReplay
	}
	if n.count >= n.limit {
		n.forgetOldest()
		if slot < n.floor {
			return fmt.Errorf("%w: too many requests to remember one that old", ErrClock)
		}
	}
	if n.slots[slot] == nil {
		n.slots[slot] = make(map[[16]byte]struct{})
	}
	n.slots[slot][key] = struct{}{}
	n.count++
	return nil
}

// expire drops the slots that the clock window refuses anyway.
func (n *nonces) expire(now time.Time) {
	oldest := now.Add(-ClockWindow-nonceSlot).UnixMilli() / nonceSlot.Milliseconds()
	if oldest <= n.floor {
		return
	}
	n.floor = oldest
	for s, m := range n.slots {
		if s < oldest {
			n.count -= len(m)
			delete(n.slots, s)
		}
	}
}

func (n *nonces) forgetOldest() {
	first := true
	var oldest int64
	for s := range n.slots {
		if first || s < oldest {
			oldest, first = s, false
		}
	}
	n.count -= len(n.slots[oldest])
	delete(n.slots, oldest)
	n.floor = max(n.floor, oldest+1)
}
