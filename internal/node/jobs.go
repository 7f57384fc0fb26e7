package node

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/shardwell/shardwell/warm"
)

// How jobs are kept.
const (
	jobKeepers   = 3   // members that know of a job: the first of them runs it
	maxJobs      = 256 // known to a member; those that ended first are forgotten first
	keepEnded    = 24 * time.Hour
	maxListBytes = 2 * warm.MaxListBytes // of all lists of names that a member keeps
	jobTick      = time.Second           // between looks for jobs that nobody runs
	jobTell      = 2 * time.Second       // between what the one who runs a job tells the other keepers
	jobSilence   = 6 * time.Second       // after so long without it a keeper tells who should run the job
	jobPatience  = 5 * time.Second       // with a keeper
	listPatience = time.Minute           // with whoever is to send the list of names that a job refers to
	finalTries   = 10                    // to tell the other keepers how a job has ended
)

// jobs are the warm-ups that this node knows of. The owner of the key "job:ID" and its successors
// keep a record of each; the first of them that is alive runs it. One that comes into that place carries
// on from what is present.
type jobs struct {
	n          *Node
	wake       chan struct{}
	roundPause time.Duration // before what is missing is fetched again for the first time, and more each time

	mu    sync.Mutex
	known map[string]*job
	lists map[string][]byte // compressed names, by their SHA-256; shorter than said while parts are to come
}

// job is one of them.
type job struct {
	rec   warm.Record
	heard time.Time               // when rec was written last
	stop  context.CancelCauseFunc // of the run at this node, nil while it does not run here
}

// Causes of the end of a run that is not the end of the job.
var (
	errCanceled = errors.New("canceled")
	errHandedOn = errors.New("another member runs it now")
)

func newJobs(n *Node) *jobs {
	return &jobs{n: n, roundPause: roundPause, wake: make(chan struct{}, 1), known: make(map[string]*job), lists: make(map[string][]byte)}
}

// keepers returns the ring ids of who keeps a job, the one who runs it first. Where nobody owns
// anything, each node is its own.
func (j *jobs) keepers(id string) []string {
	ring := j.n.cluster.ring
	ids := ring.Owners(ring.KeyOfName("job:"+id), nil)
	if len(ids) == 0 {
		return []string{j.n.id}
	}
	return ids[:min(len(ids), jobKeepers)]
}

// running returns how many jobs this node runs.
func (j *jobs) running() (n int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, x := range j.known {
		if x.stop != nil {
			n++
		}
	}
	return n
}

// note changes what is known of a job by change, which gets what was known, or the zero record.
// Callers hold mu.
func (j *jobs) note(id string, change func(known warm.Record) warm.Record) warm.Record {
	x := j.known[id]
	if x == nil {
		x = &job{}
		j.known[id] = x
		j.forget()
	}
	x.rec = change(x.rec)
	x.heard = time.Now()
	if x.rec.State.Ended() && x.stop != nil {
		x.stop(errCanceled)
	}
	return x.rec
}

// rouse makes keepJobs look.
func (j *jobs) rouse() {
	select {
	case j.wake <- struct{}{}:
	default:
	}
}

// forget drops what ended long ago, or first of too many, and lists that no job refers to. Callers
// hold mu.
func (j *jobs) forget() {
	var ended []*job
	for id, x := range j.known {
		switch {
		case !x.rec.State.Ended() || x.rec.ID == "":
		case time.Since(time.Unix(0, x.rec.Ended)) > keepEnded:
			delete(j.known, id)
		default:
			ended = append(ended, x)
		}
	}
	slices.SortFunc(ended, func(a, b *job) int { return cmp.Compare(a.rec.Ended, b.rec.Ended) })
	for _, x := range ended {
		if len(j.known) <= maxJobs {
			break
		}
		delete(j.known, x.rec.ID)
	}
	for sum := range j.lists {
		used := false
		for _, x := range j.known {
			used = used || x.rec.Spec.ListSum == sum && !x.rec.State.Ended()
		}
		if !used {
			delete(j.lists, sum)
		}
	}
}

// KeepJob implements peer.Worker.
func (w worker) KeepJob(_ context.Context, doc []byte) (merged []byte, lacksList, joined bool, err error) {
	var rec warm.Record
	if err := json.Unmarshal(doc, &rec); err != nil || !warm.ValidID(rec.ID) {
		return nil, false, false, errors.New("malformed job")
	}
	out, lacks, joined, err := w.n.jobs.keep(rec)
	if err != nil {
		return nil, false, false, err
	}
	if !out.State.Ended() {
		out.Missing = nil
	}
	merged, err = json.Marshal(out)
	return merged, lacks, joined, err
}

