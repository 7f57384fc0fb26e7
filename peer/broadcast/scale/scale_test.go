package scale

import (
	"flag"
	"testing"
	"time"
)

var (
	big  = flag.Bool("big", false, "run what takes minutes")
	seed = flag.Uint64("seed", 1, "of all chance")
)

// dataCentre is a cluster of 100 Gbit/s.
func dataCentre(nodes, chunks int) Config {
	return Config{Nodes: nodes, Chunks: chunks, RackNodes: 32, Window: 6, ChunkBytes: 8 << 20, BlockBytes: 256 << 10,
		Rate: 12.5e9, OriginRate: 12.5e9, Latency: 25 * time.Microsecond, Skew: 5 * time.Millisecond,
		Detect: 2 * time.Second, Seed: *seed}
}

func TestModel(t *testing.T) {
	cfg := dataCentre(64, 256)
	r := Run(cfg)
	t.Logf("seed %d: %+v", *seed, r)
	if r.Efficiency < 0.7 || r.Efficiency > 1 || r.OriginCopies != 1 || r.MaxOverMeanSent > 2 {
		t.Errorf("seed %d: %+v", *seed, r)
	}
}
