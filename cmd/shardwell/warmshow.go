package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"golang.org/x/sys/unix"

	"github.com/shardwell/shardwell/internal/control"
	"github.com/shardwell/shardwell/warm"
)

// warmLines is how often progress is a line, where there is no terminal.
const warmLines = 5 * time.Second

// shower shows how a warm-up gets on: as documents, as a bar, or as lines.
type shower struct {
	s       streams
	json    *json.Encoder // nil for people
	perNode bool
	bars    *mpb.Progress // nil without a terminal
	bar     *bar
	nodes   map[string]*bar
	begin   time.Time // of the first progress,
	had     int64     // and the bytes that were there then
	next    time.Time // line
}

func (o *warmOptions) shower(s streams) *shower {
	w := &shower{s: s, perNode: o.perNode, nodes: make(map[string]*bar)}
	if o.asJSON {
		w.json = json.NewEncoder(s.out)
	} else if f, ok := s.err.(*os.File); ok && hasRoom(f) {
		w.bars = mpb.New(mpb.WithOutput(f), mpb.WithWidth(48))
	}
	return w
}

func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// hasRoom reports whether bars can be drawn: on a terminal, and one that says how large it is, as some of containers do not.
func hasRoom(f *os.File) bool {
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	return err == nil && isTerminal(f) && size.Row > 0 && size.Col > 0
}

// warmEvent is a line of --json.
type warmEvent struct {
	Event   string           `json:"event"` // begun, progress, ended, missing or sum
	Job     *warm.Record     `json:"job,omitempty"`
	Joined  bool             `json:"joined,omitempty"` // begun: it was under way already
	Missing *warm.Missing    `json:"missing,omitempty"`
	Sum     *control.WarmSum `json:"sum,omitempty"`
}

// begun says which job it is.
func (w *shower) begun(rec warm.Record, joined bool) {
	switch {
	case w.json != nil:
		_ = w.json.Encode(warmEvent{Event: "begun", Job: &rec, Joined: joined})
	case joined:
		fmt.Fprintf(w.s.err, "warm-up %s is under way already: joined it\n", rec.ID)
	default:
		fmt.Fprintf(w.s.err, "warm-up %s has begun\n", rec.ID)
	}
}

// at shows how far a job is.
func (w *shower) at(rec warm.Record) {
	p, now := rec.Progress, time.Now()
	switch {
	case rec.State.Ended():
		return
	case w.json != nil:
		_ = w.json.Encode(warmEvent{Event: "progress", Job: &rec})
		return
	case p.Objects == 0:
		return // names are looked up
	case w.begin.IsZero():
		w.begin, w.had = now, p.DoneBytes
	}
	if w.bars != nil {
		w.drawBars(p)
		return
	}
	if now.Before(w.next) {
		return
	}
	w.next = now.Add(warmLines)
	fmt.Fprintln(w.s.err, w.line(p, now))
	for _, n := range p.Nodes {
		if w.perNode {
			fmt.Fprintf(w.s.err, "  %s: %s of %s%s\n", printable(n.Node), size(n.DoneBytes), size(n.Bytes), failures(n.Failed))
		}
	}
}

// line says in a line how far a job is.
func (w *shower) line(p warm.Progress, now time.Time) string {
	if p.Checking {
		return fmt.Sprintf("%s of %s are there, checking%s", size(p.DoneBytes), size(p.Bytes), failures(p.FailedParts))
	}
	left, rate := "?", float64(p.DoneBytes-w.had)/max(1e-3, now.Sub(w.begin).Seconds())
	if rate > 0 {
		left = time.Duration(float64(p.Bytes-p.DoneBytes) / rate * float64(time.Second)).Round(time.Second).String()
	}
	return fmt.Sprintf("%s of %s, %s/s, %s left%s", size(p.DoneBytes), size(p.Bytes), size(int64(rate)), left, failures(p.FailedParts))
}

// objects says how many there are.
func objects(n int64) string {
	if n == 1 {
		return "1 object"
	}
	return fmt.Sprintf("%d objects", n)
}

func failures(n int64) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(", %d failed so far", n)
}

// drawBars shows the whole, and the nodes if they are asked for.
func (w *shower) drawBars(p warm.Progress) {
	if w.bar == nil {
		w.bar = w.newBar("all", p.Bytes)
	}
	w.bar.set(p.DoneBytes, p.Bytes, p.FailedParts, p.Checking)
	for _, n := range p.Nodes {
		if !w.perNode {
			break
		}
		if w.nodes[n.Node] == nil {
			w.nodes[n.Node] = w.newBar(printable(n.Node), n.Bytes)
		}
		w.nodes[n.Node].set(n.DoneBytes, n.Bytes, n.Failed, false)
	}
}

// bar is one line of a terminal.
type bar struct {
	*mpb.Bar
	failed   atomic.Int64 // parts, so far
	checking atomic.Bool
}

func (b *bar) set(done, of, failed int64, checking bool) {
	b.failed.Store(failed)
	b.checking.Store(checking)
	b.SetTotal(of, false)
	b.SetCurrent(done)
}

// tail is what stands at the end of the line.
func (b *bar) tail(decor.Statistics) string {
	text := failures(b.failed.Load())
	if b.checking.Load() {
		text += ", checking"
	}
	return text
}

