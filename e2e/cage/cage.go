// Package cage makes a small network of hosts out of Linux network namespaces
// on one bridge, runs processes in them, shapes their links and counts the bytes
// that cross them.
//
// It promises that nothing outlives the process that made it for long: processes
// die with it (PDEATHSIG), Close removes namespaces, and the next cage removes
// whatever a killed run left behind. The root namespace is not touched: the
// bridge lives in a namespace of its own. All hosts share this process's mount
// namespace, so that a mount made in one is seen by the test.
//
// It needs root and iproute2. It is a part of the end-to-end tests and knows
// nothing of what runs in it.
package cage

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
)

// prefix opens the name of every namespace and temporary directory: swe2e-PID-N-….
const prefix = "swe2e-"

// netMTU is what every link carries, as data centre defaults do.
const netMTU = 1500

// maxHosts bounds the hosts of a cage: one byte of the address, gateway-less.
const maxHosts = 200

// Cage is a network of hosts. Methods are safe for concurrent use.
type Cage struct {
	Dir string // of logs and files; removed by Close unless KeepDir is set

	KeepDir bool

	id     string // swe2e-PID-N
	bridge *Host

	mu    sync.Mutex
	hosts []*Host // guarded by mu
	plug  string  // the bridge that the next host is plugged into; guarded by mu
}

var serial atomic.Int64

// New makes an empty network. Temporary files go under os.TempDir.
func New() (*Cage, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("cage: network namespaces need root")
	}
	sweepOnce.Do(sweep)
	c := &Cage{plug: "br0", id: fmt.Sprintf("%s%d-%d", prefix, os.Getpid(), serial.Add(1))}
	c.Dir = filepath.Join(os.TempDir(), c.id)
	if err := os.MkdirAll(c.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("cage: %w", err)
	}
	b, err := c.namespace("br", "")
	if err != nil {
		return nil, err
	}
	c.bridge = b
	err = ip(
		"-n", b.NS, "link", "add", "br0", "type", "bridge", "mcast_snooping", "0",
	)
	if err == nil {
		err = ip("-n", b.NS, "link", "set", "br0", "up")
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// Host adds a host named name (at most 8 letters and digits) with the next free address.
func (c *Cage) Host(name string) (*Host, error) {
	c.mu.Lock()
	n, bridge := len(c.hosts)+1, c.plug
	c.mu.Unlock()
	if n > maxHosts {
		return nil, fmt.Errorf("cage: more than %d hosts", maxHosts)
	}
	h, err := c.namespace(name, fmt.Sprintf("10.77.0.%d", n))
	if err != nil {
		return nil, err
	}
	port := "p-" + name
	err = ip("-n", c.bridge.NS, "link", "add", port, "mtu", strconv.Itoa(netMTU), "type", "veth",
		"peer", "name", "eth0", "mtu", strconv.Itoa(netMTU), "netns", h.NS)
	for _, args := range [][]string{
		{"-n", c.bridge.NS, "link", "set", port, "master", bridge, "up"},
		{"-n", h.NS, "addr", "add", h.IP + "/16", "dev", "eth0"},
		{"-n", h.NS, "link", "set", "eth0", "up"},
	} {
		if err == nil {
			err = ip(args...)
		}
	}
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	c.hosts = append(c.hosts, h)
	c.mu.Unlock()
	return h, nil
}

// Rack makes a second bridge, which one link joins to the first, and has the hosts that are
// made from now on plugged into it.
func (c *Cage) Rack(l Link) error {
	ns := c.bridge.NS
	for _, args := range [][]string{
		{"link", "add", "br1", "type", "bridge", "mcast_snooping", "0"},
		{"link", "set", "br1", "up"},
		{"link", "add", "x0", "mtu", strconv.Itoa(netMTU), "type", "veth", "peer", "name", "x1", "mtu", strconv.Itoa(netMTU)},
		{"link", "set", "x0", "master", "br0", "up"},
		{"link", "set", "x1", "master", "br1", "up"},
	} {
		if err := ip(append([]string{"-n", ns}, args...)...); err != nil {
			return err
		}
	}
	for _, dev := range []string{"x0", "x1"} {
		if err := l.shape(ns, dev); err != nil {
			return err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.plug = "br1"
	return nil
}

// RackBytes returns what has crossed the link of the second bridge so far.
func (c *Cage) RackBytes() (in, out int64, err error) { return c.bridge.bytes("x1") }

// namespace makes a network namespace whose loopback is up.
func (c *Cage) namespace(name, addr string) (*Host, error) {
	h := &Host{Name: name, IP: addr, NS: c.id + "-" + name, cage: c}
	if err := ip("netns", "add", h.NS); err != nil {
		return nil, err
	}
	if err := ip("-n", h.NS, "link", "set", "lo", "up"); err != nil {
		return nil, err
	}
	return h, nil
}

// Close ends every process of the cage and removes namespaces and files.
// Mounts below Dir are detached first.
func (c *Cage) Close() error {
	c.mu.Lock()
	hosts := c.hosts
	c.hosts = nil
	c.mu.Unlock()
	var errs []error
	for _, h := range hosts {
		errs = append(errs, h.stopAll())
	}
	errs = append(errs, detachBelow(c.Dir))
	if c.bridge != nil {
		hosts = append(hosts, c.bridge)
	}
	for _, h := range hosts {
		errs = append(errs, ip("netns", "del", h.NS))
	}
	if !c.KeepDir {
		errs = append(errs, os.RemoveAll(c.Dir))
	}
	return errors.Join(errs...)
}

// ip runs iproute2's ip.
func ip(args ...string) error { return run("ip", args...) }

func run(name string, args ...string) error {
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("cage: %s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}
