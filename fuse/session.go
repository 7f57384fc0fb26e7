package fuse

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"github.com/shardwell/shardwell/fuse/snapshot"
	"github.com/shardwell/shardwell/fuse/tree"
	"github.com/shardwell/shardwell/objstore"
	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"
)

// Session serves one mount. Make it with New, then Mount, then Run.
type Session struct {
	cfg   Config
	log   *slog.Logger
	stats Stats
	state SessionState
	notes Journal // of the state, or one that forgets
	store *snapshot.Store

	logRate *rate.Limiter

	ps *gofuse.ProtocolServer

	dev    int        // the kernel's end, from Mount to the end of Run; -1 else
	devMu  sync.Mutex // held where dev changes, and where others than Run look at it
	stopFD int        // eventfd: tells the reading thread to leave

	dir         atomic.Pointer[string]
	device      string        // of the mount, "major:minor"; set with dir
	ready       chan struct{} // closed when the mount is served
	readyOnce   sync.Once
	began       chan struct{} // closed when Run has begun
	ended       chan struct{} // closed when Run is about to return
	passthrough atomic.Bool
	epochs      atomic.Bool // the kernel knows NOTIFY_INC_EPOCH
	resends     atomic.Bool // the kernel knows NOTIFY_RESEND

	inflight inflight
	slots    chan struct{}  // MaxInFlightRequests
	dock     chan struct{}  // holds the one request that is tried alone
	serving  sync.WaitGroup // requests, listings and notices
	polling  sync.WaitGroup // the call to our own mount that makes it ready
	runCtx   context.Context
	notices  chan notice

	leaving atomic.Bool             // HandOver was called: answer nothing any more
	kept    atomic.Pointer[os.File] // the kernel's end, for the successor
	adopted bool                    // from a predecessor; set before Run

	opens   openTable
	dirs    dirTable
	views   tarViews
	skipped skippedKeys
	silence silence
	absent  absentNames
	failed  failedLookups
	next    nextFiles
}

// logsPerSecond bounds the lines about failed requests.
const logsPerSecond = 10

// New prepares a session; nothing is mounted and no origin asked yet. With cfg.Resume, or
// when cfg.State knows of an earlier Session of this process that served the mount, it goes on with
// the listings that one left; else it starts anew in cfg.StateDir. Close releases it.
func New(cfg Config) (*Session, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.setDefaults()
	s := &Session{
		cfg:     cfg,
		log:     cfg.Logger.With("mount", cfg.uri()),
		state:   cfg.State,
		dev:     -1,
		logRate: rate.NewLimiter(logsPerSecond, logsPerSecond),
		notes:   noJournal{},
		ready:   make(chan struct{}),
		began:   make(chan struct{}),
		ended:   make(chan struct{}),
		slots:   make(chan struct{}, MaxInFlightRequests),
		dock:    make(chan struct{}, 1),
		notices: make(chan notice, maxNotices),
	}
	s.inflight.all, s.inflight.news = make(map[uint64]*request), make(chan struct{}, 1)
	s.opens.init()
	s.silence.init()
	s.next.init(s)
	s.dirs.all = make(map[*snapshot.Dir]*directory)
	if notes, ok := s.state.(Journal); ok {
		s.notes = notes
	}
	if s.notes.Blame(blameOfKill); cfg.Crashed {
		s.notes.Blame(blameOfCrash - blameOfKill)
	}
	s.notes.Dock(0)
	request, reply := s.state.Init()
	err := s.openListings(request != nil)
	if err != nil {
		return nil, err
	}
	if s.stopFD, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return nil, errors.Join(fmt.Errorf("file system: eventfd: %w", err), s.store.Close())
	}
	s.ps = gofuse.NewProtocolServer(&rawFS{RawFileSystem: gofuse.NewDefaultRawFileSystem(), s: s}, cfg.protocolOptions(s.log))
	if request != nil {
		if err := s.resume(request, reply); err != nil {
			return nil, errors.Join(err, s.Close())
		}
	}
	return s, nil
}

