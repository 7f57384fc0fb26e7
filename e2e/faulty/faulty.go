// Package faulty is a disk that fails: a file system in a process of its own that passes calls on to a directory and has
// every k-th of them fail or hang, as a test says from call to call.
package faulty

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

// command is the first argument with which a program serves a directory through a file
// system that fails as a file says: "eio 7" fails every seventh call.
const command = "faulty-disk"

// Main serves a faulty disk when this process is to be one, and does not return then.
func Main() {
	if len(os.Args) != 5 || os.Args[1] != command {
		return
	}
	if err := serve(os.Args[2], os.Args[3], os.Args[4]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// The ways to fail, for [Disk.Set].
const (
	None   = "none"
	EIO    = "eio"
	ENOSPC = "enospc"
	EDQUOT = "edquot"
	Hang   = "hang"
)

// mapped is a file that is written by a mapping, which the kernel allows for no file of direct I/O.
const mapped = "names.log"

// poll is how often the file is read.
const poll = 20 * time.Millisecond

// startWait is how long it may take to be mounted.
const startWait = 30 * time.Second

// failing fails calls of a loopback file system.
type failing struct {
	fuse.RawFileSystem
	mu      sync.Mutex
	mode    string
	every   int64
	healed  chan struct{} // closed when the mode changes
	calls   atomic.Int64
	injured atomic.Int64
}

// set changes how calls fail.
func (f *failing) set(mode string, every int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if mode != f.mode || every != f.every {
		f.mode, f.every = mode, every
		close(f.healed)
		f.healed = make(chan struct{})
	}
}

// fault says how a call ends, when it is one that fails.
func (f *failing) fault() fuse.Status {
	f.mu.Lock()
	mode, every, healed := f.mode, f.every, f.healed
	f.mu.Unlock()
	if mode == None || every < 1 || f.calls.Add(1)%every != 0 {
		return fuse.OK
	}
	f.injured.Add(1)
	switch mode {
	case EIO:
		return fuse.EIO
	case ENOSPC:
		return fuse.Status(syscall.ENOSPC)
	case EDQUOT:
		return fuse.Status(syscall.EDQUOT)
	}
	<-healed
	return fuse.OK
}

func (f *failing) Lookup(c <-chan struct{}, h *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	if s := f.fault(); s != fuse.OK {
		return s
	}
	return f.RawFileSystem.Lookup(c, h, name, out)
}

func (f *failing) GetAttr(c <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	if s := f.fault(); s != fuse.OK {
		return s
	}
	return f.RawFileSystem.GetAttr(c, in, out)
}

func (f *failing) SetAttr(c <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	if s := f.fault(); s != fuse.OK {
		return s
	}
	return f.RawFileSystem.SetAttr(c, in, out)
}

func (f *failing) Mkdir(c <-chan struct{}, in *fuse.MkdirIn, name string, out *fuse.EntryOut) fuse.Status {
	if s := f.fault(); s != fuse.OK {
		return s
	}
	return f.RawFileSystem.Mkdir(c, in, name, out)
}

func (f *failing) Unlink(c <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	if s := f.fault(); s != fuse.OK {
		return s
	}
	return f.RawFileSystem.Unlink(c, h, name)
}

func (f *failing) Rename(c <-chan struct{}, in *fuse.RenameIn, from, to string) fuse.Status {
	if s := f.fault(); s != fuse.OK {
		return s
	}
	return f.RawFileSystem.Rename(c, in, from, to)
}

func (f *failing) Create(c <-chan struct{}, in *fuse.CreateIn, name string, out *fuse.CreateOut) fuse.Status {
	if s := f.fault(); s != fuse.OK {
		return s
	}
	s := f.RawFileSystem.Create(c, in, name, out)
	if name != mapped {
		out.OpenFlags |= fuse.FOPEN_DIRECT_IO // so that every read and write is seen
	}
	return s
}

func (f *failing) Open(c <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	if s := f.fault(); s != fuse.OK {
		return s
	}
	s := f.RawFileSystem.Open(c, in, out)
	out.OpenFlags |= fuse.FOPEN_DIRECT_IO
	return s
}

func (f *failing) Read(c <-chan struct{}, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	if s := f.fault(); s != fuse.OK {
		return nil, s
	}
	return f.RawFileSystem.Read(c, in, buf)
}

func (f *failing) Write(c <-chan struct{}, in *fuse.WriteIn, data []byte) (uint32, fuse.Status) {
	if s := f.fault(); s != fuse.OK {
		return 0, s
	}
	return f.RawFileSystem.Write(c, in, data)
}

func (f *failing) Fallocate(c <-chan struct{}, in *fuse.FallocateIn) fuse.Status {
	if s := f.fault(); s != fuse.OK {
		return s
	}
	return f.RawFileSystem.Fallocate(c, in)
}

func (f *failing) Rmdir(c <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	if s := f.fault(); s != fuse.OK {
		return s
	}
	return f.RawFileSystem.Rmdir(c, h, name)
}

func (f *failing) OpenDir(c <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	if s := f.fault(); s != fuse.OK {
		return s
	}
	return f.RawFileSystem.OpenDir(c, in, out)
}

func (f *failing) ReadDir(c <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	if s := f.fault(); s != fuse.OK {
		return s
	}
	return f.RawFileSystem.ReadDir(c, in, out)
}

func (f *failing) ReadDirPlus(c <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	if s := f.fault(); s != fuse.OK {
		return s
	}
	return f.RawFileSystem.ReadDirPlus(c, in, out)
}

func (f *failing) Flush(c <-chan struct{}, in *fuse.FlushIn) fuse.Status {
	if s := f.fault(); s != fuse.OK {
		return s
	}
	return f.RawFileSystem.Flush(c, in)
}

func (f *failing) StatFs(c <-chan struct{}, h *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	if s := f.fault(); s != fuse.OK {
		return s
	}
	return f.RawFileSystem.StatFs(c, h, out)
}

// serve mounts root on dir until SIGTERM. It reads how to fail from how, and writes
// into it with ".count" at its end how many calls there were and how many failed.
func serve(root, dir, how string) error {
	node, err := fs.NewLoopbackRoot(root)
	if err != nil {
		return err
	}
	f := &failing{RawFileSystem: fs.NewNodeFS(node, &fs.Options{}), mode: None, healed: make(chan struct{})}
	server, err := fuse.NewServer(f, dir, &fuse.MountOptions{DirectMountStrict: true, FsName: "faulty", DisableXAttrs: true})
	if err != nil {
		return fmt.Errorf("faulty disk: %w", err)
	}
	go server.Serve()
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	tick := time.NewTicker(poll)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			f.set(None, 0)
			return server.Unmount()
		case <-tick.C:
		}
		text, _ := os.ReadFile(how)
		mode, every := None, int64(0)
		if n, _ := fmt.Sscan(string(text), &mode, &every); n == 2 {
			f.set(mode, every)
		}
		// Put in its place whole: a count that is read while it is written is none.
		if os.WriteFile(how+".count.tmp", fmt.Appendf(nil, "%d %d", f.calls.Load(), f.injured.Load()), 0o600) == nil {
			_ = os.Rename(how+".count.tmp", how+".count")
		}
	}
}

