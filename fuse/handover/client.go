package handover

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// ErrNoKeeper says that no keeper answers.
var ErrNoKeeper = errors.New("no keeper")

// askPatience bounds a question to a keeper, which answers from memory; a mount walks a path.
const askPatience = 30 * time.Second

// How long and how often a keeper is tried that takes no connection at once.
const (
	connectPatience = 10 * time.Second
	connectPause    = 20 * time.Millisecond
)

// Client is a server's connection to its keeper. The keeper takes its end for the
// end of the server, so it is closed last of all. Methods are safe for concurrent use.
type Client struct {
	packets
	socket  string
	yield   chan struct{} // closed when another server wants to take over
	gone    chan struct{} // closed when the connection has ended, also by Close
	reading sync.WaitGroup
	closing sync.Once

	mu     sync.Mutex // held from queueing a question to having sent it
	asking []*question
}

// question is one that is not answered yet. Answers come in the order of questions; one that
// nobody waits for any more is still to come, and is not another's.
type question struct {
	message
	left int           // messages of the answer that are to come, once the first has come; the reader's
	got  chan message  // the answer
	quit chan struct{} // closed when nobody waits for it
}

// Dial connects to the keeper behind a socket; name is how it calls this server in its log.
// The error matches ErrNoKeeper when there is none.
func Dial(socket, name string) (*Client, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("keeper %s: %w", socket, err)
	}
	if err := connect(fd, socket); err != nil {
		_ = unix.Close(fd)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ECONNREFUSED) {
			return nil, fmt.Errorf("keeper %s: %w: %w", socket, ErrNoKeeper, err)
		}
		return nil, fmt.Errorf("keeper %s: %w", socket, err)
	}
	c := &Client{
		packets: packets{fileOf(fd, socket)}, socket: socket,
		yield: make(chan struct{}), gone: make(chan struct{}),
	}
	c.reading.Go(c.read)
	if _, err := c.call(message{op: opHello, texts: []string{name}}); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// connect waits for a keeper that has more connections to take than it comes to: it is there, and
// may hold mounts.
func connect(fd int, socket string) error {
	for end := time.Now().Add(connectPatience); ; {
		err := unix.Connect(fd, &unix.SockaddrUnix{Name: socket})
		switch {
		case errors.Is(err, unix.EINTR):
		case !errors.Is(err, unix.EAGAIN):
			return err
		case time.Now().After(end):
			return fmt.Errorf("it takes no connections: %w", err)
		default:
			time.Sleep(connectPause)
		}
	}
}

// read passes on what comes until the connection ends.
func (c *Client) read() {
	defer close(c.gone)
	told := false
	for {
		m, err := c.receive()
		if err != nil {
			return
		}
		if m.op == opYield {
			if !told {
				told = true
				close(c.yield)
			}
			continue
		}
		q := c.answered(m)
		if q == nil { // nobody ever asked
			m.closeFiles()
			_ = c.f.Close()
			return
		}
		select {
		case q.got <- m:
		case <-q.quit:
			c.undo(q, m)
		}
	}
}

// answered returns whose answer m is, or is a part of.
func (c *Client) answered(m message) *question {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.asking) == 0 {
		return nil
	}
	q := c.asking[0]
	if q.left == 0 {
		q.left = 1
		if m.op == opDone && (q.op == opLook || q.op == opClaim) {
			q.left += int(m.n)
		}
	}
	if q.left--; q.left == 0 {
		c.asking = c.asking[1:]
	}
	return q
}

// undo takes back what a keeper did for somebody who does not wait any more: a mount that it
// has and nobody knows of would be given up by it.
func (c *Client) undo(q *question, m message) {
	m.closeFiles()
	if m.op != opDone || q.op != opMount && q.op != opDeposit {
		return
	}
	if q.op == opMount {
		if device, err := deviceOf(q.text(0)); err == nil && device == m.text(0) {
			_ = unix.Unmount(q.text(0), unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH)
		}
	}
	if drop, err := c.put(message{op: opDrop, id: m.id}); err == nil {
		close(drop.quit)
	}
}

// put asks a question. Whoever did closes quit.
func (c *Client) put(m message) (*question, error) {
	q := &question{message: m, got: make(chan message), quit: make(chan struct{})}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asking = append(c.asking, q)
	if err := c.send(m); err != nil {
		c.asking = c.asking[:len(c.asking)-1]
		return nil, c.failed(err)
	}
	return q, nil
}

