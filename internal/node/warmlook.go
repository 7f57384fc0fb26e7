package node

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/shardwell/shardwell/internal/config"
	"github.com/shardwell/shardwell/internal/control"
	"github.com/shardwell/shardwell/peer"
	"github.com/shardwell/shardwell/warm"
)

// look is what is found about a warm-up without one.
type look struct {
	n      *Node
	tell   func(control.WarmFound) error
	cancel context.CancelCauseFunc
	what   control.WarmLook
	pins   []string // URIs of what was pinned at the beginning

	mu    sync.Mutex
	sum   control.WarmSum
	unmet []string // of pins, what was missing: there are no such objects any more
}

// miss tells that something is missing. What there is none of is gone, and pinned no more, as it was asked to be.
func (l *look) miss(m warm.Missing) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, uri := range l.pins {
		if m.Reason == warm.NotFound && (uri == m.URI || strings.HasSuffix(m.URI, "/") && strings.HasPrefix(uri, m.URI)) {
			l.unmet = append(l.unmet, uri)
		}
	}
	if m.Reason == warm.NotFound && (l.what == control.WarmEvict || l.what == control.WarmUnpin) {
		return
	}
	l.sum.Missing++
	l.sum.Counts[m.Reason]++
	if err := l.tell(control.WarmFound{Missing: &m}); err != nil {
		l.cancel(err)
	}
}

// named reports whether a pin was named by its own URI, which is that of no object.
func (l *look) named(uri string) bool { return slices.Contains(l.unmet, uri) }

// do does one of the looks and tells the sum.
func (l *look) do(ctx context.Context, s *survey) (err error) {
	l.sum.Objects, l.sum.Bytes = int64(s.found.manifest.Len()), s.found.manifest.Bytes()
	held := make(map[string]int64)
	o := order{loads: s.loads, done: func(v ending) {
		if v.reason != "" {
			s.missing(v, l.miss)
		}
	}, moved: func(node string, n, _ int64) {
		l.mu.Lock()
		defer l.mu.Unlock()
		held[node] += n
		l.sum.HeldBytes += n
	}}
	switch l.what {
	case control.WarmPlan:
		if l.sum.Short, err = s.short(ctx); err != nil {
			return err
		}
		if s.spec.Pin > 0 && len(l.sum.Short) == 0 {
			if err = s.tryPin(ctx, s.spec.Pin); err != nil {
				return err
			}
		}
		o.loads = nil
	case control.WarmCheck:
		o.Bring = peer.Bring{Do: peer.DoCheck}
	case control.WarmUnpin:
		o.Bring, o.loads = peer.Bring{Do: peer.DoCheck}, nil
		if err := s.unpin(ctx, l.named); err != nil {
			return err
		}
		if err := s.holdOn(ctx, 0); err != nil {
			return err
		}
	case control.WarmEvict:
		if err := s.unpin(ctx, l.named); err != nil {
			return err
		}
		o.Bring, o.loads = s.holdNothing(), s.everyone()
		s.loads = o.loads
	default:
		return &config.Error{What: fmt.Sprintf("unknown look %q", l.what)}
	}
	if err := s.sweep(ctx, o); err != nil {
		return err
	}
	for id, load := range s.loads {
		l.sum.Nodes = append(l.sum.Nodes, control.WarmNode{Node: l.n.nameOf(id), Parts: int64(len(load.Items)), Bytes: load.Bytes, HeldBytes: held[id]})
	}
	slices.SortFunc(l.sum.Nodes, func(a, b control.WarmNode) int { return cmp.Compare(a.Node, b.Node) })
	if l.sum.Short == nil {
		l.sum.Short = []warm.Short{}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.tell(control.WarmFound{Sum: &l.sum})
}
