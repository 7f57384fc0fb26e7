package cage

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Command says what to run in a host.
type Command struct {
	Name string // of the log file: HOST-NAME.log
	Args []string
	Env  []string // added to this process's environment
	// Cgroup is a cgroup directory to start in, "" for this process's.
	Cgroup string
}

// Process is a process that a [Host] runs. Its output goes to Log.
type Process struct {
	Log string

	cmd  *exec.Cmd
	done chan struct{} // closed when it was waited for
	err  error         // of Wait; valid after done
}

// spawns carries the starts to the one thread that makes all processes: they die
// with the thread that made them (PDEATHSIG), so it must live as long as we do.
var spawns = sync.OnceValue(func() chan func() {
	ch := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range ch {
			f()
		}
	}()
	return ch
})

// Start runs a command in the host. The log is appended to.
func (h *Host) Start(c Command) (*Process, error) {
	p := &Process{Log: filepath.Join(h.cage.Dir, h.Name+"-"+c.Name+".log"), done: make(chan struct{})}
	log, err := os.OpenFile(p.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("cage: %w", err)
	}
	defer log.Close()
	args := c.Args
	if c.Cgroup != "" { // before the program begins, which may look
		args = append([]string{"/bin/sh", "-c", `echo $$ >"$0" && exec "$@"`, filepath.Join(c.Cgroup, "cgroup.procs")}, args...)
	}
	p.cmd = exec.Command(args[0], args[1:]...)
	p.cmd.Env = append(os.Environ(), c.Env...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	started := make(chan error, 1)
	spawns() <- func() {
		home, err := enter(h.NS)
		if err != nil {
			started <- err
			return
		}
		err = p.cmd.Start()
		if back := leave(home); back != nil {
			panic(back) // every later process would start in the wrong place
		}
		started <- err
	}
	if err := <-started; err != nil {
		return nil, fmt.Errorf("cage: host %s: start %s: %w", h.Name, c.Args[0], err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	h.mu.Lock()
	h.procs = append(h.procs, p)
	h.mu.Unlock()
	return p, nil
}

// stopAll kills the host's processes and waits for them.
func (h *Host) stopAll() error {
	h.mu.Lock()
	procs := h.procs
	h.procs = nil
	h.mu.Unlock()
	var errs []error
	for _, p := range procs {
		if err := p.Kill(); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Pid returns the process id.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Running reports whether the process has not ended.
func (p *Process) Running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Signal sends a signal; it is no error when the process has ended.
func (p *Process) Signal(s syscall.Signal) error {
	if !p.Running() {
		return nil
	}
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

// killWait bounds the wait for a killed process, which may be stuck in the kernel.
const killWait = 10 * time.Second

// Kill ends the process and its group with SIGKILL and waits.
func (p *Process) Kill() error {
	if p.Running() {
		_ = syscall.Kill(-p.Pid(), syscall.SIGKILL)
	}
	_, err := p.Wait(killWait)
	return err
}

// Stop sends SIGTERM, waits for at most d and returns the exit code.
func (p *Process) Stop(d time.Duration) (int, error) {
	if err := p.Signal(syscall.SIGTERM); err != nil {
		return -1, err
	}
	return p.Wait(d)
}

// Wait waits for the end for at most d and returns the exit code, -1 for a
// process that a signal ended.
func (p *Process) Wait(d time.Duration) (int, error) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-p.done:
		return p.cmd.ProcessState.ExitCode(), nil
	case <-t.C:
		return -1, fmt.Errorf("cage: process %d (%s) has not ended within %v", p.Pid(), p.cmd.Path, d)
	}
}

// Output returns what the process wrote so far.
func (p *Process) Output() string {
	data, _ := os.ReadFile(p.Log)
	return string(data)
}

// clockTicks is USER_HZ, 100 on every Linux that Go runs on.
const clockTicks = 100

// CPU returns the processor time that the process has used so far, in steps of 10 ms.
func (p *Process) CPU() (time.Duration, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.Pid()))
	if err != nil {
		return 0, fmt.Errorf("cage: %w", err)
	}
	// The command's name is in parentheses and may hold spaces.
	f := bytes.Fields(data[bytes.LastIndexByte(data, ')')+1:])
	if len(f) < 13 {
		return 0, fmt.Errorf("cage: process %d: short stat", p.Pid())
	}
	user, err1 := strconv.ParseInt(string(f[11]), 10, 64)
	system, err2 := strconv.ParseInt(string(f[12]), 10, 64)
	return time.Duration(user+system) * (time.Second / clockTicks), errors.Join(err1, err2)
}

// Memory returns the resident bytes of the process now and at their highest.
func (p *Process) Memory() (now, peak int64, err error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Pid()))
	if err != nil {
		return 0, 0, fmt.Errorf("cage: %w", err)
	}
	for line := range strings.Lines(string(data)) {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		kib, _ := strconv.ParseInt(f[1], 10, 64)
		switch f[0] {
		case "VmRSS:":
			now = kib << 10
		case "VmHWM:":
			peak = kib << 10
		}
	}
	return now, peak, nil
}

// OpenFiles returns how many descriptors the process holds.
func (p *Process) OpenFiles() (int, error) {
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.Pid()))
	return len(entries), err
}
