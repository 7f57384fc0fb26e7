package cache

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shardwell/shardwell/objstore"
)

// What nobody asked for is fetched when nothing was for a second, and is on disk then.
func TestBringIdleWaitsForQuiet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 16, nil)
		defer r.shut(t)
		obj, _ := r.put("k", 2*chunkBytes)
		other, data := r.put("other", chunkBytes)
		f, reader := r.open(t, obj), r.open(t, other)
		defer f.Close()
		defer reader.Close()
		gate := r.origin.Hold(objstore.OpGet)
		var wg sync.WaitGroup
		wg.Go(func() { wantRead(t, reader, data, 0, 100) })
		synctest.Wait()
		began := time.Now()
		wg.Go(func() {
			if err := f.BringIdle(t.Context(), 1); err != nil {
				t.Errorf("bring: %v", err)
			}
			if took := time.Since(began); took < 10*time.Second+quietFor {
				t.Errorf("was brought after %v, beside a reader", took)
			}
		})
		time.Sleep(10 * time.Second)
		gate.Open()
		wg.Wait()
		if got := f.CachedBytes(); got != chunkBytes {
			t.Errorf("cached %d bytes, want the second chunk", got)
		}
		if err := f.BringIdle(t.Context(), 1); err != nil || r.origin.Bytes() != chunkBytes+block {
			t.Errorf("brought again: %v, %d bytes from the origin", err, r.origin.Bytes())
		}
	})
}

// It stops at once when a reader needs something, keeps what came, and goes on later.
func TestBringIdleYields(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 16, nil)
		defer r.shut(t)
		obj, _ := r.put("k", chunkBytes)
		other, data := r.put("other", chunkBytes)
		f, reader := r.open(t, obj), r.open(t, other)
		defer f.Close()
		defer reader.Close()
		gate := r.origin.Hold(objstore.OpGet)
		done := make(chan error, 1)
		go func() { done <- f.BringIdle(t.Context(), 0) }()
		time.Sleep(2 * quietFor)
		synctest.Wait()
		if got := r.Stats().Fetching.Load(); got != 1 {
			t.Fatalf("%d fetches, want one", got)
		}
		var wg sync.WaitGroup
		wg.Go(func() { wantRead(t, reader, data, 0, 100) })
		synctest.Wait()
		if got, gone := r.Stats().Fetching.Load(), r.Stats().Abandoned.Load(); got != 1 || gone != 1 {
			t.Errorf("%d fetches beside a reader, %d ended; want his alone", got, gone)
		}
		gate.Open()
		wg.Wait()
		if err := <-done; err != nil || f.CachedBytes() != chunkBytes {
			t.Errorf("in the end: %v, %d bytes", err, f.CachedBytes())
		}
	})
}

// A reader of what is being brought waits for it and does not end it.
func TestReadersJoinWhatIsBrought(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 16, nil)
		defer r.shut(t)
		obj, data := r.put("k", chunkBytes)
		f := r.open(t, obj)
		defer f.Close()
		gate := r.origin.Hold(objstore.OpGet)
		done := make(chan error, 1)
		go func() { done <- f.BringIdle(t.Context(), 0) }()
		time.Sleep(2 * quietFor)
		var wg sync.WaitGroup
		wg.Go(func() { wantRead(t, f, data, 0, len(data)) })
		synctest.Wait()
		gate.Open()
		wg.Wait()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if got := len(r.origin.Gets()); got != 1 {
			t.Errorf("the origin was asked %d times", got)
		}
	})
}

func TestBringIdleSaysWhyNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 16, nil)
		defer r.shut(t)
		full, _ := r.put("full", chunkBytes)
		f := r.open(t, full)
		defer f.Close()
		r.tier.full = true
		if err := f.BringIdle(t.Context(), 0); !errors.Is(err, ErrNoRoom) {
			t.Errorf("a full disk: %v", err)
		}
		r.tier.full = false
		obj, _ := r.put("k", chunkBytes)
		f = r.open(t, obj)
		defer f.Close()
		ctx, cancel := context.WithCancel(t.Context())
		gate := r.origin.Hold(objstore.OpGet)
		done := make(chan error, 1)
		go func() { done <- f.BringIdle(ctx, 0) }()
		time.Sleep(2 * quietFor)
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled: %v", err)
		}
		synctest.Wait()
		if got := r.Stats().Fetching.Load(); got != 0 {
			t.Errorf("%d fetches are left", got)
		}
		gate.Open()
		r.origin.Delete("k")
		if err := f.BringIdle(t.Context(), 0); !errors.Is(err, objstore.ErrNotExist) && !errors.Is(err, objstore.ErrChanged) {
			t.Errorf("gone: %v", err)
		}
	})
}
