package demo

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/shardwell/shardwell/internal/control"
)

// How long nodes may take.
const (
	startTimeout = 20 * time.Second // to answer, and to know each other
	stopTimeout  = 10 * time.Second // to end by themselves
	pollInterval = 50 * time.Millisecond
	maxLogBytes  = 800 // of a log that is shown in an error
)

// cluster is the nodes of a demonstration.
type cluster struct {
	executable, dir, endpoint string
	secret                    string // path of the file
	all                       []*member
	warden                    *warden
}

// member is one node: a process, its places and its ports.
type member struct {
	name, dir           string
	mount, socket, log  string
	bind, peer, metrics string
	process             *exec.Cmd
	exited              chan struct{} // closed when the process has ended
	client              *control.Client
}

func newCluster(executable, dir, endpoint string) *cluster {
	return &cluster{executable: executable, dir: dir, endpoint: endpoint, secret: filepath.Join(dir, "secret"), warden: newWarden()}
}

// start runs n nodes, waits until they know each other, and mounts.
func (c *cluster) start(ctx context.Context, n int) error {
	secret := make([]byte, 32)
	_, _ = rand.Read(secret) // never fails
	if err := os.WriteFile(c.secret, []byte(hex.EncodeToString(secret)+"\n"), 0o600); err != nil {
		return err
	}
	ports, err := freePorts(3 * n)
	if err != nil {
		return fmt.Errorf("find free ports: %w", err)
	}
	for i := range n {
		m := &member{name: fmt.Sprintf("node-%d", i+1), exited: make(chan struct{})}
		m.dir = filepath.Join(c.dir, m.name)
		m.mount, m.socket, m.log = filepath.Join(m.dir, "mount"), filepath.Join(m.dir, "control.sock"), filepath.Join(m.dir, "log")
		m.bind, m.peer, m.metrics = ports[3*i], ports[3*i+1], ports[3*i+2]
		if err := c.launch(m); err != nil {
			return fmt.Errorf("start %s: %w", m.name, err)
		}
		c.all = append(c.all, m)
	}
	return c.join(ctx)
}

// join waits until all nodes know each other, and mounts.
func (c *cluster) join(ctx context.Context) error {
	timely, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for _, m := range c.all {
		if err := m.await(timely, len(c.all)); err != nil {
			return m.blame(ctx, "start", err)
		}
	}
	for _, m := range c.all {
		req := control.MountRequest{URI: "s3://" + bucketName + "/", Dir: m.mount}
		if _, err := m.client.Mount(timely, req); err != nil {
			return m.blame(ctx, "mount", err)
		}
	}
	return nil
}

// blame returns the end of ctx as the reason if it has ended, else that of m.
func (m *member) blame(ctx context.Context, what string, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return m.failed(what, err)
}

// launch starts the process of a node.
func (c *cluster) launch(m *member) error {
	if err := os.MkdirAll(m.mount, 0o700); err != nil {
		return err
	}
	log, err := os.Create(m.log)
	if err != nil {
		return err
	}
	defer log.Close() // the process has its own
	args := []string{
		"node", "--name", m.name, "--cache-dir", filepath.Join(m.dir, "cache"),
		"--bind", m.bind, "--peer-bind", m.peer, "--metrics-bind", m.metrics, "--control-socket", m.socket,
		"--secret-file", c.secret, "--endpoint", c.endpoint, "--region", "us-east-1", "--addressing", "path", "--anonymous",
		"--place-whole", "64Mi", // the checkpoint is to be owned chunk by chunk, as larger ones are
	}
	if len(c.all) > 0 {
		args = append(args, "--join", c.all[0].bind)
	}
	m.process = exec.Command(c.executable, args...)
	m.process.Env = cleanEnviron(os.Environ())
	m.process.Stdout, m.process.Stderr = log, log
	// A group of its own, so that Ctrl-C on the terminal reaches us alone and the
	// end has an order; and SIGTERM, on which a node unmounts, should we be killed.
	m.process.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	if err := c.warden.start(m.process); err != nil {
		return err
	}
	go func() {
		_ = m.process.Wait() // how it ended is in its log
		close(m.exited)
	}()
	return nil
}

// cleanEnviron drops variables that would configure a node otherwise than we do.
func cleanEnviron(environ []string) []string {
	var out []string
	for _, kv := range environ {
		upper := strings.ToUpper(kv)
		if !strings.HasPrefix(kv, "SHARDWELL_") && !strings.HasPrefix(kv, "AWS_") && !strings.HasPrefix(upper, "HTTP_PROXY=") {
			out = append(out, kv)
		}
	}
	return out
}

// await waits until the node answers and sees n members that are alive and own
// their share: before, the ring is not settled and who owns what may yet change.
func (m *member) await(ctx context.Context, n int) error {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		alive, err := m.alive(ctx)
		if alive == n {
			return nil
		}
		select {
		case <-tick.C:
		case <-m.exited:
			return errors.New("the process ended")
		case <-ctx.Done():
			if err == nil {
				err = fmt.Errorf("it sees %d of %d members", alive, n)
			}
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
	}
}

// alive returns how many members with a share the node sees.
func (m *member) alive(ctx context.Context) (int, error) {
	if m.client == nil {
		client, err := control.Dial(ctx, m.socket)
		if err != nil {
			return 0, err
		}
		m.client = client
	}
	st, err := m.client.Status(ctx)
	n := 0
	for _, other := range st.Members {
		if other.State == "alive" && other.OwnedShare > 0 {
			n++
		}
	}
	return n, err
}

// failed adds to an error the end of the node's log.
func (m *member) failed(what string, err error) error {
	log, _ := os.ReadFile(m.log)
	if len(log) > maxLogBytes {
		log = log[len(log)-maxLogBytes:]
	}
	if len(bytes.TrimSpace(log)) == 0 {
		return fmt.Errorf("%s of %s: %w", what, m.name, err)
	}
	return fmt.Errorf("%s of %s: %w; its log ends: %s", what, m.name, err, bytes.TrimSpace(log))
}

// end stops all processes: first asked, then told.
func (c *cluster) end() error {
	var errs []error
	for _, m := range c.all {
		if m.client != nil {
			_ = m.client.Close()
		}
		_ = m.process.Process.Signal(syscall.SIGTERM)
	}
	deadline := time.NewTimer(stopTimeout)
	defer deadline.Stop()
	late := false
	for _, m := range c.all {
		if !late {
			select {
			case <-m.exited:
				continue
			case <-deadline.C:
				late = true
			}
		}
		select {
		case <-m.exited:
			continue
		default:
		}
		errs = append(errs, m.failed("end", fmt.Errorf("not within %v of SIGTERM", stopTimeout)))
		_ = syscall.Kill(-m.process.Process.Pid, syscall.SIGKILL)
		takeAwayMounts(m.dir) // a process that waits for its own mount dies only then
		<-m.exited
	}
	c.warden.end()
	return errors.Join(errs...)
}

// freePorts returns n loopback addresses whose ports were free for TCP and UDP
// a moment ago.
func freePorts(n int) ([]string, error) {
	var out []string
	var open []interface{ Close() error }
	defer func() {
		for _, l := range open {
			_ = l.Close()
		}
	}()
	for len(out) < n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		open = append(open, l) // until all are found, so that none comes twice
		p, err := net.ListenPacket("udp", l.Addr().String())
		if err != nil {
			continue // taken by somebody's UDP
		}
		open = append(open, p)
		out = append(out, l.Addr().String())
	}
	return out, nil
}
