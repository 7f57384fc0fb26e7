package disk

import (
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/shardwell/shardwell/internal/chunk"
)

// State is how well a disk does.
type State uint8

// The states of a disk.
const (
	Normal   State = iota
	Unstable       // it fails now and then
	Down           // it failed so often that it is left alone, but for a probe
)

func (s State) String() string { return [...]string{"normal", "unstable", "down"}[s] }

// When a disk counts as what. Failures are worth one point each, and points halve
// with time, so that a rate is judged: four failures a minute are unstable for ever,
// thirty in some seconds are the end of a disk.
const (
	unstablePoints = 3
	downPoints     = 20
	pointsHalfLife = 30 * time.Second
	probeName      = "probe"
	probeBytes     = 4096
)

// health judges a disk by the rate of its failures. The zero value is Normal.
type health struct {
	mu     sync.Mutex
	points float64
	at     time.Time // when points was right
	state  State
}

// fail notes a system call that failed, other than for want of space. It reports
// whether that took the disk down.
func (h *health) fail() (down bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.age(time.Now())
	h.points++
	switch {
	case h.points >= downPoints:
		down = h.state != Down
		h.state = Down
	case h.points >= unstablePoints && h.state == Normal:
		h.state = Unstable
	}
	return down
}

// age halves the points as time passes. Callers hold mu.
func (h *health) age(now time.Time) {
	for ; h.points > 0 && now.Sub(h.at) >= pointsHalfLife; h.at = h.at.Add(pointsHalfLife) {
		if h.points /= 2; h.points < 0.5 {
			h.points = 0
		}
	}
	if h.points == 0 {
		h.at = now
	}
	if h.state == Unstable && h.points < unstablePoints {
		h.state = Normal
	}
}

// State returns the state now. Only a probe ends Down.
func (h *health) State() State {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.state == Unstable {
		h.age(time.Now())
	}
	return h.state
}

// revive ends Down after a probe that went well: what follows has to prove itself.
func (h *health) revive() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.state, h.points, h.at = Unstable, unstablePoints, time.Now()
}

// State returns how well the disk does. While it is [Down], objects cannot be acquired or
// stored, and those in use are read as far as it goes.
func (d *Dir) State() State { return d.health.State() }

// failed notes and logs that op failed on an object.
func (d *Dir) failed(op string, id chunk.ObjectID, err error) {
	d.log.Warn(op, "object", id, "err", err)
	d.noteFailure()
}

// noteFailure notes a failure that is logged elsewhere.
func (d *Dir) noteFailure() {
	if d.health.fail() {
		d.log.Error("cache disk fails too often: left alone until a probe succeeds")
		d.wake()
	}
}

// noteHang notes a call that did not come back in time.
func (d *Dir) noteHang(op string) {
	d.stats.Hung.Add(1)
	d.log.Warn("cache disk does not answer: the call is left behind", "op", op, "timeout", d.cfg.CallTimeout)
	for range hangPoints {
		d.noteFailure()
	}
}

// probe writes and reads a little file on a disk that is down.
func (d *Dir) probe() {
	if err := d.tryDisk(); err != nil {
		d.log.Debug("probe cache disk", "err", err)
		return
	}
	d.log.Info("cache disk works again")
	d.health.revive()
}

func (d *Dir) tryDisk() error {
	name := d.path(probeName)
	f, err := d.fs.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	p := make([]byte, probeBytes)
	for i := range p {
		p[i] = byte(i)
	}
	if _, err := f.WriteAt(p, 0); err != nil {
		return err
	}
	clear(p)
	if _, err := f.ReadAt(p, 0); err != nil {
		return err
	}
	if p[probeBytes-1] != 0xff {
		return fmt.Errorf("read %s: other bytes than were written", name)
	}
	return d.fs.Remove(name)
}
