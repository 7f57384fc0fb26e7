package main

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/shardwell/shardwell/internal/control"
	"github.com/shardwell/shardwell/warm"
)

// forgetful is a cluster that loses a warm-up with the node that took it on, so many times.
type forgetful struct {
	control.Warmer
	loses   int
	earlier bool // it knows of one with the same ID that has ended
	starts  int
}

func (f *forgetful) StartWarm(_ context.Context, req control.WarmRequest) (warm.Record, bool, error) {
	f.starts++
	return warm.Record{ID: req.Spec.ID(), Spec: req.Spec, Started: int64(1000 + f.starts), State: warm.Running}, false, nil
}

func (f *forgetful) FollowWarm(_ context.Context, id string, tell func(warm.Record) error) error {
	rec := warm.Record{ID: id, Started: int64(1000 + f.starts), State: warm.Done}
	switch {
	case f.starts > f.loses:
	case f.earlier:
		rec.Started = 7
	default:
		return errors.New("no warm-up is known")
	}
	return tell(rec)
}

// An earlier warm-up of the same objects, all of which were there then, tells nothing of this one.
func TestWarmUpsThatAreForgottenBeginAnew(t *testing.T) {
	for _, tt := range []struct {
		loses  int
		ok     bool
		starts int
	}{{0, true, 1}, {1, true, 2}, {startTries - 1, true, startTries}, {startTries, false, startTries}} {
		for _, earlier := range []bool{true, false} {
			f := &forgetful{loses: tt.loses, earlier: earlier}
			o := &warmOptions{spec: warm.Spec{Sources: []string{"s3://b/x"}}, wait: true, interrupt: "detach"}
			var out, said bytes.Buffer
			err := o.run(t.Context(), streams{out: &out, err: &said}, f)
			if (err == nil) != tt.ok || f.starts != tt.starts {
				t.Errorf("lost %d times, an earlier one is known: %v: %v after %d starts", tt.loses, earlier, err, f.starts)
			}
		}
	}
}

// A list that a shell made of a template is refused before anything is sent.
func TestTooManySources(t *testing.T) {
	args := strings.Fields(strings.Repeat("s3://b/x ", warm.MaxSources+1))
	if err := (&warmOptions{interrupt: "detach"}).prepare(streams{}, args, false); err == nil || !strings.Contains(err.Error(), "in quotes") {
		t.Errorf("%v", err)
	}
}

// Templates of plans are expanded where no shell has done it.
func TestPlansOfTemplates(t *testing.T) {
	got, err := expand([]string{"x", "a{1..2}.tar"})
	if err != nil || !slices.Equal(got, []string{"x", "a1.tar", "a2.tar"}) {
		t.Errorf("%q, %v", got, err)
	}
}
