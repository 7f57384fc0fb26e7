package node

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/shardwell/shardwell/cache/evict"
	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/internal/config"
	"github.com/shardwell/shardwell/internal/control"
	"github.com/shardwell/shardwell/peer"
	"github.com/shardwell/shardwell/warm"
)

// How a job is followed.
const (
	followEvery = 500 * time.Millisecond
	followLost  = 60 * time.Second // without an answer of anybody who could know of it
	maxPin      = 10 * 365 * 24 * time.Hour
)

var _ control.Warmer = (*Node)(nil)

// checkSpec refuses what makes no sense.
func checkSpec(req control.WarmRequest) error {
	s := req.Spec
	sum := sha256.Sum256(req.List)
	switch {
	case len(s.Sources) > warm.MaxSources:
		return &config.Error{What: fmt.Sprintf("%d sources are more than %d: give a list (-f)", len(s.Sources), warm.MaxSources)}
	case len(s.Sources) == 0 && len(req.List) == 0:
		return &config.Error{What: "nothing is named", Do: "give a URI, or a list (-f)"}
	case len(req.List) > 0 && s.ListSum != hex.EncodeToString(sum[:]), s.ListBytes != int64(len(req.List)):
		return &config.Error{What: "the list came damaged"}
	case s.Pin < 0 || s.Pin > maxPin:
		return &config.Error{What: fmt.Sprintf("a pin for %v: must be at most ten years", s.Pin), Where: "--pin"}
	case s.Parallel < 0 || s.Parallel > maxBringing:
		return &config.Error{What: fmt.Sprintf("%d chunks at once: must be 1 to %d", s.Parallel, maxBringing), Where: "--parallel"}
	case s.OriginRate < 0:
		return &config.Error{What: "a rate must not be negative", Where: "--max-origin-rate"}
	}
	for _, text := range s.Sources {
		if _, err := warm.ParseSource(text); err != nil {
			return &config.Error{What: err.Error()}
		}
	}
	return nil
}

// ownOptions are the options by which nodes read what they warm up.
var ownOptions = []string{"endpoint", "region", "addressing", "caFile", "proxy", "anonymous", "requesterPays", "credentialsFile", "profile"}

// checkOptions refuses what a caller has set otherwise than this node: a warm-up that reads elsewhere than its user
// believes, or as somebody else, brings the wrong bytes.
func (n *Node) checkOptions(options map[string]string) error {
	for _, key := range ownOptions {
		text, ok := options[key]
		if !ok {
			continue
		}
		if cfg, err := n.cfg.WithAttributes(map[string]string{key: text}); err != nil || !reflect.DeepEqual(cfg, n.cfg) {
			return &config.Error{What: fmt.Sprintf("the option %q of this command is not the node's, which warms up with its own options and credentials", key),
				Do: "leave it out, or ask a node that has it (--control-socket)"}
		}
	}
	return nil
}

// StartWarm implements control.Warmer.
func (n *Node) StartWarm(ctx context.Context, req control.WarmRequest) (rec warm.Record, joined bool, err error) {
	if err := checkSpec(req); err != nil {
		return rec, false, err
	}
	if err := n.checkOptions(req.Options); err != nil {
		return rec, false, err
	}
	err = n.requests.do(ctx, func(ctx context.Context) (err error) {
		if err := n.waitJoined(ctx); err != nil {
			return err
		}
		if _, err := (&survey{n: n, spec: req.Spec}).members(); err != nil {
			return err
		}
		rec, joined, err = n.jobs.request(ctx, req.Spec, req.List)
		return err
	})
	return rec, joined, err
}

// request gives a job to those who are to keep it, the one who is to run it first.
func (j *jobs) request(ctx context.Context, spec warm.Spec, list []byte) (rec warm.Record, joined bool, err error) {
	rec = warm.Record{ID: spec.ID(), Spec: spec, Started: time.Now().UnixNano(), State: warm.Running}
	for _, k := range j.keepers(rec.ID) {
		if k == j.n.id {
			var lacks bool
			if rec, lacks, joined, err = j.keep(rec); err == nil && lacks {
				err = j.keepList(spec.ListSum, spec.ListBytes, 0, list)
			}
		} else {
			rec, joined, err = j.ask(ctx, k, rec, list)
		}
		if err == nil || ctx.Err() != nil {
			break
		}
	}
	if err != nil {
		return rec, joined, fmt.Errorf("no member takes the warm-up on: %w", j.n.named(oneLine(err)))
	}
	return rec, joined, nil
}

