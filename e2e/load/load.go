// Package load is a process that reads a mount in every way that a program may, without a
// pause, compares every byte, and tells how long its calls took.
//
// It is run by tests and benchmarks that end the daemon under it: as a process of its own,
// for a runtime whose threads wait for the mount would stand still with them. It is a part of the
// end-to-end tests.
package load

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shardwell/shardwell/e2e/dataset"
)

// Spec says what is mounted where.
type Spec struct {
	Kept     string // directory of a mount whose files are cached
	Streamed string // of one whose files are kept nowhere: their bytes come from peers and the origin
	Files    int    // in each of them: 0000, 0001, …
	Size     int64  // bytes of each
	Many     string // a directory of Names empty files, 0000, 0001, …
	Names    int
	Mapped   bool // only map files; else everything but that
	Late     bool // also open names that nobody asked for before, which the origin answers slowly
	Seed     uint64
}

// Content returns what the file with a number has in it.
func (s Spec) Content(i int) dataset.Random {
	return dataset.Random{Seed: s.Seed + uint64(i), Size: s.Size}
}

// Name returns the name of the file with a number.
func Name(i int) string { return fmt.Sprintf("%04d", i) }

// Report is what a process saw.
type Report struct {
	Ops    int64    `json:"ops"`
	Errors []string `json:"errors"` // at most maxSaid; wrong bytes are not among them
	Wrong  []string `json:"wrong"`
	Failed int64    `json:"failed"` // of both kinds
	Slow   []Call   `json:"slow"`   // calls of slowCall or longer
}

// Call is one call that took long.
type Call struct {
	What  string `json:"what"`
	Began int64  `json:"began"` // ns since 1970
	Took  int64  `json:"took"`  // ns
}

// Bounds of a report.
const (
	maxSaid  = 20
	maxSlow  = 200_000
	slowCall = 20 * time.Millisecond
)

// command is the first argument of a process that this package starts.
const command = "read-a-mount"

// Main runs the process if this one is meant to be it.
func Main() {
	if len(os.Args) != 3 || os.Args[1] != command {
		return
	}
	var s Spec
	if err := json.Unmarshal([]byte(os.Args[2]), &s); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	r := newReader(s)
	go func() {
		_, _ = os.Stdin.Read(make([]byte, 1)) // its end is the sign
		r.stop.Store(true)
	}()
	r.run()
	if err := json.NewEncoder(os.Stdout).Encode(r.report); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Process is a reader at work.
type Process struct {
	cmd   *exec.Cmd
	in    interface{ Close() error }
	out   *bufio.Reader
	ended sync.Once
}

// Start runs a reader; the program calls Main first of all.
func Start(s Spec) (*Process, error) {
	text, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command("/proc/self/exe", command, string(text))
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("load: %w", err)
	}
	return &Process{cmd: cmd, in: in, out: bufio.NewReaderSize(out, 1<<20)}, nil
}

// Stop ends the reader and returns what it saw.
func (p *Process) Stop() (r Report, err error) {
	_ = p.in.Close()
	err = json.NewDecoder(p.out).Decode(&r)
	p.ended.Do(func() { err = errors.Join(err, p.cmd.Wait()) })
	return r, err
}

// Kill ends the reader at once.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	_ = p.in.Close()
	p.ended.Do(func() { _ = p.cmd.Wait() })
}

// Pid returns the process id.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

type reader struct {
	Spec
	stop  atomic.Bool
	group sync.WaitGroup

	mu     sync.Mutex
	report Report
}

func newReader(s Spec) *reader { return &reader{Spec: s} }

// run reads until stop.
func (r *reader) run() {
	if r.Mapped {
		r.loop("map", r.mapFile)
		r.loop("map", r.mapFile)
		r.group.Wait()
		return
	}
	for _, dir := range []string{r.Kept, r.Streamed} {
		r.hold(dir, 0)
		r.hold(dir, 1)
		r.loop("open and read", func(rnd *rand.Rand) error { return r.openAndRead(dir, rnd) })
	}
	r.loop("stat", r.statNames)
	r.loop(walk, r.listNames)
	r.loop(walk, r.listNames)
	if r.Late {
		r.loop("late", r.openLate)
	}
	r.group.Wait()
}

// wrongBytes is an error that the file system did not report.
type wrongBytes struct{ text string }

func (w wrongBytes) Error() string { return w.text }

// loop calls f until stop and notes how it came out.
func (r *reader) loop(what string, f func(*rand.Rand) error) {
	r.group.Go(func() {
		rnd := rand.New(rand.NewPCG(uint64(os.Getpid()), uint64(len(what))))
		for !r.stop.Load() {
			began := time.Now()
			err := f(rnd)
			r.note(what, began, time.Since(began), err)
		}
	})
}

