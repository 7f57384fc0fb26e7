package fuse

import (
	"context"
	"errors"
	"io"
	"syscall"

	"github.com/shardwell/shardwell/objstore"
)

// where an error met the reader: the same class means different things.
type where int

const (
	atLookup where = iota // look-up, open, list
	atHandle              // a file that is open
)

// toErrno translates an error to what the kernel is told: the only place that does.
func toErrno(err error, at where) syscall.Errno {
	switch {
	case err == nil, errors.Is(err, io.EOF):
		return 0
	case errors.Is(err, objstore.ErrNotExist), errors.Is(err, objstore.ErrNoBucket):
		if at == atHandle {
			return syscall.ESTALE
		}
		return syscall.ENOENT
	case errors.Is(err, objstore.ErrChanged):
		return syscall.ESTALE
	case errors.Is(err, objstore.ErrPermission), errors.Is(err, objstore.ErrCredentials):
		return syscall.EACCES
	case errors.Is(err, context.Canceled):
		return syscall.EINTR
	case errors.Is(err, syscall.ENFILE): // too many are open, here or on the machine
		return syscall.ENFILE
	}
	if errno, ok := isTarError(err); ok {
		return errno
	}
	if errno, ok := err.(syscall.Errno); ok { // our own word, not one from a network
		return errno
	}
	return syscall.EIO
}
