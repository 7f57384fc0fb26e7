package member

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/peer/member/membertest"
)

// cluster is a number of members on one network in memory.
type cluster struct {
	t     *testing.T
	net   *membertest.Network
	nodes []*node
	log   lockedBuffer
}

// node is one member and what it was told last.
type node struct {
	*Group
	cfg  Config
	addr netip.AddrPort
	stop context.CancelFunc
	done chan struct{}

	mu     sync.Mutex
	latest []Member
	calls  int
	tables int    // different placements since the start
	table  string // what placement depends on: ids, weights and who owns
}

// lockedBuffer collects log lines.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func newCluster(t *testing.T) *cluster {
	seed := rand.Uint64()
	t.Logf("seed of the network's losses: %d", seed)
	return &cluster{t: t, net: membertest.New(seed, time.Millisecond)}
}

// config returns what members of these tests have alike, with the first node's address to join.
func (c *cluster) config(id string) Config {
	cfg := Config{
		ID: id, Name: "host-" + id, PeerPort: 7000, BindPort: membertest.Port,
		Keys:     [][]byte{bytes.Repeat([]byte{7}, 32)},
		Geometry: chunk.DefaultGeometry(), PlaceWhole: 1 << 30, ProtocolMin: 1, ProtocolMax: 1,
		Logger: slog.New(slog.NewTextHandler(&c.log, nil)),
	}
	if len(c.nodes) > 0 {
		cfg.Join = []string{c.nodes[0].addr.String()}
	}
	return cfg
}

// start runs a member at addr.
func (c *cluster) start(cfg Config, addr netip.AddrPort) *node {
	c.t.Helper()
	n := &node{cfg: cfg, addr: addr, done: make(chan struct{})}
	cfg.Transport = c.net.Listen(addr)
	cfg.OnChange = n.onChange
	g, err := New(cfg)
	if err != nil {
		c.t.Fatal(err)
	}
	n.Group = g
	ctx, cancel := context.WithCancel(context.Background())
	n.stop = cancel
	go func() {
		defer close(n.done)
		if err := g.Run(ctx); err != nil {
			c.t.Error(err)
		}
	}()
	return n
}

// add starts a new member and keeps it in c.nodes.
func (c *cluster) add(id string) *node {
	n := c.start(c.config(id), c.net.Addr())
	c.nodes = append(c.nodes, n)
	return n
}

func (c *cluster) addMany(count int) {
	for i := range count {
		c.add(fmt.Sprintf("id-%03d", i))
	}
}

// stopAll ends all members, which a bubble waits for.
func (c *cluster) stopAll() {
	for _, n := range c.nodes {
		n.stop()
	}
	for _, n := range c.nodes {
		<-n.done
	}
	// memberlist's own goroutines end in the bubble's time, which stands still once the test returns.
	time.Sleep(time.Minute)
}

// crash ends a member as kill -9 would.
func (n *node) crash() {
	n.Group.Close()
	n.stop()
	<-n.done
}

// restart stops a member in good order, calls meanwhile, and starts it at addr.
func (c *cluster) restart(i int, addr netip.AddrPort, meanwhile func()) {
	old := c.nodes[i]
	old.stop()
	<-old.done
	meanwhile()
	cfg := old.cfg
	cfg.Join = []string{c.nodes[(i+1)%len(c.nodes)].addr.String()}
	c.nodes[i] = c.start(cfg, addr)
}

func (n *node) onChange(list []Member) {
	var table strings.Builder
	for _, m := range list {
		if !m.NoOwner {
			fmt.Fprintf(&table, "%s*%d ", m.ID, m.Weight)
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.table != table.String() {
		n.tables++
	}
	n.latest, n.table = list, table.String()
	n.calls++
}

// state returns how the node sees the member of that id; "" when it does not.
func (n *node) state(id string) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, m := range n.latest {
		if m.ID == id {
			return m.State.String()
		}
	}
	return ""
}

func (n *node) seen() (members, calls, tables int, table string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.latest), n.calls, n.tables, n.table
}

// agree fails the test unless all nodes have count members and one table.
func (c *cluster) agree(count int, nodes ...*node) {
	c.t.Helper()
	if nodes == nil {
		nodes = c.nodes
	}
	_, _, _, first := nodes[0].seen()
	for _, n := range nodes {
		if members, _, _, print := n.seen(); members != count || print != first {
			c.t.Errorf("%s knows %d members, want %d; table %s, the first node has %s", n.cfg.ID, members, count, print, first)
		}
	}
}

// eventually waits, in the bubble's time, until ok holds, and returns how long that took.
func (c *cluster) eventually(limit time.Duration, what string, ok func() bool) time.Duration {
	c.t.Helper()
	start := time.Now()
	for !ok() {
		if time.Since(start) > limit {
			c.t.Fatalf("%s: not within %s", what, limit)
		}
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
	}
	return time.Since(start)
}

// allSee reports whether all the other nodes see id in that state.
func (c *cluster) allSee(id, state string) func() bool {
	return func() bool {
		for _, n := range c.nodes {
			if n.cfg.ID != id && n.state(id) != state {
				return false
			}
		}
		return true
	}
}

// allKnow reports whether all nodes have count members.
func (c *cluster) allKnow(count int) func() bool {
	return func() bool {
		for _, n := range c.nodes {
			if members, _, _, _ := n.seen(); members != count {
				return false
			}
		}
		return true
	}
}

func (c *cluster) logHas(parts ...string) bool {
	for line := range strings.Lines(c.log.String()) {
		all := true
		for _, p := range parts {
			all = all && strings.Contains(line, p)
		}
		if all {
			return true
		}
	}
	return false
}
