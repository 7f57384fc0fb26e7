package node

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shardwell/shardwell/cache"
	"github.com/shardwell/shardwell/cache/mem"
	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/objstore"
	"github.com/shardwell/shardwell/objstore/objstoretest"
	"github.com/shardwell/shardwell/peer"
	"github.com/shardwell/shardwell/peer/transfer"
)

// What follows runs broadcasts in the time of a synctest bubble. Real are the cache with its fills,
// peers, planner, gate and transfer code. Modelled are the links (wires), the disk, which takes
// everything unless it is told not to, the ring and membership, which learns of a death after castDetect.
//
// All times are those of 8 MiB chunks of 256 KiB blocks over links of 50 Mbit/s: blocks are a quarter of that, and so
// are rates, and what buffers hold.
var castGeometry = chunk.Geometry{ChunkBytes: 2 << 20, BlockBytes: 64 << 10}

const (
	castRate   = 50e6 / 8 / 4 // bytes a second of a link, each way
	castDetect = time.Second
	castBuffer = 64 << 10 // of a connection, on each side
	castWindow = 96 << 10 // sent and not read
)

// castModel is a cluster in the model.
type castModel struct {
	t       *testing.T
	wires   *wires
	origin  *wireHost
	store   *objstoretest.Mem
	members peer.Directory
	signer  *transfer.Signer
	whole   int64 // objects up to this size have one owner
	log     *slog.Logger
	data    sync.Map // chunk.ObjectID → []byte

	mu    sync.Mutex
	nodes []*castNode // that were ever started
	rings [][]string  // ring ids of the members, the newest table last; guarded by mu
}

// castNode is one node.
type castNode struct {
	m      *castModel
	id     string
	host   *wireHost
	peers  *peer.Peers
	server *peer.Server
	cache  *cache.Cache
	arena  *mem.Arena
	disk   *castDisk
	bytes  transfer.Stats
	pulled atomic.Int64 // bytes from the origin
	stop   func()
	dead   atomic.Bool
}

// inCast runs f with n nodes, n0, n1 and so on.
func inCast(t *testing.T, n int, f func(*castModel)) {
	synctest.Test(t, func(t *testing.T) {
		signer, err := transfer.NewSigner([][]byte{[]byte("0123456789abcdef0123456789abcdef")})
		if err != nil {
			t.Fatal(err)
		}
		m := &castModel{t: t, wires: newWires(16<<10, castBuffer, castWindow), store: objstoretest.NewMem(), signer: signer, whole: 1 << 30,
			log: slog.New(slog.DiscardHandler)}
		if os.Getenv("CAST_LOG") != "" { // for people: what owners decide, and why
			m.log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
		}
		m.origin = m.wires.host("origin", castRate)
		for range n {
			m.add()
		}
		f(m)
		for _, n := range m.nodes {
			n.stop()
		}
		m.wires.close()
		for _, n := range m.nodes {
			if err := n.arena.Close(); err != nil {
				t.Errorf("%s: %v", n.id, err)
			}
		}
	})
}

// add starts a node, of which all hear at once.
func (m *castModel) add() *castNode {
	n := &castNode{m: m, id: fmt.Sprintf("n%d", len(m.nodes))}
	n.host = m.wires.host(n.id+":1", castRate)
	n.disk = &castDisk{m: m, files: make(map[chunk.ObjectID]*castFile)}
	n.open()
	m.mu.Lock()
	m.nodes = append(m.nodes, n)
	m.mu.Unlock()
	m.tell(n.id, true)
	return n
}

// open makes the layers of a node as New does.
func (n *castNode) open() {
	m := n.m
	log := m.log.With("node", n.id)
	must := func(err error) {
		if err != nil {
			m.t.Fatal(err)
		}
	}
	var err error
	n.arena, err = mem.New(int(castGeometry.BlockBytes), 64*castGeometry.BlockBytes)
	must(err)
	n.peers, err = peer.New(peer.Config{Self: n.id, Geometry: castGeometry, Ring: m, Members: &m.members, Signer: m.signer, Dial: n.host.dial, Logger: log,
		Rand: rand.New(rand.NewPCG(1, uint64(len(m.nodes)))),
		Transfer: transfer.NewClient(transfer.ClientConfig{Self: n.id, Geometry: castGeometry, Signer: m.signer, Dial: n.host.dial, Buffers: n.arena,
			Stats: &n.bytes, Logger: log, OnSlow: func(id chunk.ObjectID, rate float64) { n.server.Slow(id, rate) }}),
		OnLag:     func(id chunk.ObjectID) { n.server.Lags(id) },
		Pace:      func() (int64, bool) { return n.server.Pace() },
		Elsewhere: func(req chunk.Request, failed []string) (string, bool) { return n.server.Elsewhere(req, failed) }})
	must(err)
	n.cache, err = cache.New(cache.Config{Geometry: castGeometry, Disk: cache.TierOf(n.disk), Arena: n.arena, Logger: log,
		Peers:  peer.NewTurns(n.peers, peer.DefaultMaxStreams),
		Origin: &cache.OriginFetcher{Geometry: castGeometry, Origins: n, Arena: n.arena},
		Owned:  func(r chunk.Request) bool { return n.peers.Owned(r) || n.peers.Represents(r) }})
	must(err)
	n.server, err = peer.NewServer(peer.ServerConfig{Self: n.id, Geometry: castGeometry, Lender: n.cache, Names: n.peers, Members: &m.members, Stats: n.peers.Stats(),
		Transfer: &n.bytes, Verifier: transfer.NewVerifier(m.signer), Logger: log, Owned: n.peers.Owned, Anew: n.cache.Anew,
		Bounds: transfer.ServerConfig{Received: func() int64 { return n.bytes.ReceivedBytes.Load() + n.pulled.Load() }}})
	must(err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	l := n.host.listen()
	go func() { done <- n.server.Run(ctx, l) }()
	n.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil && !n.dead.Load() {
			m.t.Errorf("%s: %v", n.id, err)
		}
		n.cache.Close()
		if err := n.peers.Close(); err != nil {
			m.t.Errorf("%s: %v", n.id, err)
		}
	})
}