// Yield is closed when another server wants to take over: this one is to end.
func (c *Client) Yield() <-chan struct{} { return c.yield }

// Gone is closed when the keeper is, or Close was called.
func (c *Client) Gone() <-chan struct{} { return c.gone }

// Close ends the connection: what this server has claimed goes to the next. It does not
// serve any more by then.
func (c *Client) Close() {
	c.closing.Do(func() {
		_ = c.f.Close()
		c.reading.Wait()
	})
}

// call asks a question that is answered at once.
func (c *Client) call(m message) (message, error) {
	ctx, cancel := context.WithTimeout(context.Background(), askPatience)
	defer cancel()
	q, err := c.put(m)
	if err != nil {
		return message{}, err
	}
	defer close(q.quit)
	return c.next(ctx, q)
}

// next returns the next message of an answer.
func (c *Client) next(ctx context.Context, q *question) (message, error) {
	select {
	case m := <-q.got:
		if m.op == opFailed {
			m.closeFiles()
			return message{}, errors.New(m.text(0))
		}
		return m, nil
	case <-c.gone:
		return message{}, c.failed(errors.New("it has ended"))
	case <-ctx.Done():
		return message{}, c.failed(fmt.Errorf("no answer: %w", ctx.Err()))
	}
}

func (c *Client) failed(err error) error { return fmt.Errorf("keeper %s: %w", c.socket, err) }

// Look returns what the keeper holds, without the kernel's ends: to see whether this
// program could go on with it. Their servers may be at work.
func (c *Client) Look() ([]Session, error) {
	ctx, cancel := context.WithTimeout(context.Background(), askPatience)
	defer cancel()
	return c.sessions(ctx, message{op: opLook}, false)
}

// Claim waits until no other process is the server and returns what the keeper holds. With
// replace it has the server asked to end. After an error the Client is of no use.
func (c *Client) Claim(ctx context.Context, replace bool) ([]Session, error) {
	m := message{op: opClaim}
	if replace {
		m.n = 1
	}
	return c.sessions(ctx, m, true)
}

// sessions asks for sessions and takes them.
func (c *Client) sessions(ctx context.Context, m message, with bool) (all []Session, err error) {
	q, err := c.put(m)
	if err != nil {
		return nil, err
	}
	defer close(q.quit)
	first, err := c.next(ctx, q)
	if err != nil {
		return nil, err
	}
	for range first.n {
		var s Session
		m, err := c.next(ctx, q)
		if err == nil {
			s, err = sessionOf(m, with)
		}
		if err != nil {
			for _, s := range all {
				_ = s.Close()
			}
			return nil, err
		}
		all = append(all, s)
	}
	return all, nil
}

// Mount has the keeper attach a file system of type fuse.shardwell to a directory and keep
// it, with the area and the listings of its session, which stay the caller's.
func (c *Client) Mount(dir, source, options string, flags uintptr, area, listings *os.File) (id uint64, dev *os.File, err error) {
	s := Session{Area: area, Listings: listings}
	files, err := s.descriptors()
	if err != nil {
		return 0, nil, err
	}
	m, err := c.call(message{op: opMount, n: uint32(flags), texts: []string{dir, source, options}, files: files})
	if err != nil {
		return 0, nil, err
	}
	if len(m.files) != 1 {
		m.closeFiles()
		return 0, nil, c.failed(errMessage)
	}
	return m.id, fileOf(m.files[0], "/dev/fuse"), nil
}

// Deposit has the keeper hold a session that it does not know. The files stay the caller's.
func (c *Client) Deposit(s Session) (id uint64, err error) {
	files, err := s.descriptors()
	if err != nil {
		return 0, err
	}
	m, err := c.call(message{op: opDeposit, texts: []string{s.Dir, s.Device}, files: files})
	m.closeFiles()
	return m.id, err
}

// Serving says that the requests of a session are read.
func (c *Client) Serving(id uint64) error {
	m, err := c.call(message{op: opServing, id: id})
	m.closeFiles()
	return err
}

// Drop says that a mount has ended.
func (c *Client) Drop(id uint64) error {
	m, err := c.call(message{op: opDrop, id: id})
	m.closeFiles()
	return err
}
