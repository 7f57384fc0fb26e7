package pods_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"
)

// readyRounds is how often a Pod with a volume and one without are made, one after the other.
const readyRounds = 5

// TestPodReady measures from the making of a Pod until it is ready, with an inline volume of a known dataset and without,
// and prints the figure. It judges that both become ready.
func TestPodReady(t *testing.T) {
	f := put(t, "ready", 1, 1<<20)
	runPods(t, pod{name: "ready-first", script: f.check("/data"), volume: inline("ready")})
	seconds := map[string][]float64{}
	var more []float64
	for i := range readyRounds {
		for kind, volume := range map[string]string{"with": inline("ready"), "without": ""} {
			p := pod{name: fmt.Sprintf("ready-%s-%d", kind, i), script: "exec sleep 3600", volume: volume}
			at := time.Now()
			apply(t, p.yaml())
			waitReady(t, p)
			seconds[kind] = append(seconds[kind], time.Since(at).Seconds())
			remove(t, p.yaml())
		}
		more = append(more, seconds["with"][i]-seconds["without"][i])
	}
	line, err := json.Marshal(map[string]any{
		"measure": "pod_ready_s", "value": median(more), "samples": more, "evidence": seconds,
		"detail": "apply to Ready with an inline volume of a known dataset, less the same Pod without",
	})
	if err != nil {
		t.Fatal(err)
	}
	fmt.Println(string(line))
}

func median(of []float64) float64 {
	sorted := slices.Sorted(slices.Values(of))
	return sorted[len(sorted)/2]
}
