package objstoretest

import (
	"context"
	"sync"
)

// Gate stops what passes it until it is opened, and tells how many wait.
type Gate struct {
	open chan struct{}

	mu      sync.Mutex
	arrived int
	changed chan struct{} // closed and replaced when arrived grows
	once    sync.Once
}

// NewGate returns a closed gate.
func NewGate() *Gate {
	return &Gate{open: make(chan struct{}), changed: make(chan struct{})}
}

// Pass waits until the gate is open or ctx ends.
func (g *Gate) Pass(ctx context.Context) error {
	g.mu.Lock()
	g.arrived++
	close(g.changed)
	g.changed = make(chan struct{})
	g.mu.Unlock()
	select {
	case <-g.open:
		return ctx.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Arrived waits until n have come to the gate since it was made, or ctx ends.
func (g *Gate) Arrived(ctx context.Context, n int) error {
	for {
		g.mu.Lock()
		have, changed := g.arrived, g.changed
		g.mu.Unlock()
		if have >= n {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Open lets all pass, now and later. It may be called more than once.
func (g *Gate) Open() { g.once.Do(func() { close(g.open) }) }