// tell makes a node a member or none.
func (m *castModel) tell(id string, is bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var ring []string
	if n := len(m.rings); n > 0 {
		ring = slices.DeleteFunc(slices.Clone(m.rings[n-1]), func(other string) bool { return other == id })
	}
	if is {
		ring = append(ring, id)
	}
	m.rings = append(m.rings, ring)
	var all []peer.Member
	for _, id := range ring {
		all = append(all, peer.Member{ID: id, Name: id, Addr: id + ":1"})
	}
	m.members.Set(all)
}

// kill ends a node as kill -9 does.
func (n *castNode) kill() {
	n.dead.Store(true)
	n.host.kill()
	go n.stop()
	time.Sleep(castDetect)
	n.m.tell(n.id, false)
}

// KeyOfBlocks, and what follows, implement peer.Ring: owners and successors are members by rendezvous.
func (m *castModel) KeyOfBlocks(o chunk.Object, id chunk.ObjectID, s chunk.Span) peer.Key {
	h := fnv.New64a()
	_, _ = h.Write(id[:])
	if o.Size > m.whole {
		_, _ = fmt.Fprint(h, castGeometry.ChunkOf(s.First))
	}
	return h.Sum64()
}
func (m *castModel) KeyOfName(string) peer.Key { return 0 }
func (m *castModel) Owners(k peer.Key, buf []string) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append(buf, castRanked(k, m.rings[len(m.rings)-1])...)
}
func (m *castModel) EarlierOwners(k peer.Key, buf []string) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := castRanked(k, m.rings[len(m.rings)-1])[0]
	for i := len(m.rings) - 2; i >= 0; i-- {
		if id := castRanked(k, m.rings[i])[0]; id != now && !slices.Contains(buf, id) {
			buf = append(buf, id)
		}
	}
	return buf
}

// castRanked returns members in the order in which they own a key, by rendezvous.
func castRanked(k peer.Key, ring []string) []string {
	ids := slices.Clone(ring)
	rank := func(id string) uint64 {
		h := fnv.New64a()
		_, _ = fmt.Fprint(h, k, id)
		return h.Sum64()
	}
	slices.SortFunc(ids, func(a, b string) int { return cmp.Compare(rank(a), rank(b)) })
	return ids
}

// Open implements objstore.Origins.
func (n *castNode) Open(context.Context, objstore.Bucket) (objstore.Store, error) {
	return castStore{n.m.store, n}, nil
}

// castStore is the origin behind its link.
type castStore struct {
	*objstoretest.Mem
	n *castNode
}

func (s castStore) Get(ctx context.Context, key, etag string, off, size int64) (io.ReadCloser, error) {
	body, err := s.Mem.Get(context.WithoutCancel(ctx), key, etag, off, size)
	if err != nil {
		return nil, err
	}
	b := &castBody{ReadCloser: s.n.m.wires.pour(s.n.m.origin, s.n.host, body), n: s.n}
	b.stop = context.AfterFunc(ctx, func() { _ = b.ReadCloser.Close() })
	return b, nil
}

type castBody struct {
	io.ReadCloser
	n    *castNode
	stop func() bool
}

func (b *castBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.n.pulled.Add(int64(n))
	return n, err
}

func (b *castBody) Close() error {
	b.stop()
	return b.ReadCloser.Close()
}

// put makes an object of so many chunks.
func (m *castModel) put(key string, chunks int) chunk.Object {
	data := make([]byte, int64(chunks)*castGeometry.ChunkBytes)
	_, _ = rand.NewChaCha8([32]byte{byte(len(key)), key[0]}).Read(data)
	info := m.store.Put(key, data)
	o := chunk.Object{Origin: "https://s3.example.com", Bucket: "b", Key: key, ETag: info.ETag, Size: info.Size}
	m.data.Store(o.ID(), data)
	return o
}

