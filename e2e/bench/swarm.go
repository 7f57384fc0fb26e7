package main

import (
	"context"
	"crypto/sha1"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/shardwell/shardwell/e2e/cage"
	"github.com/shardwell/shardwell/e2e/cluster"
	"github.com/shardwell/shardwell/e2e/dataset"
)

// Bounds of a swarm's run.
const (
	swarmPort  = 6969 // of the tracker and the web seed, at the origin
	swarmReady = time.Minute
	swarmPoll  = 20 * time.Millisecond
)

// swarmKind is one existing way to bring a file to many nodes at once.
type swarmKind struct {
	name    string
	piece   int64
	webSeed bool // the origin is a web server, not a member
	member  func(x *broadcaster, m swarmMember) []string
}

// swarmMember is one process.
type swarmMember struct {
	torrent, dir, ready, done, address string
	seed                               bool
}

// swarmKinds are the swarms that are compared, each at settings that were the best of those tried.
var swarmKinds = []swarmKind{
	{"aria2", 1 << 20, false, aria2},
	{"aria2_small_pieces", 256 << 10, false, aria2},
	{"aria2_web_seed", 1 << 20, true, aria2},
	{"libtorrent", 1 << 20, false, libtorrent},
}

func aria2(_ *broadcaster, m swarmMember) []string {
	hook := filepath.Join(filepath.Dir(m.done), "hook-"+filepath.Base(m.done))
	// aria2 calls it with three arguments of its own.
	_ = os.WriteFile(hook, fmt.Appendf(nil, "#!/bin/sh\n: > %s\n", m.done), 0o755)
	args := []string{"aria2c", "--dir=" + m.dir, "--seed-ratio=0.0", "--bt-max-peers=0", "--enable-dht=false", "--enable-dht6=false", "--bt-enable-lpd=false",
		"--enable-peer-exchange=true", "--file-allocation=none", "--listen-port=6881", "--bt-request-peer-speed-limit=1000M", "--bt-tracker-interval=2",
		"--disk-cache=64M", "--max-connection-per-server=16", "--split=16", "--min-split-size=1M", "--console-log-level=warn", "--summary-interval=0",
		"--no-conf=true", "--bt-hash-check-seed=true", "--on-bt-download-complete=" + hook}
	if m.seed {
		args = append(args, "--bt-seed-unverified=true", "--allow-overwrite=true")
	}
	return append(args, m.torrent)
}

func libtorrent(x *broadcaster, m swarmMember) []string {
	args := []string{"/usr/bin/python3", filepath.Join(x.c.Tools.Scripts, "swarm.py"), m.torrent, m.dir, m.ready, m.done, "--address", m.address}
	if m.seed {
		args = append(args, "--seed")
	}
	return args
}

// swarmRun is what one swarm did.
type swarmRun struct {
	T            time.Duration
	OriginCopies float64 // bytes at the origin's interface / S
	Sent         []int64 // bytes at the nodes' interfaces
}

// broadcastSwarm has eight nodes bring one object to themselves by the product, by existing swarms and each by
// itself, in one cage.
func (b *bench) broadcastSwarm() error {
	if _, err := exec.LookPath("aria2c"); err != nil {
		return fmt.Errorf("%w: run e2e/setup aria2 python3-libtorrent", err)
	}
	return b.broadcastIn(8, cluster.Options{}, func(x *broadcaster) error {
		var ours, naive, versus, versusNaive []float64
		swarms := map[string][]swarmRun{}
		bounds := []float64{}
		for round := range b.rounds {
			k, err := x.run(nodes(8), nil)
			if err != nil {
				return err
			}
			ours, bounds = append(ours, k.T.Seconds()), append(bounds, float64(x.size)/k.Goodput)
			best := 0.0
			for _, kind := range swarmKinds {
				r, err := x.swarm(kind)
				if err != nil {
					return fmt.Errorf("%s: %w", kind.name, err)
				}
				say("%s: T %.1f s, %.2f of S/B, %.2f copies left the origin", kind.name, r.T.Seconds(), float64(x.size)/k.Goodput/r.T.Seconds(), r.OriginCopies)
				swarms[kind.name] = append(swarms[kind.name], r)
				if t := r.T.Seconds(); best == 0 || t < best {
					best = t
				}
			}
			versus = append(versus, best/k.T.Seconds())
			if round > 0 {
				continue // it takes as long as all others together, and is the same each time
			}
			t, err := x.naive()
			if err != nil {
				return err
			}
			naive, versusNaive = append(naive, t.Seconds()), append(versusNaive, t.Seconds()/k.T.Seconds())
		}
		evidence := map[string]any{"boundSeconds": bounds, "ourSeconds": ours, "swarms": swarms, "naiveSeconds": naive, "objectBytes": x.size, "mbit": b.mbit}
		b.emit("broadcast_vs_swarm", versus, evidence, "T of the best swarm / our T, 8 nodes, the same cage and run; reach 1.5")
		b.emit("broadcast_vs_naive", versusNaive, nil, "T of eight nodes that each read the origin / our T")
		return nil
	})
}