// ask gives a request to another member, with the list that it refers to, unless nil, if that member lacks it.
func (j *jobs) ask(ctx context.Context, member string, rec warm.Record, list []byte) (out warm.Record, joined bool, err error) {
	doc, err := json.Marshal(rec)
	if err != nil {
		return rec, false, err
	}
	call, cancel := context.WithTimeout(ctx, jobPatience)
	defer cancel()
	answer, lacks, joined, err := j.n.cluster.peers.KeepJob(call, member, doc)
	if err != nil {
		return rec, false, err
	}
	if err := json.Unmarshal(answer, &out); err != nil || out.ID != rec.ID {
		return rec, false, fmt.Errorf("peer %s: malformed answer about a job", member)
	}
	if lacks && list != nil {
		err = j.n.cluster.peers.KeepList(ctx, member, rec.Spec.ListSum, list)
	}
	return out, joined, err
}

// lookUp asks those who keep a job what they know of it; ok is false when none does.
func (j *jobs) lookUp(ctx context.Context, id string) (rec warm.Record, ok bool, err error) {
	take := func(r warm.Record) {
		if !ok {
			rec, ok = r, true
			return
		}
		rec = warm.Merge(rec, r)
	}
	for _, k := range j.keepers(id) {
		if k == j.n.id {
			continue
		}
		call, cancel := context.WithTimeout(ctx, jobPatience)
		doc, callErr := j.n.cluster.peers.JobOf(call, k, id)
		cancel()
		var r warm.Record
		switch {
		case callErr != nil:
			err = callErr
		case doc != nil && json.Unmarshal(doc, &r) == nil && r.ID == id:
			take(r)
		}
		if ok {
			break // it runs there, or did last
		}
	}
	for _, r := range j.all(id) {
		take(r)
	}
	return rec, ok, err
}

// FollowWarm implements control.Warmer.
func (n *Node) FollowWarm(ctx context.Context, id string, tell func(warm.Record) error) error {
	if !warm.ValidID(id) {
		return errNoJob(id)
	}
	return n.requests.do(ctx, func(ctx context.Context) error {
		if err := n.waitJoined(ctx); err != nil {
			return err
		}
		var last warm.Record
		seen := time.Now()
		for first := true; ; first = false {
			rec, ok, err := n.jobs.lookUp(ctx, id)
			switch {
			case ctx.Err() != nil:
				return ctx.Err()
			case !ok && err == nil && first:
				return errNoJob(id)
			case !ok && time.Since(seen) > followLost:
				return fmt.Errorf("warm-up %s: none of those who should know of it does, or answers", id)
			case ok:
				seen = time.Now()
				if last.ID != "" {
					rec = warm.Merge(rec, last)
				}
			}
			if ok && (rec.Seq != last.Seq || rec.State != last.State || rec.Started != last.Started || first) {
				last = rec
				if err := tell(rec); err != nil || rec.State.Ended() {
					return err
				}
			}
			if err := pause(ctx, followEvery); err != nil {
				return err
			}
		}
	})
}

// WarmJobs implements control.Warmer.
func (n *Node) WarmJobs(ctx context.Context) (recs []warm.Record, err error) {
	err = n.requests.do(ctx, func(ctx context.Context) error {
		if err := n.waitJoined(ctx); err != nil {
			return err
		}
		call, cancel := context.WithTimeout(ctx, jobPatience)
		defer cancel()
		docs, err := n.cluster.peers.Jobs(call)
		if err != nil && ctx.Err() == nil {
			n.log.Warn("warm-ups: some members did not answer", "error", oneLine(err))
		}
		found := make(map[string]warm.Record)
		take := func(r warm.Record) {
			if have, ok := found[r.ID]; ok {
				r = warm.Merge(have, r)
			}
			r.Missing = nil
			found[r.ID] = r
		}
		for _, doc := range docs {
			var r warm.Record
			if json.Unmarshal(doc, &r) == nil && warm.ValidID(r.ID) {
				take(r)
			}
		}
		for _, r := range n.jobs.all("") {
			take(r)
		}
		recs = slices.SortedFunc(maps.Values(found), func(a, b warm.Record) int { return cmp.Compare(b.Started, a.Started) })
		return ctx.Err()
	})
	return recs, err
}

