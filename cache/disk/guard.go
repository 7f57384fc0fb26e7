package disk

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shardwell/shardwell/cache/mem"
)

// ErrHung says that the disk did not answer in time.
var ErrHung = errors.New("cache disk does not answer")

// errNotTried says so of a call that was not even begun.
var errNotTried = fmt.Errorf("not tried: %w", ErrHung)

// Bounds of calls to a disk that may hang.
const (
	maxCalls     = 32 // at a time; each that moves data has a buffer of a block meanwhile
	maxHung      = 4  // that do not return, before nothing more is tried until one does
	hangPoints   = 6  // failures that one hanging call counts for: four take a disk down
	hurryShare   = 10 // while a call hangs others are given this part of the time
	smallIOBytes = 4096
)

// guard is a file system whose calls come back in time. Each runs in a goroutine of
// its own, with a buffer of its own; one that does not return is left behind with
// both, which are set aside until it does. There are at most maxCalls of them.
type guard struct {
	fs      FS
	timeout time.Duration
	buffers *mem.Arena // maxCalls of a block each
	onHang  func(op string)
	slots   chan struct{}
	hung    atomic.Int32 // calls left behind
	calls   sync.Pool    // of *guarded
}

// newGuard returns a guard of fs; close it.
func newGuard(fsys FS, timeout time.Duration, blockBytes int, onHang func(op string)) (*guard, error) {
	buffers, err := mem.New(blockBytes, int64(maxCalls)*int64(blockBytes))
	if err != nil {
		return nil, err
	}
	return &guard{fs: fsys, timeout: timeout, buffers: buffers, onHang: onHang, slots: make(chan struct{}, maxCalls)}, nil
}

// close gives back the buffers, unless a call that hangs has one still.
func (g *guard) close() error {
	if g.hung.Load() > 0 {
		return fmt.Errorf("%d calls: %w", g.hung.Load(), ErrHung)
	}
	return g.buffers.Close()
}

// guarded is one call.
type guarded struct {
	done  chan error
	timer *time.Timer
	left  atomic.Bool // by one of both: the caller that leaves, or the call that returns
}

// do runs call and returns its error, or ErrHung when it does not return in time. Then call goes
// on, and late runs after it. call and late use nothing that the caller uses
// afterwards.
func (g *guard) do(op string, call func() error, late func()) error {
	timeout, ok := g.patience()
	if !ok {
		return fmt.Errorf("%s: %w", op, errNotTried)
	}
	c, _ := g.calls.Get().(*guarded)
	if c == nil {
		c = &guarded{done: make(chan error, 1), timer: time.NewTimer(timeout)}
	} else {
		c.timer.Reset(timeout)
	}
	select {
	case g.slots <- struct{}{}:
	case <-c.timer.C: // the others wait for the disk, not for us: they tell
		g.calls.Put(c)
		return fmt.Errorf("%s: %w", op, errNotTried)
	}
	go func() {
		err := call()
		if c.left.Swap(true) { // nobody waits any more
			late()
			g.hung.Add(-1)
			<-g.slots
			return
		}
		<-g.slots
		c.done <- err
	}()
	select {
	case err := <-c.done:
		return g.end(c, err)
	case <-c.timer.C:
	}
	g.hung.Add(1)
	if c.left.Swap(true) { // it came back in this moment
		g.hung.Add(-1)
		return g.end(c, <-c.done)
	}
	if g.onHang != nil {
		g.onHang(op)
	}
	return fmt.Errorf("%s: %w", op, ErrHung)
}

// patience is how long a call may take now; ok is false when none is to be tried.
func (g *guard) patience() (timeout time.Duration, ok bool) {
	switch n := g.hung.Load(); {
	case n >= maxHung:
		return 0, false
	case n > 0:
		return g.timeout / hurryShare, true
	}
	return g.timeout, true
}

func (g *guard) end(c *guarded, err error) error {
	c.timer.Stop()
	c.left.Store(false)
	g.calls.Put(c)
	return err
}

func nothing() {}

// OpenFile implements [FS]. A file that opens too late is closed.
func (g *guard) OpenFile(name string, flag int, perm fs.FileMode) (FSFile, error) {
	file := new(FSFile)
	err := g.do("open", func() (err error) {
		*file, err = g.fs.OpenFile(name, flag, perm)
		return err
	}, func() {
		if *file != nil {
			(*file).Close()
		}
	})
	if err != nil {
		return nil, err
	}
	return guardedFile{g, *file}, nil
}

// Mkdir implements [FS].
func (g *guard) Mkdir(name string, perm fs.FileMode) error {
	return g.do("mkdir", func() error { return g.fs.Mkdir(name, perm) }, nothing)
}

// Rename implements [FS].
func (g *guard) Rename(from, to string) error {
	return g.do("rename", func() error { return g.fs.Rename(from, to) }, nothing)
}

// Remove implements [FS].
func (g *guard) Remove(name string) error {
	return g.do("remove", func() error { return g.fs.Remove(name) }, nothing)
}