// read reads an object as the file system does for a reader who walks through it, and compares.
func (n *castNode) read(o chunk.Object) error {
	data, _ := n.m.data.Load(o.ID())
	want := data.([]byte)
	f, err := n.cache.Open(o)
	if err != nil {
		return err
	}
	defer f.Close()
	buf := make([]byte, castGeometry.BlockBytes)
	for off := int64(0); off < o.Size; off += castGeometry.BlockBytes {
		switch at := off / castGeometry.BlockBytes; {
		case at == 0:
			f.Prefetch(off, 8*castGeometry.BlockBytes)
		case at == 1:
			f.Prefetch(off, castGeometry.ChunkBytes)
		case at >= 4 && !f.Fill(off) && at%32 == 4:
			f.Prefetch(off, 16*castGeometry.ChunkBytes)
		}
		got, err := f.ReadAt(context.Background(), buf, off)
		if got < len(buf) {
			return err
		}
		if !bytes.Equal(buf, want[off:off+int64(got)]) {
			return errors.New("other bytes")
		}
	}
	return nil
}

// cast has nodes read an object at once, and returns how long each took.
func (m *castModel) cast(o chunk.Object, nodes ...*castNode) []time.Duration {
	m.t.Helper()
	begin := time.Now()
	took := make([]time.Duration, len(nodes))
	var wg sync.WaitGroup
	for i, n := range nodes {
		wg.Go(func() {
			if err := n.read(o); err != nil && !n.dead.Load() {
				m.t.Errorf("%s: %v", n.id, err)
			}
			took[i] = time.Since(begin)
		})
	}
	wg.Wait()
	return took
}

// trace logs every few seconds how busy the links were, in and out, until it is stopped.
func (m *castModel) trace() (stop func()) {
	if !testing.Verbose() {
		return func() {}
	}
	const every = 2 * time.Second
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		came, sent := map[*wireHost]int64{}, map[*wireHost]int64{}
		show := func(h *wireHost) string {
			c, s := h.bytes()
			line := fmt.Sprintf(" %3.0f/%3.0f", 100*float64(c-came[h])/castRate/every.Seconds(), 100*float64(s-sent[h])/castRate/every.Seconds())
			came[h], sent[h] = c, s
			return line
		}
		for at := every; ; at += every {
			select {
			case <-time.After(every):
			case <-done:
				return
			}
			line := fmt.Sprintf("%4v: origin%s, nodes", at, show(m.origin))
			for _, n := range m.nodes {
				line += show(n.host)
			}
			m.t.Log(line)
		}
	})
	return func() { close(done); wg.Wait() }
}

// castDisk is a disk that holds which blocks it has, all of them being what the origin has.
type castDisk struct {
	m *castModel

	mu    sync.Mutex
	full  func(chunk.Object) bool // takes no block of it; nil: takes all
	files map[chunk.ObjectID]*castFile
}

type castFile struct {
	d    *castDisk
	obj  chunk.Object
	data []byte

	mu   sync.Mutex
	has  []bool
	held int64
}

func (d *castDisk) Acquire(o chunk.Object, id chunk.ObjectID, _ bool) (*castFile, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f := d.files[id]
	if f == nil {
		data, _ := d.m.data.Load(id)
		f = &castFile{d: d, obj: o, data: data.([]byte), has: make([]bool, castGeometry.Blocks(o.Size))}
		d.files[id] = f
	}
	return f, nil
}

func (d *castDisk) Find(id chunk.ObjectID) (*castFile, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if f := d.files[id]; f != nil {
		return f, nil
	}
	return nil, os.ErrNotExist
}

func (f *castFile) block(b uint32) []byte {
	off, n := castGeometry.Bytes(f.obj.Size, chunk.Span{First: b, Count: 1})
	return f.data[off : off+n]
}

func (f *castFile) Has(b uint32) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.has[b]
}

func (f *castFile) CachedBytes() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.held
}

func (f *castFile) Put(b chunk.Block) error {
	if !bytes.Equal(b.Data, f.block(b.Index)) {
		return errors.New("other bytes")
	}
	if f.d.full != nil && f.d.full(f.obj) {
		return errors.New("not admitted")
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.has[b.Index] {
		f.has[b.Index] = true
		f.held += int64(len(b.Data))
	}
	return nil
}

func (f *castFile) ReadAt(p []byte, off int64) (int, error) { return copy(p, f.data[off:]), nil }

func (f *castFile) Lend(b uint32) (chunk.Piece, bool) {
	if !f.Has(b) {
		return chunk.Piece{}, false
	}
	data := f.block(b)
	return chunk.Piece{Index: b, CRC: chunk.Checksum(data), Len: len(data), Data: data}, true
}

func (f *castFile) Return(uint32)             {}
func (f *castFile) Suspect(uint32)            {}
func (f *castFile) Backing() (*os.File, bool) { return nil, false }
func (f *castFile) Release()                  {}
