package peer

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/peer/transfer"
)

func (n *node) Encoded(ctx context.Context, obj chunk.Object) ([]byte, error) { return n.tar(ctx, obj) }

func (n *node) Lacks(obj chunk.Object) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.kept[obj] == nil
}

func (n *node) Keep(obj chunk.Object, encoded []byte) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if string(encoded) == "bad" {
		return errors.New("no index")
	}
	if n.kept == nil {
		n.kept = make(map[chunk.Object][]byte)
	}
	n.kept[obj] = encoded
	return nil
}

func (n *node) keeps(obj chunk.Object) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return string(n.kept[obj])
}

// Who has made an index gives it to the owner of the tar, once, or to who acts for it.
func TestTarIndexIsGivenToTheOwner(t *testing.T) {
	inCluster(t, 3, 512<<10, func(t *testing.T, c *cluster) {
		give := func(from, index string) error {
			return c.nodes[from].peers.GiveTarIndex(t.Context(), c.object, []byte(index))
		}
		want := func(when, n0, n1, n2 string) {
			t.Helper()
			for id, index := range map[string]string{"n0": n0, "n1": n1, "n2": n2} {
				if got := c.nodes[id].keeps(c.object); got != index {
					t.Errorf("%s: %s keeps %q, want %q", when, id, got, index)
				}
			}
		}
		if err := give("n2", "bad"); err == nil {
			t.Error("what is no index is taken")
		}
		if err := give("n2", strings.Repeat("x", maxGivenBytes+1)); err != nil {
			t.Errorf("one that is too long: %v", err)
		}
		if err := give("n0", "its own"); err != nil {
			t.Errorf("by the owner: %v", err)
		}
		want("at first", "", "", "")
		if err := errors.Join(give("n2", "first"), give("n1", "second")); err != nil {
			t.Error(err)
		}
		want("given twice", "first", "", "")
		c.net.kill("n0:1")
		if err := give("n2", "third"); err != nil {
			t.Error(err)
		}
		want("without the owner", "first", "third", "")
		c.net.kill("n1:1")
		if err := give("n2", "fourth"); err == nil {
			t.Error("given to nobody")
		}
	})
}

// The owner of a tar is asked where its members lie, whoever asks, and as long as it takes.
func TestTarIndexIsTheOwners(t *testing.T) {
	inCluster(t, 3, 512<<10, func(t *testing.T, c *cluster) {
		want := bytes.Repeat([]byte("index"), 1<<20) // several parts
		c.nodes["n0"].tar = func(ctx context.Context, obj chunk.Object) ([]byte, error) {
			if obj != c.object {
				t.Errorf("asked of %v", obj)
			}
			return want, pause(ctx, 10*time.Minute)
		}
		began := time.Now()
		got, err := c.nodes["n2"].peers.TarIndex(t.Context(), c.object)
		if err != nil || !bytes.Equal(got, want) || time.Since(began) < 10*time.Minute {
			t.Errorf("%d bytes after %v, %v", len(got), time.Since(began), err)
		}
		if _, err := c.nodes["n0"].peers.TarIndex(t.Context(), c.object); !errors.Is(err, chunk.ErrNotHeld) {
			t.Errorf("the owner itself: %v", err)
		}
	})
}

// Whatever the owner does, the asker comes to an end: it finds out by itself then.
func TestTarIndexOfAnOwnerThatFails(t *testing.T) {
	cannot := errors.New("it cannot be read")
	inCluster(t, 3, 512<<10, func(t *testing.T, c *cluster) {
		c.nodes["n0"].tar = func(context.Context, chunk.Object) ([]byte, error) { return nil, cannot }
		if _, err := c.nodes["n2"].peers.TarIndex(t.Context(), c.object); !errors.As(err, new(*transfer.RemoteError)) {
			t.Errorf("the owner has none: %v", err)
		}
		c.nodes["n0"].tar = func(context.Context, chunk.Object) ([]byte, error) { return make([]byte, MaxTarIndexBytes+1), nil }
		if b, err := c.nodes["n2"].peers.TarIndex(t.Context(), c.object); err == nil {
			t.Errorf("%d bytes are taken", len(b))
		}

		// The asker goes: so does what was done for it.
		gone := make(chan struct{})
		c.nodes["n0"].tar = func(ctx context.Context, _ chunk.Object) ([]byte, error) {
			<-ctx.Done()
			close(gone)
			return nil, ctx.Err()
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer time.AfterFunc(time.Minute, cancel).Stop() // a deadline would be the owner's as well, who may be the first to tell
		if _, err := c.nodes["n2"].peers.TarIndex(ctx, c.object); !errors.Is(err, context.Canceled) {
			t.Errorf("an asker without patience: %v", err)
		}
		<-gone

		c.nodes["n1"].tar = func(context.Context, chunk.Object) ([]byte, error) { return []byte("of the successor"), nil }
		c.net.kill("n0:1")
		if b, err := c.nodes["n2"].peers.TarIndex(t.Context(), c.object); err != nil || string(b) != "of the successor" {
			t.Errorf("an owner that cannot be reached: %q, %v", b, err)
		}
		c.net.kill("n1:1")
		if _, err := c.nodes["n2"].peers.TarIndex(t.Context(), c.object); !errors.Is(err, chunk.ErrNotHeld) {
			t.Errorf("nobody can be reached: %v", err)
		}
	})
}