// Stat implements [FS].
func (g *guard) Stat(name string) (FileStat, error) {
	return ask(g, "stat", func() (FileStat, error) { return g.fs.Stat(name) })
}

// Statfs implements [FS].
func (g *guard) Statfs(name string) (Space, error) {
	return ask(g, "statfs", func() (Space, error) { return g.fs.Statfs(name) })
}

// ask is do for a call with an answer.
func ask[T any](g *guard, op string, call func() (T, error)) (T, error) {
	answer := new(T)
	err := g.do(op, func() (err error) {
		*answer, err = call()
		return err
	}, nothing)
	if errors.Is(err, ErrHung) {
		return *new(T), err // answer is the call's still
	}
	return *answer, err
}

// guardedFile is a file of a guard.
type guardedFile struct {
	g *guard
	f FSFile
}

// transfer moves up to a block between p and the file by way of a buffer that the call can keep.
func (f guardedFile) transfer(op string, p []byte, write bool, call func(buf []byte) (int, error)) (int, error) {
	var buf []byte
	giveBack := nothing
	if len(p) <= smallIOBytes {
		buf = make([]byte, len(p))
	} else {
		whole, err := f.g.buffer()
		if err != nil {
			return 0, fmt.Errorf("%s: %w", op, err)
		}
		buf, giveBack = whole[:len(p)], func() { f.g.buffers.Put(whole) }
	}
	if write {
		copy(buf, p)
	}
	n := new(int)
	err := f.g.do(op, func() (err error) {
		*n, err = call(buf)
		return err
	}, giveBack)
	if errors.Is(err, ErrHung) {
		return 0, err
	}
	if !write {
		copy(p, buf[:*n])
	}
	giveBack()
	return *n, err
}

// buffer waits its turn for a buffer, not longer than for a call, and not at all when none is
// to be tried: calls that hang may have all buffers.
func (g *guard) buffer() ([]byte, error) {
	timeout, ok := g.patience()
	if !ok {
		return nil, ErrHung
	}
	if buf := g.buffers.TryGet(); buf != nil {
		return buf, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	buf, err := g.buffers.Get(ctx)
	if err != nil {
		return nil, ErrHung
	}
	return buf, nil
}

// each calls do for parts of p that fit a buffer.
func (f guardedFile) each(p []byte, off int64, do func(part []byte, off int64) (int, error)) (int, error) {
	done := 0
	for {
		part := p[done:min(len(p), done+f.g.buffers.BufBytes())]
		n, err := do(part, off+int64(done))
		if done += n; err != nil || done >= len(p) || n == 0 {
			return done, err
		}
	}
}

// ReadAt implements [io.ReaderAt].
func (f guardedFile) ReadAt(p []byte, off int64) (int, error) {
	return f.each(p, off, func(part []byte, off int64) (int, error) {
		return f.transfer("read", part, false, func(buf []byte) (int, error) { return f.f.ReadAt(buf, off) })
	})
}

// WriteAt implements [io.WriterAt].
func (f guardedFile) WriteAt(p []byte, off int64) (int, error) {
	return f.each(p, off, func(part []byte, off int64) (int, error) {
		return f.transfer("write", part, true, func(buf []byte) (int, error) { return f.f.WriteAt(buf, off) })
	})
}

// Close implements [io.Closer]. A file is closed in any case, if need be when the disk answers
// again: its descriptor, and the lock that it may carry, would stay for good.
func (f guardedFile) Close() error {
	err := f.g.do("close", f.f.Close, nothing)
	if errors.Is(err, errNotTried) {
		go f.f.Close()
	}
	return err
}

// Truncate implements [FSFile].
func (f guardedFile) Truncate(size int64) error {
	return f.g.do("truncate", func() error { return f.f.Truncate(size) }, nothing)
}

// Stat implements [FSFile].
func (f guardedFile) Stat() (FileStat, error) { return ask(f.g, "fstat", f.f.Stat) }

// Chmod implements [FSFile].
func (f guardedFile) Chmod(mode fs.FileMode) error {
	return f.g.do("chmod", func() error { return f.f.Chmod(mode) }, nothing)
}

// SetTimes implements [FSFile].
func (f guardedFile) SetTimes(mtime time.Time) error {
	return f.g.do("utimens", func() error { return f.f.SetTimes(mtime) }, nothing)
}

// StatAt implements [FSFile].
func (f guardedFile) StatAt(name string) (FileStat, error) {
	return ask(f.g, "fstatat", func() (FileStat, error) { return f.f.StatAt(name) })
}

// Names implements [FSFile].
func (f guardedFile) Names(n int) ([]string, error) {
	return ask(f.g, "readdir", func() ([]string, error) { return f.f.Names(n) })
}

// Punch implements [FSFile].
func (f guardedFile) Punch(off, n int64) error {
	return f.g.do("punch hole", func() error { return f.f.Punch(off, n) }, nothing)
}

// OS implements [FSFile].
func (f guardedFile) OS() *os.File { return f.f.OS() }
