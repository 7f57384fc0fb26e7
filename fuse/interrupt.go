package fuse

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The kernel reports INTERRUPT for any signal of a request's caller, once, and then
// waits for the answer, whatever comes. So what a caller's signals are is looked up,
// again and again while the request is in flight.
const (
	// lookEvery is how often at the callers of requests that the kernel reported; less
	// often, down to sweepEvery, when they are so many that looking would take more than
	// one part in lookShare of a core.
	lookEvery = 200 * time.Millisecond
	lookShare = 10
	// sweepEvery is how often at the callers of reads that take long, see
	// [watcher.interrupted].
	sweepEvery = time.Second
	// graceful is how long a request goes on whose caller's signals cannot be seen, as
	// in another pid namespace, and one whose caller has a signal of slowSignals.
	graceful = time.Second
)

// signals is a set of signals, as /proc has it: signal n is bit n-1.
type signals uint64

func setOf(all ...syscall.Signal) (s signals) {
	for _, n := range all {
		s |= 1 << (n - 1)
	}
	return s
}

// everydaySignals interrupt nothing, as they never do on a disk. Programs get them all
// the time and do not expect a system call to end for it:
//   - SIGURG preempts goroutines in Go (and tells of urgent data on a socket);
//   - SIGPROF and SIGVTALRM are the timers of profilers, hundreds a second;
//   - SIGCHLD, SIGWINCH, SIGCONT tell of a child, a window, a foreground.
//
// Whoever has no handler for them does not get them at all.
var everydaySignals = setOf(unix.SIGURG, unix.SIGPROF, unix.SIGVTALRM, unix.SIGCHLD, unix.SIGWINCH, unix.SIGCONT)

// slowSignals interrupt requests that take longer than [graceful]:
//   - SIGALRM is most often a program's own time limit, which must work, but also a
//     profiler's timer;
//   - SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU stop a job, which is no error to it when it
//     goes on; but the terminal comes back only when the call ends;
//   - SIGPWR, SIGXCPU and real-time signals from the second on stop or change all
//     threads of a process (garbage collectors, setuid), which wait for each other.
var slowSignals = setOf(unix.SIGALRM, unix.SIGSTOP, unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU, unix.SIGPWR, unix.SIGXCPU) |
	(1<<64 - 1<<32)

var killSignal = setOf(unix.SIGKILL) // also what a thread gets when its process ends

// report notes that the kernel wants a request to end; who was answered is not there.
func (f *inflight) report(unique uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.all[unique&^uniqueResent]
	if r == nil || r.cancel == nil || !r.reported.CompareAndSwap(0, time.Now().UnixNano()) {
		return
	}
	f.fresh = append(f.fresh, r)
	select {
	case f.news <- struct{}{}:
	default:
	}
}

// takeFresh returns what was reported since the last call.
func (f *inflight) takeFresh() []*request {
	f.mu.Lock()
	defer f.mu.Unlock()
	fresh := f.fresh
	f.fresh = nil
	return fresh
}

// suspects returns the requests whose callers are to be looked at: those that were
// reported and, with long, reads that take long. reported says that some were.
func (f *inflight) suspects(now time.Time, long bool) (all []*request, reported bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.all {
		switch {
		case r.reported.Load() != 0:
			reported = true
			all = append(all, r)
		case long && r.cancel != nil && now.Sub(r.began) >= sweepEvery && headerOf(r.bytes).Opcode == opRead:
			all = append(all, r)
		}
	}
	return all, reported
}

// watchCallers ends the requests whose callers are interrupted, until ctx ends.
func (s *Session) watchCallers(ctx context.Context) {
	w := watcher{sees: !s.adopted && s.cfg.Mounter == nil}
	timer := time.NewTimer(sweepEvery)
	defer timer.Stop()
	var swept time.Time
	idle := true // no reported request is known: the timer only sweeps
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.inflight.news:
			s.look(&w, s.inflight.takeFresh())
			if idle {
				idle = false
				timer.Reset(lookEvery)
			}
		case <-timer.C:
			now := time.Now()
			long := now.Sub(swept) >= sweepEvery
			if long {
				swept = now
			}
			all, reported := s.inflight.suspects(now, long)
			s.look(&w, all)
			pause := sweepEvery
			if idle = !reported; !idle {
				pause = min(sweepEvery, max(lookEvery, lookShare*time.Since(now)))
			}
			timer.Reset(pause)
		}
	}
}

func (s *Session) look(w *watcher, all []*request) {
	for _, r := range all {
		if r.ctx.Err() != nil {
			continue
		}
		s.stats.CallerLooks.Add(1)
		if w.interrupted(r, time.Now()) {
			s.stats.Interrupted.Add(1)
			r.cancel()
		}
	}
}

