package peer

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/peer/transfer"
)

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
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := c.nodes["n2"].peers.TarIndex(ctx, c.object); !errors.Is(err, context.DeadlineExceeded) {
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
