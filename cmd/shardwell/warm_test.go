package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shardwell/shardwell/internal/control"
	"github.com/shardwell/shardwell/warm"
)

// forgetful is a cluster that loses a warm-up with the node that took it on, so many times.
type forgetful struct {
	control.Warmer
	loses   int
	earlier bool // it knows of one with the same ID that has ended
	away    int  // questions that find no node, once a warm-up has begun
	starts  int
}

// errAway is that of a node that is restarted.
var errAway = fmt.Errorf("nothing answers: %w", control.ErrNoNode)

func (f *forgetful) StartWarm(_ context.Context, req control.WarmRequest) (warm.Record, bool, error) {
	if f.starts > 0 && f.away > 0 {
		f.away--
		return warm.Record{}, false, errAway
	}
	f.starts++
	return warm.Record{ID: req.Spec.ID(), Spec: req.Spec, Started: int64(1000 + f.starts), State: warm.Running}, false, nil
}

func (f *forgetful) FollowWarm(_ context.Context, id string, tell func(warm.Record) error) error {
	rec := warm.Record{ID: id, Started: int64(1000 + f.starts), State: warm.Done}
	switch {
	case f.starts == 1 && f.away > 0:
		rec.State = warm.Running
		if err := tell(rec); err != nil {
			return err
		}
		return errAway
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
	synctest.Test(t, func(t *testing.T) {
		for _, tt := range []struct {
			loses  int
			ok     bool
			starts int
		}{{0, true, 1}, {1, true, 2}, {startTries - 1, true, startTries}, {startTries, false, startTries}} {
			for _, earlier := range []bool{true, false} {
				f := &forgetful{loses: tt.loses, earlier: earlier}
				if err, _ := f.warmUp(t.Context()); (err == nil) != tt.ok || f.starts != tt.starts {
					t.Errorf("lost %d times, an earlier one is known: %v: %v after %d starts", tt.loses, earlier, err, f.starts)
				}
			}
		}
	})
}

// warmUp is the command.
func (f *forgetful) warmUp(ctx context.Context) (err error, said string) {
	o := &warmOptions{spec: warm.Spec{Sources: []string{"s3://b/x"}}, wait: true, interrupt: "detach"}
	var out, text bytes.Buffer
	err = o.run(ctx, streams{out: &out, err: &text}, f)
	return err, text.String()
}

// A node that is restarted under the command is waited for, not for ever, and Ctrl-C ends the waiting.
func TestWarmUpsWaitForTheirNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		back := &forgetful{away: 30}
		if err, said := back.warmUp(t.Context()); err != nil || back.starts != 2 || strings.Count(said, "does not answer") != 1 {
			t.Errorf("%v after %d starts: %s", err, back.starts, said)
		}
		gone := &forgetful{away: 100_000}
		if err, _ := gone.warmUp(t.Context()); exitCode(t.Context(), err) != exitFailed || !errors.Is(err, control.ErrNoNode) {
			t.Errorf("a node that is not back: %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if err, said := (&forgetful{away: 100_000}).warmUp(ctx); err == nil || !strings.Contains(said, "goes on: `shardwell warm --attach") {
			t.Errorf("interrupted: %v: %s", err, said)
		}
	})
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
