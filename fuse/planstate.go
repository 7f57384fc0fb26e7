package fuse

import (
	"cmp"
	"context"
	"encoding/binary"
	"maps"
	"slices"
	"time"

	"github.com/shardwell/shardwell/fuse/handover"
	"github.com/shardwell/shardwell/fuse/prefetch"
)

// saveEvery bounds how often plans are saved for a successor: a process that is killed loses what
// was given or read in the time since. Many long plans are saved less often, so that it takes no more than
// one part in saveShare of a core.
const (
	saveEvery = 200 * time.Millisecond
	saveShare = 50
)

// keepSaved saves the plans when they have changed, and a last time when ctx ends.
func (x *nextFiles) keepSaved(ctx context.Context) {
	state, ok := x.s.state.(PlanState)
	if !ok {
		return
	}
	defer x.save(state)
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-pause.C:
		}
		select {
		case <-ctx.Done():
			return
		case <-x.unsaved:
		}
		began := time.Now()
		x.save(state)
		pause.Reset(max(saveEvery, saveShare*time.Since(began)))
	}
}

func (x *nextFiles) save(state PlanState) {
	if err := state.SavePlans(x.appendPlans(nil)); err != nil {
		x.s.log.Warn("file system: plans are not kept for a successor", "error", err)
	}
}

// changed has the plans saved.
func (x *nextFiles) changed() {
	select {
	case x.unsaved <- struct{}{}:
	default:
	}
}

// appendPlans appends the plans, those used last first, as far as they fit what is kept for a successor.
func (x *nextFiles) appendPlans(b []byte) []byte {
	x.mu.Lock()
	defer x.mu.Unlock()
	labels := slices.SortedFunc(maps.Keys(x.plans), func(a, b string) int {
		return cmp.Or(x.plans[b].used.Compare(x.plans[a].used), cmp.Compare(a, b))
	})
	for _, label := range labels {
		whole := len(b)
		b = append(binary.AppendUvarint(b, uint64(len(label))), label...)
		if b = x.plans[label].AppendBinary(b); len(b) > handover.MaxPlansBytes {
			b = b[:whole]
		}
	}
	return b
}

// restore takes up the plans of a predecessor, before run.
func (x *nextFiles) restore(b []byte) {
	if x.s.cfg.NextFiles < 0 {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	now := time.Now()
	for len(b) > 0 && len(x.plans) < maxPlans {
		n, size := binary.Uvarint(b)
		if size <= 0 || n > maxLabelBytes || int(n) > len(b)-size {
			return
		}
		label := string(b[size : size+int(n)])
		p, rest, ok := prefetch.ParsePlan(b[size+int(n):])
		if !ok || !printable(label) {
			return
		}
		x.plans[label] = &labelled{Plan: p, used: now}
		b = rest
	}
	for len(x.plans) > 1 && x.planBytes() > maxPlansBytes {
		x.dropPlan()
	}
	x.wake()
}
