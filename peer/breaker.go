package peer

import (
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// BreakerConfig says how long a member that failed is left alone.
type BreakerConfig struct {
	// Threshold is how many failures in a row open the breaker, default 2. An
	// answer that cannot be believed opens it at once.
	Threshold int
	// DamagedBlocks is how many blocks that arrive damaged within DamageWindow open the
	// breaker, defaults 4 and 10 s. A disk has a bad block now and then, and whoever
	// sent it fetches it again; cables and memory that damage go on.
	DamagedBlocks int
	DamageWindow  time.Duration
	// MinBackoff and MaxBackoff bound how long it stays open; it doubles with each
	// failed probe and is drawn from [half, whole]. Defaults 500 ms and 30 s.
	MinBackoff, MaxBackoff time.Duration
}

func (c *BreakerConfig) setDefaults() {
	if c.Threshold == 0 {
		c.Threshold = 2
	}
	if c.DamagedBlocks == 0 {
		c.DamagedBlocks = 4
	}
	if c.DamageWindow == 0 {
		c.DamageWindow = 10 * time.Second
	}
	if c.MinBackoff == 0 {
		c.MinBackoff = 500 * time.Millisecond
	}
	if c.MaxBackoff == 0 {
		c.MaxBackoff = 30 * time.Second
	}
}

// maxBreakers bounds the members remembered; beyond it closed ones are dropped.
const maxBreakers = 16384

// breakers remembers which members failed lately. A member is closed (asked
// freely), open (not asked), or half open: one request probes it.
type breakers struct {
	cfg   BreakerConfig
	stats *Stats

	mu      sync.Mutex
	rand    *rand.Rand          // guarded by mu
	members map[string]*breaker // by ring id; absent means closed
}

type breaker struct {
	failures int // in a row
	trips    int // doublings of the backoff since the last success
	until    time.Time
	open     bool
	probing  bool
	damaged  []time.Time // when blocks came damaged, oldest first; fewer than DamagedBlocks
}

func newBreakers(cfg BreakerConfig, stats *Stats, r *rand.Rand) *breakers {
	cfg.setDefaults()
	if r == nil {
		r = rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	}
	return &breakers{cfg: cfg, stats: stats, rand: r, members: make(map[string]*breaker)}
}

// allow reports whether the member may be asked now. After true the caller
// reports the outcome with succeeded, failed or abandoned.
func (b *breakers) allow(id string, now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	m := b.members[id]
	if m == nil || !m.open {
		return true
	}
	if m.probing || now.Before(m.until) {
		return false
	}
	m.probing = true
	return true
}

// isOpen reports whether the member is being left alone.
func (b *breakers) isOpen(id string, now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	m := b.members[id]
	return m != nil && m.open && (m.probing || now.Before(m.until))
}

// succeeded closes the breaker. Damage is remembered: most blocks of a member whose
// memory is bad arrive well.
func (b *breakers) succeeded(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	m := b.members[id]
	switch {
	case m == nil:
	case len(m.damaged) == 0:
		delete(b.members, id)
	default:
		*m = breaker{damaged: m.damaged}
	}
}

// sentDamage counts a block that arrived damaged, and opens the breaker when there were
// too many of late.
func (b *breakers) sentDamage(id string, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	m := b.member(id, now)
	m.damaged = slices.DeleteFunc(m.damaged, func(t time.Time) bool { return now.Sub(t) > b.cfg.DamageWindow })
	if m.damaged = append(m.damaged, now); len(m.damaged) < b.cfg.DamagedBlocks {
		m.probing = false
		return
	}
	m.damaged = nil
	b.count(m, now, true)
}

// abandoned ends a request that told nothing about the member.
func (b *breakers) abandoned(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if m := b.members[id]; m != nil {
		m.probing = false
	}
}

// failed counts a failure; severe ones open the breaker at once.
func (b *breakers) failed(id string, now time.Time, severe bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.count(b.member(id, now), now, severe)
}

// member returns what is remembered of a member from now on. Callers hold mu.
func (b *breakers) member(id string, now time.Time) *breaker {
	m := b.members[id]
	if m == nil {
		b.makeRoom(now)
		m = &breaker{}
		b.members[id] = m
	}
	return m
}

// count adds a failure. Callers hold mu.
func (b *breakers) count(m *breaker, now time.Time, severe bool) {
	m.failures++
	wasProbe := m.probing
	m.probing = false
	if m.open && !wasProbe {
		return // a request from before it opened
	}
	if !severe && !wasProbe && m.failures < b.cfg.Threshold {
		return
	}
	backoff := b.cfg.MaxBackoff
	if m.trips < 30 {
		backoff = min(backoff, b.cfg.MinBackoff<<m.trips)
	}
	half := backoff / 2
	m.until = now.Add(half + time.Duration(b.rand.Int64N(int64(half)+1)))
	m.trips++
	m.open = true
	b.stats.BreakerOpens.Add(1)
}

func (b *breakers) makeRoom(now time.Time) {
	if len(b.members) < maxBreakers {
		return
	}
	for id, m := range b.members {
		if !m.open || now.After(m.until) {
			delete(b.members, id)
		}
	}
	for id := range b.members {
		if len(b.members) < maxBreakers {
			return
		}
		delete(b.members, id)
	}
}