// openListings opens what the session remembers of names.
func (s *Session) openListings(resumes bool) (err error) {
	c, now := &s.cfg, time.Now()
	onLost := func(err error) {
		s.log.Warn("file system: names are kept in memory only", "error", err)
	}
	spill := spillOf(s.state)
	spill.InTime = c.InTime
	switch {
	case c.Resume:
		s.store, err = snapshot.OpenFile(c.Listings, c.identity(), now, spill, onLost)
	case resumes:
		s.store, err = snapshot.Open(c.StateDir, c.identity(), now, spill, onLost)
	default:
		s.store, err = snapshot.Create(c.StateDir, c.identity(), tree.DirPrefix(c.Prefix), now, spill, onLost)
	}
	return err
}

func (c *Config) setDefaults() {
	if c.Consistency.TTL == 0 {
		c.Consistency.TTL = DefaultTTL
	}
	if c.FileMode == 0 {
		c.FileMode = 0o444
	}
	if c.DirMode == 0 {
		c.DirMode = 0o555
	}
	if c.ReadAheadBytes == 0 {
		c.ReadAheadBytes = DefaultReadAheadBytes
	}
	if c.PrefetchBytes == 0 {
		c.PrefetchBytes = DefaultPrefetchBytes
	}
	if c.NextFiles == 0 {
		c.NextFiles = DefaultNextFiles
	}
	if c.NameBudget == 0 {
		c.NameBudget = DefaultNameBudget
	}
	if c.State == nil {
		c.State = newProcessState()
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
}

// identity names what the listings are of.
func (c *Config) identity() string {
	return c.Bucket.Origin + "\n" + c.Bucket.Name + "\n" + tree.DirPrefix(c.Prefix)
}

// rules say which keys are shown.
func (c *Config) rules() tree.Rules { return tree.Rules{UTF8: c.UTF8Keys} }

func (c *Config) protocolOptions(log *slog.Logger) *gofuse.MountOptions {
	o := &gofuse.MountOptions{
		Name:                     "shardwell",
		FsName:                   c.source(),
		MaxWrite:                 maxWriteBytes,
		MaxBackground:            MaxBackgroundRequests,
		ExplicitDataCacheControl: true, // an inode is one version: its pages never change
		IDMappedMount:            true,
		Logger:                   slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		// Not CAP_ASYNC_DIO: the kernel waits for such reads beyond any signal.
		ExtraCapabilities: gofuse.CAP_READDIRPLUS_AUTO | gofuse.CAP_HAS_RESEND | gofuse.CAP_HAS_EXPIRE_ONLY,
		PanicHandler: func(p any) gofuse.Status {
			log.Error("file system: panic", "panic", fmt.Sprint(p))
			return gofuse.EIO
		},
	}
	if c.NoPassthrough {
		o.DisabledCapabilities = gofuse.CAP_PASSTHROUGH
	}
	return o
}

// Check asks the origin whether there is anything under the prefix, for a clear
// message before the mount. The error has class objstore.ErrNotExist when there is
// not, and objstore.ErrInvalid when the prefix names an object, which is no directory.
func (s *Session) Check(ctx context.Context) error {
	q := objstore.Query{Bucket: s.cfg.Bucket, MaxAge: s.maxAge()}
	prefix := tree.DirPrefix(s.cfg.Prefix)
	page, _, err := s.firstNames(ctx, q, objstore.ListRequest{Prefix: prefix, Delimiter: "/", Limit: 1})
	switch {
	case err != nil && strings.Contains(err.Error(), strings.TrimSuffix(s.cfg.uri(), "/")):
		return err // says what it is about
	case err != nil:
		return fmt.Errorf("%s: %w", s.cfg.uri(), err)
	case len(page.Objects)+len(page.Prefixes) > 0 || prefix == "":
		return nil
	}
	if _, _, err := s.cfg.Names.Head(ctx, q, strings.TrimSuffix(prefix, "/")); err == nil {
		return finding{fmt.Sprintf("%s names an object, not a directory: mount what it lies in", s.cfg.uri()), objstore.ErrInvalid}
	}
	if s.cfg.Bucket.Name == "" {
		return s.checkEmptyDir(ctx, q, strings.TrimSuffix(prefix, "/"))
	}
	return finding{fmt.Sprintf("%s: nothing in the bucket begins with %q", s.cfg.uri(), prefix), objstore.ErrNotExist}
}

// checkEmptyDir is Check for a directory of a directory origin in which there is nothing:
// its own name tells whether it exists.
func (s *Session) checkEmptyDir(ctx context.Context, q objstore.Query, path string) error {
	req := objstore.ListRequest{Prefix: path, Delimiter: "/"}
	for {
		page, _, err := s.cfg.Names.List(ctx, q, req)
		switch {
		case err != nil:
			return fmt.Errorf("%s: %w", s.cfg.uri(), err)
		case slices.Contains(page.Prefixes, path+"/"):
			return nil
		case page.Next == "":
			return finding{fmt.Sprintf("%s: no such directory", s.cfg.uri()), objstore.ErrNotExist}
		}
		req.Token = page.Next
	}
}

// finding is an error that tells all there is to say, and has a class.
type finding struct {
	text  string
	class error
}

func (f finding) Error() string { return f.text }
func (f finding) Unwrap() error { return f.class }

// Mount attaches the file system to dir, an existing directory. Who looks into it
// waits until Run serves.
func (s *Session) Mount(dir string) error {
	if s.dev >= 0 {
		return fmt.Errorf("mount %s: %s is mounted on %s already", dir, s.cfg.uri(), s.Dir())
	}
	dir = Canonical(dir)
	fd, err := s.cfg.openDevice(dir)
	if err != nil {
		return err
	}
	s.attach(fd, dir, "")
	return nil
}

func (s *Session) attach(fd int, dir, device string) {
	s.devMu.Lock()
	s.dev = fd
	s.devMu.Unlock()
	s.dir.Store(&dir)
	s.device = cmp.Or(deviceBehind(fd), device, deviceOf(dir))
}

// mounted reports whether our mount is still where it was made, and not another.
func (s *Session) mounted() bool {
	m, ok := FindMount(s.Dir()) // which also tells of one that was aborted
	return ok && m.Ours() && m.Device == s.device
}

// Run serves the mount until it is unmounted (nil), ctx ends (nil; the mount is taken
// away, and who still uses it gets errors) or the kernel's device fails. It returns
// after everything it started has ended.
func (s *Session) Run(ctx context.Context) error {
	if s.dev < 0 {
		return errors.New("file system: not mounted")
	}
	defer close(s.ended)
	close(s.began)
	if s.adopted {
		if err := s.takeUp(); err != nil {
			s.leave()
			return err
		}
	}
	runCtx, cancel := context.WithCancel(ctx)
	s.runCtx = runCtx
	stop := context.AfterFunc(runCtx, func() { _ = s.signalStop() })
	s.serving.Go(func() { s.sendNotices(runCtx) })
	s.serving.Go(func() { s.watchCallers(runCtx) })
	s.serving.Go(func() { s.next.run(runCtx) })
	s.serving.Go(func() { s.next.keepSaved(runCtx) })
	err := s.readRequests(runCtx)
	cancel()
	stop()
	handOver := s.leaving.Load() && err == nil && ctx.Err() == nil
	if !handOver {
		s.abort()
	}
	s.serving.Wait()
	if handOver {
		s.devMu.Lock()
		s.kept.Store(os.NewFile(uintptr(s.dev), "/dev/fuse"))
		s.dev = -1
		s.devMu.Unlock()
		s.opens.closeAll()
		return nil
	}
	s.leave()
	s.polling.Wait()
	return err
}

// abort ends what waits in the kernel for this session, its own calls included.
func (s *Session) abort() {
	if s.mounted() {
		_ = unix.Unmount(s.Dir(), unix.UMOUNT_NOFOLLOW|unix.MNT_FORCE) // busy or not
	}
}

// signalStop makes the reading thread leave its loop.
func (s *Session) signalStop() error {
	_, err := unix.Write(s.stopFD, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	return err
}

// leave takes the mount away. Closing the device ends what still waits for an answer.
func (s *Session) leave() {
	if s.mounted() {
		if err := unix.Unmount(s.Dir(), unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH); err != nil {
			s.log.Error("file system: mount stays behind", "directory", s.Dir(), "error", err)
		}
	}
	s.devMu.Lock()
	_ = unix.Close(s.dev)
	s.dev = -1
	s.devMu.Unlock()
	s.opens.closeAll()
}

// Unmount detaches the mount; Run returns when its last user is gone. When it is
// busy, lazy detaches it all the same and leaves open files readable as long as Run
// goes on.
func (s *Session) Unmount(lazy bool) error {
	if s.Dir() == "" {
		return fmt.Errorf("unmount %s: not mounted", s.cfg.uri())
	}
	return UnmountDir(s.Dir(), lazy)
}

// Close releases what New took. Run must have returned or never have been called.
func (s *Session) Close() error {
	if s.dev >= 0 {
		s.leave()
	}
	s.opens.closeAll()
	var kept error
	if dev := s.kept.Swap(nil); dev != nil { // nobody came for it
		kept = dev.Close()
	}
	return errors.Join(kept, s.store.Close(), unix.Close(s.stopFD))
}

// Ready is closed when the mount is served. This process does not open files of the
// mount before.
func (s *Session) Ready() <-chan struct{} { return s.ready }

// Dir returns where the session is or was mounted, "" before Mount.
func (s *Session) Dir() string {
	if p := s.dir.Load(); p != nil {
		return *p
	}
	return ""
}

// Stats returns the counters of the session.
func (s *Session) Stats() *Stats {
	s.stats.Names.Store(s.store.Records())
	return &s.stats
}

// Listed returns how many of the files that the mount has shown or listed so far
// exist, as far as it knows, and the sum of their sizes in bytes. Directories that nobody
// looked into are not counted, nor what lies in those that vanished.
func (s *Session) Listed() (files, bytes int64) {
	c := s.store.Counts()
	return c.Files, c.Bytes
}

// SkippedKey is a key that cannot be shown as a path.
type SkippedKey struct {
	Key    string // or prefix, when it ends with a slash
	Reason string
}

// SkippedKeys returns keys that cannot be a path, as far as directories were listed
// and at most MaxSkippedKeysNamed; Stats().Skipped counts them all.
func (s *Session) SkippedKeys() []SkippedKey { return s.skipped.list() }

// skippedKeys remembers the first keys that were left out, each once.
type skippedKeys struct {
	mu    sync.Mutex
	seen  map[uint64]struct{} // hashes; at most maxSkippedSeen
	named []SkippedKey
}

// maxSkippedSeen bounds what keeps a key from being counted at each listing.
const maxSkippedSeen = 1 << 20

var skipSeed = maphash.MakeSeed()

// add reports whether the key was not known yet, as far as that is remembered.
func (k *skippedKeys) add(skip tree.Skip) bool {
	sum := maphash.String(skipSeed, skip.Key)
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, ok := k.seen[sum]; ok {
		return false
	}
	if k.seen == nil {
		k.seen = make(map[uint64]struct{})
	}
	if len(k.seen) < maxSkippedSeen {
		k.seen[sum] = struct{}{}
	}
	if len(k.named) < MaxSkippedKeysNamed {
		k.named = append(k.named, SkippedKey{Key: strings.Clone(skip.Key), Reason: skip.Reason.String()})
	}
	return true
}

// has reports whether the key was left out before, as far as that is remembered.
func (k *skippedKeys) has(key string) bool {
	sum := maphash.String(skipSeed, key)
	k.mu.Lock()
	defer k.mu.Unlock()
	_, ok := k.seen[sum]
	return ok
}

func (k *skippedKeys) list() []SkippedKey {
	k.mu.Lock()
	defer k.mu.Unlock()
	return append([]SkippedKey(nil), k.named...)
}

// permissions of an entry, with its type.
func (c *Config) mode(kind tree.Kind) uint32 {
	if kind == tree.Dir {
		return unix.S_IFDIR | uint32(c.DirMode&fs.ModePerm)
	}
	return unix.S_IFREG | uint32(c.FileMode&fs.ModePerm)
}
