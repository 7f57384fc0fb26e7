package control

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/shardwell/shardwell/objstore"
	"github.com/shardwell/shardwell/warm"
)

// fakeWarmer is a node that warms up what it is told to.
type fakeWarmer struct {
	fakeNode
	got  WarmRequest
	look WarmLook
}

func (f *fakeWarmer) StartWarm(_ context.Context, req WarmRequest) (warm.Record, bool, error) {
	f.got = req
	return warm.Record{ID: req.Spec.ID(), Spec: req.Spec, State: warm.Running}, true, f.err
}

func (f *fakeWarmer) FollowWarm(_ context.Context, id string, tell func(warm.Record) error) error {
	for i := range 3 {
		f.yielded++
		if err := tell(warm.Record{ID: id, Seq: int64(i)}); err != nil {
			return err
		}
	}
	return f.err
}

func (f *fakeWarmer) WarmJobs(context.Context) ([]warm.Record, error) {
	return []warm.Record{{ID: "a"}, {ID: "b", State: warm.Done}}, f.err
}

func (f *fakeWarmer) CancelWarm(context.Context, string) error { return f.err }

func (f *fakeWarmer) LookWarm(_ context.Context, req WarmRequest, do WarmLook, tell func(WarmFound) error) error {
	f.got, f.look = req, do
	for i := range 1000 {
		if err := tell(WarmFound{Missing: &warm.Missing{URI: fmt.Sprint(i), Reason: warm.NotFound}}); err != nil {
			return err
		}
	}
	if f.err != nil {
		return f.err
	}
	return tell(WarmFound{Sum: &WarmSum{Objects: 7}})
}

func TestWarmUpsCrossTheSocket(t *testing.T) {
	node := &fakeWarmer{}
	c := serve(t, node)
	list := bytes.Repeat([]byte("0123456789abcdef"), 3*listPartBytes/16+1)
	req := WarmRequest{Spec: warm.Spec{Sources: []string{"s3://b/x"}, EveryNode: true}, List: list, Options: map[string]string{"profile": "p"}}
	rec, joined, err := c.StartWarm(t.Context(), req)
	if err != nil || !joined || rec.ID != req.Spec.ID() || !rec.Spec.EveryNode {
		t.Errorf("start: %+v, %v, %v", rec, joined, err)
	}
	if !bytes.Equal(node.got.List, list) || node.got.Spec.Sources[0] != "s3://b/x" || node.got.Caller.PID == 0 {
		t.Errorf("the node got a list of %d bytes, want %d: %+v", len(node.got.List), len(list), node.got.Spec)
	}
	var seqs []int64
	if err := c.FollowWarm(t.Context(), "x", func(r warm.Record) error {
		seqs = append(seqs, r.Seq)
		return nil
	}); err != nil || len(seqs) != 3 || seqs[2] != 2 {
		t.Errorf("follow: %v, %v", seqs, err)
	}
	enough := errors.New("enough")
	if err := c.FollowWarm(t.Context(), "x", func(warm.Record) error { return enough }); !errors.Is(err, enough) {
		t.Errorf("follow that is ended: %v", err)
	}
	if recs, err := c.WarmJobs(t.Context()); err != nil || len(recs) != 2 || recs[1].State != warm.Done {
		t.Errorf("jobs: %+v, %v", recs, err)
	}
	missing, sum := 0, WarmSum{}
	if err := c.LookWarm(t.Context(), req, WarmCheck, func(f WarmFound) error {
		if f.Sum != nil {
			sum = *f.Sum
		} else {
			missing++
		}
		return nil
	}); err != nil || missing != 1000 || sum.Objects != 7 || node.look != WarmCheck {
		t.Errorf("look %q: %d, %+v, %v", node.look, missing, sum, err)
	}
	node.err = fmt.Errorf("no such: %w", objstore.ErrPermission)
	for op, err := range map[string]error{
		"start":  func() error { _, _, err := c.StartWarm(t.Context(), req); return err }(),
		"follow": c.FollowWarm(t.Context(), "x", func(warm.Record) error { return nil }),
		"cancel": c.CancelWarm(t.Context(), "x"),
		"look":   c.LookWarm(t.Context(), req, WarmPlan, func(WarmFound) error { return nil }),
	} {
		if !errors.Is(err, objstore.ErrPermission) {
			t.Errorf("%s: %v has lost its class", op, err)
		}
	}
}

// A node that does no warm-ups says so.
func TestWarmUpsOfANodeWithout(t *testing.T) {
	c := serve(t, &fakeNode{})
	if _, _, err := c.StartWarm(t.Context(), WarmRequest{}); !errors.Is(err, ErrUsage) {
		t.Errorf("%v", err)
	}
}
