package objstore_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/shardwell/shardwell/objstore"
	"github.com/shardwell/shardwell/objstore/objstoretest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestLimitBoundsRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, f, info, _ := object(100)
		l := objstore.NewLimit(f, 2, 0)
		other := l.Share(f)
		gate := m.Hold(objstore.OpHead)
		var wg sync.WaitGroup
		for i := range 6 {
			s := objstore.Store(l)
			if i%2 == 0 {
				s = other
			}
			wg.Go(func() {
				if _, err := s.Head(t.Context(), "k"); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		if n := m.Requests(objstore.OpHead); n != 2 {
			t.Errorf("%d requests under way, limit 2", n)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := l.List(ctx, objstore.ListRequest{}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("waiting for a place: %v", err)
		}
		gate.Open()
		wg.Wait()

		// A body holds its place until it is closed.
		a, err := l.Get(t.Context(), "k", info.ETag, 0, 1)
		if err != nil {
			t.Fatal(err)
		}
		b, err := l.Get(t.Context(), "k", info.ETag, 0, 1)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.Head(ctx, "k"); err == nil {
			t.Error("a third request passed")
		}
		for _, c := range []io.Closer{a, a, b, a} { // more than once does no harm
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
		for range 5 {
			if _, err := l.Head(t.Context(), "k"); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestLimitBoundsBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, f, info, _ := object(10 << 20)
		l := objstore.NewLimit(f, 0, 1<<20)
		start := time.Now()
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Go(func() {
				if _, err := readAll(t.Context(), l, info, int64(i)<<20, 1<<20); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if took := time.Since(start); took < 3500*time.Millisecond || took > 4500*time.Millisecond {
			t.Errorf("4 MiB at 1 MiB/s took %v", took)
		}
		l.SetRate(0)
		start = time.Now()
		if _, err := readAll(t.Context(), l, info, 0, 10<<20); err != nil || time.Since(start) > 0 {
			t.Errorf("without a limit: %v, %v", err, time.Since(start))
		}
	})
}

func TestCount(t *testing.T) {
	_, f, info, _ := object(100)
	var stats objstore.Stats
	c := objstore.NewCount(f, &stats)
	f.Next(objstore.OpGet, objstoretest.Failure{Err: objstore.ErrThrottled}, objstoretest.Failure{Body: true, At: 30})
	for range 3 {
		_, _ = readAll(t.Context(), c, info, 0, 100) // the failures are counted below
	}
	_, _ = c.Head(t.Context(), "missing")
	_, _ = c.List(t.Context(), objstore.ListRequest{})
	got := fmt.Sprint(stats.Requests[objstore.OpGet][objstore.ClassOK].Load(), stats.Requests[objstore.OpGet][objstore.ClassThrottled].Load(),
		stats.Requests[objstore.OpHead][objstore.ClassNotExist].Load(), stats.Total(objstore.OpList), stats.Total(objstore.OpGet),
		stats.Bytes.Load(), stats.Broken.Load(), stats.Open.Load())
	if want := "2 1 1 1 3 130 1 0"; got != want {
		t.Errorf("counted %s, want %s", got, want)
	}
}

func TestClassOf(t *testing.T) {
	for err, want := range map[error]objstore.Class{
		nil:                              objstore.ClassOK,
		objstore.ErrNotExist:             objstore.ClassNotExist,
		objstore.ErrClockSkew:            objstore.ClassClockSkew,
		objstore.ErrInvalid:              objstore.ClassInvalid,
		io.ErrUnexpectedEOF:              objstore.ClassTransient,
		context.Canceled:                 objstore.ClassCanceled,
		&objstore.Throttled{Err: io.EOF}: objstore.ClassThrottled,
	} {
		if got := objstore.ClassOf(err); got != want {
			t.Errorf("%v: %v, want %v", err, got, want)
		}
		if wrapped := fmt.Errorf("get: %w", err); err != nil && objstore.ClassOf(wrapped) != want {
			t.Errorf("%v: %v, want %v", wrapped, objstore.ClassOf(wrapped), want)
		}
		if err != nil && objstore.Final(err) == (want == objstore.ClassThrottled || want == objstore.ClassTransient) {
			t.Errorf("%v: Final is %v", err, objstore.Final(err))
		}
	}
	for c := range objstore.NumClasses {
		if c.String() == "" {
			t.Errorf("class %d has no name", c)
		}
	}
}