// naive has each node read the object that was broadcast last from the origin by itself.
func (x *broadcaster) naive() (time.Duration, error) {
	url, err := x.c.Origin.Presign(context.Background(), bucket, fmt.Sprintf("cast%d/ckpt", x.serial))
	if err != nil {
		return 0, err
	}
	t, err := atOnce(len(x.c.Nodes), func(i int) error { return getWhole(clientOf(x.c.Nodes[i].Host), url, 0, x.size) })
	say("each node by itself: T %.1f s", t.Seconds())
	return t, err
}

// swarm has a swarm bring the object that was broadcast last to all nodes.
func (x *broadcaster) swarm(kind swarmKind) (r swarmRun, err error) {
	data := dataset.Random{Seed: seed + uint64(x.serial), Size: x.size}
	dir, err := os.MkdirTemp(x.c.Cage.Dir, "swarm-")
	if err != nil {
		return r, err
	}
	defer os.RemoveAll(dir)
	server, err := x.serveSwarm(dir)
	if err != nil {
		return r, err
	}
	defer server.Close()
	torrent := filepath.Join(dir, "ckpt.torrent")
	if err := x.writeTorrent(torrent, filepath.Join(dir, "seed"), data, kind); err != nil {
		return r, err
	}
	ready := filepath.Join(dir, "go")
	if !kind.webSeed {
		m := swarmMember{torrent, filepath.Join(dir, "seed"), torrent, filepath.Join(dir, "seed-done"), x.c.Origin.Host.IP, true}
		p, err := x.c.Origin.Host.Start(cage.Command{Name: "swarm", Args: kind.member(x, m)})
		if err != nil {
			return r, err
		}
		defer p.Kill()
		if err := await(swarmReady, func() bool { return announced(server, m.address) }); err != nil {
			return r, fmt.Errorf("the seed: %w: %s", err, p.Output())
		}
	}
	_, wire, err := x.c.Origin.Host.Bytes()
	if err != nil {
		return r, err
	}
	_, before, err := x.counters()
	if err != nil {
		return r, err
	}
	members, err := x.startSwarm(kind, dir, torrent, ready)
	for _, p := range members {
		defer p.Kill()
	}
	if err != nil {
		return r, err
	}
	begin := time.Now()
	if err := os.WriteFile(ready, nil, 0o644); err != nil {
		return r, err
	}
	limit := time.Duration(broadcastWait*float64(x.size)/(float64(x.b.mbit)*1e6/8)) * time.Second
	for i := range x.c.Nodes {
		done := filepath.Join(dir, fmt.Sprintf("done-%d", i))
		if err := await(limit, func() bool { _, err := os.Stat(done); return err == nil }); err != nil {
			return r, fmt.Errorf("node %d: %w: %s", i, err, members[i].Output())
		}
	}
	r.T = time.Since(begin)
	_, after, err := x.c.Origin.Host.Bytes()
	if err != nil {
		return r, err
	}
	r.OriginCopies = float64(after-wire) / float64(x.size)
	_, sent, err := x.counters()
	if err != nil {
		return r, err
	}
	for i := range sent {
		r.Sent = append(r.Sent, sent[i]-before[i])
	}
	return r, dataset.CompareFile(filepath.Join(dir, "node-0", "ckpt"), data)
}

