package peer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/objstore"
	"github.com/shardwell/shardwell/peer/transfer"
)

// small is the geometry of these tests: chunks of 8 blocks of 64 KiB.
var small = chunk.Geometry{ChunkBytes: 512 << 10, BlockBytes: 64 << 10}

// origin counts who reads what.
type origin struct {
	data  []byte
	err   error                           // returned instead of bytes
	delay func(ctx context.Context) error // before each block
	hang  func(ctx context.Context) error // before each answer about names

	mu    sync.Mutex
	reads map[uint32]int // of each block; guarded by mu
	heads int            // guarded by mu
	asked []chunk.Access // on whose behalf, with each first block and name; guarded by mu
}

func (o *origin) note(a chunk.Access) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.asked = append(o.asked, a)
}

func (o *origin) block(ctx context.Context, index uint32) ([]byte, error) {
	if o.delay != nil {
		if err := o.delay(ctx); err != nil {
			return nil, err
		}
	}
	if o.err != nil {
		return nil, fmt.Errorf("get: %w", o.err)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.reads[index]++
	off, n := small.Bytes(int64(len(o.data)), chunk.Span{First: index, Count: 1})
	return o.data[off : off+n], nil
}

// copies returns how often the most read block was read, and how many reads there were.
func (o *origin) copies() (most, total int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, n := range o.reads {
		most = max(most, n)
		total += n
	}
	return most, total
}

// flight is one fetch of a chunk on one node, which others join.
type flight struct {
	source *chunk.Source
	owner  bool
	hops   int
	done   chan struct{}
	err    error // valid after done
}

// node is a toy of a cache on top of Peers and Server: it keeps every block, and has
// one flight a chunk.
type node struct {
	id     string
	ways   *ways
	origin *origin
	object chunk.Object
	peers  *Peers
	server *Server
	stop   func()
	spoil  func(*chunk.Piece) // damages what it lends
	mends  bool               // drops what was found damaged
	slow   func(ctx context.Context, index uint32) error
	ctx    context.Context // of flights: ends with the cluster
	end    func()
	flying sync.WaitGroup
	fill   bool // reads as one who brings the whole object to itself
	tar    func(context.Context, chunk.Object) ([]byte, error)

	mu       sync.Mutex
	kept     map[chunk.Object][]byte // indexes of tars that others gave; guarded by mu
	have     map[uint32][]byte       // guarded by mu
	came     chan struct{}           // closed and renewed when a block lands; guarded by mu
	flights  map[uint32]*flight      // by chunk; guarded by mu
	suspects []uint32                // guarded by mu
}

// read gets a chunk as a reader of this node does.
func (n *node) read(ctx context.Context, index uint32) ([]byte, error) {
	span := small.ChunkSpan(n.object.Size, index)
	var out []byte
	for b := span.First; b < span.End(); b++ {
		data, err := n.get(ctx, chunk.Request{Object: n.object, ID: n.object.ID(), Span: span, Background: n.fill, Fill: n.fill}, b)
		if err != nil {
			return nil, err
		}
		out = append(out, data...)
	}
	return out, nil
}

// get waits for one block, by a flight that serves such a request.
func (n *node) get(ctx context.Context, req chunk.Request, b uint32) ([]byte, error) {
	for {
		n.mu.Lock()
		data, came := n.have[b], n.came
		if data != nil {
			n.mu.Unlock()
			return data, nil
		}
		f := n.flights[small.ChunkOf(b)]
		if f != nil && req.From != "" && f.source.Member() == req.From && !f.owner {
			f = nil // it waits for the asker
		}
		if f != nil && req.From != "" && !req.HeldOnly && !f.owner && f.hops < req.Hops {
			f = nil // it asks in a wider circle than the asker's own would: as in package cache
		}
		if f != nil && req.Settled && !f.owner {
			f = nil // likewise
		}
		if f == nil {
			if req.HeldOnly {
				n.mu.Unlock()
				return nil, chunk.ErrNotHeld
			}
			f = n.fly(req)
		}
		n.mu.Unlock()
		select {
		case <-came:
		case <-f.done:
			n.mu.Lock()
			data := n.have[b]
			n.mu.Unlock()
			if data == nil && f.err != nil {
				return nil, f.err
			}
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// fly begins a flight for what the chunk lacks. Callers hold mu.
func (n *node) fly(req chunk.Request) *flight {
	index := small.ChunkOf(req.Span.First)
	span := req.Span
	f := &flight{hops: req.Hops, source: new(chunk.Source), done: make(chan struct{})}
	req.Source, req.HeldOnly = f.source, false
	f.owner = n.peers.Owned(req)
	n.flights[index] = f
	n.flying.Add(1)
	go func() {
		defer n.flying.Done()
		ctx, cancel := context.WithTimeout(n.ctx, 5*time.Minute)
		defer cancel()
		f.err = n.fetch(ctx, f, req, span)
		n.mu.Lock()
		if n.flights[index] == f {
			delete(n.flights, index)
		}
		n.mu.Unlock()
		close(f.done)
	}()
	return f
}

// HoldsAll implements transfer.Holder.
func (n *node) HoldsAll(_ chunk.Object, _ chunk.ObjectID, s chunk.Span) bool {
	for b := s.First; b < s.End(); b++ {
		if !n.holds(b) {
			return false
		}
	}
	return true
}

// fetch asks the peers for the first run of blocks that are missing, and then the
// origin for every one.
func (n *node) fetch(ctx context.Context, f *flight, req chunk.Request, span chunk.Span) error {
	for n.holds(span.First) && span.Count > 0 {
		span.First++
		span.Count--
	}
	if span.Count == 0 {
		return nil
	}
	req.Span = span
	err := n.peers.Fetch(ctx, req, func(b chunk.Block) error {
		n.land(b.Index, bytes.Clone(b.Data))
		return nil
	})
	if !errors.Is(err, chunk.ErrNotHeld) {
		return err
	}
	n.mu.Lock()
	f.owner = true
	n.mu.Unlock()
	n.origin.note(req.Access)
	for b := span.First; b < span.End(); b++ {
		if n.holds(b) {
			continue
		}
		data, err := n.origin.block(ctx, b)
		if err != nil {
			return err
		}
		n.land(b, data)
	}
	return nil
}

func (n *node) holds(block uint32) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.have[block] != nil
}

func (n *node) land(index uint32, data []byte) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.have[index] = data
	close(n.came)
	n.came = make(chan struct{})
}

// Lend implements chunk.Lender.
func (n *node) Lend(ctx context.Context, req chunk.Request, send func(chunk.Piece) error) (err error) {
	var lacking error
	leave := !req.HeldOnly && n.ways.Cut("") // as in package cache
	if leave {
		req.HeldOnly, req.Settled = true, true
		defer func() {
			if errors.Is(err, chunk.ErrNotHeld) {
				err = chunk.ErrNoRoute
			}
		}()
	}
	for b := req.Span.First; b < req.Span.End(); b++ {
		data, err := n.get(ctx, req, b)
		switch {
		case req.HeldOnly && errors.Is(err, chunk.ErrNotHeld):
			lacking = err
			continue
		case err != nil:
			return err
		}
		if n.slow != nil {
			if err := n.slow(ctx, b); err != nil {
				return err
			}
		}
		off := int64(b) * small.BlockBytes // of the checksum that the first reader computed
		p := chunk.Piece{Index: b, Len: len(data), CRC: chunk.Checksum(n.origin.data[off : off+int64(len(data))]), Data: data}
		if n.spoil != nil {
			n.spoil(&p)
		}
		if err := send(p); err != nil {
			return err
		}
	}
	return lacking
}

// Suspect implements chunk.Lender.
func (n *node) Suspect(_ chunk.ObjectID, block uint32) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.suspects = append(n.suspects, block)
	if n.mends {
		delete(n.have, block)
	}
}

// Head implements objstore.Names: whatever peers do not know is asked of the origin.
func (n *node) Head(ctx context.Context, q objstore.Query, key string) (objstore.Info, time.Duration, error) {
	info, age, err := n.peers.Head(ctx, q, key)
	if !errors.Is(err, chunk.ErrNotHeld) {
		return info, age, err
	}
	n.origin.note(q.Access)
	if n.origin.hang != nil {
		return info, 0, n.origin.hang(ctx)
	}
	n.origin.mu.Lock()
	defer n.origin.mu.Unlock()
	n.origin.heads++
	if n.origin.err != nil {
		return objstore.Info{}, time.Second, n.origin.err
	}
	return objstore.Info{Key: key, Size: 7, ETag: n.id}, time.Second, nil
}

// List implements objstore.Names.
func (n *node) List(ctx context.Context, q objstore.Query, req objstore.ListRequest) (objstore.Page, time.Duration, error) {
	page, age, err := n.peers.List(ctx, q, req)
	if !errors.Is(err, chunk.ErrNotHeld) {
		return page, age, err
	}
	n.origin.note(q.Access)
	if n.origin.hang != nil {
		return page, 0, n.origin.hang(ctx)
	}
	n.origin.mu.Lock()
	defer n.origin.mu.Unlock()
	n.origin.heads++
	return objstore.Page{Objects: []objstore.Info{{Key: req.Prefix + "\xff", Size: 1, ETag: n.id, ModTime: time.Unix(5, 6)}},
		Prefixes: []string{req.Prefix + "d/"}, Next: "\xfe" + req.Token}, 2 * time.Second, nil
}

// cluster is some nodes in one process. Everything that is asked for belongs to n0, then
// to n1 and so on, unless a test says otherwise.
type cluster struct {
	t       *testing.T
	net     *network
	origin  *origin
	object  chunk.Object
	members *Directory
	rings   map[string]*toyRing
	mu      sync.Mutex
	all     []*node          // that were ever started
	nodes   map[string]*node // changed under mu by the test's goroutine
	signer  *transfer.Signer
	logs    bytes.Buffer
}

func newCluster(t *testing.T, n, size int) *cluster {
	seed := uint64(size)
	r := rand.NewChaCha8([32]byte{byte(seed)})
	data := make([]byte, size)
	_, _ = r.Read(data)
	signer, err := transfer.NewSigner([][]byte{[]byte("0123456789abcdef0123456789abcdef")})
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{t: t, net: newNetwork(), origin: &origin{data: data, reads: map[uint32]int{}}, members: new(Directory),
		rings: map[string]*toyRing{}, nodes: map[string]*node{}, signer: signer,
		object: chunk.Object{Origin: "https://s3.example.com", Bucket: "b", Key: "ckpt", ETag: "e", Size: int64(size)}}
	var all []Member
	var owners []string
	for i := range n {
		id := fmt.Sprintf("n%d", i)
		all = append(all, Member{ID: id, Addr: id + ":1"})
		owners = append(owners, id)
	}
	c.members.Set(all)
	for _, id := range owners {
		c.rings[id] = &toyRing{owners: owners}
		c.start(id)
	}
	return c
}

// start starts a node with an empty cache.
func (c *cluster) start(id string) *node {
	c.t.Helper()
	n := &node{id: id, ways: new(ways), origin: c.origin, object: c.object, have: map[uint32][]byte{}, came: make(chan struct{}), flights: map[uint32]*flight{}}
	n.ctx, n.end = context.WithCancel(context.Background())
	logger := slog.New(slog.NewTextHandler(&lockedWriter{w: &c.logs}, nil)).With("node", id)
	stats := new(transfer.Stats)
	client := transfer.NewClient(transfer.ClientConfig{Self: id, Geometry: small, Signer: c.signer, Dial: c.net.dialer(id), Stats: stats, Logger: logger})
	peers, err := New(Config{Self: id, Geometry: small, Ring: c.rings[id], Members: c.members, Transfer: client, Signer: c.signer,
		Dial: c.net.dialer(id), Routes: n.ways, Logger: logger, Rand: rand.New(rand.NewPCG(1, 2)),
		Elsewhere: func(req chunk.Request, failed []string) (string, bool) { return n.server.Elsewhere(req, failed) }})
	if err != nil {
		c.t.Fatal(err)
	}
	n.peers = peers
	srv, err := NewServer(ServerConfig{Self: id, Geometry: small, Lender: n, Names: n, Members: c.members, Stats: peers.Stats(),
		Transfer: stats, Verifier: transfer.NewVerifier(c.signer), Logger: logger, Owned: peers.Owned, Routes: n.ways,
		Tars:   n,
		Forget: func(context.Context, objstore.Bucket, string) (int, error) { return 3, nil },
		Status: func(context.Context) ([]byte, error) { return []byte(`{"node":"` + id + `"}`), nil }})
	if err != nil {
		c.t.Fatal(err)
	}
	n.server = srv
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	l := c.net.listen(id + ":1")
	go func() { done <- srv.Run(ctx, l) }()
	n.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			c.t.Errorf("%s: %v", id, err)
		}
		if err := peers.Close(); err != nil {
			c.t.Errorf("%s: %v", id, err)
		}
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	c.nodes[id] = n
	c.all = append(c.all, n)
	return n
}

