package main

import (
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"time"

	"github.com/shardwell/shardwell/e2e/cluster"
)

// ringTime bounds the benchmarks of the ring.
const ringTime = 10 * time.Minute

// benchLine is a line of `go test -bench -benchmem`.
var benchLine = regexp.MustCompile(`(?m)^Benchmark(Lookup/1000|Rebuild/fresh/1000)\S*\s+(\d+)\s+([\d.]+) ns/op\s+\d+ B/op\s+(\d+) allocs/op`)

// ring measures a lookup and the building of a table by the package's own benchmarks.
func (b *bench) ring() error {
	tools, err := cluster.Prepare()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), ringTime)
	defer cancel()
	var out []byte
	for _, pattern := range []string{"^BenchmarkLookup$/^1000$", "^BenchmarkRebuild$/^fresh$/^1000$"} {
		cmd := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-bench", pattern,
			"-benchmem", "-benchtime", "500ms", "-count", strconv.Itoa(b.rounds), "./peer/ring")
		cmd.Dir = tools.Root
		said, err := cmd.CombinedOutput()
		if err != nil {
			return fmt.Errorf("benchmarks of the ring: %w\n%s", err, said)
		}
		out = append(out, said...)
	}
	var lookups, allocations, rebuilds []float64
	for _, m := range benchLine.FindAllStringSubmatch(string(out), -1) {
		ns, err := strconv.ParseFloat(m[3], 64)
		if err != nil {
			return err
		}
		if m[1] == "Lookup/1000" {
			allocs, _ := strconv.ParseFloat(m[4], 64)
			lookups, allocations = append(lookups, ns), append(allocations, allocs)
		} else {
			rebuilds = append(rebuilds, ns/1e6)
		}
	}
	if len(lookups) != b.rounds || len(rebuilds) != b.rounds {
		return fmt.Errorf("benchmarks of the ring: %d and %d results, want %d each:\n%s", len(lookups), len(rebuilds), b.rounds, out)
	}
	b.emit("ring_lookup_ns", lookups, map[string]any{"allocationsPerLookup": allocations},
		"owner and successors of a key among 1000 members; reach at most 200 with no allocation")
	b.emit("ring_rebuild_ms_1000", rebuilds, map[string]any{"milliseconds": rebuilds}, "a new table for 1000 members; reach at most 1500")
	return nil
}
