package cage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Host is one network namespace of a [Cage].
type Host struct {
	Name string
	IP   string // of eth0
	NS   string // as `ip netns` names it

	cage *Cage

	mu    sync.Mutex
	procs []*Process // guarded by mu
}

// Do runs f on a thread that is in the host's network namespace. Sockets that f
// opens stay there; goroutines that f starts do not run there.
func (h *Host) Do(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		home, err := enter(h.NS)
		if err != nil {
			done <- err // the thread ends with the goroutine
			return
		}
		err = f()
		if back := leave(home); back != nil {
			done <- errors.Join(err, back) // likewise: it must not serve others
			return
		}
		runtime.UnlockOSThread()
		done <- err
	}()
	return <-done
}

// enter moves the calling thread into a namespace and returns a descriptor of the one it was in.
func enter(ns string) (home int, err error) {
	home, err = unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("cage: own namespace: %w", err)
	}
	fd, err := unix.Open("/run/netns/"+ns, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err == nil {
		err = unix.Setns(fd, unix.CLONE_NEWNET)
		_ = unix.Close(fd)
	}
	if err != nil {
		_ = unix.Close(home)
		return -1, fmt.Errorf("cage: enter namespace %s: %w", ns, err)
	}
	return home, nil
}

func leave(home int) error {
	defer unix.Close(home)
	if err := unix.Setns(home, unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("cage: return to own namespace: %w", err)
	}
	return nil
}

// Listen opens a TCP listener in the host. addr is as for net.Listen; it may be
// served from any goroutine.
func (h *Host) Listen(addr string) (net.Listener, error) {
	var ln net.Listener
	err := h.Do(func() (err error) {
		ln, err = net.Listen("tcp4", addr)
		return err
	})
	return ln, err
}

// Dial connects from the host; addr must be a literal IPv4 address and port. It
// fits http.Transport's DialContext.
func (h *Host) Dial(ctx context.Context, _, addr string) (net.Conn, error) {
	var conn net.Conn
	err := h.Do(func() (err error) {
		d := net.Dialer{Timeout: 10 * time.Second}
		conn, err = d.DialContext(ctx, "tcp4", addr)
		return err
	})
	return conn, err
}

// Link is how an interface is shaped, the same in both directions.
type Link struct {
	RateMbit int // payload and headers; 0 removes the shaping
	QueueMS  int // the most that a packet waits; 0 means 50
}

// burstBytes lets tbf pass 2 ms at 500 Mbit/s at once; less costs rate when
// timers are late on a busy machine.
const burstBytes = 128 << 10

// Shape limits what the host sends and what it receives.
func (h *Host) Shape(l Link) error {
	if l.QueueMS == 0 {
		l.QueueMS = 50
	}
	for _, dev := range [][2]string{{h.NS, "eth0"}, {h.cage.bridge.NS, "p-" + h.Name}} {
		if l.RateMbit == 0 {
			_ = run("tc", "-n", dev[0], "qdisc", "del", "dev", dev[1], "root")
			continue
		}
		if err := l.shape(dev[0], dev[1]); err != nil {
			return err
		}
	}
	return nil
}

// shape limits what one interface sends.
func (l Link) shape(ns, dev string) error {
	return run("tc", "-n", ns, "qdisc", "replace", "dev", dev, "root", "tbf",
		"rate", fmt.Sprintf("%dmbit", l.RateMbit), "burst", strconv.Itoa(burstBytes),
		"latency", fmt.Sprintf("%dms", max(l.QueueMS, 1)))
}

// SetLink plugs the host's cable in or out.
func (h *Host) SetLink(up bool) error {
	state := "down"
	if up {
		state = "up"
	}
	return ip("-n", h.cage.bridge.NS, "link", "set", "p-"+h.Name, state)
}

// Bytes returns what has crossed the host's interface so far, headers included.
func (h *Host) Bytes() (received, sent int64, err error) { return h.bytes("eth0") }

func (h *Host) bytes(dev string) (received, sent int64, err error) {
	err = h.Do(func() error {
		data, err := os.ReadFile("/proc/thread-self/net/dev")
		if err != nil {
			return err
		}
		for line := range bytes.Lines(data) {
			name, counters, ok := bytes.Cut(bytes.TrimSpace(line), []byte(":"))
			f := bytes.Fields(counters)
			if !ok || string(name) != dev || len(f) < 9 {
				continue
			}
			received, err = strconv.ParseInt(string(f[0]), 10, 64)
			if err != nil {
				return err
			}
			sent, err = strconv.ParseInt(string(f[8]), 10, 64)
			return err
		}
		return fmt.Errorf("cage: host %s: no %s", h.Name, dev)
	})
	return received, sent, err
}
