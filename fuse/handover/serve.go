package handover

import (
	"context"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// show sends all sessions without the kernel's ends.
func (k *Keeper) show(c *conn) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.send(c, false)
}

// send sends all sessions; mu is held. The other end reads them as they come.
func (k *Keeper) send(c *conn, with bool) error {
	if err := c.tell(message{op: opDone, n: uint32(len(k.sessions))}); err != nil {
		return err
	}
	for _, h := range k.sessions {
		m := message{op: opSession, id: h.id, texts: []string{h.dir, h.device}}
		if with {
			m.files = append(m.files, h.dev)
		}
		m.files = append(m.files, h.rest...)
		if err := c.tell(m); err != nil {
			return err
		}
	}
	return nil
}

// claim makes c the server, when there is none any more.
func (k *Keeper) claim(c *conn, replace bool) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.server == c || slices.Contains(k.queue, c) {
		return c.tell(message{op: opFailed, texts: []string{"claimed twice"}})
	}
	k.queue = append(k.queue, c)
	if k.server != nil {
		k.Logf("%s waits for %s to end", c.name, k.server.name)
		if replace {
			return k.server.tell(message{op: opYield})
		}
		return nil
	}
	k.grant()
	return nil
}

// grant makes the first that waits the server; mu is held.
func (k *Keeper) grant() {
	for k.server == nil && len(k.queue) > 0 {
		c := k.queue[0]
		k.queue = k.queue[1:]
		k.server = c
		for _, h := range k.sessions {
			h.serving, h.repeats, h.reported = false, false, time.Now()
		}
		if err := k.send(c, true); err != nil {
			k.Logf("%s does not take the mounts: %v", c.name, err)
			k.server = nil
			_ = c.f.Close() // its own goroutine cleans up
			continue
		}
		if n := len(k.sessions); n > 0 {
			k.Logf("%s takes over %d mounts", c.name, n)
		}
	}
}

// lost forgets a connection. When it was the server's the next gets the sessions.
func (k *Keeper) lost(c *conn) {
	_ = c.f.Close()
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.conns, c)
	k.queue = slices.DeleteFunc(k.queue, func(q *conn) bool { return q == c })
	if k.server != c {
		return
	}
	k.server = nil
	now := time.Now()
	for _, h := range k.sessions {
		if h.serving {
			h.serving, h.since = false, now
		}
	}
	if n := len(k.sessions); n > 0 && !k.ending {
		k.Logf("%s is gone, %d mounts wait for the next", c.name, n)
	}
	k.grant()
}

// served notes that the server reads the requests of a session. One that says so again will go on to.
func (k *Keeper) served(c *conn, id uint64) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.server != c {
		return errNotServer
	}
	if h := k.sessions[id]; h != nil {
		h.repeats, h.serving, h.reported = h.serving, true, time.Now()
	}
	return nil
}

// drop lets a session go, whose mount has ended.
func (k *Keeper) drop(c *conn, id uint64) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.server != c {
		return errNotServer
	}
	if h := k.sessions[id]; h != nil {
		k.let(h)
	}
	return nil
}

// let closes what is kept of a session; mu is held.
func (k *Keeper) let(h *held) {
	delete(k.sessions, h.id)
	for _, fd := range append([]int{h.dev}, h.rest...) {
		_ = unix.Close(fd)
	}
}

// release lets everything go.
func (k *Keeper) release() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, h := range k.sessions {
		k.let(h)
	}
}

// watch looks after the mounts that nobody serves until ctx ends.
func (k *Keeper) watch(ctx context.Context) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			k.look(time.Now())
		}
	}
}

// look lets go of what has ended and aborts what has waited too long.
func (k *Keeper) look(now time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if stopped := now.Sub(k.looked) - lookEvery; !k.looked.IsZero() && stopped > lookLate {
		k.excuse(stopped)
	}
	k.looked = now
	for _, h := range k.sessions {
		switch {
		case h.serving && (!h.repeats || now.Sub(h.reported) < k.StartWithin):
			continue // its server tells when it has ended
		case ended(h.dev):
			k.Logf("the mount on %s is gone", h.dir)
			k.let(h)
			continue
		case h.serving:
			k.Logf("%s hangs: it has not said for %v that it serves the mount on %s", k.server.name, now.Sub(h.reported).Round(time.Second), h.dir)
			h.since = h.reported
		case k.server != nil && now.Sub(h.reported) < k.StartWithin, k.server == nil && now.Sub(h.since) < k.GiveUp:
			continue
		}
		k.Logf("nobody has served the mount on %s for %v: its readers get errors from now on", h.dir, now.Sub(h.since).Round(time.Second))
		if err := abort(h.device); err != nil {
			k.Logf("%v: closing the descriptor, which does it unless a server hangs", err)
		}
		k.let(h)
	}
}

// excuse leaves a time out of account in which the keeper did not run; mu is held.
func (k *Keeper) excuse(stopped time.Duration) {
	k.Logf("did not run for %v, which counts for nobody", stopped.Round(time.Second))
	for _, h := range k.sessions {
		h.since, h.reported = h.since.Add(stopped), h.reported.Add(stopped)
	}
}
