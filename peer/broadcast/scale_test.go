package broadcast_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shardwell/shardwell/peer/broadcast"
)

var (
	seed = flag.Uint64("seed", 1, "of all chance")
	only = flag.String("only", "scale", "run the sizes whose names begin so")
)

// dataCentre is a cluster of 100 Gbit/s links whose rates differ by 5 %.
func dataCentre(nodes, chunks int) scaleConfig {
	return scaleConfig{Nodes: nodes, Chunks: chunks, RackNodes: 32, Window: 16, ChunkBytes: 8 << 20, Quanta: 8,
		Rate: 12.5e9, OriginRate: 12.5e9, Spread: 0.05, Latency: 25 * time.Microsecond, Skew: 5 * time.Millisecond,
		Detect: 50 * time.Millisecond, Seed: *seed,
		// The model's memory holds all nodes' plans: the chunks asked for last are all that is under way.
		Plan: broadcast.Config{MaxChunks: 16}}
}

// Everybody gets everything, once from the origin, and nobody sends much more than others.
func TestModel(t *testing.T) {
	for _, racks := range []int{0, 16} {
		cfg := dataCentre(64, 512)
		cfg.RackNodes = racks
		r := runScale(cfg)
		t.Logf("seed %d: %+v", *seed, r)
		if r.Efficiency < 0.5 || r.Steady < 0.7 || r.Efficiency > 1 || r.OriginCopies != 1 || r.MaxOverMeanSent > 1.5 {
			t.Errorf("seed %d, racks of %d: %+v", *seed, racks, r)
		}
		if racks > 0 && (r.CrossRack > 1.1 || r.Steady < 0.85) {
			t.Errorf("seed %d, racks of %d: %+v", *seed, racks, r)
		}
	}
}

// Nodes that stop cost the others time, never a chunk.
func TestModelWithFailures(t *testing.T) {
	for s := range uint64(5) {
		cfg := dataCentre(96, 256)
		cfg.Fail, cfg.Seed = 0.05, *seed+s
		r := runScale(cfg)
		t.Logf("seed %d: %+v", cfg.Seed, r)
		if r.Failed == 0 || r.OriginCopies > 1.3 || r.Seconds > r.Bound+1+float64(r.Circles)*2*stall.Seconds() {
			t.Errorf("seed %d: %+v", cfg.Seed, r)
		}
	}
}

// One model is one link long: a node alone gets its object in the time that its link needs.
func TestModelOfOneNode(t *testing.T) {
	cfg := dataCentre(1, 64)
	cfg.Spread, cfg.Skew = 0, 0
	if r := runScale(cfg); r.Efficiency < 0.99 || r.Efficiency > 1 || r.OriginCopies != 1 {
		t.Errorf("%+v", r)
	}
}

// figure prints a measure as all benchmarks of the project do.
func figure(measure string, value float64, evidence any, detail string, args ...any) {
	_ = json.NewEncoder(os.Stdout).Encode(map[string]any{"measure": measure, "value": value, "samples": []float64{value},
		"evidence": evidence, "detail": fmt.Sprintf(detail, args...)})
}

// BenchmarkScale prints one JSON object for each measure, as `make bench-scale` wants them. The runs
// share the processors.
func BenchmarkScale(b *testing.B) {
	cases := []struct {
		name          string
		nodes, chunks int
		fail          float64
	}{
		{"scale_1000", 1000, 125_000, 0},
		{"scale_10000", 10_000, 4096, 0},
		{"scale_10000_faults", 10_000, 4096, 0.01},
	}
	turns := make(chan struct{}, runtime.GOMAXPROCS(0))
	for range b.N {
		var wg sync.WaitGroup
		for _, c := range cases {
			if !strings.HasPrefix(c.name, *only) {
				continue
			}
			turns <- struct{}{}
			wg.Go(func() {
				defer func() { <-turns }()
				cfg := dataCentre(c.nodes, c.chunks)
				cfg.Fail = c.fail
				begin := time.Now()
				r := runScale(cfg)
				report(c.name, cfg, r, time.Since(begin))
			})
		}
		wg.Wait()
	}
}

func report(name string, cfg scaleConfig, r scaleResult, took time.Duration) {
	evidence := map[string]any{"seed": cfg.Seed, "result": r, "took": took.String()}
	cluster := fmt.Sprintf("model: %d nodes in racks of %d, %d chunks, %.0f %% of the nodes stop", cfg.Nodes, cfg.RackNodes, cfg.Chunks, 100*cfg.Fail)
	if base, faults := strings.CutSuffix(name, "_faults"); faults {
		figure(base+"_efficiency_faults", r.Efficiency, evidence, "%s; a stopped node is known after %v; reach 0.75", cluster, cfg.Detect)
		return
	}
	figure(name+"_efficiency", r.Efficiency, evidence, "%s; (S/B)/T, T: the last node; reach 0.85", cluster)
	figure(name+"_max_connections", float64(r.MaxConnections), nil, "the most streams and requests that any node has at once, both ways; reach 512")
	figure(name+"_max_over_mean_sent", r.MaxOverMeanSent, nil, "of the nodes; reach 2")
	const tb = 1e12
	size := float64(cfg.Chunks) * cfg.ChunkBytes
	t := r.Seconds + (tb-size)/(cfg.Rate*r.Steady)
	figure(name+"_1tb_seconds_extrapolated", t, map[string]any{"boundSeconds": tb / cfg.Rate, "efficiency": tb / cfg.Rate / t},
		"not run: T of this run, and the rest of 1 TB at the rate of the middle node between a quarter and three quarters of the chunks")
}