// keep takes note of a job. One that nobody has begun to run is a request: it joins what runs already.
func (j *jobs) keep(rec warm.Record) (out warm.Record, lacksList, joined bool, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if x := j.known[rec.ID]; x == nil && len(j.known) >= 2*maxJobs {
		return rec, false, false, fmt.Errorf("%d warm-ups are under way, the most that a member knows", len(j.known))
	}
	out = j.note(rec.ID, func(known warm.Record) warm.Record {
		switch {
		case rec.Seq == 0 && rec.State == warm.Running && known.ID == rec.ID:
			rec, joined = warm.Join(known, rec)
			return rec
		case known.ID == rec.ID:
			return warm.Merge(known, rec)
		}
		return rec
	})
	j.rouse()
	return out, !out.State.Ended() && !j.hasList(out.Spec), joined, nil
}

// hasList reports whether all of the list that a job refers to is here. Callers hold mu.
func (j *jobs) hasList(s warm.Spec) bool {
	return s.ListSum == "" || int64(len(j.lists[s.ListSum])) == s.ListBytes
}

// KeepList implements peer.Worker.
func (w worker) KeepList(sum string, size, offset int64, data []byte) error {
	return w.n.jobs.keepList(sum, size, offset, data)
}

func (j *jobs) keepList(sum string, size, offset int64, data []byte) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	held := int64(0)
	for _, l := range j.lists {
		held += int64(len(l))
	}
	have := j.lists[sum]
	switch {
	case size > warm.MaxListBytes, offset == 0 && held+size > maxListBytes:
		return fmt.Errorf("a list of %d bytes, compressed, is too long beside what is kept already", size)
	case int64(len(have)) == size && size > 0:
		return nil // another was faster
	case offset+int64(len(data)) > size:
		return errors.New("malformed list")
	case offset == 0:
		have = nil
	case offset != int64(len(have)):
		return errors.New("a part of the list is missing")
	}
	have = append(have, data...)
	if int64(len(have)) == size {
		if got := sha256.Sum256(have); hex.EncodeToString(got[:]) != sum {
			delete(j.lists, sum)
			return errors.New("the list came damaged")
		}
	}
	j.lists[sum] = have
	j.rouse()
	return nil
}

// Jobs implements peer.Worker.
func (w worker) Jobs(id string) (docs [][]byte) {
	for _, rec := range w.n.jobs.all(id) {
		if id == "" || !rec.State.Ended() {
			rec.Missing = nil
		}
		if doc, err := json.Marshal(rec); err == nil {
			docs = append(docs, doc)
		}
	}
	return docs
}

// all returns what is known of a job, or of all when id is "".
func (j *jobs) all(id string) (recs []warm.Record) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, x := range j.known {
		if x.rec.ID != "" && (id == "" || x.rec.ID == id) {
			recs = append(recs, x.rec)
		}
	}
	return recs
}

// keepJobs runs the jobs that are this node's to run, until ctx ends.
func (n *Node) keepJobs(ctx context.Context) error {
	tick := time.NewTicker(jobTick)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-n.jobs.wake:
		case <-n.requests.ctx.Done(): // nothing begins any more
			<-ctx.Done()
			return nil
		}
		n.jobs.look()
	}
}

// look begins what is to run here, and tells who should run what nobody seems to.
func (j *jobs) look() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.forget()
	for id, x := range j.known {
		if x.rec.State != warm.Running || x.stop != nil {
			continue
		}
		keepers := j.keepers(id)
		switch {
		case keepers[0] == j.n.id && j.hasList(x.rec.Spec):
			j.begin(id, x)
		case keepers[0] == j.n.id && time.Since(x.heard) > listPatience:
			j.note(id, func(rec warm.Record) warm.Record {
				rec.State, rec.Ended, rec.Why = warm.Failed, time.Now().UnixNano(), "its list of names did not come: whoever had it was lost"
				rec.Runner, rec.Seq = j.n.name, rec.Seq+1
				return rec
			})
			j.tellEnd(id)
		case keepers[0] == j.n.id, time.Since(x.heard) < jobSilence:
		default:
			x.heard = time.Now()
			j.n.requests.begin(func(ctx context.Context) { _ = j.tell(ctx, keepers[0], id) })
		}
	}
}

