package demo

import (
	"os/exec"
	"runtime"
	"sync"
)

// warden starts processes from one thread that lives as long as they may: the
// kernel sends Pdeathsig when the thread that started a process ends, which for
// Go may be long before the program does.
type warden struct {
	jobs chan func()
	done sync.WaitGroup
}

func newWarden() *warden {
	w := &warden{jobs: make(chan func())}
	w.done.Go(func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		for job := range w.jobs {
			job()
		}
	})
	return w
}

func (w *warden) start(cmd *exec.Cmd) error {
	result := make(chan error, 1)
	w.jobs <- func() { result <- cmd.Start() }
	return <-result
}

// end lets the thread go. Processes that still run get their Pdeathsig.
func (w *warden) end() {
	close(w.jobs)
	w.done.Wait()
}
