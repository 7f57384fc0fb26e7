package cache

import (
	"os"

	"github.com/shardwell/shardwell/internal/chunk"
)

// Tier keeps blocks of objects on this node; cache/disk is one. Errors of a tier
// cost hits, never a read: the cache goes on without it.
type Tier interface {
	// Acquire returns the file of an object, which holds no block yet if it is
	// new. Owned says that this node owns the object or a part of it. The caller releases it.
	Acquire(obj chunk.Object, id chunk.ObjectID, owned bool) (TierFile, error)
	// Find returns the file of an object that the tier holds something of, or an error.
	Find(id chunk.ObjectID) (TierFile, error)
}

// TierFile holds blocks of one object. Methods are safe for concurrent use.
type TierFile interface {
	// Has reports whether a block is present.
	Has(block uint32) bool
	// CachedBytes returns how many of the object's bytes are present.
	CachedBytes() int64
	// Put stores a checked block, or says why it does not. It is idempotent and
	// keeps nothing of b.Data.
	Put(b chunk.Block) error
	// ReadAt reads bytes whose blocks are all present and checks each block. A block
	// that fails is no longer present, and the error is [chunk.ErrCorrupt].
	ReadAt(p []byte, off int64) (int, error)
	// Lend returns the place of a block, valid until Return, if it is present.
	Lend(block uint32) (chunk.Piece, bool)
	// Return ends one Lend that returned true.
	Return(block uint32)
	// Suspect checks a block now and drops it if it is damaged.
	Suspect(block uint32)
	// Backing returns the file that holds the whole object in plain, if the kernel
	// may read it by itself.
	Backing() (*os.File, bool)
	// Release gives the file back.
	Release()
}

// spender is a TierFile that wants to know when a reader has had all of it, as readers have once an
// epoch: of what other nodes own such a copy is the first to go.
type spender interface {
	// ReleaseSpent is Release then.
	ReleaseSpent()
}

// holder is a TierFile that keeps a present block until Return, as Lend does, but without looking at it: a block that
// passes through may be given back before who waits for it has had it, and would be fetched again.
type holder interface {
	// Hold does no I/O. It reports false when the block is not there.
	Hold(block uint32) bool
}

// tier is what disk.Dir looks like, whatever type its files have.
type tier[F TierFile] interface {
	Acquire(obj chunk.Object, id chunk.ObjectID, owned bool) (F, error)
	Find(id chunk.ObjectID) (F, error)
}

// TierOf makes a [Tier] of an implementation whose methods return files of
// their own type.
func TierOf[F TierFile](t tier[F]) Tier { return adapted[F]{t} }

type adapted[F TierFile] struct{ t tier[F] }

func (a adapted[F]) Acquire(obj chunk.Object, id chunk.ObjectID, owned bool) (TierFile, error) {
	f, err := a.t.Acquire(obj, id, owned)
	if err != nil {
		return nil, err // not F's nil in an interface
	}
	return f, nil
}

func (a adapted[F]) Find(id chunk.ObjectID) (TierFile, error) {
	f, err := a.t.Find(id)
	if err != nil {
		return nil, err
	}
	return f, nil
}