// CancelWarm implements control.Warmer.
func (n *Node) CancelWarm(ctx context.Context, id string) error {
	if !warm.ValidID(id) {
		return errNoJob(id)
	}
	return n.requests.do(ctx, func(ctx context.Context) error {
		if err := n.waitJoined(ctx); err != nil {
			return err
		}
		rec, ok, err := n.jobs.lookUp(ctx, id)
		switch {
		case !ok && err != nil:
			return fmt.Errorf("cancel warm-up %s: %w", id, n.named(oneLine(err)))
		case !ok:
			return errNoJob(id)
		case rec.State.Ended():
			return nil
		}
		rec.State, rec.Ended, rec.Missing = warm.Canceled, time.Now().UnixNano(), nil
		told := 0
		for _, k := range n.jobs.keepers(id) {
			if k == n.id {
				_, _, _, err = n.jobs.keep(rec)
			} else {
				_, _, err = n.jobs.give(ctx, k, rec)
			}
			if err == nil {
				told++
			}
		}
		if told == 0 {
			return fmt.Errorf("cancel warm-up %s: %w", id, n.named(oneLine(err)))
		}
		return nil
	})
}

// LookWarm implements control.Warmer.
func (n *Node) LookWarm(ctx context.Context, req control.WarmRequest, do control.WarmLook, tell func(control.WarmFound) error) error {
	if err := checkSpec(req); err != nil {
		return err
	}
	if err := n.checkOptions(req.Options); err != nil {
		return err
	}
	return n.requests.do(ctx, func(ctx context.Context) error {
		if err := n.waitJoined(ctx); err != nil {
			return err
		}
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		l := &look{n: n, tell: tell, cancel: cancel, what: do, pins: n.pinned(), sum: control.WarmSum{Counts: map[warm.Reason]int64{}, Nodes: []control.WarmNode{}, Short: []warm.Short{}}}
		s, err := n.survey(ctx, req.Spec, req.List, l.miss)
		if err == nil {
			err = l.do(ctx, s)
		}
		if cause := context.Cause(ctx); cause != nil && err != nil {
			return cause // of tell, perhaps
		}
		return err
	})
}

// pinned returns the URIs of what is pinned.
func (n *Node) pinned() (uris []string) {
	for _, u := range n.uses.now().Uses() {
		if u.PinnedUntil > 0 {
			uris = append(uris, uriOf(bucketOfDataset(u.Dataset), u.Prefix))
		}
	}
	return uris
}

// unpin takes back the pins of what a survey is about: of what was pinned by the same names, of what lies in a directory
// that was named as a whole, and what is named as `shardwell status` names it.
func (s *survey) unpin(ctx context.Context, named func(uri string) bool) error {
	var errs error
	take := func(ds evict.Dataset) { errs = errors.Join(errs, s.n.uses.pin(ds, 0, 0, time.Time{}, time.Now())) }
	for _, d := range s.sets {
		take(evict.Dataset(d))
	}
	for _, u := range s.n.uses.now().Uses() {
		at := chunk.Object{Origin: u.Origin, Bucket: u.Bucket, Key: u.Prefix}
		inside := slices.ContainsFunc(s.found.dirs, func(d warm.Dataset) bool { return d.Covers(at) })
		if u.PinnedUntil > 0 && (inside || named(uriOf(bucketOfDataset(u.Dataset), u.Prefix))) {
			take(u.Dataset)
		}
	}
	s.n.tell(ctx)
	return errs
}

// everyone is all that a survey is about, at each member.
func (s *survey) everyone() map[string]*warm.Load {
	ids, err := s.members()
	if err != nil {
		return nil // was checked
	}
	return warm.Everywhere(&s.found.manifest, ids)
}

// holdNothing is the order to hold what a survey is about no more.
func (s *survey) holdNothing() peer.Bring {
	return peer.Bring{Do: peer.DoDrop, Hold: s.prefixes()}
}
