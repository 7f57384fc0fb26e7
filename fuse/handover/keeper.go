package handover

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Limits and defaults of a keeper.
const (
	MaxSessions    = 1024
	maxConnections = 16

	DefaultGiveUp      = 60 * time.Second
	DefaultStartWithin = 5 * time.Minute
	lookEvery          = 500 * time.Millisecond // at mounts that nobody serves
	// lookLate is how late a look may be; what is beyond that is time in which the keeper itself was
	// stopped, and counts for nobody: what it was told meanwhile is yet to be read.
	lookLate    = 2 * time.Second
	acceptPause = time.Second // when there are no descriptors for connections
)

// Keeper holds mounts while nobody serves them.
type Keeper struct {
	// GiveUp is how long a mount may be without a server before it is aborted; a server that
	// has it and does not serve yet does not count.
	GiveUp time.Duration
	// StartWithin is how long such a server may take, and how long one that has said
	// repeatedly that it serves may not say so any more: it hangs then.
	StartWithin time.Duration
	Logf        func(format string, args ...any)

	mu       sync.Mutex
	next     uint64
	sessions map[uint64]*held
	conns    map[*conn]struct{}
	server   *conn   // that has claimed the sessions; nil when none has
	queue    []*conn // that wait to be it
	ending   bool
	looked   time.Time // by look
	group    sync.WaitGroup
}

// held is a session in the keeper. It is not a Session, for an [os.File] of the kernel's
// end would wake this process with each request.
type held struct {
	id              uint64
	dir, device     string
	dev             int
	rest            []int // area, listings
	serving         bool
	repeats         bool      // its server says again and again that it serves
	since, reported time.Time // when it was served last; when its server got it, or last said that it serves
}

// conn is a connection of a server, or of one to be.
type conn struct {
	packets
	mu   sync.Mutex // one sends at a time
	name string
}

func (c *conn) tell(m message) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.send(m)
}

// Run takes connections on a socket of Listen until ctx ends, and closes it. What it holds
// it lets go then: mounts whose server lives go on.
func (k *Keeper) Run(ctx context.Context, socket *Socket) error {
	k.sessions, k.conns = make(map[uint64]*held), make(map[*conn]struct{})
	closeSocket := sync.OnceFunc(func() { _ = socket.Close() })
	defer closeSocket()
	stop := context.AfterFunc(ctx, func() {
		closeSocket()
		k.mu.Lock()
		defer k.mu.Unlock()
		k.ending = true
		for c := range k.conns {
			_ = c.f.Close()
		}
	})
	defer stop()
	watching, cancel := context.WithCancel(ctx)
	defer k.release()
	defer k.group.Wait()
	defer cancel()
	k.group.Go(func() { k.watch(watching) })
	for {
		c, err := accept(socket.f)
		switch {
		case ctx.Err() != nil:
			if c != nil {
				_ = c.f.Close()
			}
			return nil
		case noRoom(err):
			k.Logf("take connections: %v: tried again", err)
			wait(ctx, acceptPause)
			continue
		case err != nil:
			return fmt.Errorf("take connections: %w", err)
		case c == nil:
			continue
		}
		if !k.admit(ctx, c) {
			_ = c.tell(message{op: opFailed, texts: []string{fmt.Sprintf("%d servers are connected already", maxConnections)}})
			_ = c.f.Close()
			continue
		}
		k.group.Go(func() { k.serve(c) })
	}
}

// noRoom reports whether a connection cannot be taken now, and may be later: no reason to end.
func noRoom(err error) bool {
	return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.ENOBUFS)
}

func wait(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// accept returns the next connection; nil without an error for one that is refused.
func accept(socket *os.File) (*conn, error) {
	raw, err := socket.SyscallConn()
	if err != nil {
		return nil, err
	}
	var fd int
	var acceptErr error
	err = raw.Read(func(s uintptr) bool {
		fd, _, acceptErr = unix.Accept4(int(s), unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
		return acceptErr != unix.EAGAIN
	})
	switch {
	case err != nil:
		return nil, err
	case errors.Is(acceptErr, unix.ECONNABORTED), errors.Is(acceptErr, unix.EINTR):
		return nil, nil
	case acceptErr != nil:
		return nil, acceptErr
	case !callerAllowed(fd):
		_ = unix.Close(fd)
		return nil, nil
	}
	return &conn{packets: packets{fileOf(fd, "server")}}, nil
}

func (k *Keeper) admit(ctx context.Context, c *conn) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.conns) >= maxConnections || ctx.Err() != nil {
		return false
	}
	k.conns[c] = struct{}{}
	return true
}

