package broadcast_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/shardwell/shardwell/peer/broadcast"
)

var seed = flag.Uint64("seed", 1, "of all chance")

// dataCentre is a cluster of 100 Gbit/s links whose rates differ by 5 %.
func dataCentre(nodes, chunks int) scaleConfig {
	return scaleConfig{Nodes: nodes, Chunks: chunks, RackNodes: 32, Window: 16, ChunkBytes: 8 << 20, BlockBytes: 256 << 10,
		Rate: 12.5e9, OriginRate: 12.5e9, Spread: 0.05, Latency: 25 * time.Microsecond, Skew: 5 * time.Millisecond,
		Detect: 50 * time.Millisecond, Seed: *seed,
		// What is no longer under way is forgotten soon: the model's memory holds all nodes' plans.
		Plan: broadcast.Config{Hot: 300 * time.Millisecond, FillFor: 300 * time.Millisecond}}
}

// Everybody gets everything, once from the origin, and nobody sends much more than others.
func TestModel(t *testing.T) {
	for _, racks := range []int{0, 16} {
		cfg := dataCentre(64, 512)
		cfg.RackNodes = racks
		r := runScale(cfg)
		t.Logf("seed %d: %+v", *seed, r)
		if r.Efficiency < 0.6 || r.Efficiency > 1.05 || r.OriginCopies != 1 || r.MaxOverMeanSent > 1.5 {
			t.Errorf("seed %d, racks of %d: %+v", *seed, racks, r)
		}
		if racks > 0 && r.CrossRack > 1.1 {
			t.Errorf("seed %d: %.2f copies cross into a rack", *seed, r.CrossRack)
		}
	}
}

// Nodes that stop cost the others time, never a chunk.
func TestModelWithFailures(t *testing.T) {
	for s := range uint64(5) {
		cfg := dataCentre(96, 256)
		cfg.Fail, cfg.Seed = 0.05, *seed+s
		if r := runScale(cfg); r.Efficiency < 0.3 || r.OriginCopies > 1.3 {
			t.Errorf("seed %d: %+v", cfg.Seed, r)
		}
	}
}

// BenchmarkScale prints one JSON object for each size, as `make bench-scale` wants them.
func BenchmarkScale(b *testing.B) {
	for _, c := range []struct {
		measure       string
		nodes, chunks int
		fail          float64
	}{
		{"scale_1000", 1000, 4096, 0},
		{"scale_10000", 10000, 4096, 0},
		{"scale_10000_faults", 10000, 4096, 0.01},
	} {
		b.Run(c.measure, func(b *testing.B) {
			for range b.N {
				cfg := dataCentre(c.nodes, c.chunks)
				cfg.Fail = c.fail
				begin := time.Now()
				r := runScale(cfg)
				_ = json.NewEncoder(os.Stdout).Encode(map[string]any{
					"measure": c.measure + "_efficiency", "value": r.Efficiency, "samples": []float64{r.Efficiency},
					"evidence": map[string]any{"seed": *seed, "result": r, "took": time.Since(begin).String()},
					"detail":   fmt.Sprintf("%d nodes in racks of %d, %d chunks, %.0f %% of the nodes fail", c.nodes, cfg.RackNodes, c.chunks, 100*c.fail),
				})
			}
		})
	}
}
