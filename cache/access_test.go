package cache

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/objstore"
)

// rights is an origin that allows what it is told, and notes on whose behalf it was asked.
type rights struct {
	mu    sync.Mutex
	data  []byte
	allow func(chunk.Access) error
	pause time.Duration
	asked []chunk.Access
}

func (o *rights) Fetch(ctx context.Context, req chunk.Request, deliver chunk.Deliver) error {
	time.Sleep(o.pause)
	o.mu.Lock()
	o.asked = append(o.asked, req.Access)
	err := o.allow(req.Access)
	o.mu.Unlock()
	if err != nil {
		return fmt.Errorf("get: %w", err)
	}
	for b := req.Span.First; b < req.Span.End(); b++ {
		if err := deliver(blockOf(o.data, b)); err != nil {
			return err
		}
	}
	return ctx.Err()
}

func newRights(t *testing.T, allow func(chunk.Access) error) (*rig, *rights, chunk.Object) {
	t.Helper()
	o := &rights{allow: allow, pause: time.Second}
	r := newRig(t, 32, func(c *Config) { c.Origin = o })
	var obj chunk.Object
	obj, o.data = r.put("k", 512<<10)
	return r, o, obj
}

// as opens an object for somebody.
func (r *rig) as(t *testing.T, obj chunk.Object, who chunk.Identity) *File {
	t.Helper()
	f, err := r.OpenAs(obj, func() chunk.Identity { return who })
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func forbid(ids ...chunk.Identity) func(chunk.Access) error {
	return func(a chunk.Access) error {
		if slices.Contains(ids, a.Identity) {
			return objstore.ErrPermission
		}
		return nil
	}
}

// Who is refused gets the error, alone; the flight goes on for the others who wait, whoever
// began it, and each identity is tried once.
func TestRefusalIsOfOneOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, origin, obj := newRights(t, forbid("mallory", "trudy"))
		defer r.shut(t)
		errs := map[chunk.Identity][]error{}
		var mu sync.Mutex
		var wg sync.WaitGroup
		for _, who := range []chunk.Identity{"mallory", "trudy", "mallory", "alice", ""} {
			f := r.as(t, obj, who)
			wg.Go(func() {
				defer f.Close()
				p := make([]byte, 256<<10)
				_, err := f.ReadAt(t.Context(), p, 0)
				if err == nil && !bytes.Equal(p, origin.data[:len(p)]) {
					err = errors.New("wrong bytes")
				}
				mu.Lock()
				defer mu.Unlock()
				errs[who] = append(errs[who], err)
			})
			synctest.Wait() // in this order
		}
		wg.Wait()
		for who, all := range errs {
			for _, err := range all {
				if refused := who == "mallory" || who == "trudy"; refused != errors.Is(err, objstore.ErrPermission) || !refused && err != nil {
					t.Errorf("%q: %v", who, err)
				}
			}
		}
		seen := map[chunk.Identity]int{}
		for _, a := range origin.asked {
			seen[a.Identity]++
		}
		if seen["mallory"] != 1 || seen["trudy"] > 1 || len(origin.asked) > 3 {
			t.Errorf("the origin was asked on behalf of %v", origin.asked)
		}
	})
}

// A grant that is no good says nothing of the next grant of the same identity.
func TestBadGrantIsOfOneOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		good := chunk.Access{Identity: "alice", Grant: chunk.NewGrant("good")}
		bad := chunk.Access{Identity: "alice", Grant: chunk.NewGrant("expired")}
		r, origin, obj := newRights(t, func(a chunk.Access) error {
			if a != good {
				return objstore.ErrCredentials
			}
			return nil
		})
		defer r.shut(t)
		var errs [3]error
		var wg sync.WaitGroup
		for i, a := range []chunk.Access{bad, good, bad} {
			wg.Go(func() {
				req := ask(obj, fmt.Sprint("peer", i))
				req.Access = a
				got, err := r.collect(t.Context(), req)
				if err == nil && len(got) != 8 {
					err = fmt.Errorf("%d blocks", len(got))
				}
				errs[i] = err
			})
			synctest.Wait()
		}
		wg.Wait()
		if errs[1] != nil || !errors.Is(errs[0], objstore.ErrCredentials) || !errors.Is(errs[2], objstore.ErrCredentials) {
			t.Errorf("%v", errs)
		}
		if want := []chunk.Access{bad, good}; !slices.Equal(origin.asked, want) {
			t.Errorf("asked %d times", len(origin.asked))
		}
		if n := r.Stats().Refusals.Load(); n != 1 {
			t.Errorf("%d refusals were got over", n)
		}
	})
}

// What is fetched ahead is fetched on behalf of the file that caused it. A reader with another
// right who has joined it goes on when it is refused; one that asks for held blocks only
// lends it no right.
func TestDetachedWorkHasTheRightOfItsCause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, origin, obj := newRights(t, forbid("mallory"))
		defer r.shut(t)
		m, a := r.as(t, obj, "mallory"), r.as(t, obj, "alice")
		defer m.Close()
		defer a.Close()
		m.Prefetch(0, 512<<10)
		synctest.Wait()
		wantRead(t, a, origin.data, 0, 512<<10)
		if want := []chunk.Access{{Identity: "mallory"}, {Identity: "alice"}}; !slices.Equal(origin.asked, want) {
			t.Errorf("asked on behalf of %v", origin.asked)
		}
		// What is here is served to whoever has it open.
		wantRead(t, m, origin.data, 0, 512<<10)
	})
	synctest.Test(t, func(t *testing.T) {
		r, origin, obj := newRights(t, forbid("mallory"))
		defer r.shut(t)
		m := r.as(t, obj, "mallory")
		defer m.Close()
		m.Prefetch(0, 512<<10)
		synctest.Wait()
		req := ask(obj, "p")
		req.HeldOnly = true
		if _, err := r.collect(t.Context(), req); !errors.Is(err, chunk.ErrNotHeld) {
			t.Errorf("a question for held blocks: %v", err)
		}
		time.Sleep(time.Minute)
		if want := []chunk.Access{{Identity: "mallory"}}; !slices.Equal(origin.asked, want) {
			t.Errorf("asked on behalf of %v", origin.asked)
		}
	})
}

// Origins that know nothing of others than the node refuse them.
func TestOriginWithoutDelegation(t *testing.T) {
	r := newRig(t, 8, nil)
	defer r.shut(t)
	obj, data := r.put("k", 64<<10)
	f := r.as(t, obj, "alice")
	defer f.Close()
	if _, err := f.ReadAt(t.Context(), make([]byte, 1), 0); !errors.Is(err, objstore.ErrPermission) {
		t.Errorf("alice: %v", err)
	}
	own := r.open(t, obj)
	defer own.Close()
	wantRead(t, own, data, 0, len(data))
}