func (r *reader) note(what string, began time.Time, took time.Duration, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report.Ops++
	if what != walk {
		r.noteSlow(what, began, took)
	}
	if err == nil {
		return
	}
	r.report.Failed++
	text := fmt.Sprintf("%s %s: %v", began.Format("15:04:05.000"), what, err)
	if wrong := (wrongBytes{}); errors.As(err, &wrong) {
		if len(r.report.Wrong) < maxSaid {
			r.report.Wrong = append(r.report.Wrong, text)
		}
	} else if len(r.report.Errors) < maxSaid {
		r.report.Errors = append(r.report.Errors, text)
	}
}

// walk is many calls, which note for themselves how long they took.
const walk = "walk"

// noteSlow remembers a call that took long; mu is held.
func (r *reader) noteSlow(what string, began time.Time, took time.Duration) {
	if took >= slowCall && len(r.report.Slow) < maxSlow {
		r.report.Slow = append(r.report.Slow, Call{what, began.UnixNano(), int64(took)})
	}
}

func open(path string, flags int) (int, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|flags, 0)
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return fd, nil
}

// hold reads at random places of a file through a descriptor that stays open.
func (r *reader) hold(dir string, i int) {
	fd := -1
	r.loop("read", func(rnd *rand.Rand) (err error) {
		if fd < 0 {
			if fd, err = open(filepath.Join(dir, Name(i)), 0); err != nil {
				return err
			}
		}
		if rnd.IntN(50) == 0 { // what the kernel remembers is no test
			_ = unix.Fadvise(fd, 0, 0, unix.FADV_DONTNEED)
		}
		return r.readPiece(fd, i, rnd)
	})
}

func (r *reader) readPiece(fd, i int, rnd *rand.Rand) error {
	p := make([]byte, 1+rnd.IntN(128<<10))
	off := rnd.Int64N(r.Size - int64(len(p)))
	n, err := unix.Pread(fd, p, off)
	if err != nil || n != len(p) {
		return fmt.Errorf("file %d: read %d bytes at %d: %d, %w", i, len(p), off, n, err)
	}
	return r.compare(p, i, off)
}

func (r *reader) compare(p []byte, i int, off int64) error {
	want := make([]byte, len(p))
	_, _ = r.Content(i).ReadAt(want, off)
	for k := range p {
		if p[k] != want[k] {
			return wrongBytes{fmt.Sprintf("file %d: byte %d is wrong", i, off+int64(k))}
		}
	}
	return nil
}

func (r *reader) openAndRead(dir string, rnd *rand.Rand) error {
	i := rnd.IntN(r.Files)
	fd, err := open(filepath.Join(dir, Name(i)), 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return r.readPiece(fd, i, rnd)
}

func (r *reader) mapFile(rnd *rand.Rand) error {
	i := rnd.IntN(r.Files)
	dir := r.Kept
	if rnd.IntN(2) == 0 {
		dir = r.Streamed
	}
	fd, err := open(filepath.Join(dir, Name(i)), 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	m, err := unix.Mmap(fd, 0, int(r.Size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("map file %d: %w", i, err)
	}
	defer unix.Munmap(m)
	off := rnd.Int64N(r.Size - 64<<10)
	return r.compare(m[off:off+64<<10], i, off)
}

func (r *reader) statNames(rnd *rand.Rand) error {
	var st unix.Stat_t
	path := filepath.Join(r.Many, Name(rnd.IntN(r.Names)))
	if err := unix.Stat(path, &st); err != nil {
		return &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if rnd.IntN(4) == 0 {
		path = filepath.Join(r.Many, fmt.Sprintf("none-%d", rnd.IntN(50)))
		if err := unix.Stat(path, &st); err != unix.ENOENT {
			return fmt.Errorf("stat %s, which is not: %w", path, err)
		}
	}
	return nil
}

func (r *reader) listNames(rnd *rand.Rand) error {
	fd, err := open(r.Many, unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	seen := make(map[string]bool)
	for buf := make([]byte, 256+rnd.IntN(2048)); ; {
		began := time.Now()
		n, err := unix.Getdents(fd, buf)
		r.mu.Lock()
		r.noteSlow("list", began, time.Since(began))
		r.mu.Unlock()
		if err != nil {
			return fmt.Errorf("list after %d names: %w", len(seen), err)
		}
		if n == 0 {
			break
		}
		_, _, names := unix.ParseDirent(buf[:n], -1, nil)
		for _, name := range names {
			if seen[name] {
				return wrongBytes{fmt.Sprintf("list: %s twice", name)}
			}
			seen[name] = true
		}
	}
	if len(seen) != r.Names {
		return wrongBytes{fmt.Sprintf("list: %d names of %d", len(seen), r.Names)}
	}
	return nil
}

// openLate asks for a name that nobody has asked for, and waits for the origin.
func (r *reader) openLate(rnd *rand.Rand) error {
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(r.Kept, fmt.Sprintf("late-%d", rnd.Uint64())), &st); err != unix.ENOENT {
		return fmt.Errorf("a new name: %w", err)
	}
	return nil
}
