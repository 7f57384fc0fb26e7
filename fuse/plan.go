package fuse

import (
	"bytes"
	"errors"
	"strings"
	"syscall"
	"unicode/utf8"
	"unsafe"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"github.com/shardwell/shardwell/fuse/prefetch"
	"golang.org/x/sys/unix"
)

// A plan is given by an ioctl on any directory of the mount. A read-only mount refuses setxattr in
// the kernel, whoever asks; an ioctl it passes on, also from a container that sees a part of
// the mount only, and from whoever may read there. Reading ahead is all that comes of it.
const (
	// PlanIoctl is _IOW('S', 0x50, char[PlanBytes]). Its argument is text, filled up with NUL: a
	// line with the word new (the plan is replaced) or more (names are added), a blank and
	// a label of at most 64 bytes (may be empty); then a path a line, relative to the directory.
	PlanIoctl = 1<<30 | PlanBytes<<16 | 'S'<<8 | 0x50
	// PlanBytes is the size of the argument.
	PlanBytes = 8192
)

// Ioctl takes plans. ENOTTY is what other files answer to requests that they do not know.
func (f *rawFS) Ioctl(_ <-chan struct{}, in *gofuse.IoctlIn, arg []byte, _ *gofuse.IoctlOut, _ []byte) gofuse.Status {
	if in.Cmd != PlanIoctl {
		return gofuse.Status(syscall.ENOTTY)
	}
	d, ok, err := f.s.directory(in.NodeId)
	switch {
	case err != nil:
		return f.s.fail(err, "plan", "")
	case !ok:
		return gofuse.Status(syscall.ENOTDIR)
	case f.s.cfg.NextFiles < 0 || f.s.cfg.PrefetchBytes < 0:
		return gofuse.Status(syscall.EOPNOTSUPP)
	}
	label, add, names, ok := parsePlan(arg)
	if !ok {
		return gofuse.EINVAL
	}
	if err := f.s.next.plan(label, add, f.s.pathOf(d.Prefix), names); err != nil {
		return gofuse.ToStatus(err)
	}
	return gofuse.OK
}

func parsePlan(arg []byte) (label string, add bool, names []string, ok bool) {
	text, _, _ := bytes.Cut(arg, []byte{0})
	head, rest, _ := strings.Cut(string(text), "\n")
	word, label, _ := strings.Cut(head, " ")
	if word != "new" && word != "more" || len(label) > maxLabelBytes || !printable(label) {
		return "", false, nil, false
	}
	for name := range strings.Lines(rest) {
		if name = strings.TrimSuffix(name, "\n"); name != "" {
			names = append(names, name)
		}
	}
	return label, word == "more", names, true
}

// printable reports whether a label can be shown in one line.
func printable(label string) bool {
	return utf8.ValidString(label) && !strings.ContainsFunc(label, func(r rune) bool { return r < ' ' || r == 0x7f })
}

// Plan is an order in which files of a mount will be read.
type Plan struct {
	Label string   // whose: a rank, or "" when there is one for all
	Names []string // relative to the directory
}

// Give has the mount that dir, an open directory, lies in fetch the files of a plan ahead of whoever opens
// them; an empty plan ends an earlier one. The errors are those of ioctl(2): ENOTTY when it is no mount
// of ours, EOPNOTSUPP when the mount fetches nothing ahead, ENOSPC when the plan is too long.
func (p Plan) Give(dir int) error {
	if len(p.Label) > maxLabelBytes || !printable(p.Label) || len(p.Names) > prefetch.MaxPlanNames {
		return syscall.EINVAL
	}
	text := []byte("new " + p.Label + "\n")
	send := func() error {
		arg := make([]byte, PlanBytes)
		copy(arg, text)
		return ioctlBytes(dir, PlanIoctl, arg)
	}
	head := len("more ") + len(p.Label) + 1
	for _, n := range p.Names {
		if strings.ContainsAny(n, "\n\x00") || head+len(n)+1 >= PlanBytes {
			return syscall.EINVAL
		}
		if len(text)+len(n)+1 >= PlanBytes { // one NUL at least
			if err := send(); err != nil {
				return err
			}
			text = append(text[:0], "more "+p.Label+"\n"...)
		}
		text = append(append(text, n...), '\n')
	}
	return send()
}

// Limits of a plan.
const (
	MaxPlanNames = prefetch.MaxPlanNames
	MaxPlanBytes = prefetch.MaxPlanBytes
)

// SourceOf returns the URI of an open directory of a mount of ours; ENOTTY when it is none.
func SourceOf(dir int) (string, error) { return xattrOf(dir, xattrSource) }

// DescribePlans tells how far the plans of a mount are that an open directory lies in, a line each.
// ENOTTY when it is no mount of ours.
func DescribePlans(dir int) (string, error) { return xattrOf(dir, xattrPlan) }

// maxXattrBytes is the kernel's limit.
const maxXattrBytes = 64 << 10

func xattrOf(fd int, name string) (string, error) {
	buf := make([]byte, maxXattrBytes)
	n, err := unix.Fgetxattr(fd, name, buf)
	switch {
	case errors.Is(err, unix.ENODATA), errors.Is(err, unix.EOPNOTSUPP):
		return "", syscall.ENOTTY
	case err != nil:
		return "", err
	}
	return string(buf[:n]), nil
}

func ioctlBytes(fd int, request uintptr, arg []byte) error {
	for {
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(unsafe.Pointer(unsafe.SliceData(arg))))
		switch errno {
		case 0:
			return nil
		case syscall.EINTR:
		default:
			return errno
		}
	}
}
