package main

import (
	"fmt"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/shardwell/shardwell/e2e/cage"
)

// faultyCommand is the first argument with which this program serves a directory through a file
// system that fails as a file says: "eio 7" fails every seventh call.
const faultyCommand = "faulty-disk"

// The ways to fail.
const (
	faultNone   = "none"
	faultEIO    = "eio"
	faultENOSPC = "enospc"
	faultHang   = "hang"
)

// faultyPoll is how often the file is read.
const faultyPoll = 20 * time.Millisecond

// faultyFS fails calls of a loopback file system.
type faultyFS struct {
	fuse.RawFileSystem
	mu      sync.Mutex
	mode    string
	every   int64
	healed  chan struct{} // closed when the mode changes
	calls   atomic.Int64
	injured atomic.Int64
}

// set changes how calls fail.
func (f *faultyFS) set(mode string, every int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if mode != f.mode || every != f.every {
		f.mode, f.every = mode, every
		close(f.healed)
		f.healed = make(chan struct{})
	}
}

// fault says how a call ends, when it is one that fails.
func (f *faultyFS) fault() fuse.Status {
	f.mu.Lock()
	mode, every, healed := f.mode, f.every, f.healed
	f.mu.Unlock()
	if mode == faultNone || every < 1 || f.calls.Add(1)%every != 0 {
		return fuse.OK
	}
	f.injured.Add(1)
	switch mode {
	case faultEIO:
		return fuse.EIO
	case faultENOSPC:
		return fuse.Status(syscall.ENOSPC)
	}
	<-healed
	return fuse.OK
}

func (f *faultyFS) Lookup(c <-chan struct{}, h *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	if s := f.fault(); s != fuse.OK {
		return s
	}
	return f.RawFileSystem.Lookup(c, h, name, out)
}

func (f *faultyFS) GetAttr(c <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	if s := f.fault(); s != fuse.OK {
		return s
	}
	return f.RawFileSystem.GetAttr(c, in, out)
}

func (f *faultyFS) SetAttr(c <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	if s := f.fault(); s != fuse.OK {
		return s
	}
	return f.RawFileSystem.SetAttr(c, in, out)
}

func (f *faultyFS) Mkdir(c <-chan struct{}, in *fuse.MkdirIn, name string, out *fuse.EntryOut) fuse.Status {
	if s := f.fault(); s != fuse.OK {
		return s
	}
	return f.RawFileSystem.Mkdir(c, in, name, out)
}

func (f *faultyFS) Unlink(c <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	if s := f.fault(); s != fuse.OK {
		return s
	}
	return f.RawFileSystem.Unlink(c, h, name)
}

func (f *faultyFS) Rename(c <-chan struct{}, in *fuse.RenameIn, from, to string) fuse.Status {
	if s := f.fault(); s != fuse.OK {
		return s
	}
	return f.RawFileSystem.Rename(c, in, from, to)
}

func (f *faultyFS) Create(c <-chan struct{}, in *fuse.CreateIn, name string, out *fuse.CreateOut) fuse.Status {
	if s := f.fault(); s != fuse.OK {
		return s
	}
	s := f.RawFileSystem.Create(c, in, name, out)
	out.OpenFlags |= fuse.FOPEN_DIRECT_IO // so that every read and write is seen
	return s
}

func (f *faultyFS) Open(c <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	if s := f.fault(); s != fuse.OK {
		return s
	}
	s := f.RawFileSystem.Open(c, in, out)
	out.OpenFlags |= fuse.FOPEN_DIRECT_IO
	return s
}

func (f *faultyFS) Read(c <-chan struct{}, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	if s := f.fault(); s != fuse.OK {
		return nil, s
	}
	return f.RawFileSystem.Read(c, in, buf)
}

func (f *faultyFS) Write(c <-chan struct{}, in *fuse.WriteIn, data []byte) (uint32, fuse.Status) {
	if s := f.fault(); s != fuse.OK {
		return 0, s
	}
	return f.RawFileSystem.Write(c, in, data)
}

func (f *faultyFS) Fallocate(c <-chan struct{}, in *fuse.FallocateIn) fuse.Status {
	if s := f.fault(); s != fuse.OK {
		return s
	}
	return f.RawFileSystem.Fallocate(c, in)
}

func (f *faultyFS) StatFs(c <-chan struct{}, h *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	if s := f.fault(); s != fuse.OK {
		return s
	}
	return f.RawFileSystem.StatFs(c, h, out)
}

// serveFaulty mounts root on dir until SIGTERM. It reads how to fail from how, and writes
// into it with ".count" at its end how many calls there were and how many failed.
func serveFaulty(root, dir, how string) error {
	node, err := fs.NewLoopbackRoot(root)
	if err != nil {
		return err
	}
	f := &faultyFS{RawFileSystem: fs.NewNodeFS(node, &fs.Options{}), mode: faultNone, healed: make(chan struct{})}
	server, err := fuse.NewServer(f, dir, &fuse.MountOptions{DirectMountStrict: true, FsName: "faulty", DisableXAttrs: true})
	if err != nil {
		return fmt.Errorf("faulty disk: %w", err)
	}
	go server.Serve()
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	tick := time.NewTicker(faultyPoll)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			f.set(faultNone, 0)
			return server.Unmount()
		case <-tick.C:
		}
		text, _ := os.ReadFile(how)
		mode, every := faultNone, int64(0)
		if n, _ := fmt.Sscan(string(text), &mode, &every); n == 2 {
			f.set(mode, every)
		}
		// Put in its place whole: a count that is read while it is written is none.
		if os.WriteFile(how+".count.tmp", fmt.Appendf(nil, "%d %d", f.calls.Load(), f.injured.Load()), 0o600) == nil {
			_ = os.Rename(how+".count.tmp", how+".count")
		}
	}
}

// faultyDisk is a faulty file system in a process of its own.
type faultyDisk struct {
	proc     *cage.Process
	dir, how string
}

// startFaulty serves root on dir.
func startFaulty(h *cage.Host, root, dir, how string) (*faultyDisk, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	d := &faultyDisk{dir: dir, how: how}
	if err := d.set(faultNone, 0); err != nil {
		return nil, err
	}
	if d.proc, err = h.Start(cage.Command{Name: "faulty", Args: []string{self, faultyCommand, root, dir, how}}); err != nil {
		return nil, err
	}
	return d, until(func() error {
		if !d.proc.Running() || !cage.Mounted(dir) {
			return fmt.Errorf("faulty disk is not mounted: %s", d.proc.Output())
		}
		return nil
	})
}

// set changes how the disk fails.
func (d *faultyDisk) set(mode string, every int) error {
	temp := d.how + ".tmp"
	if err := os.WriteFile(temp, fmt.Appendf(nil, "%s %d", mode, every), 0o600); err != nil {
		return err
	}
	if err := os.Rename(temp, d.how); err != nil {
		return err
	}
	time.Sleep(2 * faultyPoll)
	return nil
}

// counts returns how many calls there were while it was to fail, and how many did.
func (d *faultyDisk) counts() (calls, failed int64) {
	time.Sleep(2 * faultyPoll)
	text, _ := os.ReadFile(d.how + ".count")
	_, _ = fmt.Sscan(string(text), &calls, &failed)
	return calls, failed
}
