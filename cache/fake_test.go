package cache

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/shardwell/shardwell/cache/mem"
	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/objstore"
	"github.com/shardwell/shardwell/objstore/objstoretest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// small is a geometry in which a chunk has eight blocks.
var small = chunk.Geometry{ChunkBytes: 512 << 10, BlockBytes: 64 << 10}

const block = 64 << 10

var errDisk = errors.New("input/output error")

// fakeTier is a disk in memory whose blocks can be damaged and refused.
type fakeTier struct {
	mu    sync.Mutex
	files map[chunk.ObjectID]*fakeFile

	full       bool                          // refuses every block
	refuse     func(chunk.Block) bool        // refuses some
	unreadable func(block uint32) (bad bool) // reads fail, the block stays
	noAcquire  bool
	owned      map[chunk.ObjectID]bool // as acquired last
}

func newTier() *fakeTier {
	return &fakeTier{files: make(map[chunk.ObjectID]*fakeFile), owned: make(map[chunk.ObjectID]bool)}
}

func (t *fakeTier) Acquire(obj chunk.Object, id chunk.ObjectID, owned bool) (*fakeFile, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.noAcquire {
		return nil, errDisk
	}
	t.owned[id] = owned
	f := t.files[id]
	if f == nil {
		f = &fakeFile{t: t, size: obj.Size, blocks: make(map[uint32]chunk.Block)}
		t.files[id] = f
	}
	f.refs++
	return f, nil
}

func (t *fakeTier) Find(id chunk.ObjectID) (*fakeFile, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f := t.files[id]
	if f == nil {
		return nil, os.ErrNotExist
	}
	f.refs++
	return f, nil
}

type fakeFile struct {
	t      *fakeTier
	size   int64
	refs   int
	reads  int
	spent  int // releases by readers who had all of it
	blocks map[uint32]chunk.Block
}

func (f *fakeFile) Has(b uint32) bool {
	f.t.mu.Lock()
	defer f.t.mu.Unlock()
	_, ok := f.blocks[b]
	return ok
}

func (f *fakeFile) CachedBytes() (n int64) {
	f.t.mu.Lock()
	defer f.t.mu.Unlock()
	for _, b := range f.blocks {
		n += int64(len(b.Data))
	}
	return n
}

func (f *fakeFile) Put(b chunk.Block) error {
	f.t.mu.Lock()
	defer f.t.mu.Unlock()
	if f.t.full || f.t.refuse != nil && f.t.refuse(b) {
		return errors.New("not admitted")
	}
	if _, ok := f.blocks[b.Index]; !ok {
		b.Data = bytes.Clone(b.Data)
		f.blocks[b.Index] = b
	}
	return nil
}

func (f *fakeFile) ReadAt(p []byte, off int64) (int, error) {
	f.t.mu.Lock()
	defer f.t.mu.Unlock()
	f.reads++
	for n := 0; n < len(p); {
		i := uint32((off + int64(n)) / block)
		b, ok := f.blocks[i]
		if !ok {
			return 0, fmt.Errorf("block %d is not present", i)
		}
		if f.t.unreadable != nil && f.t.unreadable(i) {
			return 0, errDisk
		}
		if chunk.Checksum(b.Data) != b.CRC {
			delete(f.blocks, i)
			return 0, fmt.Errorf("block %d: %w", i, chunk.ErrCorrupt)
		}
		n += copy(p[n:], b.Data[off+int64(n)-int64(i)*block:])
	}
	return len(p), nil
}

func (f *fakeFile) Lend(i uint32) (chunk.Piece, bool) {
	f.t.mu.Lock()
	defer f.t.mu.Unlock()
	b, ok := f.blocks[i]
	return chunk.Piece{Index: i, CRC: b.CRC, Len: len(b.Data), Data: b.Data}, ok
}

func (f *fakeFile) Return(uint32) {}

func (f *fakeFile) Suspect(i uint32) {
	f.t.mu.Lock()
	defer f.t.mu.Unlock()
	if b, ok := f.blocks[i]; ok && chunk.Checksum(b.Data) != b.CRC {
		delete(f.blocks, i)
	}
}

func (f *fakeFile) Backing() (*os.File, bool) { return nil, false }

func (f *fakeFile) ReleaseSpent() {
	f.t.mu.Lock()
	f.spent++
	f.t.mu.Unlock()
	f.Release()
}

func (f *fakeFile) Release() {
	f.t.mu.Lock()
	defer f.t.mu.Unlock()
	f.refs--
	if f.refs < 0 {
		panic("released too often")
	}
}

// damage flips a bit of a block and reports whether it was there.
func (t *fakeTier) damage(id chunk.ObjectID, i uint32) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	f := t.files[id]
	if f == nil || len(f.blocks[i].Data) == 0 {
		return false
	}
	b := f.blocks[i]
	b.Data = bytes.Clone(b.Data) // pieces of it may be lent
	b.Data[len(b.Data)/2] ^= 4
	f.blocks[i] = b
	return true
}

