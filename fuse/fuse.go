// Package fuse shows a prefix of a bucket as a read-only file system.
//
// It promises that an open file is one version of one object: its bytes, or an
// error; that names and versions are no older than the mount's [Consistency]
// says, while the origin answers; that a request which waits for a slow origin holds up no other; and that
// node ids, handles and directory cookies mean the same to a successor of this
// process, which finds them in the listings and in [SessionState].
//
// It leaves to others: where bytes come from ([Data]), where names come from
// ([objstore.Names]), and who decides to mount what where. It speaks the kernel's
// protocol through go-fuse's ProtocolServer, in a read loop of its own.
//
// Its parts are fuse/tree (keys to names), fuse/snapshot (listings on disk),
// fuse/prefetch (reads to wanted ranges), fuse/tarindex (where members of tars lie) and
// fuse/handover (what outlives the process).
package fuse

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"time"

	"os"

	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/objstore"
)

// Data opens object versions. Open does not wait for the network.
type Data interface {
	Open(obj chunk.Object) (File, error)
}

// File is one open object version. Methods are safe for concurrent use.
type File interface {
	// ReadAt fills p from offset off, or returns an error of an objstore class;
	// fewer bytes only together with an error, io.EOF behind the end. ctx ends when
	// the reader was interrupted.
	ReadAt(ctx context.Context, p []byte, off int64) (int, error)
	// Prefetch says that the bytes [off, off+n) will be read soon. It returns at
	// once; what it starts outlives the call that caused it.
	Prefetch(off, n int64)
	// Backing returns a file that holds all the bytes and may be read instead of
	// this one, when there is one. It stays open until Close.
	Backing() (*os.File, bool)
	// CachedBytes tells how many bytes this node holds.
	CachedBytes() int64
	Close()
}

// LateReader is a File that waits for bytes before it needs a place for them, so
// that a read that is stuck holds no buffer. Files without it are read by ReadAt.
type LateReader interface {
	// ReadLate is ReadAt for n bytes into the buffer that take returns (of at
	// least n bytes). It calls take at most once, from the calling goroutine, not
	// before the first of the bytes is at hand; an error of take ends the read.
	ReadLate(ctx context.Context, off int64, n int, take func() ([]byte, error)) (int, error)
}

// Filler is a File that can be had whole.
type Filler interface {
	// Fill has all of the file brought to this node, beginning at off, and returns at
	// once. False means that this is not under way: then Prefetch is what is left.
	Fill(off int64) bool
}

// Mounter attaches a file system of type fuse.shardwell to a directory, from which on
// the kernel waits for an answer, and returns the kernel's end of it.
type Mounter interface {
	// Mount is mount(2) with fd= added to options.
	Mount(dir, source, options string, flags uintptr) (*os.File, error)
}

// LaterPrefetcher is a File that can be fetched before it is read.
type LaterPrefetcher interface {
	// PrefetchLater is Prefetch for a file that nobody reads yet: what is read goes first.
	PrefetchLater(off, n int64)
}

// Mode is how fresh a mount's names and versions are.
type Mode int

// The modes of [Consistency].
const (
	ModeTTL       Mode = iota // no older than Consistency.TTL, or as the origin said last while it is silent
	ModeOpen                  // asked anew at each open, and when a name is not there; else no older than a second
	ModeImmutable             // what was found once is never asked for again; what was not, after Consistency.TTL
)

// Consistency says how old a name or version may be when it is looked up or opened.
type Consistency struct {
	Mode Mode
	TTL  time.Duration // for ModeTTL, and names not found in ModeImmutable; 0 means DefaultTTL
}

// Limits and defaults.
const (
	DefaultTTL            = 60 * time.Second
	DefaultNameBudget     = 60 * time.Second
	DefaultReadAheadBytes = 1 << 20 // of the kernel, per open file
	// DefaultPrefetchBytes is how far the readers of a mount are ahead of themselves, all together:
	// all of a shard, or of some. How much is under way at once is left to [Data].
	DefaultPrefetchBytes = 2 << 30
	MaxReplyBytes        = 1 << 20 // payload of one READ reply: 256 pages, the kernel's limit
	MaxInFlightRequests  = 4096    // per session; behind them the kernel queues
	// MaxBackgroundRequests is how much readahead the kernel has in flight. When it is
	// all stuck at a dead origin, readahead of local files waits in the kernel: so it is
	// far more than keeps any link busy. It costs nothing: a request that waits has no
	// buffer.
	MaxBackgroundRequests = 2048
	MaxSkippedKeysNamed   = 1000 // per session; all are counted
)

