// Package kube runs a real Kubernetes of one node: etcd, the API server, the
// controllers, the scheduler, the kubelet, containerd and runc, in namespaces of
// their own on a host of a cage.
//
// It promises that nothing of it outlives the process that started it, that each
// component can be killed and started alone, and that the node can be restarted
// with what it had. ../build.sh makes the programs. What runs in the cluster
// is left to the tests. It is a part of the end-to-end tests.
package kube

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/shardwell/shardwell/e2e/cage"
	"github.com/shardwell/shardwell/e2e/kubernetes/chart"
)

// NodeName is the name of the node in Kubernetes.
const NodeName = "node-1"

// Labels that the node joins with.
const (
	Zone = "zone-a" // topology.kubernetes.io/zone
	Rack = "rack-1" // example.com/rack
)

// podNet is the network of Pods.
const podNet = "10.244.0.0/24"

// startTime bounds the start of a node: 10 s on an idle machine.
const startTime = 5 * time.Minute

// Node is a cluster of one node.
type Node struct {
	Host *cage.Host
	Dir  string // state, logs

	scripts string
	proc    *cage.Process
}

// Components of a node, by the names of their processes.
const (
	Kubelet    = "kubelet"
	Containerd = "containerd"
	APIServer  = "kube-apiserver"
	Etcd       = "etcd"
)

// New makes a node in a host of its own, and starts it. images are archives that
// its runtime gets.
func New(c *cage.Cage, images ...string) (*Node, error) {
	root, err := chart.Root()
	if err != nil {
		return nil, err
	}
	n := &Node{Dir: filepath.Join(c.Dir, "kube"), scripts: filepath.Join(root, "e2e", "kubernetes", "kube")}
	if n.Host, err = c.Host("kube"); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Join(n.Dir, "img"), 0o755); err != nil {
		return nil, err
	}
	for _, image := range images {
		if err := os.Symlink(image, filepath.Join(n.Dir, "img", filepath.Base(image))); err != nil {
			return nil, err
		}
	}
	return n, n.Start()
}

// Reach lets another host of the cage answer to Pods.
func (n *Node) Reach(h *cage.Host) error {
	out, err := exec.Command("ip", "-n", h.NS, "route", "replace", podNet, "via", n.Host.IP).CombinedOutput()
	if err != nil {
		return fmt.Errorf("kube: route to Pods: %w: %s", err, out)
	}
	return nil
}

// Start starts the node, on what an earlier life of it left, and returns when it is ready.
func (n *Node) Start() error {
	var err error
	n.proc, err = n.Host.Start(cage.Command{Name: "node", Args: []string{"bash", filepath.Join(n.scripts, "start.sh")}, Env: n.env()})
	if err != nil {
		return err
	}
	deadline := time.Now().Add(startTime)
	for !n.is("holder.pid") || !n.is("ready") {
		if !n.proc.Running() || time.Now().After(deadline) {
			return fmt.Errorf("kube: the node did not come up:\n%s\n%s", n.proc.Output(), n.Logs(10))
		}
		if !n.is("holder.pid") {
			n.findHolder()
		}
		time.Sleep(50 * time.Millisecond)
	}
	return nil
}

func (n *Node) is(name string) bool {
	_, err := os.Stat(filepath.Join(n.Dir, "run", name))
	return err == nil
}

// findHolder writes down the node's first process, as this PID namespace numbers it.
func (n *Node) findHolder() {
	pid := strconv.Itoa(n.proc.Pid())
	children, _ := os.ReadFile(filepath.Join("/proc", pid, "task", pid, "children"))
	fields := bytes.Fields(children)
	if comm, _ := os.ReadFile(filepath.Join("/proc", pid, "comm")); len(fields) == 1 && strings.TrimSpace(string(comm)) == "unshare" {
		_ = os.WriteFile(filepath.Join(n.Dir, "run", "holder.pid"), fields[0], 0o600)
	}
}

// Stop ends the node at once, as a power cut would, and waits until nothing of it is left.
func (n *Node) Stop() error {
	if n.proc == nil {
		return nil
	}
	err := n.proc.Kill()
	text, _ := os.ReadFile(filepath.Join(n.Dir, "run", "cgroups"))
	deadline := time.Now().Add(30 * time.Second)
	for own := range strings.Lines(string(text)) {
		for !removeTree(strings.TrimSpace(own)) && time.Now().Before(deadline) {
			time.Sleep(50 * time.Millisecond) // the kernel is ending processes
		}
	}
	n.proc = nil
	return errors.Join(err, os.RemoveAll(filepath.Join(n.Dir, "run", "ready")))
}

// removeTree removes a cgroup with those below it, and reports whether it is gone.
func removeTree(dir string) bool {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return os.IsNotExist(err)
	}
	for _, e := range entries {
		if e.IsDir() {
			removeTree(filepath.Join(dir, e.Name()))
		}
	}
	return os.Remove(dir) == nil
}

func (n *Node) env() []string { return []string{"KUBE_DIR=" + n.Dir, "NODE_IP=" + n.Host.IP} }

// Command returns a command that runs inside the node, where kubectl, helm and ctr are.
func (n *Node) Command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "bash", append([]string{filepath.Join(n.scripts, "in.sh")}, args...)...)
	cmd.Env = append(os.Environ(), n.env()...)
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

// Run runs a command inside the node and returns its standard output. The error
// has what it said on standard error.
func (n *Node) Run(ctx context.Context, in io.Reader, args ...string) (string, error) {
	cmd := n.Command(ctx, args...)
	var out, said bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, &out, &said
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(said.String()))
	}
	return out.String(), nil
}

// KillComponent ends a component by SIGKILL.
func (n *Node) KillComponent(ctx context.Context, name string) error {
	pid, err := os.ReadFile(filepath.Join(n.Dir, "run", name+".pid"))
	if err != nil {
		return fmt.Errorf("kube: %w", err)
	}
	_, err = n.Run(ctx, nil, "kill", "-KILL", strings.TrimSpace(string(pid)))
	return err
}

// StartComponent starts a component that was killed.
func (n *Node) StartComponent(ctx context.Context, name string) error {
	_, err := n.Run(ctx, nil, "start_"+name)
	return err
}

// Logs returns the last lines of what each component said.
func (n *Node) Logs(lines int) string {
	var out strings.Builder
	files, _ := filepath.Glob(filepath.Join(n.Dir, "run", "log", "*.log"))
	for _, f := range files {
		text, _ := os.ReadFile(f)
		all := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
		fmt.Fprintf(&out, "==> %s\n%s\n", filepath.Base(f), strings.Join(all[max(0, len(all)-lines):], "\n"))
	}
	return out.String()
}
