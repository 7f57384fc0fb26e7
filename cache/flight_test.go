package cache

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/objstore"
)

// first chunk, all of it, as a peer asks for it.
func ask(obj chunk.Object, from string) chunk.Request {
	return chunk.Request{Object: obj, ID: obj.ID(), Span: chunk.Span{Count: 8}, Hops: 1, From: from}
}

func TestBlocksGoOnAsTheyArrive(t *testing.T) {
	for _, mode := range []string{"disk", "memory", "streaming"} {
		t.Run(mode, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var up fetcherFunc
				r := newRig(t, 8, func(c *Config) {
					c.Origin = fetcherFunc(func(ctx context.Context, req chunk.Request, d chunk.Deliver) error { return up(ctx, req, d) })
					if mode == "streaming" {
						c.MemoryBlocks = -1
					}
				})
				defer r.shut(t)
				r.tier.full = mode != "disk"
				obj, data := r.put("k", 512<<10)
				up = slowly(data, time.Second)
				began := time.Now()
				n := 0
				err := r.Lend(t.Context(), ask(obj, "p"), func(p chunk.Piece) error {
					if want := time.Duration(n+1) * time.Second; time.Since(began) != want {
						t.Errorf("block %d went on after %v, want %v", p.Index, time.Since(began), want)
					}
					if int(p.Index) != n || !bytes.Equal(p.Data, data[n*block:(n+1)*block]) || p.CRC != chunk.Checksum(p.Data) {
						t.Errorf("piece %d: block %d, or not the right bytes", n, p.Index)
					}
					n++
					return nil
				})
				if err != nil || n != 8 {
					t.Errorf("got %d blocks, %v", n, err)
				}
				if got, want := r.Stats().Streamed.Load(), map[string]int64{"streaming": 8}[mode]; got != want {
					t.Errorf("streamed: got %d, want %d", got, want)
				}
			})
		})
	}
}

func TestFetchResumesAtTheMissingBlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var data []byte
		var asked []string
		r := newRig(t, 8, func(c *Config) {
			c.Peers = fetcherFunc(func(ctx context.Context, req chunk.Request, d chunk.Deliver) error {
				asked = append(asked, req.Span.String())
				if len(asked) > 3 {
					return chunk.ErrNotHeld
				}
				for b := req.Span.First; b < req.Span.First+2; b++ {
					if err := d(blockOf(data, b)); err != nil {
						return err
					}
				}
				return errors.New("connection reset")
			})
		})
		defer r.shut(t)
		var obj chunk.Object
		obj, data = r.put("k", 512<<10)
		f := r.open(t, obj)
		defer f.Close()
		wantRead(t, f, data, 0, len(data))
		if got, want := strings.Join(asked, ", "), "blocks 0+8, blocks 2+6, blocks 4+4, blocks 6+2"; got != want {
			t.Errorf("asked peers for %s; want %s", got, want)
		}
		if got := r.origin.Gets(); len(got) != 1 || got[0].Off != 6*block || got[0].N != 2*block {
			t.Errorf("asked the origin for %v; want the last two blocks", got)
		}
		if got := r.Stats().ReadBytes[FromPeer].Load(); got != 6*block {
			t.Errorf("bytes from peers: got %d, want %d", got, 6*block)
		}
	})
}