var logMu sync.Mutex

type lockedWriter struct{ w *bytes.Buffer }

func (l *lockedWriter) Write(p []byte) (int, error) {
	logMu.Lock()
	defer logMu.Unlock()
	return l.w.Write(p)
}

// stop ends every node.
func (c *cluster) stop() {
	for _, n := range c.all {
		n.end()
	}
	for _, n := range c.all {
		n.flying.Wait()
		n.stop()
	}
}

// readAll makes each node read the whole object, all at once, and compares.
func (c *cluster) readAll(ids ...string) {
	c.t.Helper()
	var wg sync.WaitGroup
	for _, id := range ids {
		wg.Go(func() { c.readObject(id) })
	}
	wg.Wait()
}

func (c *cluster) readObject(id string) {
	c.t.Helper()
	c.mu.Lock()
	n := c.nodes[id]
	c.mu.Unlock()
	for i := range small.Chunks(c.object.Size) {
		got, err := n.read(context.Background(), i)
		if err != nil {
			c.t.Errorf("%s reads chunk %d: %v", id, i, err)
			return
		}
		off := int64(i) * small.ChunkBytes
		if !bytes.Equal(got, c.origin.data[off:min(off+small.ChunkBytes, c.object.Size)]) {
			c.t.Errorf("%s reads chunk %d: other bytes", id, i)
		}
	}
}

func (c *cluster) ids() []string {
	var ids []string
	for _, m := range c.members.All() {
		ids = append(ids, m.ID)
	}
	slices.Sort(ids)
	return ids
}

// wantCopies fails unless the origin sent each block at most so often.
func (c *cluster) wantCopies(most, total int) {
	c.t.Helper()
	if m, n := c.origin.copies(); m > most || n > total {
		c.t.Errorf("a block left the origin %d times, %d blocks in all; want %d and %d", m, n, most, total)
		for id, n := range c.nodes {
			if s := n.peers.Stats(); s.NextCandidate.Load() > 0 || s.BreakerOpens.Load() > 0 || s.ActedAsOwner.Load() > 0 {
				c.t.Logf("%s: %d times the next candidate, %d breakers opened, %d times as owner, %d delegated, %d redirects refused", id, s.NextCandidate.Load(),
					s.BreakerOpens.Load(), s.ActedAsOwner.Load(), s.Delegated.Load(), s.RedirectsRefused.Load())
			}
		}
	}
}

var _ net.Listener = (*pipeListener)(nil)
