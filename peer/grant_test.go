package peer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/objstore"
)

// signs writes down what it signs.
type signs struct {
	mu    sync.Mutex
	count int
	err   error
}

func (s *signs) sign(what string, ttl time.Duration) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count++
	return fmt.Sprintf("signed %s for %v, number %d", what, ttl, s.count), s.err
}

func (s *signs) Presign(_ context.Context, key, etag string, ttl time.Duration) (string, error) {
	return s.sign("get "+key+" "+etag, ttl)
}

func (s *signs) PresignHead(_ context.Context, key string, ttl time.Duration) (string, error) {
	return s.sign("head "+key, ttl)
}

func (s *signs) PresignList(_ context.Context, req objstore.ListRequest, ttl time.Duration) (string, error) {
	return s.sign("list "+req.Prefix, ttl)
}

// as reads a chunk on behalf of somebody.
func (n *node) as(ctx context.Context, who chunk.Identity) error {
	span := small.ChunkSpan(n.object.Size, 0)
	_, err := n.get(ctx, chunk.Request{Object: n.object, ID: n.object.ID(), Span: span, Access: chunk.Access{Identity: who}}, 0)
	return err
}

// A node signs what the owner is to ask, if it has the credentials; on its way through a third
// node a grant stays what it is. Nothing is signed for the nodes themselves and for nobody.
func TestGrantsReachTheOwner(t *testing.T) {
	inCluster(t, 3, 512<<10, func(t *testing.T, c *cluster) {
		s := new(signs)
		c.nodes["n2"].peers.cfg.Presigner = func(_ context.Context, b objstore.Bucket, who chunk.Identity) (objstore.Presigner, bool) {
			return s, b.Name == c.object.Bucket && who == "alice"
		}
		q := objstore.Query{Bucket: objstore.Bucket{Origin: c.object.Origin, Name: c.object.Bucket}, MaxAge: time.Minute, Access: chunk.Access{Identity: "alice"}}
		if _, _, err := c.nodes["n2"].Head(t.Context(), q, "a/b"); err != nil {
			t.Fatal(err)
		}
		if _, _, err := c.nodes["n2"].List(t.Context(), q, objstore.ListRequest{Prefix: "a/"}); err != nil {
			t.Fatal(err)
		}
		if err := c.nodes["n2"].as(t.Context(), "alice"); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, a := range c.origin.asked {
			if a.Identity != "alice" {
				t.Errorf("asked on behalf of %q", a.Identity)
			}
			got = append(got, a.Grant.Secret())
		}
		want := []string{"signed head a/b for 5m0s, number 1", "signed list a/ for 5m0s, number 2",
			"signed get " + c.object.Key + " " + c.object.ETag + " for 5m0s, number 3"}
		if !slices.Equal(got, want) {
			t.Errorf("the owner asked with %q, want %q", got, want)
		}
		if n := c.nodes["n2"].peers.Stats().GrantsGiven.Load(); n != 3 {
			t.Errorf("%d grants were counted", n)
		}
		// A node in between cannot sign, and passes on what it got.
		c.rings["n1"].owners, c.rings["n2"].owners = []string{"n0"}, []string{"n1"}
		if _, _, err := c.nodes["n2"].Head(t.Context(), q, "a/c"); err != nil {
			t.Fatal(err)
		}
		if last := c.origin.asked[len(c.origin.asked)-1]; last.Grant.Secret() != "signed head a/c for 5m0s, number 4" {
			t.Errorf("through another: %q", last.Grant.Secret())
		}
		for _, who := range []chunk.Identity{"", chunk.Anonymous, "bob"} {
			q.Access = chunk.Access{Identity: who}
			if _, _, err := c.nodes["n2"].Head(t.Context(), q, "a/d"); err != nil {
				t.Fatal(err)
			}
			if last := c.origin.asked[len(c.origin.asked)-1]; last != q.Access {
				t.Errorf("%q: asked on behalf of %q with %q", who, last.Identity, last.Grant.Secret())
			}
		}
		s.err = errors.New("no keys")
		q.Access = chunk.Access{Identity: "alice"}
		if _, _, err := c.nodes["n2"].Head(t.Context(), q, "a/e"); err != nil || s.count != 5 {
			t.Errorf("without a signature: %v, %d signed", err, s.count)
		}
		if strings.Contains(c.logs.String(), "signed ") {
			t.Error("a log shows a grant")
		}
	})
}

// An owner that says that a grant is no good is not the last to be asked: in the end the node
// that has the credentials asks the origin. A refusal is the end.
func TestOwnerWithoutUseForAGrant(t *testing.T) {
	for _, c := range []struct {
		class error
		final bool
	}{{objstore.ErrCredentials, false}, {objstore.ErrInvalid, false}, {objstore.ErrPermission, true}} {
		inCluster(t, 3, 512<<10, func(t *testing.T, cl *cluster) {
			cl.origin.err = c.class
			err := cl.nodes["n2"].as(t.Context(), "alice")
			// Each of the three asked, or the owner alone.
			if n := len(cl.origin.asked); !errors.Is(err, c.class) || c.final && n != 1 || !c.final && n < 3 {
				t.Errorf("%v: %d asked, %v", c.class, len(cl.origin.asked), err)
			}
		})
	}
}