// begin runs a job at this node. Callers hold mu.
func (j *jobs) begin(id string, x *job) {
	stopped, stop := context.WithCancelCause(context.Background())
	spec, list, started := x.rec.Spec, j.lists[x.rec.Spec.ListSum], x.rec.Started
	ok := j.n.requests.begin(func(ctx context.Context) {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		defer context.AfterFunc(stopped, func() { cancel(context.Cause(stopped)) })()
		j.run(ctx, id, started, spec, list)
		j.mu.Lock()
		defer j.mu.Unlock()
		if x := j.known[id]; x != nil {
			x.stop = nil
		}
		stop(nil)
	})
	if ok {
		x.stop = stop
	}
}

// run runs a job to its end, unless ctx ends.
func (j *jobs) run(ctx context.Context, id string, started int64, spec warm.Spec, list []byte) {
	j.n.log.Info("warm-up begins", "job", id, "sources", spec.Sources)
	update := func(change func(*warm.Record)) {
		j.mu.Lock()
		defer j.mu.Unlock()
		if x := j.known[id]; x != nil { // the run need not be told what it says itself
			stop := x.stop
			x.stop = nil
			defer func() { x.stop = stop }()
		}
		j.note(id, func(rec warm.Record) warm.Record {
			if rec.Started != started || rec.State.Ended() {
				return rec
			}
			change(&rec)
			rec.Runner = j.n.name
			rec.Seq++
			if rec.State.Ended() {
				rec.Ended = time.Now().UnixNano()
			}
			return rec
		})
	}
	telling, stopTelling := context.WithCancel(ctx)
	var told sync.WaitGroup
	told.Go(func() { j.keepTelling(telling, id) })
	err := (&warmRun{n: j.n, list: list, update: update}).do(ctx, spec)
	stopTelling()
	told.Wait()
	switch {
	case ctx.Err() != nil: // canceled, handed on, or the node stops: then another carries on
		j.n.log.Info("warm-up ends here", "job", id, "why", context.Cause(ctx))
		if context.Cause(ctx) != errCanceled {
			return
		}
	case err != nil:
		j.n.log.Warn("warm-up failed", "job", id, "error", err)
		update(func(rec *warm.Record) { rec.State, rec.Why = warm.Failed, j.n.named(oneLine(err)).Error() })
	default:
		j.n.log.Info("warm-up ended", "job", id)
	}
	j.tellEnd(id)
}

// keepTelling tells the other keepers how far a job is, and hands it on when another is to
// run it, until ctx ends.
func (j *jobs) keepTelling(ctx context.Context, id string) {
	tick := time.NewTicker(jobTell)
	defer tick.Stop()
	for {
		keepers := j.keepers(id)
		for i, k := range keepers {
			if k == j.n.id {
				continue
			}
			if err := j.tell(ctx, k, id); err == nil && i == 0 {
				j.mu.Lock()
				if x := j.known[id]; x != nil && x.stop != nil {
					x.stop(errHandedOn)
				}
				j.mu.Unlock()
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// tellEnd tells the other keepers how a job has ended.
func (j *jobs) tellEnd(id string) {
	j.n.requests.begin(func(ctx context.Context) {
		for range finalTries {
			failed := false
			for _, k := range j.keepers(id) {
				failed = k != j.n.id && j.tell(ctx, k, id) != nil || failed
			}
			if !failed || pause(ctx, jobTick) != nil {
				return
			}
		}
	})
}

// tell tells a member what is known of a job, and takes note of what it knows.
func (j *jobs) tell(ctx context.Context, member, id string) error {
	recs := j.all(id)
	if len(recs) == 0 {
		return nil
	}
	rec := recs[0]
	if !rec.State.Ended() {
		rec.Missing = nil
		rec.Seq = max(rec.Seq, 1) // no request
	}
	_, _, err := j.give(ctx, member, rec)
	return err
}

// give gives a member a record, and the list that it refers to, and takes note of the answer.
func (j *jobs) give(ctx context.Context, member string, rec warm.Record) (out warm.Record, joined bool, err error) {
	j.mu.Lock()
	list := j.lists[rec.Spec.ListSum]
	j.mu.Unlock()
	if int64(len(list)) != rec.Spec.ListBytes {
		list = nil // parts are to come
	}
	if out, joined, err = j.ask(ctx, member, rec, list); err != nil {
		return out, joined, err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if x := j.known[rec.ID]; x != nil { // who only asks keeps nothing
		j.note(rec.ID, func(known warm.Record) warm.Record { return warm.Merge(known, out) })
	}
	return out, joined, nil
}

// errNoJob says that nobody knows of a job.
func errNoJob(id string) error {
	return fmt.Errorf("no warm-up %q is known: see `shardwell warm --list`", id)
}
