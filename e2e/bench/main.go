// Command bench measures the product against what the machine could do: a native
// file, a bare passthrough file system, raw HTTP, the fastest parallel GET.
//
// It prints one JSON object a line, {"measure", "value", "samples", "evidence",
// "detail"}: value is the median of the rounds in samples, evidence the raw counts it comes from.
// Rounds of the product and of its baseline alternate in the same run. What went wrong and what it
// is doing goes to stderr. Files that are compared are made from a seed.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/shardwell/shardwell/e2e/faulty"
	"github.com/shardwell/shardwell/e2e/load"
)

// bucket is where all data is.
const bucket = "bench"

// bench is one run.
type bench struct {
	rounds int
	mib    int64 // size of the large file
	out    *json.Encoder

	castMiB         int64 // size of what is broadcast
	mbit            int   // of each link of a broadcast's cage
	trace           bool  // print rates while it goes on
	kills, upgrades int   // of a daemon whose mounts go on

	flags []string // of the nodes of a broadcast, beside the usual ones
}

// groups are measured in this order; each shares a cluster.
var groups = []struct {
	name string
	run  func(*bench) error
}{
	{"broadcast8", (*bench).broadcast8},
	{"broadcast2", (*bench).broadcast2},
	{"broadcast4", (*bench).broadcast4},
	{"broadcast12", (*bench).broadcast12},
	{"broadcastKill", (*bench).broadcastKill},
	{"broadcastLate", (*bench).broadcastLate},
	{"broadcastSlow", (*bench).broadcastSlow},
	{"broadcastRacks", (*bench).broadcastRacks},
	{"broadcastSwarm", (*bench).broadcastSwarm},
	{"ring", (*bench).ring},
	{"warm", (*bench).warm},
	{"peer", (*bench).peer},
	{"cold", (*bench).cold},
	{"unshaped", (*bench).unshaped},
	{"once", (*bench).once},
	{"names", (*bench).names},
	{"warmup", (*bench).warmup},
	{"warmMillion", (*bench).warmMillion},
	{"warmTiny", (*bench).warmTiny},
	{"million", (*bench).million},
	{"readers", (*bench).readers},
	{"epochs", (*bench).epochs},
	{"diskfaults", (*bench).diskFaults},
	{"restart", (*bench).restart},
	{"verify", (*bench).verify},
	{"openfiles", (*bench).openfiles},
	{"firstSample", (*bench).firstSample},
	{"wdsEpochs", (*bench).wdsEpochs},
	{"randomReads", (*bench).randomReads},
	{"preadParallel", (*bench).preadParallel},
	{"bridgeKills", (*bench).handover},
	{"bridgeGiveUp", (*bench).giveUp},
	{"pods", (*bench).pods},
	{"tars", (*bench).tars},
}

func main() {
	load.Main() // when this process is to be a reader
	faulty.Main()
	if len(os.Args) == 4 && os.Args[1] == bareCommand {
		if err := serveBare(os.Args[2], os.Args[3]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	b := &bench{out: json.NewEncoder(os.Stdout)}
	run := flag.String("run", "^[^b]", "measure the groups whose names match this expression; broadcasts and bridges (mounts that outlive their daemon), which take long, only when it names them")
	flag.IntVar(&b.rounds, "rounds", 5, "rounds of each measure")
	flag.Int64Var(&b.mib, "mib", 2048, "size of the large file in MiB")
	flag.IntVar(&b.kills, "kills", 1000, "times that a daemon is killed whose mounts go on")
	flag.IntVar(&b.upgrades, "upgrades", 50, "times that it is upgraded")
	flag.Int64Var(&b.castMiB, "cast-mib", 256, "size of what is broadcast in MiB")
	flag.BoolVar(&b.trace, "cast-trace", false, "print each second how busy the links are in a broadcast")
	flag.IntVar(&b.mbit, "cast-mbit", 50, "rate of each link of a broadcast in Mbit/s")
	nodeFlags := flag.String("cast-flags", "", "flags for the nodes of a broadcast")
	flag.Parse()
	b.flags = strings.Fields(*nodeFlags)
	want, err := regexp.Compile(*run)
	if err != nil || b.rounds < 1 || b.mib < 64 || flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	failed := false
	for _, g := range groups {
		if !want.MatchString(g.name) {
			continue
		}
		begin := time.Now()
		say("group %s …", g.name)
		if err := g.run(b); err != nil {
			say("group %s: %v", g.name, err)
			failed = true
		}
		say("group %s took %v", g.name, time.Since(begin).Round(time.Second))
	}
	if failed {
		os.Exit(1)
	}
}

func say(format string, args ...any) { fmt.Fprintf(os.Stderr, "bench: "+format+"\n", args...) }

// emit prints a measure.
func (b *bench) emit(measure string, samples []float64, evidence any, detail string, args ...any) {
	line := struct {
		Measure  string    `json:"measure"`
		Value    float64   `json:"value"`
		Samples  []float64 `json:"samples"`
		Evidence any       `json:"evidence"`
		Detail   string    `json:"detail"`
	}{measure, median(samples), samples, evidence, fmt.Sprintf(detail, args...)}
	if err := b.out.Encode(line); err != nil {
		say("%s: %v", measure, err)
	}
}

// median returns the middle one of the samples; they are not changed.
func median(samples []float64) float64 {
	s := slices.Sorted(slices.Values(samples))
	if len(s) == 0 {
		return 0
	}
	if len(s)%2 == 0 {
		return (s[len(s)/2-1] + s[len(s)/2]) / 2
	}
	return s[len(s)/2]
}

// ratios divides pairwise.
func ratios(a, b []float64) []float64 {
	r := make([]float64, len(a))
	for i := range a {
		r[i] = a[i] / b[i]
	}
	return r
}

// rate is MiB a second.
func rate(bytes int64, d time.Duration) float64 { return float64(bytes) / (1 << 20) / d.Seconds() }