// startSwarm starts the members in the nodes' hosts. Those of libtorrent wait for the file ready; aria2
// begins at once, which takes it some milliseconds.
func (x *broadcaster) startSwarm(kind swarmKind, dir, torrent, ready string) (members []*cage.Process, err error) {
	for i, n := range x.c.Nodes {
		m := swarmMember{torrent, filepath.Join(dir, fmt.Sprintf("node-%d", i)), ready, filepath.Join(dir, fmt.Sprintf("done-%d", i)), n.Host.IP, false}
		if err := os.Mkdir(m.dir, 0o755); err != nil {
			return members, err
		}
		p, err := n.Host.Start(cage.Command{Name: "swarm" + filepath.Base(dir), Args: kind.member(x, m)})
		if err != nil {
			return members, err
		}
		members = append(members, p)
	}
	if !strings.HasPrefix(kind.name, "libtorrent") {
		return members, nil
	}
	for _, p := range members {
		if err := await(swarmReady, func() bool { return strings.Contains(p.Output(), "ready") }); err != nil {
			return members, fmt.Errorf("%w: %s", err, p.Output())
		}
	}
	return members, nil
}

// await polls.
func await(limit time.Duration, f func() bool) error {
	for deadline := time.Now().Add(limit); !f(); time.Sleep(swarmPoll) {
		if time.Now().After(deadline) {
			return errors.New("not done in time")
		}
	}
	return nil
}

// swarmServer is the tracker and the web seed.
type swarmServer struct {
	http.Server
	mu    sync.Mutex
	peers map[string]uint16 // ports by address; guarded by mu
}

func announced(s *swarmServer, address string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.peers[address] != 0
}

// serveSwarm begins to serve below dir/seed, and as a tracker, at the origin.
func (x *broadcaster) serveSwarm(dir string) (*swarmServer, error) {
	s := &swarmServer{peers: map[string]uint16{}}
	mux := http.NewServeMux()
	mux.HandleFunc("/announce", s.announce)
	mux.Handle("/", http.FileServer(http.Dir(filepath.Join(dir, "seed"))))
	s.Handler = mux
	l, err := x.c.Origin.Host.Listen(":" + strconv.Itoa(swarmPort))
	if err != nil {
		return nil, err
	}
	go s.Serve(l)
	return s, os.Mkdir(filepath.Join(dir, "seed"), 0o755)
}

// announce answers a member with all others (BEP 3, 23).
func (s *swarmServer) announce(w http.ResponseWriter, r *http.Request) {
	host, _, _ := net.SplitHostPort(r.RemoteAddr)
	port, _ := strconv.ParseUint(r.FormValue("port"), 10, 16)
	s.mu.Lock()
	defer s.mu.Unlock()
	var others []byte
	for addr, p := range s.peers {
		if addr != host {
			others = binary.BigEndian.AppendUint16(append(others, net.ParseIP(addr).To4()...), p)
		}
	}
	s.peers[host] = uint16(port)
	fmt.Fprintf(w, "d8:intervali2e12:min intervali1e5:peers%d:%se", len(others), others)
}

// writeTorrent writes the object into a directory and a torrent of it (BEP 3, 19).
func (x *broadcaster) writeTorrent(path, dir string, data dataset.Random, kind swarmKind) error {
	f, err := os.Create(filepath.Join(dir, "ckpt"))
	if err != nil {
		return err
	}
	defer f.Close()
	var pieces []byte
	for r := data.Reader(); ; {
		sum := sha1.New()
		n, err := io.CopyN(io.MultiWriter(f, sum), r, kind.piece)
		if err != nil && err != io.EOF {
			return err
		}
		if n == 0 {
			break
		}
		pieces = sum.Sum(pieces)
	}
	at := fmt.Sprintf("http://%s:%d/", x.c.Origin.Host.IP, swarmPort)
	out := fmt.Sprintf("d8:announce%d:%sannounce4:infod6:lengthi%de4:name4:ckpt12:piece lengthi%de6:pieces%d:%se", len(at)+len("announce"), at, x.size, kind.piece, len(pieces), pieces)
	if kind.webSeed {
		out += fmt.Sprintf("8:url-list%d:%sckpt", len(at)+len("ckpt"), at)
	}
	return os.WriteFile(path, []byte(out+"e"), 0o644)
}
