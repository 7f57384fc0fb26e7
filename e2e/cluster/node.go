package cluster

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/shardwell/shardwell/e2e/cage"
	"github.com/shardwell/shardwell/e2e/origin"
)

// Ports of a node, the defaults of the product.
const (
	gossipPort  = 7946
	peerPort    = 7947
	metricsPort = 9400
)

// Node is one `shardwell node` in a host of its own.
type Node struct {
	Name     string
	Host     *cage.Host
	CacheDir string
	Socket   string
	Proc     *cage.Process // of the last start
	Keeper   *cage.Process // nil without one

	cluster *Cluster
	index   int // in Cluster.Nodes
	flags   []string
	mounts  []string
}

// AddNode makes a host and starts a node there that joins the first two hosts.
// flags go behind those of the cluster's options.
func (c *Cluster) AddNode(flags ...string) (*Node, error) {
	name := fmt.Sprintf("n%d", len(c.Nodes)+1)
	h, err := c.Cage.Host(name)
	if err != nil {
		return nil, err
	}
	if c.opts.NodeLink.RateMbit > 0 {
		if err := h.Shape(c.opts.NodeLink); err != nil {
			return nil, err
		}
	}
	dir := filepath.Join(c.Cage.Dir, name)
	n := &Node{
		Name: name, Host: h, cluster: c, index: len(c.Nodes), flags: flags,
		CacheDir: filepath.Join(dir, "cache"), Socket: filepath.Join(dir, "control.sock"),
	}
	if err := os.MkdirAll(n.CacheDir, 0o755); err != nil {
		return nil, err
	}
	c.Nodes = append(c.Nodes, n)
	if c.opts.Keeper {
		if err := n.StartKeeper(); err != nil {
			return n, err
		}
	}
	return n, n.Start()
}

func (n *Node) keeperSocket() string { return filepath.Join(filepath.Dir(n.Socket), "keeper.sock") }

// StartKeeper starts the keeper of the node, and waits until it takes connections.
func (n *Node) StartKeeper(flags ...string) (err error) {
	_ = os.Remove(n.keeperSocket())
	args := append([]string{n.cluster.Tools.Keeper, "--socket", n.keeperSocket()}, flags...)
	if n.Keeper, err = n.Host.Start(cage.Command{Name: "keeper", Args: args}); err != nil {
		return err
	}
	for deadline := time.Now().Add(startWait); ; time.Sleep(pollEvery) {
		if _, err := os.Stat(n.keeperSocket()); err == nil {
			return nil
		}
		if time.Now().After(deadline) || !n.Keeper.Running() {
			return fmt.Errorf("cluster: keeper of %s does not come:\n%s", n.Name, n.Keeper.Output())
		}
	}
}

// ReplaceKeeper kills the keeper, starts another, and waits until the node has deposited its
// mounts there.
func (n *Node) ReplaceKeeper(flags ...string) error {
	const said = "keeper: it holds the mounts from now on"
	before := strings.Count(n.Proc.Output(), said)
	if err := n.Keeper.Kill(); err != nil {
		return err
	}
	if err := n.StartKeeper(flags...); err != nil {
		return err
	}
	for deadline := time.Now().Add(startWait); strings.Count(n.Proc.Output(), said) == before; time.Sleep(pollEvery) {
		if time.Now().After(deadline) {
			return fmt.Errorf("cluster: node %s does not find its keeper again:\n%s", n.Name, n.Proc.Output())
		}
	}
	return nil
}

// End ends the node's process with SIGKILL and leaves its mounts to the keeper.
func (n *Node) End() error { return n.Proc.Kill() }

// startWait bounds the wait for a node to answer on its control socket.
const startWait = 30 * time.Second

// Start runs the node and waits until it answers. It is for a node that was stopped or killed.
func (n *Node) Start() error {
	if err := n.Launch(); err != nil {
		return err
	}
	deadline := time.Now().Add(startWait)
	for {
		_, err := n.Status()
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) || !n.Proc.Running() {
			return fmt.Errorf("cluster: node %s does not answer: %w\n%s", n.Name, err, n.Proc.Output())
		}
		time.Sleep(pollEvery)
	}
}

// Launch starts the process without waiting for it.
func (n *Node) Launch() error {
	c := n.cluster
	cacheDir := n.CacheDir
	size := c.opts.CacheSize
	if n.index < len(c.opts.CacheSizes) {
		size = c.opts.CacheSizes[n.index]
	}
	if size != "" {
		cacheDir += "=" + size
	}
	args := []string{
		c.Tools.Shardwell, "node", "--name", n.Name, "--cache-dir", cacheDir,
		"--bind", fmt.Sprintf("%s:%d", n.Host.IP, gossipPort),
		"--peer-bind", fmt.Sprintf("%s:%d", n.Host.IP, peerPort),
		"--metrics-bind", fmt.Sprintf("127.0.0.1:%d", metricsPort),
		"--secret-file", c.secret, "--control-socket", n.Socket,
		"--endpoint", c.Origin.Endpoint(), "--region", origin.Region, "--addressing", "path",
		"--background-fill", "off", // what is counted is what was caused; a test that wants it says so
	}
	var seeds []string
	for _, other := range c.Nodes[:min(2, len(c.Nodes))] {
		seeds = append(seeds, fmt.Sprintf("%s:%d", other.Host.IP, gossipPort))
	}
	args = append(args, "--join", strings.Join(seeds, ","))
	if n.Keeper != nil {
		args = append(args, "--keeper-socket", n.keeperSocket())
	}
	args = append(append(args, c.opts.Flags...), n.flags...)
	p, err := n.Host.Start(cage.Command{Name: "node", Args: args, Env: n.env(), Cgroup: c.opts.Cgroup})
	if err != nil {
		return err
	}
	n.Proc = p
	return nil
}