// held returns how many references the cache holds.
func (t *fakeTier) held() (n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, f := range t.files {
		n += f.refs
	}
	return n
}

// oneStore is an origin of one store, whatever the bucket.
type oneStore struct{ objstore.Store }

func (o oneStore) Open(context.Context, objstore.Bucket) (objstore.Store, error) { return o.Store, nil }

// fetcherFunc is a Fetcher made of a function.
type fetcherFunc func(context.Context, chunk.Request, chunk.Deliver) error

func (f fetcherFunc) Fetch(ctx context.Context, req chunk.Request, d chunk.Deliver) error {
	return f(ctx, req, d)
}

// rig is a cache and what it stands on.
type rig struct {
	*Cache
	tier   *fakeTier
	origin *objstoretest.Mem
	arena  *mem.Arena
}

// newRig makes a cache over a fake disk and an origin in memory; change may
// change its configuration. It is closed with the test, or by shut, which a test
// in a synctest bubble has to call.
func newRig(t *testing.T, buffers int, change func(*Config)) *rig {
	t.Helper()
	arena, err := mem.New(block, int64(buffers)*block)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{tier: newTier(), origin: objstoretest.NewMem(), arena: arena}
	cfg := Config{
		Geometry: small, Arena: arena, Disk: TierOf(r.tier),
		Origin: &OriginFetcher{Geometry: small, Origins: oneStore{r.origin}, Arena: arena},
	}
	if change != nil {
		change(&cfg)
	}
	if r.Cache, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	return r
}

// shut closes the cache and checks that everything was given back.
func (r *rig) shut(t *testing.T) {
	t.Helper()
	r.Close()
	if n := r.tier.held(); n != 0 {
		t.Errorf("%d references to tier files are left", n)
	}
	if n := r.Stats().OpenObjects.Load(); n != 0 {
		t.Errorf("%d objects are still open", n)
	}
	if n := r.Stats().Fetching.Load(); n != 0 {
		t.Errorf("%d fetches are still counted", n)
	}
	if n, left := r.ahead.calls.Load(), r.ahead.left.Load(); n != 0 || left != 0 {
		t.Errorf("%d fetches ahead with %d blocks are still counted", n, left)
	}
	if r.slots.running != 0 || r.slots.prefetches != 0 || len(r.slots.queue) != 0 || len(r.slots.perBucket) != 0 {
		t.Errorf("slots are left: %d running, %d prefetches, %d queued", r.slots.running, r.slots.prefetches, len(r.slots.queue))
	}
	if r.pages.ahead != 0 || r.pages.bufs != 0 {
		t.Errorf("memory is left: %d blocks promised room, %d buffers", r.pages.ahead, r.pages.bufs)
	}
	if err := r.arena.Close(); err != nil {
		t.Error(err)
	}
}

// put stores a new object of size random bytes at the origin.
func (r *rig) put(key string, size int) (chunk.Object, []byte) {
	data := make([]byte, size)
	rng := rand.NewChaCha8([32]byte{byte(size), byte(len(key))})
	rng.Read(data)
	return objectOf(r.origin.Put(key, data)), data
}

func objectOf(info objstore.Info) chunk.Object {
	return chunk.Object{Origin: "https://s3.example.com", Bucket: "b", Key: info.Key, ETag: info.ETag, Size: info.Size}
}

func (r *rig) open(t *testing.T, obj chunk.Object) *File {
	t.Helper()
	f, err := r.Open(obj)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// wantRead reads and compares.
func wantRead(t *testing.T, f *File, data []byte, off, n int) {
	t.Helper()
	p := make([]byte, n)
	got, err := f.ReadAt(t.Context(), p, int64(off))
	if err != nil {
		t.Fatalf("read %d bytes at %d: %v", n, off, err)
	}
	if got != n || !bytes.Equal(p, data[off:off+n]) {
		t.Fatalf("read %d bytes at %d: got %d, and not the right ones", n, off, got)
	}
}

// collect lends a span and returns what came, in order, copied.
func (r *rig) collect(ctx context.Context, req chunk.Request) (got []chunk.Block, err error) {
	err = r.Lend(ctx, req, func(p chunk.Piece) error {
		got = append(got, chunk.Block{Index: p.Index, CRC: p.CRC, Data: bytes.Clone(p.Data)})
		return nil
	})
	return got, err
}

// slowly is an upstream that delivers the blocks of data, one each pause.
func slowly(data []byte, pause time.Duration) fetcherFunc {
	return func(ctx context.Context, req chunk.Request, deliver chunk.Deliver) error {
		for b := req.Span.First; b < req.Span.End(); b++ {
			select {
			case <-time.After(pause):
			case <-ctx.Done():
				return ctx.Err()
			}
			if err := deliver(blockOf(data, b)); err != nil {
				return err
			}
		}
		return nil
	}
}

func blockOf(data []byte, b uint32) chunk.Block {
	d := data[int(b)*block : min(len(data), int(b+1)*block)]
	return chunk.Block{Index: b, CRC: chunk.Checksum(d), Data: d}
}
