// Package tarindex knows where the members of a tar lie, so that each can be read from
// the tar without unpacking it.
//
// It promises that an [Index] names only bytes of regular members, inside the tar; that one
// object version gives one index, whichever node made it and in whichever order its bytes came;
// that nothing in a tar makes it take more than [MaxIndexBytes]; and that a damaged index is a
// miss, never a wrong place. What a tar holds and an index does not show is counted and named
// with its reason.
//
// A [Scanner] reads headers only, from whatever part of the tar is at hand, and goes on
// later. A [Library] keeps indexes in memory and on disk, lets them grow while shards stream
// through the node, and asks others before it scans by itself. Headers are read by
// archive/tar, one member at a time, but for the plain ones that nearly all are.
//
// It leaves to others: where bytes come from ([Source]), which node keeps the index of an
// object ([Config.Ask]), and how members are shown (package fuse, of which this is a part).
//
// Which members are shown:
//   - Regular files, and hard links to one that came before, which is the same bytes.
//   - Of several members of one name the last one, at its place: what unpacking leaves behind.
//   - Names relative to the root of the tar: "/a" and "./a" are "a".
//   - A file beside a directory of its name is left out, as it is in a bucket.
//   - Left out: symbolic links, devices, FIFOs, sparse files, names with "..", parts over 255
//     bytes, and what is cut off at the end.
package tarindex

import (
	"errors"
	"fmt"
	"iter"
	"time"
)

// Limits of an index.
const (
	// MaxIndexBytes is the memory that one index takes at most: some 700,000 members. A tar with
	// more is refused.
	MaxIndexBytes = 64 << 20
	// MaxHeaders bounds the members of a tar that are looked at, those left out included.
	MaxHeaders = 16 << 20
	// MaxNamedLeftOut is how many of the members left out an index names; it counts all.
	MaxNamedLeftOut = 100

	maxHeaderBytes = 4 << 20 // headers of one member; archive/tar takes 1 MiB each of names and records
	maxPathBytes   = 4095
	maxPartBytes   = 255
)

// Errors that say why there is no index, to be found with errors.Is.
var (
	ErrNotTar     = errors.New("not a tar")
	ErrCompressed = errors.New("compressed: no member has a place of its own, only the whole can be read")
	ErrTooLarge   = errors.New("too many members to index")
)

// Index says where the members of one version of a tar lie. It never changes.
type Index struct {
	nodes   []node // 0 is the root
	names   []byte
	order   []uint32 // nodes but the root, by parent and place in the tar
	table   table
	files   int
	refused refusal
	damage  string
	left    leftOut
}

// node is a member, or a directory.
type node struct {
	off, size int64
	mtime     int64  // seconds since 1970, 0 = unknown
	parent    uint32 // node
	name      uint32 // where it begins in names
	seq       uint32 // place in the tar
	first     uint32 // of a directory's children, in order
	count     uint32 // of its children
	nameLen   uint8
	dir       bool
}

const nodeBytes = 56 + 4 + 8 // with its places in order and, at most half full, in table

// Node is an entry of an index. The root is 0.
type Node uint32

// Entry describes a member.
type Entry struct {
	Name    string // the last part
	Dir     bool
	Off     int64 // of the first byte in the tar
	Size    int64 // bytes
	ModTime time.Time
}

// Left is a member that an index does not show.
type Left struct {
	Name   string // as in the tar, quoted when it is no plain text
	Reason string
}

// leftOut is what an index does not show.
type leftOut struct {
	count int64
	named []Left
}

// Err says why the tar has no index, nil when it has one.
func (x *Index) Err() error { return x.refused.err() }

// Damage says in words why members behind some place in the tar are not known, "" when all are.
func (x *Index) Damage() string { return x.damage }

// LeftOut returns how many members are not shown, and the first of them.
func (x *Index) LeftOut() (count int64, first []Left) { return x.left.count, x.left.named }

// Files returns how many files the index shows.
func (x *Index) Files() int { return x.files }

// Bytes is about the memory that the index takes.
func (x *Index) Bytes() int64 {
	return int64(len(x.nodes))*nodeBytes + int64(len(x.names)) + 4<<10
}

// Child finds an entry of a directory by its name.
func (x *Index) Child(dir Node, name string) (Node, bool) {
	i, ok := x.table.find(x, uint32(dir), name)
	return Node(i), ok
}

// Find finds an entry by its path; "" is the root.
func (x *Index) Find(path string) (Node, bool) {
	at := Node(0)
	for len(path) > 0 {
		part := path
		path = ""
		for i := range len(part) {
			if part[i] == '/' {
				part, path = part[:i], part[i+1:]
				break
			}
		}
		var ok bool
		if at, ok = x.Child(at, part); !ok {
			return 0, false
		}
	}
	return at, true
}

// Len returns how many entries a directory has.
func (x *Index) Len(dir Node) int { return int(x.nodes[dir].count) }

// At returns the i-th entry of a directory, in the order of the tar.
func (x *Index) At(dir Node, i int) Node { return Node(x.order[int(x.nodes[dir].first)+i]) }

// Entry describes a node.
func (x *Index) Entry(n Node) Entry {
	v := &x.nodes[n]
	e := Entry{Name: string(x.name(uint32(n))), Dir: v.dir, Off: v.off, Size: v.size}
	if v.mtime != 0 {
		e.ModTime = time.Unix(v.mtime, 0)
	}
	return e
}

// Path returns the path of a node from the root of the tar.
func (x *Index) Path(n Node) string { return string(x.appendPath(nil, uint32(n))) }

func (x *Index) appendPath(b []byte, n uint32) []byte {
	var above []uint32
	for ; n != 0; n = x.nodes[n].parent {
		above = append(above, n)
	}
	for i := len(above) - 1; i >= 0; i-- {
		b = append(b, x.name(above[i])...)
		if i > 0 {
			b = append(b, '/')
		}
	}
	return b
}

// All yields files, and directories that the tar names, in the order of the tar, with their
// paths.
func (x *Index) All() iter.Seq2[string, Entry] {
	return func(yield func(string, Entry) bool) {
		for _, n := range x.inTarOrder() {
			e := x.Entry(Node(n))
			if e.Dir && x.Len(Node(n)) > 0 {
				continue // its entries show it
			}
			if !yield(x.Path(Node(n)), e) {
				return
			}
		}
	}
}

func (x *Index) name(n uint32) []byte {
	v := &x.nodes[n]
	return x.names[v.name : v.name+uint32(v.nameLen)]
}

// refusal says why a tar has no index.
type refusal struct {
	kind   refusalKind
	detail string
}

type refusalKind uint8

const (
	accepted refusalKind = iota
	refusedNotTar
	refusedCompressed
	refusedTooLarge
	refusals
)

func (r refusal) err() error {
	var class error
	switch r.kind {
	case accepted:
		return nil
	case refusedCompressed:
		class = ErrCompressed
	case refusedTooLarge:
		class = ErrTooLarge
	default:
		class = ErrNotTar
	}
	if r.detail == "" {
		return class
	}
	return fmt.Errorf("%s: %w", r.detail, class)
}
