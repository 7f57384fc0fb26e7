// Package tree turns the flat keys of a bucket into the entries of directories.
//
// It promises that a listing and a look-up of one name come to the same entry,
// and that a key which cannot be a path is left out with a [Reason] while
// nothing else suffers. It is pure: pages in, entries out. Asking the origin and
// remembering entries are left to others. It is a part of fuse.
//
// The rules. Keys become paths by "/"; bytes stay as they are, whether UTF-8 or
// not, unless the origin cannot be asked for them ([Rules]). A key under a prefix implies the directories on its way; a key that ends
// with "/" is a marker and says only that its directory exists. Where a key `a`
// and keys `a/…` meet, the directory is shown: it stands for many keys, the file
// for one.
package tree

import (
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/objstore"
)

// MaxNameBytes is the longest part of a path that Linux accepts.
const MaxNameBytes = 255

// Kind of an entry.
type Kind uint8

// The kinds of entries.
const (
	File Kind = iota + 1
	Dir
)

// Entry is one name of a directory.
type Entry struct {
	Name    string
	Kind    Kind
	Size    int64 // bytes; 0 for a directory of keys
	ETag    string
	ModTime time.Time // zero when unknown
}

// SameVersion reports whether two entries of one name mean the same bytes. When it
// was written says nothing about that.
func (e Entry) SameVersion(o Entry) bool {
	return e.Kind == o.Kind && e.Size == o.Size && e.ETag == o.ETag // directories of keys have neither
}

// Reason says why a key cannot be a path.
type Reason uint8

// The reasons; OK is none.
const (
	OK        Reason = iota
	EmptyPart        // "a//b", "/a"
	DotPart          // "." or ".."
	NulByte
	LongPart  // over MaxNameBytes
	Shadowed  // `a` beside `a/b`
	Foreign   // the origin listed a key that is not under the prefix
	LongKey   // over chunk.MaxKeyBytes, with the slash of a directory
	NotUTF8   // where [Rules] want it
	NoVersion // no ETag, neither in the listing nor by HEAD
)

var reasons = [...]string{"", "has an empty part", "has a part that is . or ..", "holds a NUL byte",
	"has a part longer than 255 bytes", "is also a directory", "is not under the prefix that was listed",
	fmt.Sprintf("is longer than %d bytes", chunk.MaxKeyBytes-1), "is not UTF-8, which the origin needs",
	"has no version: the origin gives no ETag"}

func (r Reason) String() string { return reasons[r] }

// Skip is a key, or a whole prefix when it ends with "/", that is left out.
type Skip struct {
	Key    string
	Reason Reason
}

// Rules are what an origin demands of keys beside what a path does.
type Rules struct {
	UTF8 bool // keys that are not UTF-8 can be listed, but not asked for
}

// Check reports whether a name in the directory of a key prefix can be shown: the
// one rule for listings and look-ups.
func (r Rules) Check(dirPrefix, name string) Reason {
	switch {
	case name == "":
		return EmptyPart
	case name == "." || name == "..":
		return DotPart
	case len(name) > MaxNameBytes:
		return LongPart
	case len(dirPrefix)+len(name) >= chunk.MaxKeyBytes:
		return LongKey
	case strings.IndexByte(name, 0) >= 0:
		return NulByte
	case r.UTF8 && !utf8.ValidString(name):
		return NotUTF8
	}
	return OK
}

// DirPrefix returns what the keys of a mount of prefix begin with: prefix and a
// slash, unless it ends with one or is empty.
func DirPrefix(prefix string) string {
	if prefix == "" || strings.HasSuffix(prefix, "/") {
		return prefix
	}
	return prefix + "/"
}

// Join returns the key of a name in the directory with the given prefix.
func Join(dirPrefix, name string, kind Kind) string {
	if kind == Dir {
		return dirPrefix + name + "/"
	}
	return dirPrefix + name
}

// Answers are what the origin said about one name that no listing showed: to a HEAD of
// the key, and to a listing of the prefix "key/" with one entry.
type Answers struct {
	Head    objstore.Info
	HeadErr error
	Below   objstore.Page
	ListErr error
}

// Resolve comes to the entry of name from the answers. It returns false without
// an error when there is none, and shadowed when a file hides behind a directory.
func Resolve(name string, a Answers) (e Entry, found, shadowed bool, err error) {
	// An origin that lists, but cannot be asked for the key, has none of that name.
	missing := errors.Is(a.HeadErr, objstore.ErrNotExist) || errors.Is(a.HeadErr, objstore.ErrInvalid) && a.ListErr == nil
	switch {
	case a.ListErr == nil && len(a.Below.Objects)+len(a.Below.Prefixes) > 0:
		e = Entry{Name: name, Kind: Dir}
		if len(a.Below.Objects) > 0 && strings.HasSuffix(a.Below.Objects[0].Key, "/"+name+"/") {
			e.ModTime = a.Below.Objects[0].ModTime // its marker
		}
		return e, true, a.HeadErr == nil, nil
	case a.ListErr != nil && (a.HeadErr != nil || !errors.Is(a.ListErr, objstore.ErrPermission)):
		// Who may not list cannot see directories; a file shows all the same.
		if a.HeadErr != nil && !missing {
			return Entry{}, false, false, a.HeadErr
		}
		return Entry{}, false, false, a.ListErr
	case missing:
		return Entry{}, false, false, nil
	case a.HeadErr != nil:
		return Entry{}, false, false, a.HeadErr
	}
	return FileEntry(name, a.Head), true, false, nil
}

// FileEntry describes an object as the entry of name.
func FileEntry(name string, info objstore.Info) Entry {
	return Entry{Name: name, Kind: File, Size: info.Size, ETag: info.ETag, ModTime: info.ModTime}
}