// Config says what a [Session] shows and how. The zero values of optional fields are usable.
type Config struct {
	Bucket objstore.Bucket
	// Prefix is a directory of the bucket: the keys under "Prefix/" are shown, ""
	// shows all. One slash at its end is implied; others are part of it.
	Prefix string
	URI    string // how the user wrote it, for messages and the mount table
	// UTF8Keys says that the origin lists keys that are not UTF-8 but cannot be asked
	// for them, as S3: they are left out and named by SkippedKeys.
	UTF8Keys bool

	Names objstore.Names
	Data  Data
	// Tars, unless nil, has the members of each tar DIR/x.tar shown as files in DIR/.tar/x.tar.
	Tars Tars

	// StateDir keeps the listing snapshots of this mount; it is made when it is
	// missing, belongs to this session alone, and is small beside the cache (some
	// 100 bytes a name). What an earlier session left there is read again.
	StateDir string
	// InTime has a call to the disk of StateDir come back in time, with an error if need be: then call goes on by
	// itself, and late runs after it. nil: calls wait for the disk.
	InTime func(op string, call func() error, late func()) error
	// Resume says that a predecessor began this session, in another process: State is what
	// it left, and its listings are in Listings and not in StateDir.
	Resume bool
	// Listings is what the predecessor's ListingsFile returned; nil when that was nil. New
	// takes it over.
	Listings *os.File
	// Crashed says that the predecessor ended by a fault of its own, and was not killed.
	Crashed bool

	Consistency Consistency
	// Prove is asked at each open; nil and what is not above 0 ask nothing. Else the open
	// proves that the mount may read the object: Names have asked the origin for it, by a HEAD,
	// at most so long ago, whatever listings and earlier opens told. While the origin is silent
	// such opens wait, and fail in the end.
	Prove func() time.Duration
	// NameBudget is how long a look-up, an open or a step of a listing waits for answers of
	// Names in all; 0 means DefaultNameBudget. Names give up by themselves before.
	NameBudget time.Duration

	UID, GID          uint32      // owner of everything
	FileMode, DirMode fs.FileMode // permission bits; 0 means 0444 and 0555
	AllowOther        bool        // others than the mounting user may look, as far as modes allow

	ReadAheadBytes int64 // of the kernel per open file; 0 means DefaultReadAheadBytes
	PrefetchBytes  int64 // ahead of all sequential readers; 0 means DefaultPrefetchBytes, negative none
	NextFiles      int   // of each reader whose next files are known, to be fetched before he opens them; 0 means DefaultNextFiles, negative none
	NoPassthrough  bool  // every read is checked by the daemon ("verifyReads: always")

	Mounter Mounter      // attaches the file system; nil: this process does
	Buffers *Buffers     // reply buffers, one pool for all sessions of a node
	State   SessionState // nil keeps it in this process
	Logger  *slog.Logger // nil discards
}

// Validate reports, in words meant for the user, why c cannot be used.
func (c *Config) Validate() error {
	switch {
	case c.Names == nil || c.Data == nil || c.Buffers == nil:
		return errors.New("file system: Names, Data and Buffers are needed")
	case c.StateDir == "" && !c.Resume:
		return errors.New("file system: a state directory is needed")
	case c.Consistency.Mode < ModeTTL || c.Consistency.Mode > ModeImmutable:
		return fmt.Errorf("consistency mode %d: unknown", c.Consistency.Mode)
	case c.Consistency.TTL < 0:
		return fmt.Errorf("consistency ttl %v: must not be negative", c.Consistency.TTL)
	case c.NameBudget < 0:
		return fmt.Errorf("budget of %v for names: must not be negative", c.NameBudget)
	case c.FileMode&^fs.ModePerm != 0 || c.DirMode&^fs.ModePerm != 0:
		return fmt.Errorf("file mode %#o, directory mode %#o: only permission bits can be set", c.FileMode, c.DirMode)
	case len(c.Prefix) > chunk.MaxKeyBytes:
		return fmt.Errorf("prefix of %d bytes: at most %d", len(c.Prefix), chunk.MaxKeyBytes)
	}
	return nil
}