// watcher looks at the callers of requests.
type watcher struct {
	buf []byte
	// sees says that the kernel numbers callers as this process does: it goes by the namespace of whoever
	// made the mount. Then a caller that is nowhere has ended.
	sees bool
}

// interrupted reports whether the caller of a request is to be let go.
//
// Reads through the page cache are special: the kernel reads ahead and has the caller
// wait for the pages, from which only a deadly signal frees it, unreported. When such
// a read takes long and its caller has a signal, the read ends, and the
// kernel asks again, for one page, in a way that can be interrupted. But a caller
// that waits for a page of a mapped file, and not in a system call, would get SIGBUS
// for it. What was read ahead for a caller that has ended holds its file open, and
// the kernel does not say that nobody waits: such a read ends when it takes long. Whoever else
// wants the page asks for it anew.
func (w *watcher) interrupted(r *request, now time.Time) bool {
	h := headerOf(r.bytes)
	pending, ok := signals(0), false
	if h.Pid != 0 {
		pending, ok = w.pending(h.Pid)
	}
	told := r.reported.Load()
	switch {
	case !ok && told == 0:
		return w.sees && h.Opcode == opRead && now.Sub(r.began) >= graceful && gone(h.Pid)
	case !ok:
		return now.Sub(time.Unix(0, told)) >= graceful
	case pending&killSignal != 0:
		return true
	}
	pending &^= everydaySignals
	if now.Sub(r.began) < graceful {
		pending &^= slowSignals
	}
	if pending == 0 {
		return false
	}
	if h.Opcode != opRead {
		return true
	}
	call, ok := w.systemCall(h.Pid)
	if !ok {
		return told != 0
	}
	return slices.Contains(readCalls, call)
}

// gone reports whether a thread of this process's namespace has ended; 0 is one of another.
func gone(tid uint32) bool { return tid != 0 && unix.Kill(int(tid), 0) == unix.ESRCH }

// pending returns the signals that a thread has and does not block; false when it
// cannot be seen.
func (w *watcher) pending(tid uint32) (signals, bool) {
	if !w.read(tid, "status") {
		return 0, false
	}
	own, ok1 := w.signals("\nSigPnd:\t")
	shared, ok2 := w.signals("\nShdPnd:\t")
	blocked, ok3 := w.signals("\nSigBlk:\t")
	return (own | shared) &^ blocked, ok1 && ok2 && ok3
}

// signals finds a line of a thread's status.
func (w *watcher) signals(field string) (signals, bool) {
	_, rest, ok := bytes.Cut(w.buf, []byte(field))
	if !ok || len(rest) < 16 {
		return 0, false
	}
	v, err := strconv.ParseUint(string(rest[:16]), 16, 64)
	return signals(v), err == nil
}

// readCalls are the system calls in which a caller reads a file. That it waits in
// another one, or in none (noCall), means that it waits for a mapped page.
var readCalls = []int{unix.SYS_READ, unix.SYS_READV, unix.SYS_PREAD64, unix.SYS_PREADV, unix.SYS_PREADV2,
	unix.SYS_SENDFILE, unix.SYS_SPLICE, unix.SYS_COPY_FILE_RANGE, unix.SYS_IO_SUBMIT, unix.SYS_IO_URING_ENTER}

// noCall is a thread that runs, or waits outside any system call.
const noCall = -1

// systemCall returns the number of the system call in which a thread waits; false
// when it cannot be seen.
func (w *watcher) systemCall(tid uint32) (int, bool) {
	if !w.read(tid, "syscall") {
		return 0, false
	}
	word, _, _ := bytes.Cut(bytes.TrimSpace(w.buf), []byte(" "))
	if string(word) == "running" {
		return noCall, true
	}
	call, err := strconv.Atoi(string(word))
	return call, err == nil
}

// maxProcBytes bounds what is read of a thread: a status names up to 65,536 groups.
const maxProcBytes = 1 << 20

// read reads a file of /proc about a thread into w.buf.
func (w *watcher) read(tid uint32, name string) bool {
	w.buf = w.buf[:0]
	fd, err := unix.Open(fmt.Sprintf("/proc/%d/%s", tid, name), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	for len(w.buf) < maxProcBytes {
		w.buf = slices.Grow(w.buf, 4<<10)
		n, err := unix.Read(fd, w.buf[len(w.buf):cap(w.buf)])
		switch {
		case err == unix.EINTR:
		case err != nil:
			return false
		case n == 0:
			return len(w.buf) > 0
		default:
			w.buf = w.buf[:len(w.buf)+n]
		}
	}
	return true
}