func (n *Node) env() []string {
	o := n.cluster.Origin
	return append([]string{
		"AWS_ACCESS_KEY_ID=" + o.AccessKey, "AWS_SECRET_ACCESS_KEY=" + o.SecretKey,
	}, n.cluster.opts.Env...)
}

// SetFlags changes the node's own flags for its next start.
func (n *Node) SetFlags(flags ...string) { n.flags = flags }

// Running reports whether the node's process runs.
func (n *Node) Running() bool { return n.Proc != nil && n.Proc.Running() }

// Kill ends the node with SIGKILL and frees its mounts.
func (n *Node) Kill() error {
	err := n.Proc.Kill()
	for _, dir := range n.mounts {
		_ = cage.Detach(dir)
	}
	n.mounts = nil
	return err
}

// stopWait bounds an orderly end.
const stopWait = 30 * time.Second

// Stop ends the node with SIGTERM; an exit code other than 0 is an error.
func (n *Node) Stop() error {
	code, err := n.Proc.Stop(stopWait)
	if err == nil && code != 0 {
		err = fmt.Errorf("cluster: node %s ended with %d:\n%s", n.Name, code, n.Proc.Output())
	}
	if n.Keeper != nil {
		return err // it has the mounts
	}
	for _, dir := range n.mounts {
		_ = cage.Detach(dir)
	}
	n.mounts = nil
	return err
}

// Result is what a command of the product said.
type Result struct {
	Code           int
	Stdout, Stderr string
}

// commandWait bounds a command of the product.
const commandWait = 60 * time.Second

// Run runs `shardwell ARGS` against this node's control socket, outside of any host's network.
func (n *Node) Run(args ...string) (Result, error) {
	return n.run(append(slices.Clone(args), "--control-socket", n.Socket))
}

// Verify runs `shardwell verify` on the node's cache directory.
func (n *Node) Verify(flags ...string) (Result, error) {
	return n.run(append([]string{"verify", n.CacheDir}, flags...))
}

// Command runs `shardwell ARGS` for a command that needs no node to answer.
func (n *Node) Command(args ...string) (Result, error) { return n.run(args) }

func (n *Node) run(args []string) (Result, error) {
	ctx, cancel := context.WithTimeout(context.Background(), commandWait)
	defer cancel()
	cmd := exec.CommandContext(ctx, n.cluster.Tools.Shardwell, args...)
	cmd.Env = append(os.Environ(), n.env()...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	r := Result{Stdout: stdout.String(), Stderr: stderr.String()}
	if cmd.ProcessState != nil {
		r.Code = cmd.ProcessState.ExitCode()
	}
	if err != nil {
		err = fmt.Errorf("shardwell %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(r.Stderr))
	}
	return r, err
}

// Mount mounts uri in a new directory and returns it.
func (n *Node) Mount(uri string, flags ...string) (string, error) {
	dir := filepath.Join(n.cluster.Cage.Dir, n.Name, fmt.Sprintf("mnt%d", len(n.mounts)+1))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	n.mounts = append(n.mounts, dir)
	if _, err := n.Run(append([]string{"mount", uri, dir}, flags...)...); err != nil {
		return "", err
	}
	if !cage.Mounted(dir) {
		return "", fmt.Errorf("cluster: node %s: mount succeeded, but nothing is mounted on %s", n.Name, dir)
	}
	return dir, nil
}

// Umount unmounts a directory that Mount returned.
func (n *Node) Umount(dir string) error {
	_, err := n.Run("umount", dir)
	if err == nil {
		n.mounts = slices.DeleteFunc(n.mounts, func(d string) bool { return d == dir })
	}
	return err
}

// Wipe empties the cache directory of a stopped node; it comes back with a new identity.
func (n *Node) Wipe() error {
	if err := os.RemoveAll(n.CacheDir); err != nil {
		return err
	}
	return os.MkdirAll(n.CacheDir, 0o755)
}

// CacheFile returns the data file of the only object of that size in the node's cache.
func (n *Node) CacheFile(size int64) (string, error) {
	files, err := filepath.Glob(filepath.Join(n.CacheDir, "objects", "*", "*.data"))
	if err != nil {
		return "", err
	}
	for _, f := range files {
		if info, err := os.Stat(f); err == nil && info.Size() == size {
			return f, nil
		}
	}
	return "", fmt.Errorf("cluster: node %s: no cache file of %d bytes among %d", n.Name, size, len(files))
}