func (w *shower) newBar(name string, bytes int64) *bar {
	b := &bar{}
	b.Bar = w.bars.AddBar(bytes,
		mpb.PrependDecorators(decor.Name(name, decor.WCSyncSpaceR), decor.CountersKibiByte("% .1f / % .1f", decor.WCSyncSpace)),
		mpb.AppendDecorators(decor.NewPercentage("%d", decor.WCSyncSpace), decor.AverageSpeed(decor.SizeB1024(0), "% .1f", decor.WCSyncSpace),
			decor.AverageETA(decor.ET_STYLE_GO, decor.WCSyncSpace), decor.Any(b.tail)))
	return b
}

// stop takes the bars away.
func (w *shower) stop() {
	if w.bars == nil {
		return
	}
	for _, bar := range w.nodes {
		bar.Abort(false)
	}
	if w.bar != nil {
		w.bar.Abort(false)
	}
	w.bars.Wait()
}

// ended shows how a job has ended: what is missing as a table on the standard output.
func (w *shower) ended(rec warm.Record) error {
	if w.json != nil {
		return w.json.Encode(warmEvent{Event: "ended", Job: &rec})
	}
	for _, m := range rec.Missing {
		if err := w.missing(m); err != nil {
			return err
		}
	}
	if rec.Cut {
		fmt.Fprintf(w.s.err, "these are the first %d of %d: --check names all\n", len(rec.Missing), rec.Lost())
	}
	p := rec.Progress
	if rec.State == warm.Done || rec.State == warm.Partly {
		took := time.Duration(rec.Ended - rec.Started).Round(10 * time.Millisecond)
		fmt.Fprintf(w.s.err, "%s: %s of %s are where they should be, %s of it fetched now, in %v\n", objects(p.Objects), size(p.DoneBytes), size(p.Bytes), size(min(p.FetchedBytes, p.DoneBytes)), took)
	}
	if p.Objects > 0 && p.Parts == 0 && rec.State == warm.Done {
		fmt.Fprintln(w.s.err, "none of it belongs to the nodes that were named: nothing was to be done there")
	}
	if rec.PinnedUntil > 0 {
		fmt.Fprintf(w.s.err, "pinned until %s\n", time.Unix(0, rec.PinnedUntil).Format(time.DateTime))
	}
	return nil
}

// missing shows one thing that is missing, on one line: reason, node, URI, chunk and details, with tabs between.
func (w *shower) missing(m warm.Missing) error {
	if w.json != nil {
		return w.json.Encode(warmEvent{Event: "missing", Missing: &m})
	}
	part := "-"
	if m.Chunk != nil {
		part = fmt.Sprint(*m.Chunk)
	}
	_, err := fmt.Fprintln(w.s.out, strings.Join([]string{string(m.Reason), dash(m.Node), printable(m.URI), part, oneLine(m.Detail)}, "\t"))
	return err
}

// found shows the sum of a look.
func (w *shower) found(sum control.WarmSum, do control.WarmLook) error {
	if w.json != nil {
		return w.json.Encode(warmEvent{Event: "sum", Sum: &sum})
	}
	fmt.Fprintf(w.s.err, "%s, %s", objects(sum.Objects), size(sum.Bytes))
	switch do {
	case control.WarmCheck:
		fmt.Fprintf(w.s.err, "; %s are where they should be\n", size(sum.HeldBytes))
	case control.WarmEvict:
		gone := "and are gone"
		if sum.Missing > 0 {
			gone = "and all is gone but what is named"
		}
		fmt.Fprintf(w.s.err, "; %s were held %s, pins were taken back\n", size(sum.HeldBytes), gone)
	case control.WarmUnpin:
		fmt.Fprintf(w.s.err, "; pins were taken back\n")
	default:
		fmt.Fprintln(w.s.err)
		return printPlan(w.s.out, sum)
	}
	return nil
}

func printPlan(out io.Writer, sum control.WarmSum) error {
	t := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintf(t, "NODE\tobjects or chunks\tbytes\n")
	for _, n := range sum.Nodes {
		fmt.Fprintf(t, "%s\t%d\t%s\n", printable(n.Node), n.Parts, size(n.Bytes))
	}
	for i, n := range sum.Short {
		if i == 0 {
			fmt.Fprintf(t, "\nNO ROOM\tneeds\thas\n")
		}
		fmt.Fprintf(t, "%s\t%s\t%s\n", printable(n.Node), size(n.NeedBytes), size(n.RoomBytes))
	}
	return t.Flush()
}

// printJobs lists jobs.
func printJobs(out io.Writer, recs []warm.Record, asJSON bool) error {
	if asJSON {
		enc := json.NewEncoder(out)
		for _, rec := range recs {
			if err := enc.Encode(rec); err != nil {
				return err
			}
		}
		return nil
	}
	t := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintf(t, "ID\tstate\tbegan\tdone\tof\tfailed\trun by\twhat\n")
	for _, rec := range recs {
		what := strings.Join(rec.Spec.Sources, " ")
		if rec.Spec.ListSum != "" {
			what = strings.TrimSpace(what + " (a list)")
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\n", rec.ID, rec.State, time.Unix(0, rec.Started).Format(time.DateTime),
			size(rec.Progress.DoneBytes), size(rec.Progress.Bytes), rec.Progress.FailedParts, dash(rec.Runner), printable(what))
	}
	return t.Flush()
}
