package fuse

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shardwell/shardwell/objstore"
)

// While its origin is silent, a mount goes on with the names it knew last, unless
// it promised to ask at each open ([ModeOpen]).
const (
	// patience is how long whoever asks for news of what is known waits for it. When the
	// first has waited, nobody else does until the origin answers again.
	patience = 2 * time.Second
	// staleHolds is how long the kernel may keep what was true when the origin last
	// answered.
	staleHolds = time.Second
	// probePause, and up to as much again, lies between questions to a silent origin.
	probePause = 2 * time.Second
	// probeTimeout bounds each of them: those who serve it try more than once.
	probeTimeout = 10 * time.Second
	// maxLateQuestions go on, for what is left of their time, when nobody waits for
	// the answer any more: from an origin that is slow, names become fresh all the same.
	maxLateQuestions = 64
)

// silence says whether the origin of a mount answers.
type silence struct {
	on   atomic.Bool   // as since, for those who look often
	late chan struct{} // maxLateQuestions

	mu    sync.Mutex
	since time.Time     // zero: it answers, as far as is known
	begun chan struct{} // closed while it is silent
}

func (q *silence) init() {
	q.late = make(chan struct{}, maxLateQuestions)
	q.begun = make(chan struct{})
}

// begins returns what is closed while the origin is silent.
func (q *silence) begins() <-chan struct{} {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.begun
}

// isSilence reports whether err says that the origin did not answer, and nothing
// about what it was asked.
func isSilence(err error) bool {
	return err != nil && !errors.Is(err, context.Canceled) && (errors.Is(err, context.DeadlineExceeded) || !objstore.Final(err))
}

// fallSilent notes that the origin does not answer, and asks on until it does. Whoever
// calls it counts among s.serving.
func (s *Session) fallSilent(why error) {
	q := &s.silence
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.since.IsZero() || s.runCtx.Err() != nil {
		return
	}
	q.since = time.Now()
	q.on.Store(true)
	close(q.begun)
	s.stats.Silences.Add(1)
	s.log.Warn("file system: origin does not answer; names stay as they were", "error", why)
	s.serving.Go(s.listen)
}

// listen asks a silent origin every few seconds, until it answers or the session ends.
// A refusal is an answer.
func (s *Session) listen() {
	q := objstore.Query{Bucket: s.cfg.Bucket, MaxAge: openModeAge} // nodes that listen share what they hear
	req := objstore.ListRequest{Prefix: s.store.Root().Prefix, Delimiter: "/", Limit: 1}
	for {
		ctx, cancel := context.WithTimeout(s.runCtx, probeTimeout)
		_, _, err := s.cfg.Names.List(ctx, q, req)
		cancel()
		if s.runCtx.Err() != nil {
			return
		}
		if !isSilence(err) {
			s.endSilence()
			return
		}
		timer := time.NewTimer(probePause + rand.N(probePause))
		select {
		case <-timer.C:
		case <-s.runCtx.Done():
			timer.Stop()
			return
		}
	}
}

func (s *Session) endSilence() {
	q := &s.silence
	q.mu.Lock()
	defer q.mu.Unlock()
	s.log.Info("file system: origin answers again", "silent", time.Since(q.since).Round(time.Millisecond).String())
	q.since, q.begun = time.Time{}, make(chan struct{})
	q.on.Store(false)
}

// mayGoOn reports whether the mount may answer with what it knew last.
func (s *Session) mayGoOn() bool { return s.cfg.Consistency.Mode != ModeOpen }

var errImpatient = fmt.Errorf("no answer in %v", patience)

// orLast returns what f learns from the origin, or last while the origin is silent.
// f gets a context of its own, for it may be left behind.
func orLast[T any](ctx context.Context, s *Session, last T, f func(context.Context) (T, error)) (T, error) {
	if s.silence.on.Load() {
		s.stats.StaleAnswers.Add(1)
		return last, nil
	}
	type result struct {
		value T
		err   error
	}
	asking, cancel := context.WithTimeout(s.runCtx, s.cfg.NameBudget)
	done := make(chan result, 1)
	s.serving.Go(func() {
		defer cancel()
		defer func() {
			if p := recover(); p != nil {
				done <- result{last, fmt.Errorf("panic: %v", p)}
			}
		}()
		debug.SetPanicOnFault(true)
		value, err := f(asking)
		done <- result{value, err}
	})
	timer := time.NewTimer(patience)
	defer timer.Stop()
	why := errImpatient
	select {
	case r := <-done:
		if !isSilence(r.err) {
			return r.value, r.err
		}
		why = r.err
	case <-timer.C:
	case <-s.silence.begins():
	case <-ctx.Done():
		cancel()
		return last, ctx.Err()
	}
	select {
	case s.silence.late <- struct{}{}:
		context.AfterFunc(asking, func() { <-s.silence.late })
	default:
		cancel()
	}
	s.fallSilent(why)
	s.stats.StaleAnswers.Add(1)
	return last, nil
}

// maxAbsent bounds the names remembered as absent in directories that were not
// listed, in each of two generations.
const maxAbsent = 16 << 10

// absentNames remembers names that were asked for by name and are not there. It
// may forget any of them.
type absentNames struct {
	mu       sync.Mutex
	now, old map[absentName]struct{}
	forgets  int // calls of forget
}

type absentName struct {
	serial uint32 // of the directory
	name   string
}

// begin starts a question whose answer add may take.
func (a *absentNames) begin() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.forgets
}

// add remembers a name, unless names were forgotten since the question began.
func (a *absentNames) add(begun int, serial uint32, name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if begun != a.forgets {
		return
	}
	if a.now == nil || len(a.now) >= maxAbsent {
		a.now, a.old = make(map[absentName]struct{}), a.now
	}
	a.now[absentName{serial, name}] = struct{}{}
}

func (a *absentNames) has(serial uint32, name string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := absentName{serial, name}
	_, now := a.now[n]
	_, old := a.old[n]
	return now || old
}

func (a *absentNames) forget() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.forgets++
	a.now, a.old = nil, nil
}

// failedLookups remembers for a moment which look-ups a thread waited for in vain. Where
// the kernel has an entry that must be asked for again and the answer is an error, it
// asks a second time at once, and its caller would wait twice.
type failedLookups struct {
	mu  sync.Mutex
	all map[failedLookup]time.Time
}

type failedLookup struct {
	parent uint64
	name   string
	thread uint32
}

// sameCall is how soon after a failed look-up the same one of the same thread belongs to
// the same system call.
const sameCall = time.Second

func (f *failedLookups) add(l failedLookup) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.all) >= MaxInFlightRequests {
		clear(f.all)
	}
	if f.all == nil {
		f.all = make(map[failedLookup]time.Time)
	}
	f.all[l] = time.Now()
}

// take reports, once, whether a look-up has just failed.
func (f *failedLookups) take(l failedLookup) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	at, ok := f.all[l]
	delete(f.all, l)
	return ok && time.Since(at) < sameCall
}
