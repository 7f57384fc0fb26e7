package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"
)

const (
	// stopWithin is how long a command may take to end after a signal; then the process ends
	// all the same. Supervisors wait longer: systemd 90 s, Kubernetes 30 s from a preStop hook on.
	stopWithin = 30 * time.Second
	// insistAfter is how long after the first SIGINT a second one is meant: those before are of one
	// impatient hand, or of a terminal that tells the whole group beside us.
	insistAfter = time.Second
)

// stopper turns signals into the end of a context, and of the process when that takes too long.
//
// The first signal ends the context. What a supervisor sends again, as timeout(1) does at once to the
// group, changes nothing: a process that dies while it unmounts leaves a mount that nobody serves. Only a
// second SIGINT that is meant, or the end of stopWithin, forces the exit.
type stopper struct {
	signals <-chan os.Signal
	end     context.CancelCauseFunc
	force   func(code int, why string) // ends the process
}

// run returns when done is closed.
func (s stopper) run(done <-chan struct{}) {
	var first, firstInt os.Signal
	var insisted time.Time
	late := time.NewTimer(stopWithin)
	late.Stop()
	defer late.Stop()
	for {
		select {
		case <-done:
			return
		case <-late.C:
			s.force(exitFailed, fmt.Sprintf("did not end within %v of %v", stopWithin, first))
			return
		case sig := <-s.signals:
			if first == nil {
				first = sig
				late.Reset(stopWithin)
				s.end(stopSignal{sig})
			}
			switch {
			case sig != os.Interrupt:
			case firstInt == nil:
				firstInt, insisted = sig, time.Now().Add(insistAfter)
			case !time.Now().Before(insisted):
				s.force(exitInterrupted, "interrupted twice")
				return
			}
		}
	}
}

// interruptible returns a context that ends at the first SIGINT, SIGTERM or SIGHUP, and a function
// that gives the signals back. What last holds is done before the process ends by force.
func interruptible(last *lastResort, errs io.Writer) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) { // nohup(1)
		signal.Notify(signals, syscall.SIGHUP)
	}
	done := make(chan struct{})
	var ended sync.WaitGroup
	s := stopper{signals: signals, end: cancel, force: func(code int, why string) {
		last.run()
		fmt.Fprintf(errs, "shardwell: %s: mounts detached, the rest left as it was\n", why)
		os.Exit(code)
	}}
	ended.Go(func() { s.run(done) })
	return ctx, func() {
		// Signals stay ours to the end of the process: one that comes now must not make the exit code another.
		close(done)
		ended.Wait()
		cancel(nil)
	}
}

// lastResort is what must be done even when the process ends by force.
type lastResort struct {
	mu   sync.Mutex
	todo map[*func()]struct{}
}

// add keeps f until remove is called. It does nothing for a nil lastResort.
func (l *lastResort) add(f func()) (remove func()) {
	if l == nil {
		return func() {}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.todo == nil {
		l.todo = make(map[*func()]struct{})
	}
	l.todo[&f] = struct{}{}
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.todo, &f)
	}
}

func (l *lastResort) run() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for f := range l.todo {
		(*f)()
	}
}