// serve answers a connection until it ends, which says that the process at the other end
// has, with all its threads. The keeper itself does not end that of a server for what it says: that
// lives, and serves, and would have a successor beside it.
func (k *Keeper) serve(c *conn) {
	defer k.lost(c)
	for {
		m, err := c.receive()
		bad := errors.Is(err, errMessage) || errors.Is(err, errFiles)
		switch {
		case bad && k.isServer(c):
			k.complain(c, err)
			err = c.tell(message{op: opFailed, texts: []string{err.Error()}})
		case err != nil:
			if !errors.Is(err, io.EOF) && !errors.Is(err, unix.ECONNRESET) {
				k.complain(c, err)
			}
			return
		default:
			err = k.answer(c, &m)
			m.closeFiles()
		}
		if err != nil {
			k.complain(c, err)
			if !k.isServer(c) {
				return
			}
		}
	}
}

func (k *Keeper) isServer(c *conn) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.server == c
}

// complain logs why a connection ends, unless the keeper ends it.
func (k *Keeper) complain(c *conn, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.ending {
		k.Logf("connection of %s: %v", c.name, err)
	}
}

// answer does what a message asks for. Files that it keeps it takes out of the message's.
func (k *Keeper) answer(c *conn, m *message) error {
	reply := message{op: opDone}
	var err error
	switch m.op {
	case opHello:
		k.mu.Lock()
		c.name = m.text(0)
		k.mu.Unlock()
	case opLook:
		return k.show(c)
	case opClaim:
		return k.claim(c, m.n != 0)
	case opMount:
		return k.mount(c, m)
	case opDeposit:
		if len(m.files) < 2 || len(m.files) > maxFiles {
			err = errMessage
			break
		}
		h := &held{dir: m.text(0), device: m.text(1), dev: m.files[0], rest: m.files[1:]}
		if err = k.add(c, h); err == nil {
			m.files = nil
			reply.id = h.id
		}
		return k.reply(c, reply, err, m)
	case opServing:
		err = k.served(c, m.id)
	case opDrop:
		err = k.drop(c, m.id)
	default:
		err = errMessage
	}
	return k.reply(c, reply, err, m)
}

// reply sends an answer; what is left of the files of the question is closed.
func (k *Keeper) reply(c *conn, reply message, err error, m *message) error {
	m.closeFiles()
	if err != nil {
		reply = message{op: opFailed, texts: []string{err.Error()}}
	}
	return c.tell(reply)
}

// mount attaches a file system and keeps it. The path is walked without the lock: it may
// lead through something that does not answer.
func (k *Keeper) mount(c *conn, m *message) error {
	if len(m.files) < 1 || len(m.files) > 2 || len(m.texts) != maxTexts {
		return k.reply(c, message{}, errMessage, m)
	}
	dir := m.texts[0]
	dev, err := MountFUSE(dir, m.texts[1], m.texts[2], uintptr(m.n))
	if err != nil {
		return k.reply(c, message{}, err, m)
	}
	device, err := deviceOf(dir)
	if err == nil {
		h := &held{dir: dir, device: device, dev: dev, rest: m.files}
		if err = k.add(c, h); err == nil {
			m.files = nil
			k.Logf("mounted %s", dir)
			return k.reply(c, message{op: opDone, id: h.id, texts: []string{device}, files: []int{dev}}, nil, m)
		}
	}
	_ = unix.Unmount(dir, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH)
	_ = unix.Close(dev)
	return k.reply(c, message{}, err, m)
}

// add keeps a session for the server that brought it.
func (k *Keeper) add(c *conn, h *held) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.server != c:
		return errNotServer
	case len(k.sessions) >= MaxSessions:
		return fmt.Errorf("%d mounts are kept, which is the most", MaxSessions)
	}
	k.next++
	h.id, h.since, h.reported = k.next, time.Now(), time.Now()
	k.sessions[h.id] = h
	return nil
}

var errNotServer = errors.New("another server has the mounts")