// Disk is a faulty file system in a process.
type Disk struct {
	proc     *cage.Process
	dir, how string
}

// Start serves root on dir, by this program, which begins with [Main], in a process of h. how is a file of its own.
func Start(h *cage.Host, root, dir, how string) (*Disk, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	d := &Disk{dir: dir, how: how}
	if err := d.Set(None, 0); err != nil {
		return nil, err
	}
	if d.proc, err = h.Start(cage.Command{Name: "faulty", Args: []string{self, command, root, dir, how}}); err != nil {
		return nil, err
	}
	for end := time.Now().Add(startWait); !cage.Mounted(dir); time.Sleep(poll) {
		if !d.proc.Running() || time.Now().After(end) {
			return d, fmt.Errorf("faulty disk is not mounted: %s", d.proc.Output())
		}
	}
	return d, nil
}

// Set changes how the disk fails: every so many calls in a way, which [None] ends. Calls that hang come back then.
func (d *Disk) Set(mode string, every int) error {
	temp := d.how + ".tmp"
	if err := os.WriteFile(temp, fmt.Appendf(nil, "%s %d", mode, every), 0o600); err != nil {
		return err
	}
	if err := os.Rename(temp, d.how); err != nil {
		return err
	}
	time.Sleep(2 * poll)
	return nil
}

// Counts returns how many calls there were while it was to fail, and how many did.
func (d *Disk) Counts() (calls, failed int64) {
	time.Sleep(2 * poll)
	text, _ := os.ReadFile(d.how + ".count")
	_, _ = fmt.Sscan(string(text), &calls, &failed)
	return calls, failed
}
