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
		if n := c.Forget(bucket, "d/"); n != 4 {
			t.Errorf("%d answers were forgotten, of all identities", n)
		}
	})
}
