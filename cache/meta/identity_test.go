package meta

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/objstore"
	"github.com/shardwell/shardwell/objstore/objstoretest"
)

// delegate is an origin that some may not ask.
type delegate struct {
	oneStore
	mu      sync.Mutex
	refused map[chunk.Identity]error
	opened  []chunk.Access
}

func (d *delegate) OpenAs(_ context.Context, _ objstore.Bucket, a chunk.Access) (objstore.Store, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.opened = append(d.opened, a)
	if err := d.refused[a.Identity]; err != nil {
		return nil, err
	}
	return d.Store, nil
}

// What one identity was told is told to no other, nor to who asks as the node itself; those
// with one identity share answers and queries, whatever their grants.
func TestAnswersAreOfOneIdentity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		origin := objstoretest.NewMem()
		d := &delegate{oneStore: oneStore{origin}, refused: map[chunk.Identity]error{"mallory": objstore.ErrPermission}}
		c, err := New(Config{Origins: d})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		info := origin.Put("d/k", []byte("abc"))
		ask := func(who chunk.Identity, grant string) (head, list error) {
			q := maxAge(time.Minute)
			q.Access = chunk.Access{Identity: who, Grant: chunk.NewGrant(grant)}
			got, _, head := c.Head(t.Context(), q, "d/k")
			if head == nil && got != info {
				t.Errorf("%q was told %v", who, got)
			}
			_, _, list = c.List(t.Context(), q, objstore.ListRequest{Prefix: "d/"})
			return head, list
		}
		gate := origin.Hold(objstore.OpHead)
		var wg sync.WaitGroup
		for _, grant := range []string{"one", "two", ""} {
			wg.Go(func() {
				if head, list := ask("alice", grant); head != nil || list != nil {
					t.Errorf("alice: %v, %v", head, list)
				}
			})
		}
		synctest.Wait()
		gate.Open()
		wg.Wait()
		wantRequests(t, origin, objstore.OpHead, 1)
		wantRequests(t, origin, objstore.OpList, 1)
		for range 2 {
			if head, list := ask("mallory", ""); !errors.Is(head, objstore.ErrPermission) || !errors.Is(list, objstore.ErrPermission) {
				t.Errorf("mallory: %v, %v", head, list)
			}
		}
		wantRequests(t, origin, objstore.OpHead, 1)
		if head, list := ask("", ""); head != nil || list != nil {
			t.Errorf("the node itself: %v, %v", head, list)
		}
		wantRequests(t, origin, objstore.OpHead, 2)
		wantRequests(t, origin, objstore.OpList, 2)
		if n := c.Forget(bucket, "d/"); n != 6 {
			t.Errorf("%d answers were forgotten, of all identities, refusals included", n)
		}
	})
}

// deny has the origin refuse an identity, or no more.
func (d *delegate) deny(who chunk.Identity, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.refused[who] = err
}

// asked returns how often the origin was asked on behalf of an identity since the last call.
func (d *delegate) asked(who chunk.Identity) (n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, a := range d.opened {
		if a.Identity == who {
			n++
		}
	}
	d.opened = nil
	return n
}

// SEMANTICS T4: What is denied is asked for again after 5 s at the earliest, once for the whole cluster, however
// often it is tried; a permission that is granted is seen that much later at most.
func TestRefusalHoldsForAMoment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		origin := objstoretest.NewMem()
		info := origin.Put("d/k", []byte("abc"))
		d := &delegate{oneStore: oneStore{origin}, refused: map[chunk.Identity]error{"mallory": objstore.ErrPermission}}
		nodes := make([]*Cache, 3)
		for i := range nodes { // the third is the owner
			nodes[i], _ = newCache(t, func(c *Config) { c.Origins, c.Peers = d, peers{nodes, []int{2, 2, 2}, i} })
			defer nodes[i].Close()
		}
		ask := func(who chunk.Identity, age time.Duration, want error) {
			t.Helper()
			q := maxAge(age)
			q.Access = chunk.Access{Identity: who, Grant: chunk.NewGrant("g")}
			for _, c := range nodes {
				time.Sleep(time.Millisecond) // what was answered before is older
				if got, _, err := c.Head(t.Context(), q, "d/k"); !errors.Is(err, want) || err == nil && got != info {
					t.Errorf("%s, head: %v, %v, want %v", who, got, err, want)
				}
				if _, _, err := c.List(t.Context(), q, objstore.ListRequest{Prefix: "d/"}); !errors.Is(err, want) {
					t.Errorf("%s, list: %v, want %v", who, err, want)
				}
			}
		}
		count := func(when string, want int) {
			t.Helper()
			if n := d.asked("mallory"); n != want {
				t.Errorf("%s: the origin was asked %d times, want %d", when, n, want)
			}
		}
		for range 20 {
			ask("mallory", time.Minute, objstore.ErrPermission)
			time.Sleep(100 * time.Millisecond)
		}
		ask("alice", time.Minute, nil)
		count("for two seconds", 2)
		d.deny("mallory", nil)
		time.Sleep(2 * time.Second)
		ask("mallory", time.Minute, objstore.ErrPermission)
		count("granted a moment ago", 0)
		time.Sleep(refusalTTL - 4*time.Second)
		ask("mallory", time.Minute, nil)
		count("granted", 2)
		d.deny("mallory", objstore.ErrPermission)
		ask("mallory", time.Minute, nil) // proven a moment ago
		ask("mallory", 0, objstore.ErrPermission)
		count("denied, and asked anew by each", 6)
		ask("mallory", time.Minute, objstore.ErrPermission) // the last word counts, not the older proof
		count("denied", 0)
		d.deny("mallory", objstore.ErrCredentials) // says nothing about who asks
		time.Sleep(refusalTTL)
		ask("mallory", time.Minute, objstore.ErrCredentials)
		ask("mallory", time.Minute, objstore.ErrCredentials)
		count("without credentials", 12)
	})
}

// A refusal between two answers does not hide that the object was replaced meanwhile.
func TestRefusalKeepsWhatWasKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		origin := objstoretest.NewMem()
		d := &delegate{oneStore: oneStore{origin}, refused: make(map[chunk.Identity]error)}
		var gone []objstore.Info
		c, err := New(Config{Origins: d, Replaced: func(_ objstore.Bucket, old []objstore.Info) { gone = append(gone, old...) }})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		ask := func(key string) {
			time.Sleep(time.Millisecond)
			q := maxAge(0)
			q.Access.Identity = "alice"
			_, _, _ = c.Head(t.Context(), q, key)
			_, _, _ = c.List(t.Context(), q, objstore.ListRequest{Prefix: key})
		}
		first := origin.Put("k", []byte("abc"))
		ask("k")
		for range 2 {
			d.deny("alice", objstore.ErrPermission)
			ask("k")
			ask("never known")
			d.deny("alice", nil)
		}
		if len(gone) > 0 {
			t.Errorf("refused, and told as replaced: %v", gone)
		}
		origin.Put("k", []byte("next"))
		ask("k")
		ask("never known")
		if len(gone) != 2 || gone[0] != first || gone[1] != first {
			t.Errorf("replaced: %v, want %v by HEAD and by listing", gone, first)
		}
	})
}
