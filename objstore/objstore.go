// Package objstore reads immutable versions of objects from an origin: an S3
// bucket (objstore/s3) or a directory that every node has mounted (objstore/dir).
//
// It promises that bytes belong to the version asked for or an error says why
// not, and that errors carry a class ([ErrNotExist] and its siblings) whatever the
// implementation. Retry, limits, counts and faults are wrappers of [Store] in this
// package. Caching, checksums of blocks and the choice of ranges are left to others.
package objstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

// Store reads one bucket. Methods are safe for concurrent use, return promptly
// when ctx ends, and return errors that name operation and key and match one
// of the classes below, or none when the failure may be transient.
type Store interface {
	// Get opens the bytes [off, off+n) of the version etag of key; n > 0 and the
	// range lies within the object. The body yields exactly n bytes or an error
	// other than io.EOF: a short or long answer, another range or another version
	// never goes unnoticed ([ErrChanged] for the last). The caller closes the body.
	Get(ctx context.Context, key, etag string, off, n int64) (io.ReadCloser, error)

	// Head describes the current version of key.
	Head(ctx context.Context, key string) (Info, error)

	// List returns one page of the names under a prefix.
	List(ctx context.Context, req ListRequest) (Page, error)
}

// Info describes one version of an object.
type Info struct {
	Key     string
	Size    int64  // bytes
	ETag    string // without quotes; "" when the origin tells none: nobody can read that
	ModTime time.Time
}

// ListRequest asks for a page of names.
type ListRequest struct {
	Prefix string
	// Delimiter is "/" to see one level of names, with [Page.Prefixes] for those
	// below, or "" to see all keys.
	Delimiter string
	Token     string // "" for the first page, else the Next of the page before
	Limit     int    // at most this many entries; 0 means 1000, the most S3 gives
}

// Page is a part of a listing. Origins mostly sort by key bytes; callers must
// not depend on it.
type Page struct {
	Objects  []Info
	Prefixes []string // each ends with the delimiter
	Next     string   // token of the following page, "" at the end
}

// Classes of errors, to be found with errors.Is. Everything else counts as transient.
// [ErrUnavailable] is transient as well: it says that this was so until somebody's time for it was over.
var (
	ErrNotExist    = errors.New("no such object")
	ErrNoBucket    = errors.New("no such bucket")
	ErrPermission  = errors.New("access denied")
	ErrCredentials = errors.New("no usable credentials")
	ErrChanged     = errors.New("object was changed or deleted meanwhile")
	ErrThrottled   = errors.New("origin asks to slow down")
	ErrClockSkew   = errors.New("this machine's clock differs too much from the origin's")
	ErrInvalid     = errors.New("request cannot be made")
	ErrUnavailable = errors.New("origin does not answer")
)

// Final reports whether asking again cannot help: the error has a class other
// than [ErrThrottled] and [ErrUnavailable], or ctx ended.
func Final(err error) bool {
	for _, class := range [...]error{ErrNotExist, ErrNoBucket, ErrPermission, ErrCredentials, ErrChanged,
		ErrClockSkew, ErrInvalid, context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, class) {
			return true
		}
	}
	return false
}

// Unavailable gives a transient error of an origin the class [ErrUnavailable], when
// the time to try again is over. Other errors stay as they are.
func Unavailable(err error) error {
	if err == nil || Final(err) || errors.Is(err, ErrThrottled) || errors.Is(err, ErrUnavailable) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}
