package control

import "errors"

// Operation is what a caller wants.
type Operation string

// The operations of the socket.
const (
	OpMount   Operation = "mount"
	OpUmount  Operation = "umount"
	OpUsage   Operation = "usage"
	OpStatus  Operation = "status"
	OpRefresh Operation = "refresh"
	OpList    Operation = "ls"
	OpRead    Operation = "get"
	OpVersion Operation = "version"
	OpPin     Operation = "pin"
	OpDrain   Operation = "drain"
	OpWarm    Operation = "warm"
)

// ErrRefused says that a caller may not do what it asked for.
var ErrRefused = errors.New("refused")

// Authorize decides whether a caller may do something on a node that runs as
// the user self: root and self may do everything. Others may ask who answers and
// how it is, if the socket's mode lets them. What else they ask is refused, with credentials of
// their own as well: it would have the node connect where they say, keep what they
// say, and mount with its rights. The
// error is in words meant for the user and matches [ErrRefused].
func Authorize(caller Caller, self uint32, op Operation) error {
	switch {
	case caller.UID == 0 || caller.UID == self:
		return nil
	case op == OpVersion || op == OpStatus:
		return nil
	case op == OpMount:
		return refusal("the node takes this from root and its own user only: ask root to mount for you (--credentials-file, --uid, --allow-other)")
	default:
		return refusal("the node takes this from root and its own user only; ask root")
	}
}

// refusal is an error of class [ErrRefused] whose text is all for the user.
type refusal string

func (r refusal) Error() string        { return string(r) }
func (r refusal) Is(target error) bool { return target == ErrRefused }
