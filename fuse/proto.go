package fuse

import (
	"encoding/binary"
	"syscall"
	"unsafe"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
)

// Requests of the protocol that the loop knows; numbers of linux/fuse.h.
const (
	opLookup      = 1
	opForget      = 2
	opGetattr     = 3
	opOpen        = 14
	opRead        = 15
	opStatfs      = 17
	opRelease     = 18
	opGetxattr    = 22
	opListxattr   = 23
	opInit        = 26
	opOpendir     = 27
	opReaddir     = 28
	opReleasedir  = 29
	opInterrupt   = 36
	opDestroy     = 38
	opBatchForget = 42
	opReaddirplus = 44
)

// uniqueResent marks a request that was sent again to a successor. It belongs to
// the id that the reply carries, and is masked before the id is used as a key.
const uniqueResent = 1 << 63

const inHeaderBytes = int(unsafe.Sizeof(gofuse.InHeader{}))

// initInMinor is where the request INIT has the minor version of the protocol (struct
// fuse_init_in), and epochMinor that of Linux 6.16, which can be told to forget all names.
const (
	initInMinor  = inHeaderBytes + 4
	initInFlags2 = inHeaderBytes + 16
	epochMinor   = 44
)

// Offsets in a reply to INIT, header included (struct fuse_init_out).
const (
	initOutMaxPages = replyHeaderBytes + 28
	initOutFlags2   = replyHeaderBytes + 32
	initOutFlags    = replyHeaderBytes + 12
)

func opOf(opcode uint32) Op {
	switch opcode {
	case opLookup:
		return OpLookup
	case opGetattr:
		return OpGetattr
	case opOpen:
		return OpOpen
	case opRead:
		return OpRead
	case opRelease:
		return OpRelease
	case opOpendir:
		return OpOpendir
	case opReaddir:
		return OpReaddir
	case opReaddirplus:
		return OpReaddirplus
	case opStatfs:
		return OpStatfs
	case opGetxattr, opListxattr:
		return OpXattr
	}
	return OpOther
}

// headerOf looks at the bytes of a request, which are at least inHeaderBytes.
func headerOf(req []byte) *gofuse.InHeader { return (*gofuse.InHeader)(unsafe.Pointer(&req[0])) }

// readInOf looks at a READ, READDIR or READDIRPLUS request; nil when it is too short.
func readInOf(req []byte) *gofuse.ReadIn {
	if len(req) < int(unsafe.Sizeof(gofuse.ReadIn{})) {
		return nil
	}
	return (*gofuse.ReadIn)(unsafe.Pointer(&req[0]))
}

// putHeader writes the header of a reply of n bytes, header included.
func putHeader(b []byte, n int, errno syscall.Errno, unique uint64) {
	binary.NativeEndian.PutUint32(b[0:], uint32(n))
	binary.NativeEndian.PutUint32(b[4:], uint32(-int32(errno)))
	binary.NativeEndian.PutUint64(b[8:], unique)
}

// errnoOf reads the error from a reply.
func errnoOf(b []byte) syscall.Errno {
	return syscall.Errno(-int32(binary.NativeEndian.Uint32(b[4:])))
}

// reply sends one reply. That the request is gone (ENOENT) or the connection is no
// more is no concern of whoever answers.
func (s *Session) reply(b []byte) {
	for !s.leaving.Load() {
		_, err := syscall.Write(s.dev, b)
		if err == syscall.EINTR {
			continue
		}
		if err != nil && err != syscall.ENOENT && err != syscall.ENODEV && err != syscall.ECONNABORTED {
			s.log.Error("file system: reply refused by the kernel", "bytes", len(b), "error", err)
		}
		if unique := binary.NativeEndian.Uint64(b[8:]); unique&uniqueResent != 0 || !s.resends.Load() {
			s.notes.Answered(unique &^ uniqueResent)
		}
		return
	}
}

// replyError answers a request with an error, 0 for a bare success.
func (s *Session) replyError(unique uint64, errno syscall.Errno) {
	var b [replyHeaderBytes]byte
	putHeader(b[:], len(b), errno, unique)
	s.reply(b[:])
}
