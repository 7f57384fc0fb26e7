package demo

import (
	"fmt"
	"strings"
	"text/tabwriter"
)

// table writes what the steps did: where readers had their bytes from, and which
// node sent how many to others.
func (d *demo) table(steps []step) {
	w := tabwriter.NewWriter(d.Result, 0, 8, 2, ' ', tabwriter.AlignRight)
	names := make([]string, len(d.nodes.all))
	for i, m := range d.nodes.all {
		names[i] = m.name + "\t"
	}
	blank := strings.Repeat("\t", len(names)-1)
	fmt.Fprintf(w, "\t\t\t\tof it from (MB)\t\t\t\t\tsent by (MB)\t%s\n", blank)
	fmt.Fprintf(w, "step\tseconds\tMB/s\tread MB\torigin\tpeer\tdisk\tmemory\tpassthrough\t%s\n", strings.Join(names, ""))
	for _, s := range steps {
		b := s.sources
		fmt.Fprintf(w, "%s\t%.2f\t%.0f\t", s.name, s.duration.Seconds(), float64(s.read)/1e6/s.duration.Seconds())
		for _, n := range append([]int64{s.read, b.Origin, b.Peer, b.Disk, b.Memory, s.passthrough()}, s.sent...) {
			fmt.Fprintf(w, "%s\t", megabytes(n))
		}
		fmt.Fprintln(w)
	}
	_ = w.Flush()
	for _, s := range steps {
		fmt.Fprintf(d.Result, "%s: %.2f origin copies (%s of %s MB in %d requests, counted at the origin)\n",
			s.name, copies(s), megabytes(s.origin), megabytes(s.unique), s.gets)
	}
	for _, s := range steps {
		for _, b := range s.casts {
			fmt.Fprintf(d.Result, "%s: broadcast of %s: %d nodes done, %d receiving, %.0f MB/s, %.2f origin copies, max/mean sent %.2f\n",
				s.name, b.Object, b.NodesDone, b.NodesReceiving, b.BytesPerSecond/1e6, b.OriginCopies, b.MaxOverMeanSent)
		}
	}
	fmt.Fprintln(d.Result, "every byte was compared with the source")
}

func megabytes(n int64) string { return fmt.Sprintf("%.1f", float64(n)/1e6) }

// copies is how often the origin sent what was asked for.
func copies(s step) float64 { return float64(s.origin) / float64(s.unique) }

// judge says what is not as promised.
func (d *demo) judge(steps []step) []string {
	var out []string
	for _, s := range steps {
		switch {
		case s.name == "epoch 2" && s.origin > 0:
			out = append(out, fmt.Sprintf("%s: the origin sent %d bytes again", s.name, s.origin))
		case s.name == "epoch 2" && s.sources.Origin > 0:
			out = append(out, fmt.Sprintf("%s: nodes say that readers had %d bytes from the origin", s.name, s.sources.Origin))
		case s.origin > s.unique:
			out = append(out, fmt.Sprintf("%s: the origin sent %d bytes of %d, %.2f copies", s.name, s.origin, s.unique, copies(s)))
		}
	}
	return out
}
