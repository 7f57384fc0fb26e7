package peer

import (
	"context"
	"math"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/peer/budget"
	"github.com/shardwell/shardwell/peer/peerpb"
)

// lazy does nothing, and counts how often it is asked to.
type lazy struct{ asked int }

func (l *lazy) Lease(string, string, float64, float64) budget.Lease {
	l.asked++
	return budget.Lease{BytesPerSecond: 1, For: time.Second}
}

func (l *lazy) Room(context.Context, []Prefix) (int64, int64, error) { l.asked++; return 2, 1, nil }

func (l *lazy) Bring(context.Context, Bring, func(Brought) error) error { l.asked++; return nil }

func (l *lazy) KeepJob(_ context.Context, doc []byte) ([]byte, bool, bool, error) {
	l.asked++
	return doc, false, false, nil
}

func (l *lazy) KeepList(string, int64, int64, []byte) error { l.asked++; return nil }

func (l *lazy) Jobs(string) [][]byte { l.asked++; return nil }

// What no member of ours would ask is refused before anybody does anything.
func TestMalformedWorkIsRefused(t *testing.T) {
	worker := &lazy{}
	a := &workAnswers{cfg: ServerConfig{Geometry: small, Stats: new(Stats), Lessor: worker, Worker: worker}}
	obj := chunk.Object{Origin: "https://o", Bucket: "b", Key: "k", ETag: "e", Size: 3 * small.ChunkBytes}
	long := string(make([]byte, chunk.MaxOriginBytes+1))
	bring := func(r *peerpb.BringRequest) error { return a.Bring(r, nil) }
	for name, err := range map[string]error{
		"rate is no number": lease(a, &peerpb.LeaseRequest{Rate: math.NaN()}),
		"rate is negative":  lease(a, &peerpb.LeaseRequest{Rate: -1}),
		"want is endless":   lease(a, &peerpb.LeaseRequest{Rate: 1, Want: math.Inf(1)}),
		"long origin":       lease(a, &peerpb.LeaseRequest{Origin: long}),
		"no object":         bring(&peerpb.BringRequest{Parts: []*peerpb.Part{{Object: []byte("x")}}}),
		"chunk beyond":      bring(&peerpb.BringRequest{Parts: []*peerpb.Part{{Object: obj.AppendBinary(nil), Chunks: []uint32{3}}}}),
		"too many parts":    bring(&peerpb.BringRequest{Parts: make([]*peerpb.Part, MaxParts+1)}),
		"negative rate":     bring(&peerpb.BringRequest{MaxRate: -1}),
		"negative time":     bring(&peerpb.BringRequest{HoldNanos: -1}),
		"long job": func() error {
			_, err := a.KeepJob(t.Context(), &peerpb.KeepJobRequest{Json: make([]byte, maxJobBytes+1)})
			return err
		}(),
		"long list": func() error {
			_, err := a.KeepList(t.Context(), &peerpb.KeepListRequest{Data: make([]byte, MaxListPart+1)})
			return err
		}(),
		"before the list": func() error { _, err := a.KeepList(t.Context(), &peerpb.KeepListRequest{Offset: -1}); return err }(),
		"many datasets": func() error {
			_, err := a.Room(t.Context(), &peerpb.RoomRequest{Warm: make([]*peerpb.Prefix, maxWarm+1)})
			return err
		}(),
	} {
		if status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
	if worker.asked != 0 {
		t.Errorf("it was asked %d times", worker.asked)
	}
	if err := lease(a, &peerpb.LeaseRequest{Origin: "https://o", Rate: 10, Want: 5}); err != nil || worker.asked != 1 {
		t.Errorf("a good question: %v", err)
	}
	none := &workAnswers{cfg: ServerConfig{Geometry: small, Stats: new(Stats)}}
	if err := none.Bring(&peerpb.BringRequest{}, nil); status.Code(err) != codes.Unimplemented {
		t.Errorf("a member that does no work: %v", err)
	}
}

func lease(a *workAnswers, r *peerpb.LeaseRequest) error {
	_, err := a.Lease(context.Background(), r)
	return err
}
