package cluster

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/shardwell/shardwell/e2e/cage"
	"github.com/shardwell/shardwell/e2e/origin"
)

// Options of a cluster.
type Options struct {
	Nodes  int            // started by Start; more by AddNode
	Origin origin.Options // Bin is filled in
	// OriginLink and NodeLink shape the hosts' links; a zero rate leaves them as they are.
	OriginLink, NodeLink cage.Link
	CacheSize            string   // of each node's cache directory: "4Gi"; "" gives no size
	CacheSizes           []string // likewise, of the first, second … node, where they differ
	Flags                []string // for every node
	Env                  []string // likewise
	Keeper               bool     // each node has one, by which its mounts outlive it
	Cgroup               string   // directory of the control group that nodes run in, "" for none of their own
}

// Cluster is an origin and nodes that know each other.
type Cluster struct {
	Tools  Tools
	Cage   *cage.Cage
	Origin *origin.Origin
	Nodes  []*Node // in the order of their start; stopped ones stay in place

	opts   Options
	secret string // path of the secret file
}

// Start makes the network, the origin and the nodes, and returns when every
// node sees all others. Close must be called even after an error, if a
// cluster was returned with it.
func Start(opts Options) (*Cluster, error) {
	tools, err := Prepare()
	if err != nil {
		return nil, err
	}
	c := &Cluster{Tools: tools, opts: opts}
	if c.Cage, err = cage.New(); err != nil {
		return nil, err
	}
	c.Cage.KeepDir = os.Getenv("E2E_KEEP") != ""
	opts.Origin.Bin = tools.Versitygw
	if c.Origin, err = origin.Start(c.Cage, opts.Origin); err != nil {
		return c, err
	}
	if opts.OriginLink.RateMbit > 0 {
		if err := c.Origin.Host.Shape(opts.OriginLink); err != nil {
			return c, err
		}
	}
	c.secret = filepath.Join(c.Cage.Dir, "secret")
	random := make([]byte, 32)
	_, _ = rand.Read(random) // never fails
	if err := os.WriteFile(c.secret, []byte(hex.EncodeToString(random)+"\n"), 0o600); err != nil {
		return c, err
	}
	for range opts.Nodes {
		if _, err := c.AddNode(); err != nil {
			return c, err
		}
	}
	return c, c.WaitMembers(opts.Nodes)
}

// Close unmounts, ends all processes and removes everything.
func (c *Cluster) Close() error {
	var errs []error
	for _, n := range c.Nodes {
		for _, dir := range n.mounts {
			errs = append(errs, cage.Detach(dir))
		}
	}
	errs = append(errs, c.Cage.Close())
	if c.Origin != nil {
		errs = append(errs, c.Origin.Close())
	}
	return errors.Join(errs...)
}

// Logs returns the end of every process's log, for a failure's message.
func (c *Cluster) Logs(lines int) string {
	paths, _ := filepath.Glob(filepath.Join(c.Cage.Dir, "*.log"))
	var b strings.Builder
	for _, p := range paths {
		data, _ := os.ReadFile(p)
		all := strings.Split(strings.TrimRight(string(data), "\n"), "\n")
		fmt.Fprintf(&b, "--- %s\n%s\n", filepath.Base(p), strings.Join(all[max(0, len(all)-lines):], "\n"))
	}
	return b.String()
}

// Limits of waiting for the cluster.
const (
	membersWait = 60 * time.Second
	pollEvery   = 50 * time.Millisecond
)

// WaitMembers waits until every running node sees exactly n members alive and has
// them in its ring: all but those started with --no-owner own a share.
func (c *Cluster) WaitMembers(n int) error {
	deadline := time.Now().Add(membersWait)
	for {
		said := ""
		for _, node := range c.Nodes {
			if !node.Running() {
				continue
			}
			s, err := node.Status()
			if err != nil {
				said = fmt.Sprintf("%s: %v", node.Name, err)
				break
			}
			if alive, owners := s.Alive(), s.Owners(); alive != n || owners != c.owners() {
				said = fmt.Sprintf("%s sees %d members alive, %d owners: %+v", node.Name, alive, owners, s.Members)
				break
			}
		}
		if said == "" {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("cluster: not all see %d members after %v: %s", n, membersWait, said)
		}
		time.Sleep(pollEvery)
	}
}

// owners counts the running nodes that are to own a share.
func (c *Cluster) owners() int {
	count := 0
	for _, n := range c.Nodes {
		if n.Running() && !slices.Contains(n.flags, "--no-owner") {
			count++
		}
	}
	return count
}

// Bytes adds up the bytes of all running nodes, by source, as they count them.
func (c *Cluster) Bytes() (Bytes, error) {
	var sum Bytes
	for _, n := range c.Nodes {
		if !n.Running() {
			continue
		}
		s, err := n.Status()
		if err != nil {
			return sum, err
		}
		sum.Origin += s.Bytes.Origin
		sum.Peer += s.Bytes.Peer
		sum.Disk += s.Bytes.Disk
		sum.Memory += s.Bytes.Memory
		sum.PassthroughOpens += s.Bytes.PassthroughOpens
		sum.SentToPeers += s.Bytes.SentToPeers
		sum.FetchedFromOrigin += s.Bytes.FetchedFromOrigin
		sum.FetchedFromPeers += s.Bytes.FetchedFromPeers
	}
	return sum, nil
}