func TestFinalErrorsPassAtOnceAndTransientOnesAfterTheBudget(t *testing.T) {
	for _, class := range []error{objstore.ErrChanged, objstore.ErrPermission, objstore.ErrNotExist, errors.New("broken pipe"), objstore.ErrThrottled} {
		t.Run(class.Error(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, 8, func(c *Config) {
					c.Peers = fetcherFunc(func(context.Context, chunk.Request, chunk.Deliver) error { return chunk.ErrNotHeld })
					c.Origin = fetcherFunc(func(context.Context, chunk.Request, chunk.Deliver) error { return fmt.Errorf("get: %w", class) })
				})
				defer r.shut(t)
				obj, _ := r.put("k", 100)
				f := r.open(t, obj)
				defer f.Close()
				began := time.Now()
				_, err := f.ReadAt(t.Context(), make([]byte, 10), 0)
				if !errors.Is(err, class) || !strings.Contains(err.Error(), "s3://b/k") {
					t.Errorf("got %v, want class %q and the object's name", err, class)
				}
				took := time.Since(began)
				if objstore.Final(class) && took != 0 {
					t.Errorf("a final error took %v", took)
				}
				if !objstore.Final(class) && (took < DefaultReadBudget-maxPause || took > DefaultReadBudget) {
					t.Errorf("gave up after %v, want about %v", took, DefaultReadBudget)
				}
				req := ask(obj, "p")
				req.Span.Count = 1
				if _, err := r.collect(t.Context(), req); !errors.Is(err, class) {
					t.Errorf("lend: got %v, want class %q", err, class)
				}
			})
		})
	}
}

func TestStalledPeerIsCutAndAskedElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var data []byte
		calls := 0
		r := newRig(t, 8, func(c *Config) {
			c.Peers = fetcherFunc(func(ctx context.Context, req chunk.Request, d chunk.Deliver) error {
				if calls++; calls > 1 {
					return chunk.ErrNotHeld
				}
				for b := range uint32(3) {
					if err := d(blockOf(data, b)); err != nil {
						return err
					}
				}
				<-ctx.Done()
				return ctx.Err()
			})
		})
		defer r.shut(t)
		var obj chunk.Object
		obj, data = r.put("k", 512<<10)
		f := r.open(t, obj)
		defer f.Close()
		began := time.Now()
		wantRead(t, f, data, 0, len(data))
		if took := time.Since(began); took < DefaultPeerStall || took > DefaultPeerStall+time.Second {
			t.Errorf("took %v, want the stall time and a short pause", took)
		}
		if r.Stats().Stalls.Load() != 1 || r.origin.Bytes() != 5*block {
			t.Errorf("stalls %d, origin bytes %d", r.Stats().Stalls.Load(), r.origin.Bytes())
		}
	})
}

// SEMANTICS I1: A reader that is interrupted (a signal, Ctrl-C) returns promptly,
// whatever the origin does.
func TestInterruptedReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 8, nil)
		defer r.shut(t)
		obj, data := r.put("k", 512<<10)
		f := r.open(t, obj)
		defer func() { f.Close() }()
		gate := r.origin.Hold(objstore.OpGet)

		interrupt := func() error {
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error)
			go func() {
				_, err := f.ReadAt(ctx, make([]byte, len(data)), 0)
				done <- err
			}()
			synctest.Wait()
			cancel()
			return <-done
		}
		// Another reader waits: the fetch goes on.
		var wg sync.WaitGroup
		wg.Go(func() { wantRead(t, f, data, 0, len(data)) })
		synctest.Wait()
		if err := interrupt(); !errors.Is(err, context.Canceled) {
			t.Errorf("interrupted: got %v", err)
		}
		time.Sleep(2 * DefaultLinger)
		gate.Open()
		wg.Wait()
		if got := r.origin.Requests(objstore.OpGet); got != 1 {
			t.Errorf("requests: got %d, want 1", got)
		}

		// Nobody else waits: it ends after a while, but serves who comes before that.
		obj, data = r.put("l", 512<<10)
		r.origin.ResetCounts()
		f.Close()
		f = r.open(t, obj)
		gate = r.origin.Hold(objstore.OpGet)
		interrupt()
		if r.Stats().Fetching.Load() != 1 {
			t.Error("the fetch ended with its reader at once")
		}
		wg.Go(func() { wantRead(t, f, data, 0, len(data)) })
		time.Sleep(2 * DefaultLinger)
		gate.Open()
		wg.Wait()
		if got := r.origin.Requests(objstore.OpGet); got != 1 {
			t.Errorf("requests: got %d, want 1", got)
		}

		obj, data = r.put("m", 512<<10)
		f.Close()
		f = r.open(t, obj)
		gate = r.origin.Hold(objstore.OpGet)
		interrupt()
		time.Sleep(2 * DefaultLinger)
		synctest.Wait()
		if r.Stats().Fetching.Load() != 0 || r.Stats().Abandoned.Load() != 1 {
			t.Error("the fetch goes on though nobody wants it")
		}
		gate.Open()
	})
}

func TestSlowBucketLeavesRoomForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var data []byte
		r := newRig(t, 8, func(c *Config) {
			c.MaxFetches, c.MaxFetchesPerBucket = 8, 6
			origin := c.Origin
			c.Origin = fetcherFunc(func(ctx context.Context, req chunk.Request, d chunk.Deliver) error {
				if req.Object.Bucket == "slow" {
					<-ctx.Done()
					return ctx.Err()
				}
				return origin.Fetch(ctx, req, d)
			})
		})
		var obj chunk.Object
		obj, data = r.put("k", 512<<10)
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() {
				slow := chunk.Object{Origin: "o", Bucket: "slow", Key: fmt.Sprint(i), ETag: "e", Size: 100}
				f := r.open(t, slow)
				defer f.Close()
				if _, err := f.ReadAt(t.Context(), make([]byte, 10), 0); !errors.Is(err, ErrClosed) {
					t.Errorf("stuck read: got %v, want ErrClosed", err)
				}
			})
		}
		synctest.Wait()
		f := r.open(t, obj)
		began := time.Now()
		wantRead(t, f, data, 0, len(data))
		wantRead(t, f, data, 0, len(data))
		if took := time.Since(began); took != 0 {
			t.Errorf("a read of another bucket took %v", took)
		}
		f.Close()
		r.Close()
		wg.Wait()
		r.shut(t)
	})
}

func TestReadOverManyChunksAsksForThemAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var data []byte
		r := newRig(t, 16, func(c *Config) {
			c.Origin = fetcherFunc(func(ctx context.Context, req chunk.Request, d chunk.Deliver) error {
				return slowly(data, time.Second)(ctx, req, d)
			})
		})
		defer r.shut(t)
		var obj chunk.Object
		obj, data = r.put("k", 4*512<<10)
		f := r.open(t, obj)
		defer f.Close()
		began := time.Now()
		wantRead(t, f, data, 0, len(data))
		if took := time.Since(began); took != 8*time.Second {
			t.Errorf("took %v, want the time of one chunk", took)
		}
	})
}

// A body that stalls between blocks holds no buffer: others get on with two.
func TestStalledBodiesHoldNoBuffers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 2, nil)
		obj, data := r.put("k", 512<<10)
		stall := make(chan struct{})
		slow := &OriginFetcher{Geometry: small, Arena: r.arena, Origins: oneStore{stalling{r.origin, stall}}}
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				err := slow.Fetch(t.Context(), ask(obj, ""), func(chunk.Block) error { return nil })
				if !errors.Is(err, io.ErrUnexpectedEOF) {
					t.Errorf("got %v, want an unexpected end", err)
				}
			})
		}
		synctest.Wait()
		f := r.open(t, obj)
		wantRead(t, f, data, 0, len(data))
		f.Close()
		close(stall)
		wg.Wait()
		r.shut(t)
	})
}

// stalling is a store whose bodies wait, then end.
type stalling struct {
	objstore.Store
	wait chan struct{}
}

func (s stalling) Get(context.Context, string, string, int64, int64) (io.ReadCloser, error) {
	return io.NopCloser(s), nil
}

func (s stalling) Read([]byte) (int, error) {
	<-s.wait
	return 0, io.EOF
}

func TestHeldOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var data []byte
		r := newRig(t, 8, func(c *Config) {
			c.Peers = fetcherFunc(func(ctx context.Context, req chunk.Request, d chunk.Deliver) error {
				req.Source.Set("owner")
				return slowly(data, time.Second)(ctx, req, d)
			})
			c.Owned = func(chunk.Request) bool { return false }
		})
		defer r.shut(t)
		var obj chunk.Object
		obj, data = r.put("k", 512<<10)
		held := func(from string, span chunk.Span) ([]chunk.Block, error) {
			req := ask(obj, from)
			req.HeldOnly, req.Span = true, span
			return r.collect(t.Context(), req)
		}
		if got, err := held("p", chunk.Span{Count: 8}); len(got) != 0 || !errors.Is(err, chunk.ErrNotHeld) {
			t.Errorf("of what nobody has: %d blocks, %v", len(got), err)
		}
		if r.Stats().Fetches.Load() != 0 {
			t.Error("a question for held blocks started a fetch")
		}
		f := r.open(t, obj)
		defer f.Close()
		var wg sync.WaitGroup
		wg.Go(func() { wantRead(t, f, data, 0, 4*block) })
		time.Sleep(1500 * time.Millisecond) // block 0 is here, 1 to 3 on their way
		began := time.Now()
		if got, err := held("owner", chunk.Span{Count: 4}); len(got) != 1 || !errors.Is(err, chunk.ErrNotHeld) || time.Since(began) != 0 {
			t.Errorf("to the one from whom they come: %d blocks, %v after %v", len(got), err, time.Since(began))
		}
		if got, err := held("p", chunk.Span{Count: 4}); len(got) != 4 || err != nil {
			t.Errorf("of what is on its way: %d blocks, %v", len(got), err)
		}
		if got, err := held("p", chunk.Span{Count: 8}); len(got) != 4 || !errors.Is(err, chunk.ErrNotHeld) {
			t.Errorf("of more than is held: %d blocks, %v", len(got), err)
		}
		wg.Wait()
	})
}

func TestCloseEndsThoseWhoWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 8, nil)
		obj, data := r.put("k", 512<<10)
		f := r.open(t, obj)
		gate := r.origin.Hold(objstore.OpGet)
		ctx, stop := context.WithCancel(t.Context())
		ran := make(chan error)
		go func() { ran <- r.Run(ctx) }()
		done := make(chan error)
		go func() {
			_, err := f.ReadAt(t.Context(), make([]byte, len(data)), 0)
			done <- err
		}()
		synctest.Wait()
		stop()
		if err := <-done; !errors.Is(err, ErrClosed) {
			t.Errorf("got %v, want ErrClosed", err)
		}
		if err := <-ran; err != nil {
			t.Error(err)
		}
		if _, err := f.ReadAt(t.Context(), make([]byte, 1), 0); !errors.Is(err, ErrClosed) {
			t.Errorf("after Close: got %v, want ErrClosed", err)
		}
		if _, err := r.Open(obj); !errors.Is(err, ErrClosed) {
			t.Errorf("open after Close: got %v, want ErrClosed", err)
		}
		f.Prefetch(0, 100)
		f.Close()
		f.Close()
		gate.Open()
		r.shut(t)
	})
}

// The upstream's context lives until it returns, last block or not: a cancelled
// one would cost the connection.
func TestFetchIsNotCancelledByItsOwnLastBlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var data []byte
		r := newRig(t, 8, func(c *Config) {
			c.Origin = fetcherFunc(func(ctx context.Context, req chunk.Request, d chunk.Deliver) error {
				err := slowly(data, time.Second)(ctx, req, d)
				if ctx.Err() != nil {
					t.Error("cancelled by its last block")
				}
				return err
			})
		})
		defer r.shut(t)
		var obj chunk.Object
		obj, data = r.put("k", 512<<10)
		f := r.open(t, obj)
		defer f.Close()
		wantRead(t, f, data, 0, len(data))
	})
}
